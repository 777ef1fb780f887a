"""Every kind of step but an agent's: each starts its children as actors and makes one attempt of their reports.

A composite never copies the context: nobody changes one in place, so children may share it until they write.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, cast

import attrs
from outcome import Error

from .._context.isolation import own
from .._context.merging import merged
from .._core import paths
from .._core.attempts import Attempt, Done, Failed, Stopped
from .._core.degraded import marks
from .._core.outcomes import Aborted, Failure, Paused, Success
from .._core.siblings import Survived, gathered, stops_siblings
from .._dsl.declared import Declared
from .._dsl.kinds import BranchOn, HumanInTheLoop, LoopUntil, MapOver, Merging, Parallel, SequenceOf
from .._dsl.pipeline import AnyStep
from .._run.limits import budget_for
from .._run.messages import Request, Settled, Work
from .._run.notify import tell_late
from .._run.run import Run
from .._run.user_calls import ask, failure_of, given, with_context_copy
from ..errors import ContextError
from .children import Spawner, ended_by, of_one_child, output_of, sequence, texts_in

if TYPE_CHECKING:
    from .._core.loops import LoopGuard
    from .._dsl.selections import SelectAgent
    from .loop_guard import GuardedLoop


def attempt_of_kind(spawner: Spawner, step: Declared, work: Work) -> Awaitable[Attempt]:
    """One attempt of a step that is not an agent's."""
    match step:
        case Parallel():
            return parallel(spawner, step, work)
        case MapOver():
            return map_over(spawner, step, work)
        case BranchOn():
            return branch_on(spawner, step, work)
        case LoopUntil():
            return loop_until(spawner, step, work)
        case HumanInTheLoop():
            return ask_a_person(spawner.run, step, work)
        case SequenceOf():
            return sequence(spawner, step.body, work)
        case _:
            return _selection(spawner, step, work) if step.kind == "selection" else _governed(spawner, step, work)


def _selection(spawner: Spawner, step: Declared, work: Work) -> Awaitable[Attempt]:
    return _select_agent()(spawner, cast("SelectAgent", step), work)


@functools.cache  # an import statement takes a microsecond every time
def _select_agent() -> Callable[[Spawner, SelectAgent, Work], Awaitable[Attempt]]:
    from .selecting import select_agent  # what only runs with selections need

    return select_agent


def _governed(spawner: Spawner, step: Declared, work: Work) -> Awaitable[Attempt]:
    """One attempt of a kind that few pipelines have."""
    from .._dsl.approvals import Approval
    from .approvals import ask_for_approval

    match step:
        case Approval():
            return ask_for_approval(spawner.run, step, work)
        case _:
            raise TypeError(f"the runtime does not know steps of type {type(step).__name__}")


async def ask_a_person(run: Run, step: HumanInTheLoop, work: Work) -> Attempt:
    """A pause: whoever answers it goes on with the step."""
    if isinstance(step.message, str):
        return _question(step.message, work)
    budget = budget_for(step, "message", work.quotas)
    asked = await with_context_copy(run, step.message, own(work.data), work.context, work.scope, **budget)
    if isinstance(asked, Error):
        return failure_of(run, asked.error, what=f"The message of step {step.name!r}")
    text = await ask(run, str, asked.value)
    if isinstance(text, Error):
        return failure_of(run, text.error, what=f"The message of step {step.name!r}")
    return _question(text.value, work)


def _question(text: str, work: Work) -> Stopped:
    """What is asked; whoever is asked again is told why the last answer was not taken."""
    refusal = work.tally.refusal
    again = "" if refusal is None else f"\n\nThe last answer was not taken: {refusal}"
    return Stopped(outcome=Paused(message=f"{text}{again}"))


# --- one at a time -----------------------------------------------------------------------------------------


async def loop_until(spawner: Spawner, loop: LoopUntil, work: Work) -> Attempt:
    """The body on its own last output, until the condition holds."""
    data, context, degraded = work.data, work.context, work.degraded
    guarded = None if loop.guard is None else _guarded(spawner.run, loop.guard, work)
    hint: str | None = None
    async with spawner.in_turn(work.tally) as turns:
        for turn in range(1, loop.max_loops + 1):
            path = paths.item(work.path, turn)
            request = work.child(loop.body, loop.name, path, data, context, degraded=degraded)
            settled = await turns.settled(request if hint is None else request.telling(feedback=hint))
            work.tally.include(settled.result)
            if not isinstance(settled.verdict, Success):
                return ended_by(work, f"turn {turn}", settled, context)
            data, context, degraded = output_of(settled), settled.context, texts_in(settled)
            asked = budget_for(loop, "until", work.quotas)
            met = await with_context_copy(spawner.run, loop.until, own(data), context, work.scope, **asked)
            met = met if isinstance(met, Error) else await ask(spawner.run, bool, met.value)
            if isinstance(met, Error):
                return failure_of(spawner.run, met.error, what=f"The condition of loop {loop.name!r}")
            if met.value:
                noted = {"loops": turn, **marks(data, degraded)}
                return Done(output=data, context=context, metadata=noted)
            told = None if guarded is None else await guarded.turned(data, context)
            if isinstance(told, Failed | Stopped):
                return told
            hint = told
    text = f"loop {loop.name!r} did not meet its condition within max_loops={loop.max_loops}"
    return Failed(error=None, feedback=text, output=data, metadata={"loops": loop.max_loops})


def _guarded(run: Run, guard: LoopGuard, work: Work) -> GuardedLoop:
    from .loop_guard import GuardedLoop  # what only guarded loops need

    return GuardedLoop(run, guard, work)


async def branch_on(spawner: Spawner, branching: BranchOn, work: Work) -> Attempt:
    """The one branch that `select` names."""
    asked = budget_for(branching, "select", work.quotas)
    chosen = await with_context_copy(spawner.run, branching.select, own(work.data), work.context, work.scope, **asked)
    chosen = chosen if isinstance(chosen, Error) else await ask(spawner.run, _chosen, branching, chosen.value)
    if isinstance(chosen, Error):
        return failure_of(spawner.run, chosen.error, what=f"The selection of {branching.name!r}")
    name, step = chosen.value
    if step is None:
        known = ", ".join(map(repr, branching.branches))
        text = f"step {branching.name!r} selected {name}, but its branches are {known} and there is no default"
        return Failed(error=None, feedback=text)
    request = work.child(step, name, paths.named(work.path, name), work.data, work.context, degraded=work.degraded)
    settled = await of_one_child(spawner, work.tally, request)
    if not isinstance(settled.verdict, Success):
        return ended_by(work, name, settled, work.context)
    output = output_of(settled)
    noted = {"branch": name, **marks(output, texts_in(settled))}
    return Done(output=output, context=settled.context, metadata=noted)


def _chosen(branching: BranchOn, key: object) -> tuple[str, AnyStep | None]:
    """The branch behind a key and what to call it; the key as it looks, if there is none."""
    try:
        step = branching.branches.get(key) or branching.default
    except TypeError:  # a selector may return anything, also what cannot be a key
        step = branching.default
    return repr(key) if step is None else str(key), step


# --- all at once --------------------------------------------------------------------------------------------


async def parallel(spawner: Spawner, step: Parallel, work: Work) -> Attempt:
    """Every branch on the same input."""
    keys = list(step.branches)
    names = [str(key) for key in keys]
    shares = _shares(work.data, len(keys))
    requests = (
        work.child(branch, name, paths.named(work.path, name), share, work.context, index, work.degraded, of=len(keys))
        for index, (name, branch, share) in enumerate(zip(names, step.branches.values(), shares, strict=True))
    )
    patient = step.on_branch_failure == "ignore"
    reports = await fan_out(spawner, work, requests, step.max_concurrency, patient=patient)
    output = {keys[index]: output_of(settled) for index, settled in reports.items() if _succeeded(settled)}
    return _gathered(work, reports, names, output, step.merge, patient=patient)


async def map_over(spawner: Spawner, step: MapOver, work: Work) -> Attempt:
    """The body once per item."""
    if step.items is None:
        items = work.data
    else:
        asked = budget_for(step, "items", work.quotas)
        found = await given(spawner.run, step.items, work.data, work.context, work.scope, **asked)
        if isinstance(found, Error):
            return failure_of(spawner.run, found.error, what=f"The items of {step.name!r}")
        items = found.value
    found = await ask(spawner.run, _listed, items)
    if isinstance(found, Error):
        return failure_of(spawner.run, found.error, what=f"The items of {step.name!r}")
    if isinstance(found.value, str):
        return Failed(error=None, feedback=f"step {step.name!r} maps over items, but got {found.value}")
    listed = _unshared(found.value)
    requests: Iterator[Request] = (
        work.child(
            step.body,
            f"{step.name}[{index}]",
            paths.item(work.path, index),
            item,
            work.context,
            index,
            work.degraded,
            None if work.scope is None else attrs.evolve(work.around, scope=work.scope.of_item(item)),
            of=len(listed),
        )
        for index, item in enumerate(listed)
    )
    limit, together, office = step.max_concurrency, 1, spawner.run.office
    if office is not None:
        requests, limit, together = office.spread(step, requests)
    reports = await fan_out(spawner, work, requests, limit, patient=False, together=together)
    output = [output_of(reports[index]) for index in sorted(reports) if _succeeded(reports[index])]
    return _gathered(work, reports, _Numbers(), output, step.merge, patient=False)


def _shares(data: object, readers: int) -> list[object]:
    """The data for each of several branches; the last of them may have the original."""
    return [*(own(data) for _ in range(readers - 1)), data]


def _unshared(items: list[object]) -> list[object]:
    """The items, none of them the same object as another."""
    return items if len(set(map(id, items))) == len(items) else list(map(own, items))


def _listed(items: object) -> list[Any] | str:
    """The items one by one; what there is instead, if it is no collection of items."""
    if isinstance(items, str | bytes) or not isinstance(items, Iterable):
        return f"{type(items).__name__}: {items!r:.100}"
    return list(items)


class _Numbers:
    """Names of items, made when somebody asks."""

    def __getitem__(self, index: int) -> str:
        return f"item {index}"


async def fan_out(
    spawner: Spawner, work: Work, requests: Iterator[Request], limit: int | None, *, patient: bool, together: int = 1
) -> dict[int, Settled]:
    """Run the children, at most `limit` at a time; unless patient, the first failure stops the others.

    Those that go `together` begin together, when there is room for all of them.
    """
    reports: dict[int, Settled] = {}
    room = 0
    try:
        async with spawner.children(work.tally) as children:
            for request in itertools.islice(requests, limit):
                children.spawn(request)
            while children.waiting:
                settled = await children.settled()
                reports[settled.index] = settled
                if stops_siblings(settled, patient=patient):
                    if _only_looks(spawner, work):
                        requests = iter(())  # what comes after it was not begun
                        continue
                    children.stop()
                    break
                if patient and settled.undo and isinstance(settled.verdict, Failure):
                    reports[settled.index] = await _undone_alone(spawner, work, settled)
                    if isinstance(reports[settled.index].verdict, Aborted):
                        continue  # it was being undone when the run was cancelled: nothing had begun in its place
                room += 1
                if room == together:
                    room = 0
                    for following in itertools.islice(requests, together):
                        children.spawn(following)
        reports |= {settled.index: settled for settled in children.rest()}
        veto = await tell_late(spawner.run) if spawner.run.untold and reports else None
        if veto is not None:
            reports[0] = attrs.evolve(reports[0], overruled=veto, cut_short=False)
    finally:
        for _, settled in sorted(reports.items()):
            work.tally.include(settled.result)
    return dict(sorted(reports.items()))


def _only_looks(spawner: Spawner, work: Work) -> bool:
    """Whether the run goes no further, and every branch is looked at for what to undo."""
    return spawner.run.closing is not None and (work.aside is None or work.aside.undo is None)


async def _undone_alone(spawner: Spawner, work: Work, settled: Settled) -> Settled:
    """A branch that failed and is ignored: what it did is undone at once, while the others go on."""
    from .undoing import take_back_branch  # what only runs with compensations need

    return await take_back_branch(spawner, work, settled)


def _gathered(
    work: Work, reports: dict[int, Settled], names: Any, output: object, merge: Merging, *, patient: bool
) -> Attempt:
    """One attempt out of all the reports, and one context out of those that succeeded."""
    by_name = {names[index]: settled for index, settled in reports.items()}
    decided = gathered(work.name, by_name, output, patient=patient)
    if not isinstance(decided, Survived):
        return decided
    succeeded = {name: settled for name, settled in by_name.items() if _succeeded(settled)}
    try:
        left = [(name, settled.context) for name, settled in succeeded.items()]
        context = merged(work.context, left, strategy=merge, where=work.name)
    except ContextError as error:
        return Failed(error=error, feedback=str(error), output=output)
    texts = frozenset().union(*map(texts_in, succeeded.values()))
    noted = {"failed_branches": decided.ignored} if decided.ignored else {}
    return Done(output=output, context=context, metadata={**noted, **marks(output, texts)})


# --- reading reports ----------------------------------------------------------------------------------------


def _succeeded(settled: Settled) -> bool:
    return isinstance(settled.verdict, Success)
