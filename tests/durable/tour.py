"""A pipeline that has everything in it: a loop, a parallel stage, a map, a fallback, a nested pipeline, a pause."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import trio

from flujo_actors import Backoff, Flujo, Pipeline, PipelineResult, RunClient, Step, StepResult, Success
from flujo_actors.errors import RunNotFound
from kit.effects import Effects

Pass = Callable[[str], None]
"""What is told of every point that a step passes."""

ANSWER = 100


class Tour:
    """The pipeline and how to go through it, whatever happened before."""

    def __init__(self, effects: Effects, passing: Pass = lambda name: None) -> None:
        self._effects, self._passing = effects, passing
        self.pipeline = self._declared()

    def flujo(self, store: Any, **options: Any) -> Flujo:
        return Flujo(self.pipeline, store=store, **options)

    def complete(self, store: Any, run_id: str) -> PipelineResult:
        """Start the run, or go on with it, and answer its question; the result."""
        flujo, client = self.flujo(store), RunClient(store)
        try:
            info = client.get(run_id)
        except RunNotFound:
            return self._answered(flujo, flujo.run(1, run_id=run_id))
        if info.status == "paused" and info.state_token is not None:
            return flujo.resume(info.state_token, ANSWER)
        return self._answered(flujo, flujo.resume(run_id))

    @staticmethod
    def _answered(flujo: Flujo, result: PipelineResult) -> PipelineResult:
        return flujo.resume(result.state_token, ANSWER) if result.status == "paused" else result

    def _declared(self) -> Pipeline:
        refine = self._step("add", 1) >> self._step("again", 1)
        return (
            self._step("first", 1)
            >> Step.loop_until("refine", refine, lambda output, context: output >= 6, max_loops=9)
            >> Step.parallel("both", {"left": self._step("l", 10), "right": self._step("r", 20) >> self._step("r2", 1)})
            >> Step.map_over("each", self._step("item", 3), items=_values, merge="overwrite")
            >> Step("checked", self._failing(), fallback=self._summing(), backoff=Backoff.none())
            >> (self._step("inner", 1) >> Step.human_in_the_loop("ask", "How many?", input_schema=int))
            >> self._step("last", 5)
        )

    def _step(self, name: str, more: int) -> Step:
        async def work(data: int, *, context: Any, idempotency_key: str) -> Success:
            self._passing(f"{name} begins")
            self._effects.add(idempotency_key)
            self._passing(f"{name} has done it")
            await trio.lowlevel.checkpoint()
            setattr(context, name, data)
            return _spent(data + more)

        return Step(name, work)

    def _failing(self) -> Any:
        async def fail(data: list[int], *, idempotency_key: str) -> Success:
            self._passing("primary begins")
            self._effects.add(idempotency_key)
            raise ValueError("the primary never works")

        return fail

    def _summing(self) -> Step:
        async def total(data: list[int], *, idempotency_key: str) -> Success:
            self._passing("fallback begins")
            self._effects.add(idempotency_key)
            self._passing("fallback has done it")
            return _spent(sum(data))

        return Step("total", total)


def _values(data: dict[str, int], context: Any) -> list[int]:
    return sorted(data.values())


def _spent(output: Any) -> Success:
    return Success(step_result=StepResult(name="", output=output, token_counts=7, cost_usd=0.25))


def gone_on_to(result: PipelineResult) -> dict[str, Any]:
    """What must be the same however often a run was interrupted."""
    return {
        "status": result.status,
        "output": result.output,
        "tokens": result.total_tokens,
        "cost": result.total_cost_usd,
        "context": dict(vars(result.final_context)) if hasattr(result.final_context, "__dict__") else None,
        "steps": [(step.name, step.output, step.attempts) for step in result.step_history],
    }
