"""What a `Flujo` does for a fleet: hands runs in, and plays what others handed in."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Protocol

import attrs
import trio

from .._bridge.host import Host, current_host, refuse_inside_loop
from .._core.deliveries import poisonous
from .._core.outcomes import PipelineResult, RunId
from .._core.records import StoredRun, TakenRun
from .._core.seconds import checked_seconds
from .._core.settings import FleetSettings
from .._durable.fingerprint import Fingerprint
from .._durable.runs import OpenRun
from .._durable.store_wait import call_store
from .._durable.stored_runs import StoredRuns
from ..errors import DeclarationError
from ..telemetry._silence import Silence
from ..telemetry._sinks import Telemetry
from .health import health_place
from .playing import RemotePlayer
from .port import DEFAULT_QUEUE, Engine, checked_queue
from .submitting import Counter
from .worker import Post, Worker, names_of


class DriveOpen(Protocol):
    """Works on an open run until it ends, pauses, or cannot go on."""

    def __call__(self, runs: StoredRuns, opened: OpenRun, host: Host, outlet: None) -> Awaitable[PipelineResult]: ...


@attrs.frozen(kw_only=True, eq=False)
class Fleet:
    """The fleet's side of one `Flujo`."""

    runs: StoredRuns
    engine: Engine | None
    drive: DriveOpen
    settings: FleetSettings
    counter: Counter
    player: RemotePlayer
    telemetry: Telemetry | Silence

    # --- handing in ---

    async def submit(self, run_id: RunId, data: object, context: object, *, queue: str, priority: int) -> str:
        """Hand a run in from inside a loop, of whatever library."""
        hand_in = self._submission(run_id, data, context, queue=queue, priority=priority)
        host = await current_host()
        await host.enter(call_store, hand_in)
        return run_id

    def submit_sync(self, run_id: RunId, data: object, context: object, *, queue: str, priority: int) -> str:
        """Hand a run in from synchronous code."""
        refuse_inside_loop(instead="submit")
        self._submission(run_id, data, context, queue=queue, priority=priority)()
        return run_id

    def _submission(
        self, run_id: RunId, data: object, context: object, *, queue: str, priority: int
    ) -> Callable[[], None]:
        named = checked_queue(queue, what="queue")
        admission = self.runs.admission(run_id, data, context, queue=named)
        fingerprint = Fingerprint.of(self.runs.pipeline).digest()
        return functools.partial(self.counter.submit, admission, fingerprint=fingerprint, priority=priority)

    # --- playing ---

    def worker(
        self,
        *,
        queues: str | Iterable[str],
        slots: int,
        grace_s: float,
        health: Any,
        look_s: float | None = None,
        once: bool = False,
    ) -> Worker:
        """A worker, when what it was told makes sense."""
        named = _checked_queues(queues)
        by_setting = self.settings.poll_s if self.engine is None else self.settings.look_s
        return Worker(
            Post(
                store=self.runs.store,
                pipeline=self.runs.pipeline.title,
                fingerprint=Fingerprint.of(self.runs.pipeline).digest(),
                play=self.play,
                queues=named,
                slots=_checked_slots(slots),
                engine=self.engine,
                grace_s=_checked_grace(grace_s),
                look_s=by_setting if look_s is None else checked_seconds(look_s, what="look_s"),
                unclaimed_s=self.settings.unclaimed_s,
                redact=self.runs.redact,
                expire=self.runs.expire,
                adopts=DEFAULT_QUEUE in named,
                once=once,
                health=health_place(health),
            )
        )

    async def play(self, run_id: RunId, host: Host) -> None:
        """Claim a run and work on it, unless too many workers have died over it."""
        new = await self.runs.take_new(run_id)
        if new is not None:
            await self._play_new(new, host)
            return
        for stood in await call_store(lambda: self.runs.store.standing([run_id])):
            if self.telemetry.enabled:
                self._tell(stood)
            if stood.parent is not None:
                await self.player.play(run_id, host)
                return
        opened = await self.runs.take(run_id)
        why = poisonous(opened.deaths, max_deliveries=self.settings.max_deliveries)
        if why is None:
            await self.drive(self.runs, opened, host, None)
        else:
            await self.runs.end_as_failed(opened, why)

    async def _play_new(self, new: TakenRun, host: Host) -> None:
        """Work on a run that nobody has worked on before."""
        if self.telemetry.enabled:
            self._tell(new.run)
        if new.run.parent is not None:
            await self.player.play(new.run.run_id, host, new=new)
        else:
            await self.drive(self.runs, await self.runs.open_new(new), host, None)

    def _tell(self, run: StoredRun) -> None:
        since = run.created_at if run.unclaimed else run.updated_at
        self.telemetry.tell(
            "run.taken",
            run_id=run.run_id,
            at=trio.current_time(),
            pipeline_name=run.pipeline,
            queue=run.queue or "",
            waited_s=max(0.0, time.time() - since),
        )


def _checked_queues(queues: str | Iterable[str]) -> tuple[str, ...]:
    named = names_of(queues)
    if not named:
        raise DeclarationError("a worker plays the runs of queues, and it was given none")
    return tuple(checked_queue(queue, what="queues") for queue in named)


def _checked_slots(slots: int) -> int:
    if isinstance(slots, bool) or not isinstance(slots, int) or slots < 1:
        raise DeclarationError(f"slots must be a whole number of at least 1, not {slots!r}")
    return slots


def _checked_grace(grace_s: float) -> float:
    if isinstance(grace_s, bool) or not isinstance(grace_s, int | float) or not 0 <= grace_s < math.inf:
        raise DeclarationError(f"grace_s must be seconds, 0 or more, not {grace_s!r}")
    return grace_s
