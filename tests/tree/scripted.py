"""Agents that play a script, wrappers that put a step inside another, and short words for outcomes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from flujo_actors import (
    Aborted,
    Backoff,
    Chunk,
    Failure,
    Paused,
    Pipeline,
    PipelineResult,
    Step,
    StepOutcome,
    StepResult,
    Success,
)

AT_ONCE = Backoff.none()


class Scripted:
    """Plays one answer per call, the last one for ever; an exception is raised instead of returned."""

    def __init__(self, *answers: Any) -> None:
        self.answers = answers
        self.calls: list[Any] = []

    async def run(self, data: Any) -> Any:
        self.calls.append(data)
        answer = self.answers[min(len(self.calls), len(self.answers)) - 1]
        if isinstance(answer, BaseException):
            raise answer
        return answer


async def same(data: Any) -> Any:
    """Hands on what it got."""
    return data


async def double(data: int) -> int:
    """Twice as much."""
    return data * 2


def failing(text: str = "broken", kind: type[BaseException] = ValueError) -> Callable[[Any], Any]:
    """An agent that raises on every call."""

    async def fail(data: Any) -> Any:
        raise kind(text)

    return fail


def spent(output: Any, tokens: int = 0, cost: float = 0.0) -> Success:
    """An answer that reports what it used."""
    return Success(step_result=StepResult(name="reported", output=output, token_counts=tokens, cost_usd=cost))


def wasted(text: str, tokens: int = 0, cost: float = 0.0) -> Failure:
    """A failure that reports what it used."""
    result = StepResult(name="reported", success=False, token_counts=tokens, cost_usd=cost)
    return Failure(error=ValueError(text), feedback=text, step_result=result)


async def collected(source: Any) -> list[StepOutcome]:
    """Everything that an outcome iterator yields."""
    return [outcome async for outcome in source]


async def read_into(seen: list[StepOutcome], source: Any) -> None:
    """Read to the end, keeping what came before an error."""
    async for outcome in source:
        seen.append(outcome)


def told(outcomes: Iterable[StepOutcome]) -> list[str]:
    """One short text for each outcome."""
    return [_told(outcome) for outcome in outcomes]


def _told(outcome: StepOutcome) -> str:
    match outcome:
        case Success(step_result=result):
            return f"success {result.name}"
        case Failure(step_result=result):
            return f"failure {result.name if result else '?'}"
        case Chunk(step_name=name, data=data):
            return f"chunk {name} {data}"
        case Paused(message=message):
            return f"paused {message}"
        case Aborted(reason=reason):
            return f"aborted {reason}"


def named(result: PipelineResult, name: str) -> StepResult:
    """The first result of that name anywhere in the tree."""
    return next(each for _, each in result.walk() if each.name == name)


# --- a step inside another ----------------------------------------------------------------------------------

Wrap = tuple[Callable[[Any], Any], Callable[[Any], Any]]

WRAPS: dict[str, Wrap] = {
    "pipeline": (lambda inner: Pipeline((inner,), name="outer"), lambda output: output),
    "middle": (
        lambda inner: Pipeline((Step("before", same), inner, Step("after", same)), name="outer"),
        lambda output: output,
    ),
    "parallel": (
        lambda inner: Step.parallel("outer", {"beside": Step("beside", same), "inner": inner}),
        lambda output: output["inner"],
    ),
    "map": (
        lambda inner: Step.map_over("outer", inner, items=lambda data, context: [data]),
        lambda output: output[0],
    ),
    "branch": (
        lambda inner: Step.branch_on("outer", lambda data, context: "inner", {"inner": inner}),
        lambda output: output,
    ),
    "default": (
        lambda inner: Step.branch_on("outer", lambda data, context: "?", {"x": Step("x", same)}, default=inner),
        lambda output: output,
    ),
    "loop": (
        lambda inner: Step.loop_until("outer", inner, lambda output, context: True),
        lambda output: output,
    ),
    "fallback": (
        lambda inner: Step("outer", failing("primary"), fallback=inner),
        lambda output: output,
    ),
}
"""How to put a step inside another, and where its output is then."""

PLACES = [(outer, inner) for outer in WRAPS for inner in WRAPS]
"""Every kind of step in every kind of step."""


def nested(place: tuple[str, ...], leaf: Any) -> Any:
    """The leaf inside the last kind, inside the one before, and so on."""
    for kind in reversed(place):
        leaf = WRAPS[kind][0](leaf)
    return leaf


def unwrapped(place: tuple[str, ...], output: Any) -> Any:
    """The leaf's output out of that of the whole."""
    for kind in place:
        output = WRAPS[kind][1](output)
    return output
