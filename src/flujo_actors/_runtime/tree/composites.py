"""Composites: start children as actors, make one attempt of their reports.

A composite never copies the context: no code changes one in place, so children may share it until they write.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Container, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import attrs
import trio
from outcome import Error, Value

from ..._core import step_paths
from ..._core.attempt_results import Attempt, AttemptFailed, AttemptStopped, AttemptSucceeded, degraded_texts, marks
from ..._core.outcomes import Aborted, Failure, ItemRange, Paused, StepResult, Success
from ..._core.retry_decisions import ContinueWith, gathered, stops_siblings
from ..._core.step_paths import StepPath
from ..._dsl.kinds import BranchOn, HumanInTheLoop, LoopUntil, MapOver, Merging, Parallel, SequenceOf
from ..._dsl.pipeline import AnyStep
from ..._durable.journal import NO_OUTPUT
from ...errors import ContextError
from ..context.copies import own
from ..context.merge import merged
from ..run.hooks import notify_late
from ..run.messages import AttemptInput, StepRequest, StepSettled
from ..run.run_environment import Run
from ..run.step_results import budget_for, recall_usage
from ..run.user_functions import call, failure_of, given, with_context_copy
from .step_supervisor import (
    KINDS,
    WRAPPERS,
    StepSupervisor,
    Supervises,
    ended_by,
    of_one_child,
    output_of,
    sequence,
    texts_in,
)

if TYPE_CHECKING:
    from ..._durable.long_runs import SettledItems


@KINDS.entry("sequence")
def run_sequence(spawner: Supervises, step: SequenceOf, work: AttemptInput) -> Awaitable[Attempt]:
    """Return the last step's output."""
    return sequence(spawner, step.body, work)


@KINDS.entry("question")
async def pause_for_input(spawner: Supervises, step: HumanInTheLoop, work: AttemptInput) -> Attempt:
    """Return a pause; the answer continues the step."""
    run = spawner.run
    if isinstance(step.message, str):
        return _question(step.message, work)
    budget = budget_for(step, "message", work.quotas)
    asked = await with_context_copy(run, step.message, own(work.data), work.context, work.scope, **budget)
    if isinstance(asked, Error):
        return failure_of(run, asked.error, subject=f"The message of step {step.name!r}")
    text = await call(run, str, asked.value)
    if isinstance(text, Error):
        return failure_of(run, text.error, subject=f"The message of step {step.name!r}")
    return _question(text.value, work)


def _question(text: str, work: AttemptInput) -> AttemptStopped:
    """Return the prompt, with the reason of a refused earlier answer."""
    refusal = work.state.refusal
    again = "" if refusal is None else f"\n\nThe last answer was not taken: {refusal}"
    return AttemptStopped(outcome=Paused(message=f"{text}{again}"))


# --- one at a time -----------------------------------------------------------------------------------------


@KINDS.entry("loop")
async def loop_until(spawner: Supervises, loop: LoopUntil, work: AttemptInput) -> Attempt:
    """Return the body on its own last output, until the condition holds."""
    guarded = None if loop.guard is None else WRAPPERS["loop_guard"](spawner.run, loop.guard, work)
    kept = None if loop.keep_history is None else WRAPPERS["kept_turns"](spawner.run, loop, work, guarded)
    turn, data, context, degraded = _before_turns(work) if kept is None else kept.first or _before_turns(work)
    hint: str | None = None
    async with spawner.children(work.state) as turns:
        while turn != loop.max_loops or (kept is not None and kept.is_recalled):
            if kept is None or kept.begin():
                turn += 1
                request = work.child(
                    loop.body, loop.name, step_paths.item(work.path, turn), data, context, degraded=degraded
                )
                settled = await turns.one(request if hint is None else request.with_keywords(feedback=hint))
                if kept is None and turn > HELD:
                    _count_turn(spawner.run, work, turn, settled)
                else:
                    work.state.include(settled.result)
                if not isinstance(settled.verdict, Success):
                    return ended_by(work, f"turn {turn}", settled, context)
                data, context, degraded = output_of(settled), settled.context, texts_in(settled)
                if kept is not None:
                    kept.end(settled.verdict.step_result, context)
            met = await _condition(spawner, loop, work, data, context)
            if isinstance(met, Error):
                return failure_of(spawner.run, met.error, subject=f"The condition of loop {loop.name!r}")
            if met.value:
                noted = {"loops": turn, **marks(data, degraded)}
                return AttemptSucceeded(output=data, context=context, metadata=noted)
            verdict = None if guarded is None else await guarded.turned(data, context)
            if isinstance(verdict, AttemptFailed | AttemptStopped):
                return verdict
            hint = verdict
    text = f"loop {loop.name!r} did not meet its condition within max_loops={loop.max_loops}"
    return AttemptFailed(error=None, feedback=text, output=data, metadata={"loops": loop.max_loops})


def _before_turns(work: AttemptInput) -> tuple[int, object, object, frozenset[str]]:
    return 0, work.data, work.context, work.degraded


async def _condition(
    spawner: Supervises, loop: LoopUntil, work: AttemptInput, data: object, context: object
) -> Value[bool] | Error:
    """Return whether the loop's condition holds, or its error."""
    asked = budget_for(loop, "until", work.quotas)
    met = await with_context_copy(spawner.run, loop.until, own(data), context, work.scope, **asked)
    return met if isinstance(met, Error) else await call(spawner.run, bool, met.value)


@KINDS.entry("branch")
async def branch_on(spawner: Supervises, branching: BranchOn, work: AttemptInput) -> Attempt:
    """Return the one branch that `select` names."""
    asked = budget_for(branching, "select", work.quotas)
    chosen = await with_context_copy(spawner.run, branching.select, own(work.data), work.context, work.scope, **asked)
    chosen = chosen if isinstance(chosen, Error) else await call(spawner.run, _chosen, branching, chosen.value)
    if isinstance(chosen, Error):
        return failure_of(spawner.run, chosen.error, subject=f"The selection of {branching.name!r}")
    name, step = chosen.value
    if step is None:
        known = ", ".join(map(repr, branching.branches))
        text = f"step {branching.name!r} selected {name}, but its branches are {known} and there is no default"
        return AttemptFailed(error=None, feedback=text)
    request = work.child(step, name, step_paths.named(work.path, name), work.data, work.context, degraded=work.degraded)
    settled = await of_one_child(spawner, work.state, request)
    if not isinstance(settled.verdict, Success):
        return ended_by(work, name, settled, work.context)
    output = output_of(settled)
    noted = {"branch": name, **marks(output, texts_in(settled))}
    return AttemptSucceeded(output=output, context=settled.context, metadata=noted)


def _chosen(branching: BranchOn, key: object) -> tuple[str, AnyStep | None]:
    """Return a key's branch and name, or the key's text."""
    try:
        step = branching.branches.get(key) or branching.default
    except TypeError:  # a selector may return anything, even an unhashable value
        step = branching.default
    return repr(key) if step is None else str(key), step


# --- all at once --------------------------------------------------------------------------------------------


@KINDS.entry("parallel")
async def parallel(spawner: Supervises, step: Parallel, work: AttemptInput) -> Attempt:
    """Return every branch on the same input."""
    keys = list(step.branches)
    names = [str(key) for key in keys]
    shares = _shares(work.data, len(keys))
    requests = (
        work.child(
            branch, name, step_paths.named(work.path, name), share, work.context, index, work.degraded, of=len(keys)
        )
        for index, (name, branch, share) in enumerate(zip(names, step.branches.values(), shares, strict=True))
    )
    patient = step.on_branch_failure == "ignore"
    reports = await fan_out(spawner, work, requests, step.max_concurrency, patient=patient)
    output = {keys[index]: output_of(settled) for index, settled in reports.listed.items() if _succeeded(settled)}
    return _gathered(work, reports, names, output, step.merge, patient=patient)


@KINDS.entry("map")
async def map_over(spawner: Supervises, step: MapOver, work: AttemptInput) -> Attempt:
    """Return the body once per item."""
    if step.items is None:
        items = work.data
    else:
        asked = budget_for(step, "items", work.quotas)
        found = await given(spawner.run, step.items, work.data, work.context, work.scope, **asked)
        if isinstance(found, Error):
            return failure_of(spawner.run, found.error, subject=f"The items of {step.name!r}")
        items = found.value
    settled = spawner.run.journal.settled_items(work.path) if spawner.run.resumed else None
    if isinstance(items, AsyncIterable):
        stream = ItemStream(spawner.run, step, work, items, () if settled is None else settled)
        if spawner.run.remote is None:
            reports = await fan_out(spawner, work, iter(()), None, patient=False, stream=stream, settled=settled)
            return stream.failure or _gathered_items(work, step, reports)
        items = await stream.listed()
        if stream.failure is not None:
            return stream.failure
    found = await call(spawner.run, _listed, items)
    if isinstance(found, Error):
        return failure_of(spawner.run, found.error, subject=f"The items of {step.name!r}")
    if isinstance(found.value, str):
        text = f"step {step.name!r} maps over items, but got {found.value}; give it a list, or a function as items="
        return AttemptFailed(error=None, feedback=text)
    listed = _unshared(found.value)
    requests: Iterator[StepRequest] = (
        _item_request(step, work, index, item, of=len(listed))
        for index, item in enumerate(listed)
        if settled is None or index not in settled
    )
    limit, together, remote = step.max_concurrency, 1, spawner.run.remote
    if remote is not None:
        requests, limit, together = remote.spread(spawner.run, step, requests)
    if settled is not None:
        del settled.outputs[len(listed) :]
    reports = await fan_out(spawner, work, requests, limit, patient=False, together=together, settled=settled)
    return _gathered_items(work, step, reports)


def _item_request(step: MapOver, work: AttemptInput, index: int, item: object, *, of: int) -> StepRequest:
    around = None if work.scope is None else attrs.evolve(work.around, scope=work.scope.of_item(item))
    name, path = f"{step.name}[{index}]", step_paths.item(work.path, index)
    return work.child(step.body, name, path, item, work.context, index, work.degraded, around, of=of)


def _gathered_items(work: AttemptInput, step: MapOver, reports: Reports) -> Attempt:
    return _gathered(work, reports, _Numbers(), reports.outputs(), step.merge, patient=False)


STREAMED = 100
"""Number of items of a stream at a time, unless `max_concurrency` is set."""


class ItemStream:
    """Items of a map from an async iterator, read with backpressure."""

    def __init__(
        self,
        run: Run,
        step: MapOver,
        work: AttemptInput,
        items: AsyncIterable[object],
        settled: Container[int] = (),
    ) -> None:
        self._run, self._step, self._work, self._items, self._settled = run, step, work, items, settled
        self._room = trio.Semaphore(step.max_concurrency or STREAMED)
        self._scope = trio.CancelScope()
        self.failure: AttemptFailed | None = None
        """Failure of the iterator; items before it are executed."""

    async def fill(self, spawn: Callable[[StepRequest], None]) -> None:
        """Spawn a step per item until the iterator or stream ends."""
        with self._scope:
            async for index, item in self._read():
                if index in self._settled:
                    self.make_room()
                    continue
                spawn(_item_request(self._step, self._work, index, item, of=index + 1))

    async def listed(self) -> list[object]:
        """Return all items, for workers that take them in batches."""
        self._room = trio.Semaphore(sys.maxsize)
        return [item async for _, item in self._read()]

    async def _read(self) -> AsyncIterator[tuple[int, object]]:
        found = await call(self._run, aiter, self._items)
        iterator = None if isinstance(found, Error) else found.value
        try:
            for index in itertools.count():
                await self._room.acquire()
                found = found if iterator is None else await call(self._run, anext, iterator)
                if isinstance(found, Error):
                    self._end(found.error)
                    return
                yield index, found.value
        finally:
            with trio.move_on_after(CLOSE_S, shield=True):
                if (close := getattr(iterator, "aclose", None)) is not None:
                    await call(self._run, close)

    def _end(self, error: BaseException) -> None:
        if not isinstance(error, StopAsyncIteration):
            self.failure = failure_of(self._run, error, subject=f"The items of {self._step.name!r}")

    def make_room(self) -> None:
        """Permit another item."""
        self._room.release()

    def stop(self) -> None:
        """Read no further item."""
        self._scope.cancel()


CLOSE_S = 5.0
"""Time limit for closing an iterator."""


def _shares(data: object, readers: int) -> list[object]:
    """Return each branch's data; the last may have the original."""
    return [*(own(data) for _ in range(readers - 1)), data]


_IMMUTABLE = frozenset({str, int, float, bool, bytes, type(None)})


def _unshared(items: list[object]) -> list[object]:
    """Return the items without repeated objects."""
    mutable = [id(item) for item in items if type(item) not in _IMMUTABLE]  # a set of all took 100 MB for a million
    return items if len(set(mutable)) == len(mutable) else list(map(own, items))


def _listed(items: object) -> list[Any] | str:
    """Return the items as a list, or describe the value."""
    if isinstance(items, str | bytes) or not isinstance(items, Iterable):
        return f"{type(items).__name__}: {items!r:.100}"
    return list(items)


class _Numbers:
    """Lazy names of items."""

    def __getitem__(self, index: int) -> str:
        return f"item {index}"


async def fan_out(
    spawner: Supervises,
    work: AttemptInput,
    requests: Iterator[StepRequest],
    limit: int | None,
    *,
    patient: bool,
    together: int = 1,
    stream: ItemStream | None = None,
    settled: SettledItems | None = None,
) -> Reports:
    """Run the children, `limit` at once; stop at failures unless `patient`.

    Those that belong `together` begin together, when there is room for all of them.
    """
    reports, room = Reports(spawner.run, work, settled), 0
    try:
        async with spawner.children(work.state) as children:
            for request in itertools.islice(requests, limit):
                children.spawn(request)
            if stream is not None:
                children.feed(stream.fill)
            while children.waiting:
                report = await children.next()
                if report is None:
                    continue
                reports.add(report)
                if stops_siblings(report, patient=patient):
                    if _is_replayed_only(spawner, work):
                        requests = iter(())  # later steps did not start
                        if stream is not None:
                            stream.stop()
                        continue
                    children.stop()
                    break
                if patient and report.undo and isinstance(report.verdict, Failure):
                    reports.listed[report.index] = await WRAPPERS["branch_compensation"](spawner, work, report)
                    if isinstance(reports.listed[report.index].verdict, Aborted):
                        continue  # it was being compensated when the run was cancelled: no replacement had started
                room += 1
                if stream is not None:
                    stream.make_room()
                if room == together and not spawner.run.waits.resting:
                    room = 0
                    for following in itertools.islice(requests, together):
                        children.spawn(following)
        await _complete(spawner.run, children, reports.listed)
    finally:
        reports.count()
    return reports


async def _complete(run: Run, children: StepSupervisor, listed: dict[int, StepSettled]) -> None:
    """Take the last reports; a hook's late veto overrules the first one."""
    listed.update((settled.index, settled) for settled in children.unread())
    children.check_complete()
    veto = await notify_late(run) if run.pending and listed else None
    if veto is not None:
        first = min(listed)
        listed[first] = attrs.evolve(listed[first], overruled=veto, cut_short=False)


def _is_replayed_only(spawner: Supervises, work: AttemptInput) -> bool:
    """Return whether branches are only replayed for compensation."""
    return spawner.run.stopping is not None and (work.aside is None or work.aside.undo is None)


HELD = 10_000
"""Number of items or turns whose results a stored run keeps in memory."""


class Reports:
    """Reports of siblings by index.

    Of the later items of a large stored map, only the output is kept: 40 bytes instead of 1,100. Their results are
    read from the store when they are used.
    """

    __slots__ = ("_outputs", "_read", "_run", "_work", "listed")

    def __init__(self, run: Run, work: AttemptInput, settled: SettledItems | None = None) -> None:
        self._run, self._work = run, work
        self.listed: dict[int, StepSettled] = {}
        """Reports in memory."""
        self._outputs: list[object] = []
        self._read: Callable[[], Sequence[StepResult]] | None = None
        if settled is not None:
            self._outputs, self._read = settled.outputs, run.journal.nested(work.span)
            work.state.spend(settled.usage)
            recall_usage(work.quotas, settled.usage)

    def add(self, settled: StepSettled) -> None:
        """Add a report, reduced to its output in large stored maps."""
        if len(self.listed) < HELD or not self._is_plain(settled):
            self.listed[settled.index] = settled
            return
        self._read = self._read or self._run.journal.nested(self._work.span)
        if self._read is None:
            self.listed[settled.index] = settled
        else:
            self._reduce(settled)

    def _is_plain(self, settled: StepSettled) -> bool:
        changed = settled.context is not self._work.context or settled.undo
        return settled.success is not None and not changed and not degraded_texts(settled.success)

    def _reduce(self, settled: StepSettled) -> None:
        result, index = settled.success, settled.index
        assert result is not None
        self._outputs.extend([NO_OUTPUT] * (index + 1 - len(self._outputs)))
        self._outputs[index] = result.output
        self._work.state.spend(result.usage)
        forget_settled(self._run, step_paths.item(self._work.path, index), result)

    def outputs(self) -> list[object]:
        """Return the outputs of all successful items, in order."""
        if not self._outputs:
            return [output_of(self.listed[index]) for index in sorted(self.listed) if _succeeded(self.listed[index])]
        for index, settled in self.listed.items():
            if _succeeded(settled):
                self._outputs.extend([NO_OUTPUT] * (index + 1 - len(self._outputs)))
                self._outputs[index] = output_of(settled)
        return [output for output in self._outputs if output is not NO_OUTPUT]

    def count(self) -> None:
        """Count the results in the step's state, in order."""
        state, parent = self._work.state, self._work.path
        self.listed = dict(sorted(self.listed.items()))
        reduced = _ranges(self._outputs, parent)
        following = next(reduced, None)
        for index, settled in self.listed.items():
            while following is not None and self._read is not None and following.first < index:
                state.refer(following, self._read)
                following = next(reduced, None)
            state.include(settled.result)
        while following is not None and self._read is not None:
            state.refer(following, self._read)
            following = next(reduced, None)


def _ranges(outputs: list[object], parent: StepPath) -> Iterator[ItemRange]:
    """Yield the ranges of indexes with an output."""
    first = None
    for index, output in enumerate(itertools.chain(outputs, (NO_OUTPUT,))):
        if output is NO_OUTPUT and first is not None:
            yield ItemRange(parent, first, index - 1)
            first = None
        elif output is not NO_OUTPUT and first is None:
            first = index


def forget_settled(run: Run, path: StepPath, result: StepResult) -> None:
    """Release the memory of a nested step with a stored result."""
    run.journal.forget(result)
    run.ledger.forget(path)


def _count_turn(run: Run, work: AttemptInput, turn: int, settled: StepSettled) -> None:
    """Count a turn; results of long stored loops stay stored."""
    read = run.journal.nested(work.span) if turn > HELD and settled.success is not None else None
    if read is None or settled.success is None:
        work.state.include(settled.result)
        return
    work.state.spend(settled.success.usage)
    work.state.refer(ItemRange(work.path, turn, turn), read)
    forget_settled(run, step_paths.item(work.path, turn), settled.success)


def _gathered(
    work: AttemptInput, reports: Reports, names: Any, output: object, merge: Merging, *, patient: bool
) -> Attempt:
    """Return one attempt and one context from all reports."""
    by_name = {names[index]: settled for index, settled in reports.listed.items()}
    decided = gathered(work.name, by_name, output, patient=patient)
    if not isinstance(decided, ContinueWith):
        return decided
    succeeded = {name: settled for name, settled in by_name.items() if _succeeded(settled)}
    try:
        left = [(name, settled.context) for name, settled in succeeded.items()]
        context = merged(work.context, left, strategy=merge, where=work.name)
    except ContextError as error:
        return AttemptFailed(error=error, feedback=str(error), output=output)
    texts = frozenset().union(*map(texts_in, succeeded.values()))
    noted = {"failed_branches": decided.ignored} if decided.ignored else {}
    return AttemptSucceeded(output=output, context=context, metadata={**noted, **marks(output, texts)})


# --- reading reports ----------------------------------------------------------------------------------------


def _succeeded(settled: StepSettled) -> bool:
    return isinstance(settled.verdict, Success)
