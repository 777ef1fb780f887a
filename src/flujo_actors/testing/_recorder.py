"""Recorder of run outcomes and hook payloads.

Sections:

- Mock clock for tests: no real waiting, deterministic order.
- Mock clock for asyncio: an event loop without real waiting.
"""

from __future__ import annotations

import asyncio
import math
import selectors
from collections.abc import Callable
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Any, TypeVar, TypeVarTuple

import trio
import trio.testing

from .._api.flujo import Flujo
from .._api.handle import RunHandle
from .._bridge.threads import threads_in_flight
from .._bridge.to_asyncio import calls_in_flight
from .._core.failure_info import HookPayload, PostStep
from .._core.outcomes import Chunk, Failure, PipelineResult, StepOutcome, StepResult, Success
from .._durable.group_commit import commits_in_flight
from .._durable.store_executor import calls_in_flight as store_calls_under_way

if TYPE_CHECKING:
    from .._core.default_settings import Backend


# --- Mock clock for tests -----------------------------------------------------------------------------------------
# Rules:
#
# 1. Time is frozen while any task can run, and jumps to the next deadline when none can.
# 2. Work outside the run's loop (model agents, stores, sync steps in threads) continues in real time; the clock waits
#    for it.


PATIENCE_S = 0.01
"""Real time between checks for the end of work outside the loop."""


class JumpingClock(trio.abc.Clock):
    """A trio clock that jumps over waiting: `trio.run(main, clock=JumpingClock())`."""

    def __init__(self) -> None:
        self._now = 0.0
        self._looked = False

    def start_clock(self) -> None:
        """Do nothing: time advances by jumps."""

    def current_time(self) -> float:
        """Seconds since the beginning, as the run experiences them."""
        return self._now

    def deadline_to_sleep_time(self, deadline: float) -> float:
        """Jump when no task can run and no outside work is pending."""
        if outside_work():
            self._looked = False
            return PATIENCE_S
        if not self._looked:  # poll for I/O once without waiting
            self._looked = True
            return 0.0
        self._looked = False
        if deadline == math.inf:
            return PATIENCE_S
        self._now = max(self._now, deadline)
        return 0.0


def outside_work() -> bool:
    """Return whether work outside the clock's loop is pending."""
    if not trio.lowlevel.in_trio_run():  # not running, for example while an asyncio loop shuts down
        return calls_in_flight() > 0
    in_threads = trio.testing.active_thread_count() > 0 or threads_in_flight()
    return in_threads or commits_in_flight() or store_calls_under_way() or calls_in_flight() > 0


# --- Mock clock for asyncio ---------------------------------------------------------------------------------------
# Rules:
#
# 1. Time is frozen while any callback can run, and jumps to the next timer when none can.
# 2. Work in threads (sync steps, `asyncio.to_thread`) continues in real time; the clock waits for it. It does not
#    know
#    threads of other libraries, such as those of `anyio.to_thread`.
# 3. The trio guest run on the loop uses the loop's time.


T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class JumpingLoop(asyncio.SelectorEventLoop):
    """An asyncio loop that jumps over waiting: `asyncio.Runner(loop_factory=JumpingLoop)`."""

    def __init__(self) -> None:
        self._now = 0.0
        self._in_threads = 0
        self.trio_clock: trio.abc.Clock = _LoopClock(self)
        """Clock of a trio run on this loop."""
        super().__init__(_JumpingSelector(self))

    def time(self) -> float:
        """Seconds since the beginning, as the program experiences them."""
        return self._now

    def jump(self, seconds: float) -> None:
        """Let time pass."""
        self._now += seconds

    @property
    def waits_for_threads(self) -> bool:
        """Return whether something may still come from outside the loop."""
        return self._in_threads > 0 or outside_work()

    def run_in_executor(self, executor: Executor | None, func: Callable[[*Ts], T], *args: *Ts) -> asyncio.Future[T]:
        """Run in a thread; the clock waits for it."""
        future = super().run_in_executor(executor, func, *args)
        self._in_threads += 1
        future.add_done_callback(self._back_from_thread)
        return future

    def _back_from_thread(self, _: object) -> None:
        self._in_threads -= 1

    async def shutdown_default_executor(self, *timeout: float | None) -> None:
        """Shut down the executor; its timeout (Python 3.12+) is not jumped to."""
        self._in_threads += 1
        try:
            await super().shutdown_default_executor(*timeout)
        finally:
            self._in_threads -= 1


class _JumpingSelector(selectors.DefaultSelector):
    """Selector that advances the time instead of waiting for a timer."""

    def __init__(self, loop: JumpingLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Return ready I/O, after a jump if there is none."""
        found = super().select(0)
        if found or (timeout is not None and timeout <= 0):
            return found
        if timeout is None or self._loop.waits_for_threads:
            return super().select(PATIENCE_S)
        self._loop.jump(timeout)
        return []


class _LoopClock(trio.abc.Clock):
    def __init__(self, loop: JumpingLoop) -> None:
        self._loop = loop

    def start_clock(self) -> None:
        """Do nothing: the loop's time is there already."""

    def current_time(self) -> float:
        return self._loop.time()

    def deadline_to_sleep_time(self, deadline: float) -> float:
        return deadline - self._loop.time()


# --- Recorder of run outcomes and hook payloads -------------------------------------------------------------------


class Recorder:
    """Record the outcomes of runs, as a hook also the payloads.

    `result` is the last run's result. Steps are named as in results, nested ones included.
    """

    def __init__(self) -> None:
        self.outcomes: list[StepOutcome] = []
        """Outcomes and chunks, in order."""
        self.payloads: list[HookPayload] = []
        """Payloads of hooks, in order."""
        self.result: PipelineResult | None = None
        """Result of the run."""

    def __call__(self, payload: HookPayload) -> None:
        """Take note of a payload: a recorder is a hook."""
        self.payloads.append(payload)

    async def record(self, run: RunHandle) -> PipelineResult:
        """Watch a run to its end, and return its result: `await recorder.record(flujo.run_async("text"))`.

        Args:
            run: handle of the run.
        """
        async with run:
            async for outcome in run:
                self.outcomes.append(outcome)
            self.result = await run
        return self.result

    # --- by step ---

    def of(self, step: str) -> list[StepOutcome]:
        """Return the chunks, successes and failures of a step, in order.

        Args:
            step: name of the step.
        """
        return [outcome for outcome in self.outcomes if name_of(outcome) == step]

    def results(self, step: str) -> list[StepResult]:
        """Return the results of a step, one per success or failure.

        Args:
            step: name of the step.
        """
        settled = (outcome for outcome in self.of(step) if isinstance(outcome, Success | Failure))
        return [outcome.step_result for outcome in settled if outcome.step_result is not None]

    def output(self, step: str) -> Any:
        """Return the last successful output of a step.

        Args:
            step: name of the step.
        """
        for result in reversed(self.results(step)):
            if result.success:
                return result.output
        raise LookupError(f"step {step!r} did not succeed; these did: {self._succeeded()}")

    def chunks(self, step: str | None = None) -> list[Any]:
        """Return the live chunks of a step, or of all steps.

        Args:
            step: name of the step; by default all.
        """
        found = (outcome for outcome in self.outcomes if isinstance(outcome, Chunk))
        return [chunk.data for chunk in found if step is None or chunk.step_name == step]

    def settled(self) -> list[str]:
        """Return succeeded and failed steps' names in order of their end."""
        ended = (outcome for outcome in self.outcomes if isinstance(outcome, Success | Failure))
        return [name for outcome in ended if (name := name_of(outcome)) is not None]

    def failures(self) -> dict[str, str | None]:
        """Return the feedback of failed steps by name."""
        failed = (outcome for outcome in self.outcomes if isinstance(outcome, Failure))
        return {name_of(outcome) or "": outcome.feedback for outcome in failed}

    # --- by moment ---

    def kinds(self) -> list[str]:
        """Return the kinds of the payloads, in order."""
        return [payload.kind for payload in self.payloads]

    def of_kind(self, kind: type[T]) -> list[T]:
        """Return the payloads of one type.

        Args:
            kind: class of the payloads.
        """
        return [payload for payload in self.payloads if isinstance(payload, kind)]

    def endings(self) -> dict[str, StepOutcome]:
        """Return every step's terminal outcome by path; needs the hook."""
        return {payload.path: payload.outcome for payload in self.of_kind(PostStep)}

    def _succeeded(self) -> str:
        names = [name_of(outcome) for outcome in self.outcomes if isinstance(outcome, Success)]
        return ", ".join(map(repr, names)) or "none"


def name_of(outcome: StepOutcome) -> str | None:
    """Return the step name of an outcome, or None."""
    match outcome:
        case Success(step_result=result):
            return result.name
        case Failure(step_result=partial):
            return None if partial is None else partial.name
        case Chunk(step_name=name):
            return name
        case _:
            return None


def run_on_mock_clock(
    flujo: Flujo, data: object = None, *, recorder: Recorder | None = None, backend: Backend | None = None
) -> PipelineResult:
    """Return a run's result on a mock clock, with instant waits.

    For other calls, such as a resume, use the clock itself: `trio.run(main, clock=JumpingClock())`, and
    `asyncio.Runner(loop_factory=JumpingLoop)`.

    Args:
        flujo: pipeline that runs.
        data: input of the first step.
        recorder: recorder that watches the run.
        backend: library of the steps, as in `Flujo.run`.

    Raises:
        LoopAlreadyRunning: this thread runs an event loop.

    Example:
        ```python
        slow = ScriptedAgent(Delayed(3600, "too late"), "in time")
        result = run_on_mock_clock(Flujo(Step("ask", slow, timeout_s=60, max_retries=1)))
        assert result.output == "in time"
        ```
    """

    async def main() -> PipelineResult:
        run = flujo.run_async(data)
        return await run if recorder is None else await recorder.record(run)

    if flujo.backend(backend) == "trio":
        return trio.run(main, clock=JumpingClock())
    with asyncio.Runner(loop_factory=JumpingLoop) as runner:
        return runner.run(main())
