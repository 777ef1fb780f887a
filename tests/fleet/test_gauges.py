"""Gauges of a store, which one worker at a time writes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import anyio
import pytest
import trio
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from flujo_actors import Flujo, MemoryStore, RunClient, SqliteStore, Step
from flujo_actors._fleet import health_probe
from flujo_actors.telemetry.otel import OtelSink
from kit.postgres_server import session_server


async def echo(data: Any) -> Any:
    return data


class Numbers:
    """A sink that keeps the numbers of a store."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def emit(self, event: Any) -> None:
        pass

    def measure(self, gauges: Any) -> None:
        self.seen.append(gauges)


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health_probe, "MEASURE_S", 0.05)


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Any) -> Any:
    """An empty store of each kind."""
    if request.param == "memory":
        return MemoryStore()
    return SqliteStore(tmp_path / "runs.db") if request.param == "sqlite" else session_server().fresh_url()


async def until(condition: Callable[[], bool]) -> None:
    with trio.fail_after(120):
        while not condition():
            await trio.sleep(0.01)


def test_a_worker_writes_the_numbers_of_its_store(store: Any) -> None:
    """Depth and age of queues, runs by state, workers by queue."""
    sink = Numbers()
    flujo = Flujo(Step("a", echo), store=store, settings={"telemetry": {"sinks": [sink]}})
    flujo.run(1)
    flujo.submit_sync(1, queue="gpu")
    flujo.submit_sync(2, queue="gpu")

    async def main() -> None:
        async with flujo.worker("cpu"):
            await until(lambda: bool(sink.seen) and sink.seen[-1].workers.get("cpu") == 1)

    trio.run(main)
    last = sink.seen[-1]
    assert (last.depth["gpu"], last.depth["cpu"], last.oldest_s["cpu"]) == (2, 0, 0.0)
    assert last.oldest_s["gpu"] > 0
    assert (last.runs["blocked"], last.runs["completed"], last.runs["failed"]) == (2, 1, 0)


def test_one_worker_at_a_time_writes_them() -> None:
    """The next one begins when it stops."""
    wall = [time.time()]  # the duty of the first one does not expire while a slow machine pauses
    store, sinks = MemoryStore(wall=lambda: wall[0]), (Numbers(), Numbers())
    first, other = [Flujo(Step("a", echo), store=store, settings={"telemetry": {"sinks": [sink]}}) for sink in sinks]
    enough = trio.Event()

    async def write() -> None:
        async with first.worker():
            await enough.wait()

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(write)
            await until(lambda: bool(sinks[0].seen))
            async with other.worker():
                await until(lambda: len(sinks[0].seen) >= 5)
                assert sinks[1].seen == []
                enough.set()
                wall[0] += 60
                await until(lambda: bool(sinks[1].seen))

    trio.run(main)


def test_the_numbers_are_gauges_of_opentelemetry() -> None:
    """By queue and by state; a queue that is gone is 0."""
    reader = InMemoryMetricReader()
    sink = OtelSink(meter_provider=MeterProvider([reader]))
    flujo = Flujo(Step("a", echo), store=MemoryStore(), settings={"telemetry": {"sinks": [sink]}})
    run_id = flujo.submit_sync(1, queue="gpu")
    assert flujo.store is not None
    client = RunClient(flujo.store)

    last: dict[tuple[str, str], float] = {}

    def points() -> dict[tuple[str, str], float]:
        """The last value of each gauge: older SDKs collect it once."""
        data: Any = reader.get_metrics_data()
        metrics = [each for scope in data.resource_metrics[0].scope_metrics for each in scope.metrics] if data else []
        last.update(
            {
                (metric.name, next(iter(point.attributes.values()))): point.value
                for metric in metrics
                for point in metric.data.data_points
                if metric.name.startswith("flujo.")
            }
        )
        return last

    async def main() -> None:
        async with flujo.worker("cpu"):
            await until(lambda: points().get(("flujo.queue.depth", "gpu")) == 1)
            found = points()
            assert found["flujo.runs", "blocked"] == 1
            assert found["flujo.queue.oldest", "gpu"] > 0
            await until(lambda: points().get(("flujo.workers", "cpu")) == 1)
            client.cancel(run_id)
            await until(lambda: points()["flujo.queue.depth", "gpu"] == 0)
            assert points()["flujo.runs", "aborted"] == 1

    trio.run(main)


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
def test_a_worker_reports_its_backend_and_mode(backend: str) -> None:
    """For clients and the command."""
    flujo = Flujo(Step("a", echo), store=MemoryStore())
    assert flujo.store is not None
    client = RunClient(flujo.store, allow_blocking=True)

    async def main() -> list[Any]:
        async with flujo.worker(mode="compat"):
            while not (found := client.workers()):
                await anyio.sleep(0.01)
            return list(found)

    [worker] = anyio.run(main, backend=backend)
    assert (worker.backend, worker.mode) == (backend, "compat")
