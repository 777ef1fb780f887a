"""Telling hooks, and whoever watches the run, how its steps ended.

Rules:

1. Of every step that began, hooks are told first, then whoever watches; each of them once.
2. A step that is cut short cannot tell anybody, since its task is cancelled: its outcome waits in `run.untold`.
3. Whoever cut it short, a composite or a step whose time was over, tells of it before it goes on.
4. A pause is told to `on_pause` once, of the step that pauses, not of those around it.
5. A run that is cancelled as a whole tells its hooks what was left untold; nobody watches it any more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import trio

from ..core.outcomes import Aborted, Failure, Paused, TerminalOutcome
from .messages import Request, Untold
from .run import Run

if TYPE_CHECKING:
    from .hooks import Hooks


async def tell(run: Run, request: Request, outcome: TerminalOutcome) -> Aborted | Failure | None:
    """Tell everybody; what comes back is a hook's veto against going on."""
    return await _tell(run, Untold(request=request, outcome=outcome))


def tell_later(run: Run, request: Request, outcome: TerminalOutcome) -> None:
    """Leave the telling to whoever cut the step short."""
    if run.hooks or run.outlet is not None:
        run.untold.append(Untold(request=request, outcome=outcome))


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
