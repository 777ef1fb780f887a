"""Where a step stands in the tree of a run.

A path is stable over attempts of the process: the same declaration, run again, gives the same paths, which
is what lets a run be resumed. Segments are joined by `/`; user-chosen names are escaped as in JSON Pointer
(`~0` for `~`, `~1` for `/`), so the segments the library adds, which all begin with `~` and a letter, cannot
collide with a name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NewType

StepPath = NewType("StepPath", str)
"""The place of one step in one run, for example `research/~i2/summarize`."""

ROOT = StepPath("")
"""The run itself."""


def named(parent: StepPath, name: str) -> StepPath:
    """The child that the user called `name`."""
    if "~" in name or "/" in name:
        name = name.replace("~", "~0").replace("/", "~1")
    return StepPath(f"{parent}/{name}" if parent else name)


def item(parent: StepPath, index: int) -> StepPath:
    """The `index`-th item of a map, or turn of a loop."""
    return StepPath(f"{parent}/~i{index}")


def attempt(path: StepPath, number: int) -> StepPath:
    """Below which the children of the `number`-th attempt stand; the first attempt adds nothing."""
    return path if number == 1 else StepPath(f"{path}/~a{number}")


def fallback(path: StepPath) -> StepPath:
    """The step that stands in for a failed one."""
    return StepPath(f"{path}/~f")


TRIED = "/~t"
"""Ends the path at which a step's failed attempts are remembered."""


def tried(path: StepPath) -> StepPath:
    """Where the failed attempts of a step are remembered while it goes on."""
    return StepPath(f"{path}{TRIED}")


def conversation(path: StepPath, number: int, question: int) -> StepPath:
    """One of a granular step's conversations with its agent: `number` answers were refused before it, and it is the
    `question`-th that the attempt begins; the first one adds nothing."""
    return path if (number, question) == (0, 1) else StepPath(f"{path}/~g{number}.{question}")


def repair(path: StepPath, number: int, question: int, nth: int) -> StepPath:
    """The `nth` repair of what a granular step's conversation ended with: a conversation with the model alone."""
    return StepPath(f"{path}/~g{number}.{question}r{nth}")


def unit(path: StepPath, key: str) -> StepPath:
    """One model turn or tool call of a conversation."""
    return StepPath(f"{path}/~u{key}")


def step_of(path: StepPath) -> StepPath:
    """The granular step that a unit belongs to; any other path is its own."""
    step, is_unit, _ = path.partition("/~u")
    around, _, last = step.rpartition("/")
    return StepPath(around if is_unit and last.startswith("~g") else step)


def above_of(path: StepPath) -> Iterator[StepPath]:
    """The paths around a path, the nearest first; the run itself is not among them."""
    while "/" in path:
        path = StepPath(path.rpartition("/")[0])
        yield path


def at_or_below(path: StepPath, others: Iterable[StepPath]) -> list[StepPath]:
    """Which of the others are the step, or inside it; `path` may be where its failed attempts are remembered."""
    step = path.removesuffix(TRIED)
    return [other for other in others if other == step or other.startswith(f"{step}/")]


def below(path: StepPath, other: StepPath) -> str | None:
    """How to get from a step, or from where its failed attempts are remembered, to one inside it."""
    around = f"{path.removesuffix(TRIED)}/"
    return other.removeprefix(around) if other.startswith(around) else None


def inside(path: StepPath, way: str) -> StepPath:
    """Where `below` leads."""
    return StepPath(f"{path.removesuffix(TRIED)}/{way}")


def unescaped(segment: str) -> str:
    """The name behind a segment that a name was made of."""
    return segment.replace("~1", "/").replace("~0", "~")
