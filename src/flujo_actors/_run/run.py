"""One run: what its actors share."""

from __future__ import annotations

import logging
import random
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Protocol

import attrs
import trio

from .._bridge.host import Host
from .._core.default_settings import SYNC_STEP_THREADS, UNDO_GRACE_S, default_settings
from .._core.event_kinds import EventKind
from .._core.ledger import Ledger
from .._core.outcomes import RunId, Undone
from .._core.paths import ROOT, StepPath
from .._core.quota import Amount, Quota
from .._core.usage import UsageLimits
from .._durable.journal import Journal
from .._durable.live_texts import live_texts
from .messages import Request, Untold
from .outlet import Outlet

if TYPE_CHECKING:  # what only some runs have, loaded by whoever gives it to them
    from .._core.attempts import Attempt
    from .._core.settings import Settings
    from .._dsl.kinds import MapOver
    from ..telemetry._silence import Silence
    from ..telemetry._sinks import Telemetry
    from .beliefs import BeliefBook
    from .hooks import Hooks
    from .messages import Request
    from .searching import Searches

logger = logging.getLogger("flujo_actors")


class Office(Protocol):
    """Has steps performed by other processes."""

    def takes(self, request: Request) -> bool:
        """Whether the step of the request is performed elsewhere."""

    async def attempt(self, run: Run, request: Request) -> Attempt:
        """How the step ended, elsewhere; what it used is in the request's tally."""

    def spread(self, step: MapOver, requests: Iterator[Request]) -> tuple[Iterator[Request], int | None, int]:
        """The items of a map, as they go elsewhere if they do; how many are under way at once, and begin together."""


@attrs.frozen(kw_only=True, eq=False)
class Run:
    """The parts of a run that every actor may use. Whoever does not use one does not pay for it."""

    run_id: RunId
    host: Host
    journal: Journal
    telemetry: Telemetry | Silence
    hooks: Hooks | None = None
    resumed: bool = False
    """Whether this is a later part of a run, so that its steps may have records, answers and failed attempts."""
    outlet: Outlet | None = None
    """Where somebody watches the run; `None` if nobody does."""
    office: Office | None = None
    """Who has steps performed elsewhere; `None` if all are performed here."""
    resources: object = None
    beliefs: BeliefBook | None = None
    """What is believed of the agents that selections choose from; `None` if nobody selects."""
    searches: Searches | None = None
    """The searches of the run; `None` if no step has any."""
    configured: Callable[[], Settings] = default_settings
    """What tells the settings, which are not built before somebody asks."""
    rng: Callable[[], float] = random.random
    ledger: Ledger = attrs.field(factory=Ledger)
    untold: deque[Untold] = attrs.field(factory=deque)
    """How steps that were cut short ended, for somebody to tell."""
    closing: str | None = None
    """Why the run goes no further, if it was cancelled: its steps are not done, only looked at for what to undo."""
    only_looks: bool = False
    """Whether not even that is undone: whoever looks wants to know what is left, and does it elsewhere."""
    minds_failures: bool = False
    """Whether the pipeline has handlers or compensations."""
    undo_grace_s: float = UNDO_GRACE_S
    """How long undoing may take after the caller has left, where nobody could resume the run."""
    undone: dict[StepPath, Undone] = attrs.field(factory=dict)
    """The steps whose compensations were run, in this order."""
    pausing: list[Untold] = attrs.field(factory=list)
    """Steps that paused, to be told of when the run has come to rest."""

    quiet: bool = attrs.field(init=False)
    """Whether nobody is told what steps do, and none was done before: then a step can take the short way."""

    @quiet.default
    def _is_quiet(self) -> bool:
        return not (self.resumed or self.hooks or self.telemetry.enabled or self.tells_starts)

    def is_seen(self, path: StepPath) -> bool:
        """Whether somebody can see what the step at a path writes while it writes it."""
        return self.chunks_of(path) is not None or live_texts.is_watched(self.run_id)

    def chunks_of(self, path: StepPath) -> Outlet | None:
        """Where the chunks of the step at a path are shown; `None` if whoever reads the run does not see them."""
        return self.outlet if self.outlet is not None and self.outlet.shows(path) else None

    def show(self, path: StepPath, attempt: int, piece: object) -> None:
        """Show a piece of what a step writes to those who look at the run from outside; nothing if nobody does."""
        if self.run_id in live_texts.watched:
            live_texts.hear(self.run_id, path, attempt, piece)

    @property
    def tells_starts(self) -> bool:
        """Whether somebody wants to know when a step begins."""
        return self.outlet is not None and self.outlet.started

    @property
    def settings(self) -> Settings:
        """The settings the run goes by."""
        return self.configured()

    @property
    def sync_step_threads(self) -> int:
        """How many synchronous steps run at once: a default that is known without building the settings."""
        return SYNC_STEP_THREADS if self.configured is default_settings else self.settings.sync_step_threads

    def emit(self, kind: EventKind, path: StepPath, **facts: object) -> None:
        """Tell telemetry, if anybody listens."""
        if self.telemetry.enabled:
            self.telemetry.tell(kind, run_id=self.run_id, path=path, at=trio.current_time(), **facts)

    def quota(self, limits: UsageLimits, *, owner: str, path: StepPath = ROOT, step_name: str = "") -> Quota:
        """A budget under this run's settings, with the limits that were raised since."""
        usage = self.settings.usage
        guess = Amount(tokens=usage.first_call_tokens, cost_usd=usage.first_call_usd)
        raised = self.journal.raised(path) if self.resumed else None
        if raised:
            limits = attrs.evolve(limits, **raised)
        watch = None
        if self.telemetry.enabled:
            from .budget_levels import LevelWatch  # what only runs with limits and listeners need

            watch = LevelWatch(self, path, step_name).look
        return Quota(limits, owner=owner, guess=guess, path=path, watch=watch)

    def redact(self, text: str) -> str:
        """The text without secrets: the only change ever made to what an error says."""
        return self.telemetry.redact(text)


async def note_swallowed_cancellation(run: Run, request: Request) -> None:
    """Raise the cancellation that the step's code has let pass, if there is one, and report it."""
    try:
        await trio.lowlevel.checkpoint_if_cancelled()
    except trio.Cancelled:
        report_unstoppable(run, request.name, request.path)
        raise


def report_unstoppable(run: Run, name: str, path: StepPath) -> None:
    """Say that a step went on although it was cancelled."""
    text = "it ended only after its cancellation was requested; what it returned is not used"
    logger.info("step %r of run %s: %s", name, run.run_id, text)
    run.emit("step.unstoppable", path, step_name=name, feedback=text)
