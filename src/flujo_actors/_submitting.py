"""`Flujo`'s side of a fleet: handing runs in, and playing those that others handed in."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from ._context.isolation import isolated
from ._core.type_parameters import NOTHING, Generic, In
from ._durable.runs import checked_id
from ._wiring import checked_mode, engine_of, fleet_of, office_of

if TYPE_CHECKING:
    from ._context.isolation import FirstContext
    from ._core.settings import Settings
    from ._durable.changes import ResumeMode
    from ._durable.runs import Runs
    from ._fleet.port import Engine
    from ._fleet.service import Fleet
    from ._fleet.worker import Worker
    from ._run.run import Office
    from .stores._port import Store


class Submitting(Generic[In]):
    """What a `Flujo` does with workers."""

    _store: Store | None
    _engine: Engine | None
    _carry: tuple[Any, ...]
    _is_remote: bool
    """Whether some of the steps run elsewhere."""
    _first_context: FirstContext
    _drive: Any
    _make_run: Any
    _telemetry: Any

    if TYPE_CHECKING:  # `Flujo` has them

        @property
        def _settings(self) -> Settings: ...

        def _runs(self, mode: ResumeMode = "strict") -> Runs: ...

    async def submit(
        self,
        data: In = NOTHING,
        *,
        run_id: str | None = None,
        context: Mapping[str, object] | None = None,
        queue: str = "default",
        priority: int = 0,
    ) -> str:
        """Hand a run to the workers of a queue, and return its id: by then it exists, durably, and will be played.

        `RunClient(store).wait(run_id)` waits for its end, from any process. `RunExists` if the id is taken.
        """
        first = isolated(self._first_context.of_run(context))
        return await self._fleet().submit(checked_id(run_id), data, first, queue=queue, priority=priority)

    def submit_sync(
        self,
        data: In = NOTHING,
        *,
        run_id: str | None = None,
        context: Mapping[str, object] | None = None,
        queue: str = "default",
        priority: int = 0,
    ) -> str:
        """The same from synchronous code."""
        first = isolated(self._first_context.of_run(context))
        return self._fleet().submit_sync(checked_id(run_id), data, first, queue=queue, priority=priority)

    def worker(
        self,
        queues: str | Iterable[str] = "default",
        slots: int = 8,
        *,
        grace_s: float = 30.0,
        health: str | os.PathLike[str] | None = None,
        mode: ResumeMode = "strict",
        engine: Engine | str | None = None,
        look_s: float | None = None,
        once: bool = False,
    ) -> Worker:
        """A worker inside this program: `async with flujo.worker(queues="default", slots=8):`.

        It plays up to `slots` runs of these queues at once, takes over what dead workers left, and stops when the block
        is left: what is not finished in `grace_s` seconds is given up for others. `health` is a port (`":8080"`) or the
        path of a file. `mode` is that of `resume`, for runs that were handed in with another version of the pipeline.
        `engine` is used instead of the `Flujo`'s own, and the store looked at every `look_s` seconds. With `once`, it
        stops by itself when nothing waits: `await worker.stopped()`.
        """
        fleet = self._fleet(checked_mode(mode), engine_of(engine, self._store))
        return fleet.worker(queues=queues, slots=slots, grace_s=grace_s, health=health, look_s=look_s, once=once)

    def _fleet(self, mode: ResumeMode = "strict", engine: Engine | None = None) -> Fleet:
        return fleet_of(
            self._runs(mode),
            engine or self._engine,
            self._settings,
            self._drive,
            make_run=self._make_run,
            office=self._office,
            carry=self._carry,
            telemetry=self._telemetry,
        )

    def _office(self) -> Office | None:
        if not self._is_remote or self._engine is None:
            return None
        return office_of(self, self._runs(), self._engine, self._settings, self._carry)
