"""Run: the state that its actors share.

Sections:

- Telemetry of budget level changes.
"""

from __future__ import annotations

import functools
import logging
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Protocol

import attrs
import trio

from ..._bridge.host_loop import Host
from ..._core import seams
from ..._core.default_settings import SYNC_STEP_THREADS, UNDO_GRACE_S, default_settings
from ..._core.event_kinds import EventKind
from ..._core.labels import NO_LABELS, Labels
from ..._core.ledger import Ledger
from ..._core.outcomes import RunId, Undone
from ..._core.quota import Amount, Quota
from ..._core.step_paths import ROOT, StepPath
from ..._core.usage import NO_USAGE, BudgetLevel, Usage, UsageLimits, level_of
from ..._durable.journal import Journal
from ..._durable.live_text import LiveKey, live_texts
from .messages import EventStream, PendingNotification, StepRequest, StepState

if TYPE_CHECKING:
    from ..._core.attempt_results import Attempt
    from ..._core.records.run_state import RetryRecord
    from ..._core.settings_model import Settings
    from ..._dsl.kinds import MapOver
    from ...telemetry._null_telemetry import NullTelemetry
    from ...telemetry._sinks import Telemetry
    from .hooks import Hooks
    from .rate_gate import RateLimits
    from .retrieval_cache import Searches, StepCache
    from .selection_statistics import SelectionStatistics


logger = logging.getLogger("flujo_actors")


class RemoteSteps(Protocol):
    """Has steps performed by other processes."""

    def takes(self, request: StepRequest) -> bool:
        """Return whether another process executes the requested step."""

    async def attempt(self, run: Run, state: StepState) -> Attempt:
        """Return how the remote step ended; its usage is added to `state`."""

    def spread(
        self, run: Run, step: MapOver, requests: Iterator[StepRequest]
    ) -> tuple[Iterator[StepRequest], int | None, int]:
        """Return a map's items with queue and batch, concurrency and batch size."""


class RehearsalGate(Protocol):
    """Gate of a rehearsed run: recorded outcomes in place of effects."""

    def supervisor(self, run: Run, coalesced: frozenset[StepPath]) -> Any:
        """Return the run's supervisor."""


@attrs.frozen(kw_only=True, eq=False)
class OpenWait:
    """Wait of a step that passes in this process."""

    due: float
    """End by the clock of the event loop; infinite without one."""
    put_away: trio.Event = attrs.field(factory=trio.Event)
    """Set when the run is put away."""


class OpenWaits(dict[StepPath, OpenWait]):
    """Waits of a run that pass in this process, by path."""

    __slots__ = ("redeemed", "resting")

    def __init__(self) -> None:
        super().__init__()
        self.resting = False
        """Whether the run is put away: no further step starts."""
        self.redeemed: set[str] = set()
        """Tokens of waits for a rate whose reservations were used."""


@attrs.frozen(kw_only=True, eq=False)
class Run:
    """Parts of a run for its actors. Unused parts cost nothing."""

    run_id: RunId
    host: Host
    journal: Journal
    telemetry: Telemetry | NullTelemetry
    hooks: Hooks | None = None
    resumed: bool = False
    """Whether this is a later session, whose steps may have records."""
    event_stream: EventStream | None = None
    """Event stream to the reader; `None` without one."""
    remote: RemoteSteps | None = None
    """Dispatcher of remote steps; `None` if all are local."""
    gate: RehearsalGate | None = None
    """Source of recorded outcomes in a replay or rehearsal; else `None`."""
    live: LiveKey | None = None
    """Key for other readers' watches; `None` without a store."""
    resources: object = None
    beliefs: SelectionStatistics | None = None
    """Selection statistics; `None` without selections."""
    cache: StepCache | None = None
    """Outputs of earlier runs; `None` without a step that uses them."""
    key: str = ""
    """Key of the run in its queue."""
    rates: RateLimits | None = None
    """Rate limits of model requests; `None` without any."""
    searches: Searches | None = None
    """The searches of the run; `None` if no step has any."""
    configured: Callable[[], Settings] = default_settings
    """Factory of the settings, which are built on demand."""
    rng: Callable[[], float] = seams.jitter
    ledger: Ledger = attrs.field(factory=Ledger)
    pending: deque[PendingNotification] = attrs.field(factory=deque)
    """Pending outcomes of cancelled steps."""
    stopping: str | None = None
    """Reason of a cancelled run: its steps are only replayed for compensation."""
    read_only: bool = False
    """Whether even compensation is skipped: the entries are collected for another process."""
    handles_failures: bool = False
    """Whether the pipeline has handlers or compensations."""
    undo_grace_s: float = UNDO_GRACE_S
    """Timeout of compensation after the caller left an unresumable run."""
    compensated: dict[StepPath, Undone] = attrs.field(factory=dict)
    """Compensated steps in order."""
    retry: RetryRecord | None = None
    """Retry that begins with this session, for its event."""
    dropped_usage: Usage = NO_USAGE
    """Usage of attempts that retries have dropped."""
    labels: Labels = NO_LABELS
    keyed_as: RunId | None = None
    """Run id in idempotency keys, changed by retries from the start."""
    pausing: list[PendingNotification] = attrs.field(factory=list)
    """Paused steps, delivered when the run is at rest."""

    waits: OpenWaits = attrs.field(factory=OpenWaits)
    """Waits that pass in this process."""

    is_observed: bool = attrs.field(init=False)
    """Whether hooks, telemetry, a reader or a resume need notifications."""

    @is_observed.default
    def _is_observed(self) -> bool:
        return bool(self.resumed or self.hooks or self.telemetry.enabled or self.emits_starts)

    @property
    def key_id(self) -> RunId:
        """Return the run id of idempotency keys."""
        return self.keyed_as or self.run_id

    def is_watched(self, path: StepPath) -> bool:
        """Return whether a reader sees the live text at a path."""
        return self.chunks_of(path) is not None or (self.live is not None and live_texts.is_watched(self.live))

    def chunks_of(self, path: StepPath) -> EventStream | None:
        """Return the event stream for chunks at a path, or None."""
        return self.event_stream if self.event_stream is not None and self.event_stream.shows(path) else None

    def show(self, path: StepPath, attempt: int, chunk: object) -> None:
        """Publish a chunk to external watchers, if any."""
        if self.live is not None and self.live in live_texts.watched:
            live_texts.append(self.live, path, attempt, chunk)

    @property
    def emits_starts(self) -> bool:
        """Return whether the reader requested step starts."""
        return self.event_stream is not None and self.event_stream.started

    @property
    def settings(self) -> Settings:
        """Return the settings the run goes by."""
        return self.configured()

    @property
    def sync_step_threads(self) -> int:
        """Return the limit of concurrent sync steps, without building the settings."""
        return SYNC_STEP_THREADS if self.configured is default_settings else self.settings.sync_step_threads

    def emit(self, kind: EventKind, path: StepPath, **facts: object) -> None:
        """Emit a telemetry event, if there is a sink."""
        if self.telemetry.enabled:
            self.telemetry.report(kind, run_id=self.run_id, path=path, at=trio.current_time(), **facts)

    def quota(self, limits: UsageLimits, *, owner: str, path: StepPath = ROOT, step_name: str = "") -> Quota:
        """Return a budget under this run's settings, with raised limits."""
        usage = self.settings.usage
        guess = Amount(tokens=usage.first_call_tokens, cost_usd=usage.first_call_usd)
        raised = self.journal.raised(path) if self.resumed else None
        if raised:
            limits = attrs.evolve(limits, **raised)
        watch = LevelWatch(self, path, step_name).update if self.telemetry.enabled else None
        return Quota(limits, owner=owner, guess=guess, path=path, watch=watch)

    def redact(self, text: str) -> str:
        """Return the text without secrets: the only change to error texts."""
        return self.telemetry.redact(text)


def release_if_idle(run: Run) -> None:
    """Release the run if every open step waits for long."""
    waits = run.waits
    if len(waits) != run.ledger.leaves or not getattr(run.journal, "puts_away", False):
        return
    left_s = min(wait.due for wait in waits.values()) - trio.current_time()
    if left_s > run.settings.durability.inline_wait_s:
        waits.resting = True
        for wait in waits.values():
            wait.put_away.set()


async def note_swallowed_cancellation(run: Run, state: StepState) -> None:
    """Raise and report the cancellation that the step's code swallowed, if any."""
    try:
        await trio.lowlevel.checkpoint_if_cancelled()
    except trio.Cancelled:
        report_unstoppable(run, state.name, state.path)
        raise


def report_unstoppable(run: Run, name: str, path: StepPath) -> None:
    """Report that a step continued after its cancellation."""
    text = "it ended only after its cancellation was requested; its return value is ignored"
    logger.info("step %r of run %s: %s", name, run.run_id, text)
    run.emit("step.unstoppable", path, step_name=name, feedback=text)


# --- Telemetry of budget level changes ----------------------------------------------------------------------------


class LevelWatch:
    """Watch the scarcest of some budgets for level changes, on any thread."""

    def __init__(self, run: Run, path: StepPath, step_name: str) -> None:
        self._run, self._path, self._step_name = run, path, step_name
        self._level: BudgetLevel = "abundant"
        self._left: dict[Quota, float] = {}
        self._token = trio.lowlevel.current_trio_token()

    def update(self, quota: Quota) -> None:
        """Emit an event if the level has changed."""
        self._left[quota] = quota.fraction
        fraction = min(self._left.values())
        level, before = level_of(fraction), self._level
        if level == before:
            return
        self._level = level
        emit = functools.partial(self._emit, level, before, fraction)
        if _current_token() is self._token:
            emit()
        else:
            self._token.run_sync_soon(emit)

    def _emit(self, level: BudgetLevel, before: BudgetLevel, fraction: float) -> None:
        self._run.emit(
            "budget.level", self._path, step_name=self._step_name, level=level, before=before, fraction=fraction
        )


def _current_token() -> trio.lowlevel.TrioToken | None:
    try:
        return trio.lowlevel.current_trio_token()
    except RuntimeError:
        return None
