"""Where a step stands in the tree of a run: the one grammar of paths.

A path is stable over attempts of the process: the same declaration, run again, gives the same paths, which
is what lets a run be resumed. Rules:

1. A path is segments joined by `/`; the empty path is the run itself.
2. A name that users chose is escaped as in JSON Pointer (`~0` for `~`, `~1` for `/`). The segments that the library
   adds all begin with `~` and a letter, so that none can collide with a name.
3. A unit (`~u`) is the last segment and takes all that follows: what models call their calls is not escaped.
4. `parse` and `formatted` are each other's inverse for every path that the library writes. Nobody else takes a path
   apart.

| segment | stands for |
|---|---|
| a name | the step of that name, or the branch of that key |
| `~i3` | the third item of a map, or turn of a loop; `~i` in a declaration, for every one of them |
| `~a2` | the second attempt; the first adds nothing |
| `~f` | the fallback |
| `~h1` | the first handler of a failure |
| `~c` | the compensation of a step; `~ckey` that of one of its units |
| `~r2` | the second run of a compensation |
| `~q1` | the question what to do about the first failure of a compensation |
| `~e` | the escalation of a question |
| `~r`, `~l`, `~k` | what is done after somebody said no; a review of an unsure answer, and whoever judges it |
| `~s1` | what a selection chose, at first and after giving way |
| `~default` | in a declaration, whatever a selection takes its default for |
| `~t` | where the failed attempts of a step are remembered |
| `~g0.2`, `~g0.2r1` | a conversation of a granular step, and a repair of what it ended with |
| `~ukey` | one model turn or tool call of a conversation |
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import Enum
from typing import NewType, TypeAlias, assert_never

import attrs

StepPath = NewType("StepPath", str)
"""The place of one step in one run, for example `research/~i2/summarize`."""

ROOT = StepPath("")
"""The run itself."""

# --- segments -----------------------------------------------------------------------------------------------


class Mark(Enum):
    """The segments that are always the same."""

    FALLBACK = "~f"
    """The step that stands in for a failed one."""
    ESCALATION = "~e"
    """The question that is asked when nobody answered in time."""
    REJECTION = "~r"
    """What is done after somebody said no."""
    REVIEW = "~l"
    """A review of an answer that was not sure enough."""
    JUDGE = "~k"
    """Whoever says how sure an answer is."""
    DEFAULT = "~default"
    """Whatever a selection takes its default for."""
    TRIED = "~t"
    """Where the failed attempts of a step are remembered."""


@attrs.frozen
class Named:
    """The child that the user called so."""

    name: str


@attrs.frozen
class Item:
    """An item of a map or a turn of a loop; without an index, every one of them."""

    index: int | None = None


@attrs.frozen
class Retry:
    """Below which the children of a later attempt stand."""

    number: int


@attrs.frozen
class Handler:
    """One of the steps that are told of a failure, counted from 1."""

    number: int


@attrs.frozen
class Compensation:
    """The step that undoes another, or one of its units."""

    unit: str | None = None


@attrs.frozen
class Again:
    """A later run of a compensation: a person wanted it, or the one before was cut short."""

    number: int


@attrs.frozen
class Doubt:
    """The question what to do about a failure of a compensation, counted from 1."""

    number: int


@attrs.frozen
class Conversation:
    """A conversation of a granular step with its agent: how many answers were refused before it, and which it is."""

    refused: int
    question: int
    repair: int | None = None
    """Which repair of what the conversation ended with, if it is one."""


@attrs.frozen
class Chosen:
    """What a selection chose: the first, or the next after an arm that gave way."""

    number: int


@attrs.frozen
class Unit:
    """One model turn or tool call of a conversation."""

    key: str


Segment: TypeAlias = Named | Item | Retry | Handler | Compensation | Again | Doubt | Conversation | Chosen | Unit | Mark
"""One step of the way from the run to a place in it."""

FALLBACK, ESCALATION, DEFAULT = Mark.FALLBACK, Mark.ESCALATION, Mark.DEFAULT
REJECTION, REVIEW, JUDGE = Mark.REJECTION, Mark.REVIEW, Mark.JUDGE
EACH, COMPENSATION = Item(), Compensation()

_FIXED: dict[str, Segment] = {"~i": EACH, "~c": COMPENSATION, **{mark.value: mark for mark in Mark}}


def parse(path: str) -> tuple[Segment, ...]:
    """The segments of a path; `ValueError` if it is none that the library writes."""
    way, is_unit, key = path.partition("/~u")
    segments = tuple(map(segment_of, way.split("/"))) if way else ()
    return (*segments, Unit(key)) if is_unit else segments


def formatted(segments: Iterable[Segment]) -> StepPath:
    """The path that consists of these segments."""
    return StepPath("/".join(map(text_of, segments)))


def segment_of(text: str) -> Segment:
    """One segment; `ValueError` if there is none of that form."""
    if text[:1] != "~" or text[1:2] in ("0", "1"):
        return Named(unescaped(text))
    return _FIXED.get(text) or _numbered(text, text[1:2], text[2:])


def known_segment(text: str) -> Segment | None:
    """One segment, of a path that others may have written; `None` if there is none of that form."""
    try:
        return segment_of(text)
    except ValueError:
        return None


def _numbered(text: str, letter: str, rest: str) -> Segment:
    try:
        match letter:
            case "i":
                return Item(int(rest))
            case "a":
                return Retry(int(rest))
            case "h":
                return Handler(int(rest))
            case "c":
                return Compensation(unescaped(rest))
            case "r":
                return Again(int(rest))
            case "q":
                return Doubt(int(rest))
            case "g":
                return _conversation(rest)
            case "s":
                return Chosen(int(rest))
    except ValueError:
        pass
    raise ValueError(f"{text!r} is no segment of a path")


def _conversation(rest: str) -> Conversation:
    place, _, repair = rest.partition("r")
    refused, question = map(int, place.split("."))
    return Conversation(refused, question, int(repair) if repair else None)


def text_of(segment: Segment) -> str:
    """A segment as it stands in a path."""
    match segment:
        case Named(name):
            return escaped(name)
        case Item(index):
            return "~i" if index is None else f"~i{index}"
        case Retry(number):
            return f"~a{number}"
        case Handler(number):
            return f"~h{number}"
        case Compensation(unit_key):
            return "~c" if unit_key is None else f"~c{escaped(unit_key)}"
        case Again(number):
            return f"~r{number}"
        case Doubt(number):
            return f"~q{number}"
        case Conversation(refused, question, nth):
            return f"~g{refused}.{question}" + ("" if nth is None else f"r{nth}")
        case Chosen(number):
            return f"~s{number}"
        case Unit(key):
            return f"~u{key}"
        case Mark():
            return segment.value
        case _:
            assert_never(segment)


def escaped(name: str) -> str:
    """A name as a segment."""
    return name.replace("~", "~0").replace("/", "~1") if "~" in name or "/" in name else name


def unescaped(segment: str) -> str:
    """The name behind a segment that a name was made of."""
    return segment.replace("~1", "/").replace("~0", "~")


# --- making paths -------------------------------------------------------------------------------------------


def child(parent: StepPath, segment: Segment) -> StepPath:
    """The place that a segment leads to from its parent."""
    text = text_of(segment)
    return StepPath(f"{parent}/{text}" if parent else text)


def named(parent: StepPath, name: str) -> StepPath:
    """The child that the user called `name`. As `child`, for every step of every run."""
    if "~" in name or "/" in name:
        name = escaped(name)
    return StepPath(f"{parent}/{name}" if parent else name)


def item(parent: StepPath, index: int) -> StepPath:
    """The `index`-th item of a map, or turn of a loop. As `child`, for as many items as there are."""
    return StepPath(f"{parent}/~i{index}")


def attempt(path: StepPath, number: int) -> StepPath:
    """Below which the children of the `number`-th attempt stand; the first attempt adds nothing."""
    return path if number == 1 else child(path, Retry(number))


def fallback(path: StepPath) -> StepPath:
    """The step that stands in for a failed one."""
    return child(path, FALLBACK)


def handler(path: StepPath, number: int) -> StepPath:
    """The `number`-th step that is told of a failure."""
    return child(path, Handler(number))


def compensation(path: StepPath, unit_key: str | None = None) -> StepPath:
    """The step that undoes another, or one of its units."""
    return child(path, Compensation(unit_key))


def again(path: StepPath, number: int) -> StepPath:
    """The `number`-th run of a compensation; the first one adds nothing."""
    return path if number == 1 else child(path, Again(number))


def doubt(path: StepPath, number: int) -> StepPath:
    """Where a person is asked what to do about the `number`-th failure of a compensation."""
    return child(path, Doubt(number))


def escalation(path: StepPath) -> StepPath:
    """The question that is asked when nobody answered in time."""
    return child(path, ESCALATION)


def choice(path: StepPath, number: int) -> StepPath:
    """Where it is remembered what a selection chose."""
    return child(path, Chosen(number))


_TRIED = "/~t"


def tried(path: StepPath) -> StepPath:
    """Where the failed attempts of a step are remembered while it goes on."""
    return StepPath(f"{path}{_TRIED}")


def is_tried(path: StepPath) -> bool:
    """Whether failed attempts are remembered there."""
    return path.endswith(_TRIED)


def whose(path: StepPath) -> StepPath:
    """The step whose failed attempts are remembered there; any other path is its own."""
    return StepPath(path.removesuffix(_TRIED))


def conversation(path: StepPath, number: int, question: int) -> StepPath:
    """One of a granular step's conversations with its agent: `number` answers were refused before it, and it is the
    `question`-th that the attempt begins; the first one adds nothing."""
    return path if (number, question) == (0, 1) else child(path, Conversation(number, question))


def repair(path: StepPath, number: int, question: int, nth: int) -> StepPath:
    """The `nth` repair of what a granular step's conversation ended with: a conversation with the model alone."""
    return child(path, Conversation(number, question, nth))


def unit(path: StepPath, key: str) -> StepPath:
    """One model turn or tool call of a conversation."""
    return child(path, Unit(key))


# --- reading paths ------------------------------------------------------------------------------------------


def step_of(path: StepPath) -> StepPath:
    """The granular step that a unit belongs to; any other path is its own."""
    step, is_unit, _ = path.partition("/~u")
    around, _, last = step.rpartition("/")
    return StepPath(around if is_unit and last.startswith("~g") else step)


def parent_of(path: StepPath) -> StepPath:
    """The place that a path stands in."""
    return StepPath(path.rpartition("/")[0])


def is_top_level(path: StepPath) -> bool:
    """Whether it is a step of the run's own pipeline, and not beside one."""
    return "/" not in path and path[:2] not in ("~h", "~c")


def above_of(path: StepPath) -> Iterator[StepPath]:
    """The paths around a path, the nearest first; the run itself is not among them."""
    while "/" in path:
        path = parent_of(path)
        yield path


def undone_by(path: StepPath) -> StepPath | None:
    """The step, or the unit of one, that the compensation at `path` undoes; `None` if it is no compensation."""
    around, _, last = path.rpartition("/")
    match known_segment(last):
        case Again():
            return undone_by(StepPath(around))
        case Compensation(unit_way):
            return StepPath(around) if unit_way is None else inside(StepPath(around), unit_way)
        case _:
            return None


def is_undoing(path: StepPath) -> bool:
    """Whether this is a compensation, or part of one."""
    return "~c" in path and any(isinstance(known_segment(each), Compensation) for each in path.split("/"))


def known_outside(path: StepPath) -> StepPath:
    """The path that a step's idempotency key is made of: every run of a compensation has the same."""
    if "/~r" not in path:
        return path
    return StepPath("/".join(each for each in path.split("/") if not isinstance(known_segment(each), Again)))


def within_of(path: StepPath) -> Iterator[StepPath]:
    """The paths around a path that its step is part of: what undoes a step is no part of it."""
    while "/" in path and not isinstance(known_segment(path.rpartition("/")[2]), Compensation | Again | Doubt):
        path = parent_of(path)
        yield path


def at_or_below(path: StepPath, others: Iterable[StepPath]) -> list[StepPath]:
    """Which of the others are the step, or inside it; `path` may be where its failed attempts are remembered."""
    step = whose(path)
    around = f"{step}/" if step else ""
    return [other for other in others if other == step or other.startswith(around)]


def withdrawn_by(path: StepPath, others: Iterable[StepPath]) -> list[StepPath]:
    """Which questions nobody waits for any more when the step at `path` settles, or is about to be tried again.

    A compensation inside a failed attempt does wait: what it undoes must still be undone.
    """
    found = at_or_below(path, others)
    return [other for other in found if not is_undoing(other)] if is_tried(path) else found


def below(path: StepPath, other: StepPath) -> str | None:
    """How to get from a step, or from where its failed attempts are remembered, to one inside it."""
    step = whose(path)
    around = f"{step}/" if step else ""
    return other.removeprefix(around) if other.startswith(around) else None


def inside(path: StepPath, way: str) -> StepPath:
    """Where `below` leads."""
    step = whose(path)
    return StepPath(f"{step}/{way}" if step else way)


def attempt_of(way: str) -> int | None:
    """Of which attempt of the step above a way from it is a part; `None` for what stands beside all attempts."""
    match known_segment(way.partition("/")[0]):
        case Retry(number):
            return number
        case Mark.FALLBACK | Mark.ESCALATION | Mark.REJECTION | Mark.REVIEW | Handler() | Compensation():
            return None
        case _:
            return 1


def in_declaration(path: StepPath) -> list[Segment] | None:
    """The way to the declaration of what stands at a path of a run: attempts add nothing to it, and every item is one.

    `None` if there is no such path.
    """
    try:
        segments = parse(path)
    except ValueError:
        return None
    return [EACH if isinstance(each, Item) else each for each in segments if not isinstance(each, Retry | Again)]
