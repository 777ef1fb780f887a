"""A Flujo that is watched: which of its steps started, and how each of them settled."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import attrs
import pytest
import trio

from flujo_actors import Flujo
from flujo_actors._core.settings_model import Settings, TelemetrySettings
from flujo_actors._core.telemetry_events import RunEndedEvent, StepEnded, StepStarted, StepUnstoppable
from flujo_actors.telemetry._sinks import MemorySink


@attrs.frozen
class Watched:
    """A Flujo and what its telemetry has seen."""

    flujo: Flujo
    sink: MemorySink

    def statuses(self) -> dict[str, str]:
        """How each step settled, by path."""
        return {event.path: event.status for event in self.sink.of(StepEnded)}

    def unstoppable(self) -> list[str]:
        """The steps that were reported because they did not stop."""
        return [event.step_name for event in self.sink.of(StepUnstoppable)]

    def assert_settled(self) -> None:
        """Every step that started settled, exactly once, and so did the run."""
        started = Counter(event.path for event in self.sink.of(StepStarted))
        ended = Counter(event.path for event in self.sink.of(StepEnded))
        assert started == ended
        assert set(started.values()) <= {1}
        assert len(self.sink.of(RunEndedEvent)) <= 1


def watched(pipeline: Any, **config: Any) -> Watched:
    """A watched Flujo for the pipeline."""
    sink = MemorySink()
    settings = Settings(telemetry=TelemetrySettings(sinks=(sink,)))
    return Watched(Flujo(pipeline, settings=settings, **config), sink)


Main = Callable[[], Awaitable[Any]]


def _on_trio(main: Main) -> Any:
    return trio.run(main)


def _on_asyncio(main: Main) -> Any:
    return asyncio.run(main())  # type: ignore[arg-type]


both_hosts = pytest.mark.parametrize("run_main", [_on_trio, _on_asyncio], ids=["trio", "asyncio"])
"""The two libraries a host may run on; the embedding tests have all the ways to run them."""


def run_to_result(run_main: Callable[[Main], Any], flujo: Flujo, data: Any = None) -> Any:
    """The result of a run, awaited in a host."""

    async def main() -> Any:
        return await flujo.run_async(data)

    return run_main(main)
