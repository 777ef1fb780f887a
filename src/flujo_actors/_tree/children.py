"""The children of one composite step: tasks in its nursery, the mailbox they report to, and steps one after the other.

Rules:

1. A child reports exactly once, whatever happens to it; one that is cut short reports `Aborted`.
2. The report goes into a box that cannot be full, so it never waits and cannot be cancelled.
3. When the composite leaves the `async with` block, no child runs any more and all reports are in.
4. A child that is cancelled ends quietly: whoever cancelled it cancelled the composite too, or the composite did
   it itself. So cancellation does not pile up in groups of groups, which a thousand levels would not survive.
5. What leaves the block is one exception, not a group of one.
6. Of children that follow one another, one that has no steps in or beside it gets no task: it runs in that of the
   composite, in a context of its own. Between two of them others get a turn, and a cancellation is noticed.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from types import TracebackType
from typing import Any, Protocol

import attrs
import trio

from .._bridge.own_context import OwnContext
from .._core import paths
from .._core.attempts import Attempt, Done, Failed, Stopped
from .._core.degraded import NO_TEXTS, degraded_texts, marks
from .._core.outcomes import Aborted, Failure, Paused, Success
from .._core.paths import ROOT
from .._dsl.pipeline import Pipeline
from .._run.messages import Bill, Request, Settled, Work
from .._run.run import Run
from ..actors._mailbox import Mailbox
from ..errors import ProtocolError

_starts = itertools.count()
"""Numbers the children of all composites: what started later has the larger number."""


class Performer(Protocol):
    """Who does the work of an actor."""

    def perform(self, request: Request) -> Coroutine[Any, Any, Settled]:
        """Do the step and say how it ended."""

    def is_just_a_call(self, request: Request) -> bool:
        """Whether the step is one call and nothing else."""

    def needs_no_task(self, request: Request) -> bool:
        """Whether the step can be performed in the task of what is around it."""

    def just_call(self, request: Request) -> Coroutine[Any, Any, Settled]:
        """Do such a step and say how it ended."""

    def abandon(self, request: Request) -> Settled:
        """Settle a step that was cut short."""


class Children:
    """An open nursery of step actors."""

    __slots__ = ("_bill", "_box", "_manager", "_nursery", "_performer", "_spawned")

    _nursery: trio.Nursery

    def __init__(self, performer: Performer, bill: Bill) -> None:
        self._performer, self._bill = performer, bill
        self._box: Mailbox[Settled] = Mailbox(math.inf)
        self._manager = trio.open_nursery()
        self._spawned = 0

    async def __aenter__(self) -> Children:
        self._nursery = await self._manager.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        cut_short = True
        try:
            swallowed = await self._manager.__aexit__(kind, error, traceback)
            await trio.lowlevel.checkpoint_if_cancelled()
            cut_short = error is not None
        except BaseExceptionGroup as group:
            raise _single(group) from None
        finally:
            if cut_short:
                self._count_the_rest()
        return swallowed

    def spawn(self, request: Request) -> None:
        """Start an actor for the request."""
        self._spawned += 1
        self._nursery.start_soon(self._actor, request, next(_starts), name=request.path)

    @property
    def waiting(self) -> int:
        """How many children were started whose report has not been read."""
        return self._spawned - self._box.taken

    def settled(self) -> Awaitable[Settled]:
        """The next report."""
        return self._box.get()

    def stop(self) -> None:
        """Cut short whatever still runs."""
        self._nursery.cancel_scope.cancel()

    def rest(self) -> Iterator[Settled]:
        """After the block: the reports nobody has read."""
        while self.waiting:
            yield self._box.get_nowait()

    def _count_the_rest(self) -> None:
        """The composite was cut short: what its children used is counted all the same."""
        for settled in self.rest():
            self._bill.include(settled.result)

    async def _actor(self, request: Request, started: int) -> None:
        settled: Settled | None = None
        try:
            settled = await self._performer.perform(request)
        except trio.Cancelled:
            return  # rule 4
        finally:
            settled = self._performer.abandon(request) if settled is None else settled
            if settled.undo or settled.cause is not None:
                self._bill.leave(started, settled)
            self._box.put_nowait(settled)


def _single(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """What went wrong, without the cancellations beside it; a group only if it was more than one thing."""
    rest = group.split(trio.Cancelled)[1]
    if rest is None:
        return group.exceptions[0]
    return rest.exceptions[0] if len(rest.exceptions) == 1 else rest


# --- one after the other --------------------------------------------------------------------------------------


class InTurn:
    """The children of a composite that has one at a time; who needs no task gets none (rule 6)."""

    __slots__ = ("_actors", "_bill", "_performer", "_waited")

    def __init__(self, performer: Performer, bill: Bill) -> None:
        self._performer, self._bill = performer, bill
        self._actors: Children | None = None
        self._waited = False

    async def __aenter__(self) -> InTurn:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        if self._actors is not None:
            return await self._actors.__aexit__(kind, error, traceback)
        if error is None:
            await trio.lowlevel.checkpoint_if_cancelled()
        return None

    def settled(self, request: Request) -> Coroutine[Any, Any, Settled]:
        """Do a step, and wait for its report."""
        if self._performer.is_just_a_call(request):
            return self._called(request, self._performer.just_call)
        if self._performer.needs_no_task(request):
            return self._called(request, self._performer.perform)
        return self._acted(request)

    async def _acted(self, request: Request) -> Settled:
        if self._actors is None:
            self._actors = await Children(self._performer, self._bill).__aenter__()
        self._actors.spawn(request)
        return await self._actors.settled()

    async def _called(self, request: Request, perform: Callable[[Request], Coroutine[Any, Any, Settled]]) -> Settled:
        if not self._waited:
            await trio.lowlevel.checkpoint()
        settled: Settled | None = None
        here = OwnContext(perform(request))
        try:
            settled = await here
        finally:
            here.leave()
            if settled is None:
                settled = self._performer.abandon(request)
                self._bill.include(settled.result)
            if settled.undo or settled.cause is not None:
                self._bill.leave(next(_starts), settled)
        self._waited = here.waited
        return settled


class Spawner(Protocol):
    """Who can start actors in a run."""

    @property
    def run(self) -> Run:
        """The run they belong to."""

    def children(self, bill: Bill) -> Children:
        """A nursery for the actors of one composite, which counts in `bill`."""

    def in_turn(self, bill: Bill) -> InTurn:
        """The same for a composite that has one child at a time."""


async def of_one_child(spawner: Spawner, bill: Bill, request: Request) -> Settled:
    """The report of the only child of a composite, counted in `bill`."""
    async with spawner.in_turn(bill) as children:
        settled = await children.settled(request)
        bill.include(settled.result)  # here: leaving the block may raise, and it was used all the same
    return settled


async def sequence(spawner: Spawner, pipeline: Pipeline, work: Work) -> Attempt:
    """The steps in order, each on the output of the one before."""
    data, context, degraded, around = work.data, work.context, work.degraded, work.around
    scope = around.scope
    if scope is not None and "steps" in pipeline.asks_of_scope:
        scope = scope.inner()
        around = attrs.evolve(around, scope=scope)
    async with spawner.in_turn(work.tally) as steps:
        for step, name in pipeline.named_steps:
            path = paths.named(work.path, name)
            request = work.child(step, name, path, data, context, degraded=degraded, around=around)
            settled = await steps.settled(request)
            work.tally.include(settled.result)
            if not isinstance(settled.verdict, Success):
                return ended_by(work, name, settled, context)
            data, context, degraded = output_of(settled), settled.context, texts_in(settled)
            work.tally.context = context
            if around is not work.around:
                assert scope is not None
                scope.settle(name, data)
    return Done(output=data, context=context, metadata=marks(data, degraded) if degraded else {})


def texts_in(settled: Settled) -> frozenset[str]:
    """The texts in the output of a child that succeeded which stand for values."""
    assert isinstance(settled.outcome, Success)
    result = settled.outcome.step_result
    return degraded_texts(result) if result.metadata else NO_TEXTS


def output_of(settled: Settled) -> object:
    """The output of a child that succeeded."""
    assert isinstance(settled.outcome, Success)
    return settled.outcome.step_result.output


def ended_by(work: Work, child: str, settled: Settled, before: object) -> Failed | Stopped:
    """How a composite ends when a child that it needs did not succeed, which it had given the context `before`."""
    match settled.verdict:
        case Failure(error=error, feedback=feedback, step_result=result):
            whose = f"step {child!r} of {work.name!r}" if work.name else f"step {child!r}"
            output = None if result is None else result.output
            left = None if settled.context is before else _left_by_handlers(work, settled, before)
            return Failed(
                error=error, feedback=f"{whose} failed: {feedback}", output=output, of_child=True, context=left
            )
        case Paused() | Aborted() as outcome:
            return Stopped(outcome=outcome)
        case Success():
            raise ProtocolError(f"step {child!r} succeeded, which ends nothing")


def _left_by_handlers(work: Work, settled: Settled, before: object) -> object:
    """What the handlers of a failed child left in the context stays, although the attempt around it is dropped."""
    if work.span == ROOT:
        work.tally.context = settled.context
        return None
    from .._context.merging import carried  # only for those who change the context

    return carried(before, settled.context, work.context)


def vetoed(veto: Aborted | Failure) -> Failed | Stopped:
    """How an attempt ends when a hook is against going on."""
    if isinstance(veto, Aborted):
        return Stopped(outcome=veto)
    return Failed(error=veto.error, feedback=veto.feedback or "")
