"""Telling hooks, and whoever watches the run, how its steps ended.

Rules:

1. Of every step that began, hooks are told first, then whoever watches; each of them once.
2. A step that is cut short cannot tell anybody, since its task is cancelled: its outcome waits in `run.untold`.
3. Whoever cut it short, a composite or a step whose time was over, tells of it before it goes on.
4. A pause is told to `on_pause` once, of the step that pauses, not of those around it.
5. A run that is cancelled as a whole tells its hooks what was left untold; nobody watches it any more.
6. A pause is told when the run has come to rest: whoever is told finds the run paused and owned by nobody, and may go
   on with it then and there. Until then it waits in `run.pausing`.
7. While other steps are at work, a reader is told at once, for an answer may take longer than they do. Hooks are not:
   the run waits for its hooks, so a hook that goes on with the run would wait for ever.
8. A pause that is not waited for any more when it would be told (what is around it failed) is told as `Aborted`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import trio

from .._core.outcomes import Aborted, Failure, Paused, Started, TerminalOutcome
from .._core.paths import StepPath, below
from .._core.pause_tokens import parse_token
from .messages import Request, Untold
from .run import Run

if TYPE_CHECKING:
    from .hooks import Hooks


async def tell_start(run: Run, request: Request) -> None:
    """Tell whoever asked for it that a step begins."""
    if run.outlet is not None and run.outlet.started:
        await run.outlet.put(Started(step_name=request.name, path=request.path, of=request.of))


async def tell(run: Run, request: Request, outcome: TerminalOutcome) -> Aborted | Failure | None:
    """Tell everybody; what comes back is a hook's veto against going on."""
    untold = _untold(request, outcome)
    if isinstance(outcome, Paused) and (run.hooks or await _is_all(run, request)):
        run.pausing.append(untold)
        return None
    veto = await _tell_dropped(run, request.path) if run.pausing and not isinstance(outcome, Paused) else None
    return await _tell(run, untold) or veto


async def _is_all(run: Run, request: Request) -> bool:
    """Whether nothing else is at work; steps that were started together with this one have begun a round later."""
    await trio.lowlevel.cancel_shielded_checkpoint()
    return run.ledger.only_around(request.parent)


async def tell_pauses(run: Run, *, over: bool = False) -> Aborted | Failure | None:
    """Tell of the pauses that waited for the run to come to rest; if it is `over`, nothing waits for an answer."""
    veto: Aborted | Failure | None = None
    while run.pausing:
        untold = run.pausing.pop(0)
        answer = await _tell(run, _dropped(untold) if over or not _waits(run, untold) else untold)
        veto = veto or answer
    return veto


async def _tell_dropped(run: Run, path: StepPath) -> Aborted | Failure | None:
    """Before it is told how a step ended that does not wait: nobody will ask what was asked inside it."""
    veto: Aborted | Failure | None = None
    for untold in [each for each in run.pausing if below(path, each.request.path)]:
        run.pausing.remove(untold)
        answer = await _tell(run, _dropped(untold))
        veto = veto or answer
    return veto


def _waits(run: Run, untold: Untold) -> bool:
    assert isinstance(untold.outcome, Paused)
    _, path = parse_token(untold.outcome.state_token or "")
    return run.journal.waiting(path) is not None


def _dropped(untold: Untold) -> Untold:
    reason = f"step {untold.request.name!r} was about to ask, but what is around it ended without the answer"
    return attrs.evolve(untold, outcome=Aborted(reason=reason, path=untold.request.path))


def tell_later(run: Run, request: Request, outcome: TerminalOutcome) -> None:
    """Leave the telling to whoever cut the step short."""
    if run.hooks or run.outlet is not None:
        run.untold.append(_untold(request, outcome))


def _untold(request: Request, outcome: TerminalOutcome) -> Untold:
    """The outcome as it is told: it says where its step stands."""
    return Untold(request=request, outcome=attrs.evolve(outcome, path=request.path))


async def tell_late(run: Run, *, watched: bool = True) -> Aborted | Failure | None:
    """Tell what could not be told when it happened, in the order in which it happened."""
    veto: Aborted | Failure | None = None
    while run.untold:
        answer = await _tell(run, run.untold.popleft(), watched=watched)
        veto = veto or answer
    return veto


async def _tell(run: Run, untold: Untold, *, watched: bool = True) -> Aborted | Failure | None:
    veto: Aborted | Failure | None = None
    try:
        if run.hooks and not untold.hooks_know:
            veto = await _tell_hooks(run.hooks, untold.request, untold.outcome)
        if run.outlet is not None and watched:
            await run.outlet.put(untold.outcome)
    except trio.Cancelled:
        run.untold.appendleft(attrs.evolve(untold, hooks_know=True))
        raise
    return veto


async def _tell_hooks(hooks: Hooks, request: Request, outcome: TerminalOutcome) -> Aborted | Failure | None:
    where = {"step_name": request.name, "path": request.path}
    veto = await hooks.tell("post_step", outcome=outcome, **where)
    also: Aborted | Failure | None = None
    match outcome:
        case Failure():
            also = await hooks.tell("on_step_failure", outcome=outcome, **where)
        case Paused() if request.tally.pauses:
            also = await hooks.tell("on_pause", outcome=outcome, **where)
    return veto or also
