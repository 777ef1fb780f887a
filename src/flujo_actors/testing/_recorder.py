"""What a run said, kept for looking at it afterwards."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

import trio

from .._core.hook_payloads import HookPayload, PostStep
from .._core.outcomes import Chunk, Failure, PipelineResult, StepOutcome, StepResult, Success
from .._handle import RunHandle
from .._runner import Flujo
from ._clock import JumpingClock
from ._jumping_loop import JumpingLoop

if TYPE_CHECKING:
    from .._core.default_settings import Backend

T = TypeVar("T")


class Recorder:
    """Keeps the outcomes of runs, and as a hook (`Flujo(…, hooks=recorder)`) also the payloads.

    `result` is the last run's result. Steps are named as in results; nested ones are among them.
    """

    def __init__(self) -> None:
        self.outcomes: list[StepOutcome] = []
        self.payloads: list[HookPayload] = []
        self.result: PipelineResult | None = None

    def __call__(self, payload: HookPayload) -> None:
        """Take note of a payload: a recorder is a hook."""
        self.payloads.append(payload)

    async def record(self, run: RunHandle) -> PipelineResult:
        """Watch a run to its end, and return its result: `await recorder.record(flujo.run_async("text"))`."""
        async with run:
            async for outcome in run:
                self.outcomes.append(outcome)
            self.result = await run
        return self.result

    # --- by step ---

    def of(self, step: str) -> list[StepOutcome]:
        """The chunks, successes and failures of a step, in order."""
        return [outcome for outcome in self.outcomes if name_of(outcome) == step]

    def results(self, step: str) -> list[StepResult]:
        """The results of a step: one for each time it settled as a success or a failure."""
        settled = (outcome for outcome in self.of(step) if isinstance(outcome, Success | Failure))
        return [outcome.step_result for outcome in settled if outcome.step_result is not None]

    def output(self, step: str) -> Any:
        """What a step came to, the last time it succeeded."""
        for result in reversed(self.results(step)):
            if result.success:
                return result.output
        raise LookupError(f"step {step!r} did not succeed; these did: {self._succeeded()}")

    def chunks(self, step: str | None = None) -> list[Any]:
        """The live pieces of a step, or of all steps."""
        found = (outcome for outcome in self.outcomes if isinstance(outcome, Chunk))
        return [chunk.data for chunk in found if step is None or chunk.step_name == step]

    def settled(self) -> list[str]:
        """The names of the steps that succeeded or failed, in the order in which they ended."""
        ended = (outcome for outcome in self.outcomes if isinstance(outcome, Success | Failure))
        return [name for outcome in ended if (name := name_of(outcome)) is not None]

    def failures(self) -> dict[str, str | None]:
        """Why steps failed, by name."""
        failed = (outcome for outcome in self.outcomes if isinstance(outcome, Failure))
        return {name_of(outcome) or "": outcome.feedback for outcome in failed}

    # --- by moment ---

    def kinds(self) -> list[str]:
        """The kinds of the payloads, in order."""
        return [payload.kind for payload in self.payloads]

    def of_kind(self, kind: type[T]) -> list[T]:
        """The payloads of one type."""
        return [payload for payload in self.payloads if isinstance(payload, kind)]

    def endings(self) -> dict[str, StepOutcome]:
        """How every step ended, pauses and aborts too, by path; needs the recorder to be a hook."""
        return {payload.path: payload.outcome for payload in self.of_kind(PostStep)}

    def _succeeded(self) -> str:
        names = [name_of(outcome) for outcome in self.outcomes if isinstance(outcome, Success)]
        return ", ".join(map(repr, names)) or "none"


def name_of(outcome: StepOutcome) -> str | None:
    """Whose outcome it is; `None` where the outcome does not say."""
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
    """The result of a run that waits for nothing: backoffs, timeouts and sleeps pass at once.

    With a recorder, the run is watched; `backend` is that of `flujo.run`. For a resume, or anything else, there is the
    clock by itself: `trio.run(main, clock=JumpingClock())`, and `asyncio.Runner(loop_factory=JumpingLoop)`.
    """

    async def main() -> PipelineResult:
        run = flujo.run_async(data)
        return await run if recorder is None else await recorder.record(run)

    if flujo.backend(backend) == "trio":
        return trio.run(main, clock=JumpingClock())
    with asyncio.Runner(loop_factory=JumpingLoop) as runner:
        return runner.run(main())
