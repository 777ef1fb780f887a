"""Evaluators for the tests; they need the extra `evals`."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from pydantic_evals.evaluators import EvaluationReason, Evaluator, EvaluatorContext

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

    def evaluate(self, ctx: Seen) -> float:
        return math.nan


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
