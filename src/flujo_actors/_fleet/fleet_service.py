"""Fleet operations of a `Flujo`: submit runs, and execute submitted ones.

Sections:

- Factories: one dispatcher per `Flujo` and trio run.
"""

from __future__ import annotations

import functools
import time
import weakref
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import attrs
import trio

from .._bridge.host_loop import Host, current_host, refuse_inside_loop
from .._core.labels import Labels
from .._core.outcomes import PipelineResult, RunId
from .._core.policies.claim_order import checked_key, checked_per_key, checked_priority
from .._core.quota import Amount
from .._core.records.records import ClaimedRun, StoredRun, poisonous
from .._core.settings_model import FleetSettings, RetentionSettings, Settings
from .._core.validators import brief_repr, checked_seconds, is_count, is_number
from .._dsl.wait_steps import Instant, checked_delay_s, epoch_of
from .._durable.durable_run_registry import DurableRunRegistry
from .._durable.fingerprint import Fingerprint
from .._durable.retention import DeletedBatch, RetentionWorker, deletes_anything
from .._durable.run_registry import OpenRun, RunRegistry
from .._durable.store_executor import call_store
from .._runtime.context.copies import FirstContext
from .._runtime.run.run_environment import RemoteSteps as AnyDispatcher
from .._runtime.run.step_results import SCHEDULED_AT
from ..errors import DeclarationError
from ..stores._store_port import Store, required
from ..telemetry._null_telemetry import NullTelemetry
from ..telemetry._sinks import Telemetry
from .engine_port import DEFAULT_QUEUE, Engine, checked_queue, names_of
from .health_probe import StoreMeter, health_place
from .remote_dispatcher import RemoteDispatcher
from .remote_executor import MakeRun, RemoteExecutor
from .remote_request import carried_now, set_carried
from .run_queue import Counter, SubmitOnce
from .schedules import InputOf, ScheduleRunner
from .worker_loop import Post, TakeNext, Worker

if TYPE_CHECKING:
    from .._durable.operations.webhooks import WebhookSender
    from ..stores.postgres._session import Signals


QueuePlace: TypeAlias = tuple[str, int, str | None]
"""Queue, priority and key of a run."""

Start: TypeAlias = tuple[Instant | None, float | None]
"""Time of a run's start, and its delay in seconds; at most one of them."""


class DriveOpen(Protocol):
    """Execute an open run until it ends, pauses, or cannot continue."""

    def __call__(
        self, runs: DurableRunRegistry, opened: OpenRun, host: Host, event_stream: None
    ) -> Awaitable[PipelineResult]: ...


@attrs.frozen(kw_only=True, eq=False)
class Fleet:
    """The fleet's side of one `Flujo`."""

    runs: DurableRunRegistry
    engine: Engine | None
    drive: DriveOpen
    settings: FleetSettings
    counter: Counter
    player: RemoteExecutor
    retention: RetentionSettings
    telemetry: Telemetry | NullTelemetry
    first_context: FirstContext
    schedules: Mapping[str, InputOf | None] = attrs.field(factory=dict)
    """Schedules of this program, with the functions of their inputs."""

    # --- handing in ---

    async def submit(
        self,
        run_id: RunId,
        data: object,
        context: object,
        place: QueuePlace,
        labels: Labels,
        start: Start,
        once: SubmitOnce | None = None,
    ) -> str:
        """Submit a run from inside any event loop; return its id."""
        hand_in = self._submission(run_id, data, context, place, labels, start, once)
        host = await current_host()
        return await host.enter(call_store, hand_in)

    def submit_sync(
        self,
        run_id: RunId,
        data: object,
        context: object,
        place: QueuePlace,
        labels: Labels,
        start: Start,
        once: SubmitOnce | None = None,
    ) -> str:
        """Submit a run from synchronous code; return its id."""
        refuse_inside_loop(instead="submit")
        return self._submission(run_id, data, context, place, labels, start, once)()

    def _submission(
        self,
        run_id: RunId,
        data: object,
        context: object,
        place: QueuePlace,
        labels: Labels,
        start: Start,
        once: SubmitOnce | None = None,
    ) -> Callable[[], RunId]:
        queue, priority, key = place
        named = checked_queue(queue, subject="queue")
        queue_key, first = checked_key(key), checked_priority(priority)
        carried = carried_now(each for each in self.player.carry if each is not SCHEDULED_AT)
        admitted = self.runs.admission(run_id, data, context, queue=named, carried=carried, labels=labels)
        admission = attrs.evolve(admitted, key=queue_key, priority=first) if queue_key or first else admitted
        start_at, delay_s = _checked_start(start)
        if start_at is not None or delay_s is not None:
            required(self.runs.store, "due", subject="a delayed start", port="Wakes")
            admission = attrs.evolve(admission, start_at=start_at, delay_s=delay_s)
        if once is not None and once.singleton is not None:
            required(self.runs.store, "holder_of", subject="a singleton key", port="RunLabels")
            replaces = once.when_busy == "replace"
            admission = attrs.evolve(admission, singleton=once.singleton, replaces=replaces)
        fingerprint = Fingerprint.of(self.runs.pipeline).digest()
        submit = functools.partial(self.counter.submit, admission, fingerprint=fingerprint, priority=priority)
        return submit if once is None else functools.partial(submit, once=once)

    # --- Execution ---

    def worker(
        self,
        *,
        queues: str | Iterable[str],
        slots: int,
        grace_s: float,
        health: Any,
        look_s: float | None = None,
        once: bool = False,
        per_key: int | None = None,
    ) -> Worker:
        """Return a worker after validating its options."""
        named, fingerprint = _checked_queues(queues), Fingerprint.of(self.runs.pipeline).digest()
        by_setting = self.settings.poll_s if self.engine is None else self.settings.look_s
        return Worker(
            Post(
                store=self.runs.store,
                pipeline=self.runs.pipeline.title,
                fingerprint=fingerprint,
                mode=self.runs.mode,
                play=self.execute,
                take_next=self._in_order(checked_per_key(per_key)),
                per_key=per_key,
                queues=named,
                slots=_checked_slots(slots),
                engine=self.engine,
                grace_s=_checked_grace(grace_s),
                look_s=by_setting if look_s is None else checked_seconds(look_s, subject="look_s"),
                unclaimed_s=self.settings.unclaimed_s,
                redact=self.runs.redact,
                expire=self.runs.expire,
                fire=self._schedules(fingerprint, named).fire_due,
                adopts=DEFAULT_QUEUE in named,
                once=once,
                health=health_place(health),
                duties=tuple(self._duties(once)),
                flush=self._flush if once and self.runs.webhooks is not None else None,
            )
        )

    def _in_order(self, per_key: int | None) -> TakeNext | None:
        """Return the claim in order; `None` if the store has none."""
        if hasattr(self.runs.store, "claim_next"):
            return self.runs.take_next
        if per_key is not None:
            raise DeclarationError(f"store {type(self.runs.store).__name__} has no 'claim_next': per_key needs it")
        return None

    def _schedules(self, fingerprint: str, queues: tuple[str, ...]) -> ScheduleRunner:
        return ScheduleRunner(
            runs=self.runs,
            counter=self.counter,
            fingerprint=fingerprint,
            first_context=self.first_context,
            declared=self.schedules,
            telemetry=self.telemetry,
            queues=queues,
        )

    async def _retain(self, name: str, stop: Callable[[], bool]) -> None:
        """Apply the retention settings until the worker stops."""
        await RetentionWorker(
            store=self.runs.store, settings=self.retention, owner=name, report=self._report, redact=self.runs.redact
        ).run(stop)

    def _duties(self, once: bool) -> Iterator[Callable[[str, Callable[[], bool]], Awaitable[None]]]:
        """Yield the duties of a worker for its store."""
        if deletes_anything(self.retention):
            yield self._retain
        if self.runs.webhooks is not None and not once:
            yield self._deliver
        if self.telemetry.measures and hasattr(self.runs.store, "groups"):
            yield self._measure

    async def _measure(self, name: str, stop: Callable[[], bool]) -> None:
        """Report the numbers of the store until the worker stops."""
        await StoreMeter(self.runs.store, self.telemetry.measure, name, self.runs.redact).run(stop)

    async def _deliver(self, name: str, stop: Callable[[], bool]) -> None:
        """Deliver webhooks until the worker stops."""
        await self._sender(name).run(stop)

    async def _flush(self, name: str) -> None:
        """Deliver the webhooks that are due now."""
        await self._sender(name).flush()

    def _sender(self, name: str) -> WebhookSender:
        assert self.runs.webhooks is not None
        return self.runs.webhooks.sender(self.runs.store, owner=name, redact=self.runs.redact)

    def _report(self, deleted: DeletedBatch) -> None:
        if self.telemetry.enabled:
            self.telemetry.report("retention.deleted", run_id="", at=trio.current_time(), **attrs.asdict(deleted))

    async def execute(
        self, run_id: RunId, host: Host, claimed: ClaimedRun | None = None, per_key: int | None = None
    ) -> None:
        """Execute a run, claimed or not, unless it exhausted its deliveries."""
        found = [claimed.run] if claimed else await call_store(lambda: self.runs.store.standing([run_id]))
        for run in found:
            if self.telemetry.enabled:
                self._report_claim(run)
            if run.parent is not None:
                await self.player.execute(run_id, host, claimed=claimed, per_key=per_key)
                return
        opened = await (self.runs.open_claimed(claimed) if claimed else self.runs.take(run_id, per_key=per_key))
        why = poisonous(opened.deaths, max_deliveries=self.settings.max_deliveries)
        if why is None:
            set_carried(self.player.carry, opened.carried)
            await self.drive(self.runs, opened, host, None)
        else:
            await self.runs.end_as_failed(opened, why)

    def _report_claim(self, run: StoredRun) -> None:
        since = run.created_at if run.unclaimed else run.updated_at
        self.telemetry.report(
            "run.taken",
            run_id=run.run_id,
            at=trio.current_time(),
            pipeline_name=run.pipeline,
            queue=run.queue or "",
            waited_s=max(0.0, time.time() - since),
            labels=run.labels,
        )


def _checked_start(start: Start) -> tuple[float | None, float | None]:
    """Return the start time and delay of an admission, if any."""
    at, delay_s = start
    if at is not None and delay_s is not None:
        raise DeclarationError("submit: give either at or delay_s")
    try:
        if delay_s is not None:
            return None, checked_delay_s(delay_s, subject="submit: delay_s") or None
        begins = None if at is None else epoch_of(at, subject="submit: at")
    except ValueError as error:
        raise DeclarationError(str(error)) from None
    return (None if begins is None or begins <= time.time() else begins), None


def _checked_queues(queues: str | Iterable[str]) -> tuple[str, ...]:
    named = names_of(queues)
    if not named:
        raise DeclarationError("a worker needs at least one queue, and got none")
    return tuple(checked_queue(queue, subject="queues") for queue in named)


def _checked_slots(slots: int) -> int:
    if not is_count(slots):
        raise DeclarationError(f"slots must be a whole number of at least 1, not {brief_repr(slots)}")
    return slots


def _checked_grace(grace_s: float) -> float:
    if not is_number(grace_s) or grace_s < 0:
        raise DeclarationError(f"grace_s must be seconds, 0 or more, not {brief_repr(grace_s)}")
    return grace_s


# --- Factories ----------------------------------------------------------------------------------------------------


_offices: trio.lowlevel.RunVar[weakref.WeakKeyDictionary[Any, RemoteDispatcher]] = trio.lowlevel.RunVar(
    "flujo_actors dispatchers"
)


def dispatcher_for(
    flujo: object, runs: RunRegistry, engine: Engine, settings: FleetSettings, carry: tuple[ContextVar[object], ...]
) -> RemoteDispatcher:
    """Return the remote dispatcher of a `Flujo` in the current trio run."""
    try:
        dispatchers = _offices.get()
    except LookupError:
        dispatchers = weakref.WeakKeyDictionary()
        _offices.set(dispatchers)
    remote = dispatchers.get(flujo)
    if remote is None:
        assert isinstance(runs, DurableRunRegistry)
        remote = dispatchers[flujo] = RemoteDispatcher(
            runs=runs,
            counter=Counter(runs.store, engine),
            version=Fingerprint.of(runs.pipeline).digest(),
            settings=settings,
            carry=carry,
            signals=_signals_of(runs.store),
        )
    return remote


def player_for(
    runs: DurableRunRegistry,
    settings: Settings,
    *,
    make_run: MakeRun,
    remote: Callable[[], AnyDispatcher | None],
    carry: tuple[ContextVar[object], ...],
) -> RemoteExecutor:
    """Return the executor of remote steps for a worker."""
    usage = settings.usage
    return RemoteExecutor(
        runs=runs,
        version=Fingerprint.of(runs.pipeline).digest(),
        make_run=make_run,
        remote=remote,
        settings=settings.fleet,
        signals=_signals_of(runs.store),
        carry=carry,
        guess=Amount(tokens=usage.first_call_tokens, cost_usd=usage.first_call_usd),
    )


def _signals_of(store: Store) -> Signals | None:
    signals: Signals | None = getattr(store, "signals", None)
    return None if getattr(store, "pooler", None) else signals  # LISTEN needs a session
