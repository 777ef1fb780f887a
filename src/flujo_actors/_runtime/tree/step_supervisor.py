"""Supervision of the child steps of one composite: nursery, report channel, sequences.

Rules:

1. A child reports exactly once in every case; a cancelled one reports `Aborted` with `cut_short`.
2. The report goes through an unbounded memory channel, so sending it never waits and cannot be cancelled.
3. When the composite leaves the `async with` block, no child runs any more and all reports are in.
4. A cancelled child ends quietly: its parent cancelled it, or was itself cancelled. So cancellation does not
   pile up in groups of groups, which a thousand levels would not survive.
5. A cancellation that neither its parent nor the caller requested is a failure: of the child if it was the child's
   own, of the composite if other code cancelled the nursery. No composite completes without the outcome of a child.
6. One exception leaves the block, not a group of one.
7. There is no other way to perform a step: every span of the ledger is one task, named by its path.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from types import TracebackType
from typing import Any, Protocol

import attrs
import trio

from ..._core import step_paths
from ..._core.attempt_results import (
    NO_TEXTS,
    Attempt,
    AttemptFailed,
    AttemptStopped,
    AttemptSucceeded,
    degraded_texts,
    marks,
)
from ..._core.lazy_exports import PartTable
from ..._core.outcomes import Aborted, Failure, Paused, Success
from ..._core.step_paths import ROOT
from ..._dsl.pipeline import Pipeline
from ...errors import ProtocolError
from ..run.messages import AttemptInput, StepRequest, StepSettled, StepState, UsageTotal
from ..run.run_environment import Run

ROADS = PartTable("road")
"""Ways to make the attempts of a step, by `road` of its declaration."""

KINDS = PartTable("kind of step")
"""Attempts of composites, by `kind` of the declaration."""

WRAPPERS = PartTable("part")
"""Functions of optional parts of a run: limits, handlers, compensations, confidence, selections, approvals, guards."""

_starts = itertools.count()
"""Start numbers of all children; a later start has the larger number."""


LONGEST_RUN = 1024
"""Maximum number of consecutive reports read without a scheduling round."""


class StrayCancellation(RuntimeError):
    """Steps were cancelled by foreign code, not parent or caller."""


class StepGate(Protocol):
    """The gate that every step passes; see `step_actor`."""

    def perform(self, state: StepState) -> Coroutine[Any, Any, StepSettled]:
        """Perform the step and return its report."""

    def abandon(self, state: StepState) -> StepSettled:
        """Settle a step that was cancelled."""

    def fail(self, state: StepState, stray: trio.Cancelled) -> Coroutine[Any, Any, StepSettled]:
        """Settle a step that ended in its own cancellation as failed."""


class StepSupervisor:
    """Supervisor of one composite: starts step actors, receives one report from each."""

    __slots__ = (
        "_manager",
        "_nursery",
        "_performer",
        "_read",
        "_receive",
        "_send",
        "_spawned",
        "_stopped",
        "_stray",
        "_total",
    )

    _nursery: trio.Nursery
    _receive: trio.MemoryReceiveChannel[Any]  # reports, and None for the end of a task of `feed`

    def __init__(self, performer: StepGate, total: UsageTotal) -> None:
        self._performer, self._total = performer, total
        self._send, self._receive = trio.open_memory_channel[StepSettled | None](math.inf)
        self._manager = trio.open_nursery()
        self._spawned = self._read = 0
        self._stopped = False
        self._stray: StrayCancellation | None = None

    async def __aenter__(self) -> StepSupervisor:
        self._nursery = await self._manager.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        if error is not None and not self._stopped:
            self._stray = self._stray_cancellation()
        cut_short = True
        try:
            swallowed = await self._manager.__aexit__(kind, error, traceback)
            await trio.lowlevel.checkpoint_if_cancelled()
            cut_short = error is not None
        except BaseExceptionGroup as group:
            raise _single(group) from None
        finally:
            if cut_short:
                self._count_unread()
        if self._stray is not None:
            raise self._stray
        if not self._stopped:
            self.check_complete()
        return swallowed

    def spawn(self, request: StepRequest) -> None:
        """Start the actor of one step."""
        self._spawned += 1
        self._nursery.start_soon(self._actor, request, next(_starts), name=request.path)

    def feed(self, fill: Callable[[Callable[[StepRequest], None]], Awaitable[None]]) -> None:
        """Start a task that spawns further steps; `None` reports its end."""
        self._spawned += 1
        self._nursery.start_soon(self._fed, fill)

    async def _fed(self, fill: Callable[[Callable[[StepRequest], None]], Awaitable[None]]) -> None:
        try:
            await fill(self.spawn)
        finally:
            self._send.send_nowait(None)

    def one(self, request: StepRequest) -> Awaitable[StepSettled]:
        """Start one step actor and await its report, for sequential parents."""
        self._nursery.start_soon(self._actor, request, next(_starts), name=request.path)
        return self._receive.receive()

    async def next(self) -> StepSettled | None:
        """Return any child's next report; `None` ends a `feed` task."""
        settled: StepSettled | None
        try:
            settled = self._receive.receive_nowait()
            if not self._read % LONGEST_RUN:
                await trio.lowlevel.cancel_shielded_checkpoint()
        except trio.WouldBlock:
            settled = await self._receive.receive()
        self._read += 1
        return settled

    @property
    def waiting(self) -> int:
        """Return the number of unread reports."""
        return self._spawned - self._read

    def stop(self) -> None:
        """Cancel all children."""
        self._stray, self._stopped = self._stray_cancellation(), True
        self._nursery.cancel_scope.cancel()

    def unread(self) -> Iterator[StepSettled]:
        """After the block: the reports that were not read."""
        with contextlib.suppress(trio.WouldBlock):
            while True:
                settled = self._receive.receive_nowait()
                self._read += 1
                if settled is not None:
                    yield settled

    def _count_unread(self) -> None:
        """Count the usage of the children of a composite that was cancelled."""
        for settled in self.unread():
            self._total.include(settled.result)

    def _stray_cancellation(self) -> StrayCancellation | None:
        """Return the error of a composite cancelled by foreign code (rule 5)."""
        if not self._nursery.cancel_scope.cancel_called:
            return None
        names = ", ".join(sorted(repr(task.name) for task in self._nursery.child_tasks)[:3])
        return StrayCancellation(
            f"the nursery of {names or 'the steps'} was cancelled by code that is not part of the run; a step may "
            "cancel only scopes and nurseries that it opened itself"
        )

    def check_complete(self) -> None:
        """Refuse to complete a composite with an unaccepted child's outcome."""
        if self.waiting:
            raise ProtocolError(f"a composite ended without the outcome of {self.waiting} of its steps")

    async def _actor(self, request: StepRequest, started: int) -> None:
        settled, state = None, StepState(request)
        try:
            settled = await self._performer.perform(state)
        except trio.Cancelled as error:
            with contextlib.suppress(trio.Cancelled):  # rule 4
                await trio.lowlevel.checkpoint_if_cancelled()
                settled = await self._performer.fail(state, error)
        finally:
            settled = self._performer.abandon(state) if settled is None else settled
            if settled.undo or settled.cause is not None:
                self._total.leave(started, settled.undo, settled.cause)
            self._send.send_nowait(settled)


def _single(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the cause without accompanying cancellations; a group only for several."""
    rest = group.split(trio.Cancelled)[1]
    if rest is None:
        return group.exceptions[0]
    return rest.exceptions[0] if len(rest.exceptions) == 1 else rest


class Supervises(Protocol):
    """Protocol of a run that can start step actors."""

    @property
    def run(self) -> Run:
        """Return the run they belong to."""

    def children(self, total: UsageTotal) -> StepSupervisor:
        """Return a nursery for one composite's actors, counted in `total`."""


async def of_one_child(spawner: Supervises, total: UsageTotal, request: StepRequest) -> StepSettled:
    """Return the report of a composite's only child, counted in `total`."""
    async with spawner.children(total) as children:
        settled = await children.one(request)
        total.include(settled.result)  # here: leaving the block may raise, and the usage counts all the same
    return settled


# --- one after the other --------------------------------------------------------------------------------------


async def sequence(spawner: Supervises, pipeline: Pipeline, work: AttemptInput) -> Attempt:
    """Run the steps in order, each on the previous output."""
    data, context, degraded, around = work.data, work.context, work.degraded, work.around
    scope = around.scope
    if scope is not None and "steps" in pipeline.scope_keywords:
        scope = scope.inner()
        around = attrs.evolve(around, scope=scope)
    async with spawner.children(work.state) as steps:
        for step, name in pipeline.named_steps:
            path = step_paths.named(work.path, name)
            request = work.child(step, name, path, data, context, degraded=degraded, around=around)
            settled = await steps.one(request)
            done = settled.success
            work.state.include(done or settled.result)
            if done is None:
                return ended_by(work, name, settled, context)
            data, context = done.output, settled.context
            degraded = degraded_texts(done) if done.metadata else NO_TEXTS
            work.state.last_context = context
            if around is not work.around:
                assert scope is not None
                scope.settle(name, data)
    return AttemptSucceeded(output=data, context=context, metadata=marks(data, degraded) if degraded else {})


def texts_in(settled: StepSettled) -> frozenset[str]:
    """Return the degraded texts in a successful child's output."""
    assert isinstance(settled.outcome, Success)
    result = settled.outcome.step_result
    return degraded_texts(result) if result.metadata else NO_TEXTS


def output_of(settled: StepSettled) -> object:
    """Return the output of a child that succeeded."""
    assert isinstance(settled.outcome, Success)
    return settled.outcome.step_result.output


def ended_by(work: AttemptInput, child: str, settled: StepSettled, before: object) -> AttemptFailed | AttemptStopped:
    """Return the end of a composite whose required child did not succeed.

    `before` is the context given to the child.
    """
    match settled.verdict:
        case Failure(error=error, feedback=feedback, step_result=result):
            whose = f"step {child!r} of {work.name!r}" if work.name else f"step {child!r}"
            output = None if result is None else result.output
            left = None if settled.context is before else _handler_context(work, settled, before)
            raised = settled.agent_name and (feedback or "").startswith("Agent execution failed with")
            asked = f" (agent: {settled.agent_name})" if raised else ""
            text = f"{whose} failed: {feedback}{asked}"
            return AttemptFailed(error=error, feedback=text, output=output, of_child=True, context=left)
        case Paused() as paused:
            return AttemptStopped(outcome=paused, context=settled.context)
        case Aborted() as aborted:
            return AttemptStopped(outcome=aborted)
        case Success():
            raise ProtocolError(f"step {child!r} succeeded, which ends nothing")


def _handler_context(work: AttemptInput, settled: StepSettled, before: object) -> object:
    """Return context changes of a failed child's handlers, to keep."""
    if work.span == ROOT:
        work.state.last_context = settled.context
        return None
    return WRAPPERS["carried"](before, settled.context, work.context)


def vetoed(veto: Aborted | Failure) -> AttemptFailed | AttemptStopped:
    """Return the end of an attempt after a hook's veto."""
    if isinstance(veto, Aborted):
        return AttemptStopped(outcome=veto)
    return AttemptFailed(error=veto.error, feedback=veto.feedback or "")
