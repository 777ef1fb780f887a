"""Evaluators and priced models for the tests; they need the extra `evals`."""

from __future__ import annotations

import asyncio
import json
import math
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.usage import RequestUsage
from pydantic_evals import Case, Dataset
from pydantic_evals.evaluators import EvaluationReason, Evaluator, EvaluatorContext

from flujo_actors import Flujo, Step

Seen = EvaluatorContext[Any, Any, Any]


@dataclass
class Matches(Evaluator[Any, Any, Any]):
    """Whether the output is the expected one, if there is one."""

    def evaluate(self, ctx: Seen) -> bool:
        return ctx.expected_output is None or ctx.output == ctx.expected_output


@dataclass
class Length(Evaluator[Any, Any, Any]):
    """A score and a label."""

    async def evaluate(self, ctx: Seen) -> dict[str, Any]:
        return {"length": float(len(str(ctx.output))), "kind": type(ctx.output).__name__}


@dataclass
class WithReason(Evaluator[Any, Any, Any]):
    """An assertion with a reason."""

    def evaluate(self, ctx: Seen) -> EvaluationReason:
        return EvaluationReason(value=True, reason="it is a number")


@dataclass
class Broken(Evaluator[Any, Any, Any]):
    """An evaluator that raises."""

    async def evaluate(self, ctx: Seen) -> bool:
        raise ValueError("cannot judge")


@dataclass
class NotFinite(Evaluator[Any, Any, Any]):
    """A score that is no number."""

    score: Any = math.nan

    def evaluate(self, ctx: Seen) -> Any:
        return self.score


@dataclass
class Spans(Evaluator[Any, Any, Any]):
    """An evaluator that needs spans."""

    def evaluate(self, ctx: Seen) -> bool:
        return bool(ctx.span_tree)


@dataclass
class Counted(Evaluator[Any, Any, Any]):
    """An evaluator that notes its calls; the notes are no part of its identity."""

    seen: list[Any] = field(default_factory=list, compare=False)
    note: Callable[[str], None] | None = field(default=None, compare=False)

    def build_serialization_arguments(self) -> dict[str, Any]:
        return {}

    def evaluate(self, ctx: Seen) -> bool:
        self.seen.append(ctx)
        if self.note is not None:
            self.note(f"judge {ctx.inputs}")
        return True


@dataclass
class OnThread(Evaluator[Any, Any, Any]):
    """An evaluator that notes its thread."""

    seen: list[int] = field(default_factory=list)

    def build_serialization_arguments(self) -> dict[str, Any]:
        return {}

    def evaluate(self, ctx: Seen) -> bool:
        self.seen.append(threading.get_ident())
        return True


@dataclass
class Endless(Evaluator[Any, Any, Any]):
    """A synchronous evaluator that waits for a test."""

    begun: Any = field(default_factory=threading.Event)
    may_end: Any = field(default_factory=threading.Event)

    def evaluate(self, ctx: Seen) -> bool:
        self.begun.set()
        return bool(self.may_end.wait(60))


@dataclass
class Raises(Evaluator[Any, Any, Any]):
    """An evaluator that raises what it is given, in a thread or on the loop."""

    error: BaseException

    def build_serialization_arguments(self) -> dict[str, Any]:
        return {}

    def evaluate(self, ctx: Seen) -> bool:
        raise self.error


@dataclass
class RaisesOnLoop(Raises):
    """The same on the loop."""

    async def evaluate(self, ctx: Seen) -> bool:  # type: ignore[override]
        raise self.error


@dataclass
class Asks(Evaluator[Any, Any, Any]):
    """A synchronous judge that asks its model so many times."""

    model: Any = None
    times: int = 1
    seen: list[int] = field(default_factory=list)

    def build_serialization_arguments(self) -> dict[str, Any]:
        return {}

    def evaluate(self, ctx: Seen) -> bool:
        self.seen.append(threading.get_ident())
        return all(asyncio.run(Agent(self.model).run("?")).output for _ in range(self.times))


@dataclass
class Named(Evaluator[Any, Any, Any]):
    """An evaluator whose field `model` names no model of pydantic-ai."""

    model: Any

    def build_serialization_arguments(self) -> dict[str, Any]:
        return {}

    def evaluate(self, ctx: Seen) -> str:
        return str(self.model)


# --- models whose answers cost one cent ---------------------------------------------------------------------

PRICES = {"usage": {"prices": {"priced": {"input_usd": 0.0, "output_usd": 10_000.0}}}}
"""Each answer of the priced model costs one cent for its token."""


def priced(text: str = "yes", calls: list[str] | None = None) -> FunctionModel:
    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        if calls is not None:
            calls.append(text)
        parts = [TextPart(text)]
        return ModelResponse(parts=parts, usage=RequestUsage(input_tokens=1, output_tokens=1), model_name="priced")

    return FunctionModel(answer, model_name="priced")


def spending(store: Any, calls: list[str]) -> Flujo[Any, Any, Any]:
    return Flujo(Step("ask", Agent(priced(calls=calls))), store=store, settings=PRICES)


def questions(count: int) -> Dataset[Any, Any, Any]:
    return Dataset(
        name="questions", cases=[Case(name=f"q{i}", inputs="?", expected_output="yes") for i in range(count)]
    )


def judging(calls: list[str]) -> FunctionModel:
    """Return a model that answers a judge through its output tool."""

    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        calls.append("judge")
        said = {"reason": "fine", "pass": True, "score": 1.0}
        parts: list[Any] = (
            [ToolCallPart(info.output_tools[0].name, said)] if info.output_tools else [TextPart(json.dumps(said))]
        )
        return ModelResponse(parts=parts, usage=RequestUsage(input_tokens=1, output_tokens=1), model_name="priced")

    return FunctionModel(answer, model_name="priced")
