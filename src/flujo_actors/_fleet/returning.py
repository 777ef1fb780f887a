"""What came of a remote step, as if it had been performed here: its outcome, usage, questions, and what to undo."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from .._core.attempts import Attempt, Done, Failed, Stopped
from .._core.outcomes import Aborted, Failure, StepResult, Success
from .._core.paths import ROOT, StepPath, at_or_below, is_tried
from .._core.quota import amount_of
from .._core.usage import NO_USAGE, Usage
from .._durable.child_results import Child
from .._durable.journal import Answered, Pause, Recorded
from .._durable.store_journal import StoreJournal
from .._durable.store_wait import call_store
from .._locks import QUOTA_LOCK
from .._run.messages import Request, Settled
from .._run.reports import charge
from .._run.run import Run
from ..stores._port import Store
from . import errands
from .budget_book import BudgetBook, shared


async def attempt_in(run: Run, request: Request, journal: StoreJournal, end: errands.End | None) -> Attempt | None:
    """How a step ended that was performed elsewhere, by what it wrote there; `None` if it has not."""
    recorded = journal.recall(request.path)
    if recorded is not None:
        context = request.context if recorded.same_context else recorded.context
        _leave_to_undo(request, recorded)
        assert isinstance(run.journal, StoreJournal)
        left = None if recorded.same_context else recorded.context
        run.journal.children[request.path] = Child(journal.lease.run_id, recorded.outcome, left)
        return await _attempt_of(request, recorded.outcome, context)
    pauses = _pauses_below(journal, request.path)
    if end is None:
        return None
    if pauses and end.status == "paused":
        for pause in pauses:
            await run.journal.paused(pause)
        request.tally.usage += pauses[0].usage
        return Stopped(outcome=pauses[0].paused)
    match end.status:
        case "failed":
            request.tally.attempts, request.tally.usage = 1, request.tally.usage + end.usage
            await _take_in(request, end.usage)
            return Failed(error=end.error, feedback=end.feedback)
        case "aborted":
            return Stopped(outcome=Aborted(reason=end.feedback or "the remote step was aborted"))
    return None


async def _attempt_of(request: Request, outcome: object, context: object) -> Attempt:
    """How the step ended, and what it used, as if it had been performed here."""
    assert isinstance(outcome, Success | Failure)
    result, tally = outcome.step_result, request.tally
    if result is not None:
        tally.attempts, tally.usage = result.attempts, tally.usage + result.usage
        tally.history.extend(result.step_history)
        await _take_in(request, result.usage, result.step_history)
    if isinstance(outcome, Success):
        return Done(output=outcome.step_result.output, context=context, metadata=outcome.step_result.metadata)
    output, metadata = (None, {}) if result is None else (result.output, result.metadata)
    return Failed(error=outcome.error, feedback=outcome.feedback or "", output=output, metadata=metadata)


async def _take_in(request: Request, usage: Usage, history: Sequence[StepResult] = ()) -> None:
    """What the remote step used is on the account of whoever waited for it, and no longer on its own."""
    quotas = request.quotas
    if not quotas or usage is NO_USAGE:
        return
    book = quotas[0].shared
    assert isinstance(book, BudgetBook)
    with QUOTA_LOCK:
        charge(request, usage, history)
        for quota in quotas:
            quota.take_in(usage)
        book.take_in(quotas, [request.path], amount_of(usage))
    await call_store(functools.partial(book.write, quotas))


async def share_budgets(store: Store, run: Run, request: Request) -> None:
    """Let the step's budgets be drawn on by whoever performs it; what ended earlier is on this side's account."""
    journal = run.journal
    assert isinstance(journal, StoreJournal)
    earlier = _settled_in(journal) if run.resumed else []
    answered = journal.answered(request.path)
    asked = journal.waiting(request.path) if answered is None else answered.pause
    counted = [request.path] if asked is not None and asked.is_about_limits else []  # by `limited`
    await shared(store, run.run_id, journal, request.quotas, earlier=earlier, counted=counted)


def _leave_to_undo(request: Request, recorded: Recorded) -> None:
    """What is inside the remote step is undone here, if something around it fails; the step itself is known here."""
    inside = tuple(each for each in recorded.undo if getattr(each, "path", None) != request.path)
    if inside:
        left = Settled(index=0, outcome=recorded.outcome, context=None, undo=inside)
        request.tally.leave(0, left)


def answers_for(run: Run, requests: Sequence[Request]) -> list[errands.Answer]:
    """The answers that the run was given to questions of these steps, to be passed on."""
    if not run.resumed or not isinstance(run.journal, StoreJournal):
        return []
    return [errands.answer_of(each) for request in requests for each in _answers_below(run.journal, request.path)]


# A journal is asked for one place at a time; only here somebody wants to know all that is below one.


def _pauses_below(journal: StoreJournal, path: StepPath) -> list[Pause]:
    """What waits for an answer at a step or inside it."""
    return [journal._pauses[place] for place in at_or_below(path, journal._pauses)]


def _settled_in(journal: StoreJournal) -> list[StepPath]:
    """The steps that earlier parts of the run have settled."""
    return [path for path in journal._read if not is_tried(path) and path != ROOT]


def _answers_below(journal: StoreJournal, path: StepPath) -> list[Answered]:
    """The answers that were given there, and not used up."""
    return [journal._answers[place] for place in at_or_below(path, journal._answers)]
