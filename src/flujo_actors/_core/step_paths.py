"""Grammar of step paths.

A path is stable over processes: the same declaration, run again, gives the same paths, which makes a run resumable.
Rules:

1. A path is segments joined by `/`; the empty path is the run itself.
2. A name that users chose is escaped as in JSON Pointer (`~0` for `~`, `~1` for `/`). The segments that the library
   adds all begin with `~` and a letter, so that none can collide with a name.
3. A unit (`~u`) is the last segment and contains the rest of the path: keys of model calls are not escaped.
4. `parse` and `formatted` are each other's inverse for every path that the library writes. No other module parses a
   path.

| segment | meaning |
|---|---|
| a name | the step of that name, or the branch of that key |
| `~i3` | the third item of a map, or turn of a loop; `~i` in a declaration, for all of them |
| `~a2` | the second attempt; the first adds nothing |
| `~f` | the fallback |
| `~h1` | the first handler of a failure |
| `~c` | the compensation of a step; `~ckey` that of one of its units |
| `~r2` | the second run of a compensation |
| `~q1` | the pause after the first failure of a compensation |
| `~e` | the escalation of a pause |
| `~r`, `~l`, `~k` | the rejection step; a review of an answer of low confidence, and its judge |
| `~s1` | the choice of a selection, at first and after each replacement |
| `~default` | in a declaration, the default of a selection |
| `~t` | the record of a step's failed attempts |
| `~g0.2`, `~g0.2r1` | a conversation of a granular step, and a repair of its final answer |
| `~ukey` | one model turn or tool call of a conversation |

Sections:

- Display names of paths: parent step, segment name, item index.
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
    """Fallback of a failed step."""
    ESCALATION = "~e"
    """Escalation of a pause that timed out."""
    REJECTION = "~r"
    """Step after a rejection."""
    REVIEW = "~l"
    """A review of an answer that was not sure enough."""
    JUDGE = "~k"
    """Judge of an answer's confidence."""
    DEFAULT = "~default"
    """Whatever a selection takes its default for."""
    TRIED = "~t"
    """Record of a step's failed attempts."""


@attrs.frozen
class Named:
    """The child that the user called so."""

    name: str


@attrs.frozen
class Item:
    """Item of a map or turn of a loop; all without index."""

    index: int | None = None


@attrs.frozen
class Retry:
    """Parent segment of the children of a later attempt."""

    number: int


@attrs.frozen
class Handler:
    """Failure handler, counted from 1."""

    number: int


@attrs.frozen
class Compensation:
    """Compensation of a step or of one of its units."""

    unit: str | None = None


@attrs.frozen
class Again:
    """Later run of a compensation, on request or after a cancellation."""

    number: int


@attrs.frozen
class Doubt:
    """Pause after a failed compensation, counted from 1."""

    number: int


@attrs.frozen
class Conversation:
    """Conversation of a granular step: its index and refused answers before."""

    refused: int
    question: int
    repair: int | None = None
    """Repair index of the conversation's final answer, if it is one."""


@attrs.frozen
class Chosen:
    """Choice of a selection: the first, or a replacement arm."""

    number: int


@attrs.frozen
class UnitSegment:
    """One model turn or tool call of a conversation."""

    key: str


Segment: TypeAlias = (
    Named | Item | Retry | Handler | Compensation | Again | Doubt | Conversation | Chosen | UnitSegment | Mark
)
"""One segment of a path."""

FALLBACK, ESCALATION, DEFAULT = Mark.FALLBACK, Mark.ESCALATION, Mark.DEFAULT
REJECTION, REVIEW, JUDGE = Mark.REJECTION, Mark.REVIEW, Mark.JUDGE
EACH, COMPENSATION = Item(), Compensation()

_FIXED: dict[str, Segment] = {"~i": EACH, "~c": COMPENSATION, **{mark.value: mark for mark in Mark}}


def parse(path: str) -> tuple[Segment, ...]:
    """Return the segments of a path; raise `ValueError` for any other text."""
    way, is_unit, key = path.partition("/~u")
    segments = tuple(map(segment_of, way.split("/"))) if way else ()
    return (*segments, UnitSegment(key)) if is_unit else segments


def formatted(segments: Iterable[Segment]) -> StepPath:
    """Return the path that consists of these segments."""
    return StepPath("/".join(map(text_of, segments)))


def segment_of(text: str) -> Segment:
    """Return one segment; raise `ValueError` for any other text."""
    if text[:1] != "~" or text[1:2] in ("0", "1"):
        return Named(unescaped(text))
    return _FIXED.get(text) or _numbered(text, text[1:2], text[2:])


def known_segment(text: str) -> Segment | None:
    """Return one segment of an untrusted path, or None."""
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
    """Return a segment as text."""
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
        case UnitSegment(key):
            return f"~u{key}"
        case Mark():
            return segment.value
        case _:
            assert_never(segment)


def escaped(name: str) -> str:
    """Return a name as a segment."""
    return name.replace("~", "~0").replace("/", "~1") if "~" in name or "/" in name else name


def unescaped(segment: str) -> str:
    """Return the name behind a segment that a name was made of."""
    return segment.replace("~1", "/").replace("~0", "~")


# --- making paths -------------------------------------------------------------------------------------------


def child(parent: StepPath, segment: Segment) -> StepPath:
    """Return the place that a segment leads to from its parent."""
    text = text_of(segment)
    return StepPath(f"{parent}/{text}" if parent else text)


def named(parent: StepPath, name: str) -> StepPath:
    """Return the child path of the user's `name`; a fast `child`."""
    if "~" in name or "/" in name:
        name = escaped(name)
    return StepPath(f"{parent}/{name}" if parent else name)


def item(parent: StepPath, index: int) -> StepPath:
    """Return the path of item `index`; a fast `child`."""
    return StepPath(f"{parent}/~i{index}")


def attempt(path: StepPath, number: int) -> StepPath:
    """Return the parent path of an attempt's children; the first's is unchanged."""
    return path if number == 1 else child(path, Retry(number))


def fallback(path: StepPath) -> StepPath:
    """Return the path of the fallback."""
    return child(path, FALLBACK)


def handler(path: StepPath, number: int) -> StepPath:
    """Return the path of the `number`-th failure handler."""
    return child(path, Handler(number))


def compensation(path: StepPath, unit_key: str | None = None) -> StepPath:
    """Return the compensation path of a step or unit."""
    return child(path, Compensation(unit_key))


def again(path: StepPath, number: int) -> StepPath:
    """Return the `number`-th run of a compensation; the first one adds nothing."""
    return path if number == 1 else child(path, Again(number))


def doubt(path: StepPath, number: int) -> StepPath:
    """Return the pause path after the compensation's `number`-th failure."""
    return child(path, Doubt(number))


def escalation(path: StepPath) -> StepPath:
    """Return the path of the escalation of a pause."""
    return child(path, ESCALATION)


def choice(path: StepPath, number: int) -> StepPath:
    """Return the path of a selection's choice record."""
    return child(path, Chosen(number))


_TRIED = "/~t"


def tried(path: StepPath) -> StepPath:
    """Return the path of the record of a running step's failed attempts."""
    return StepPath(f"{path}{_TRIED}")


def is_tried(path: StepPath) -> bool:
    """Return whether failed attempts are remembered there."""
    return path.endswith(_TRIED)


def whose(path: StepPath) -> StepPath:
    """Return the step of a failed-attempts path; any other path unchanged."""
    return StepPath(path.removesuffix(_TRIED))


def conversation(path: StepPath, number: int, question: int) -> StepPath:
    """Return the path of a granular step's conversation with its agent.

    `number` answers were refused before it, and it is the `question`-th of the attempt; the first one adds nothing.
    """
    return path if (number, question) == (0, 1) else child(path, Conversation(number, question))


def repair(path: StepPath, number: int, question: int, nth: int) -> StepPath:
    """Return the `nth` repair path of a granular conversation's final answer.

    A repair is a conversation with the model alone.
    """
    return child(path, Conversation(number, question, nth))


RATE = "rate"
"""Key of a step's wait for a rate, like a unit's."""


def unit(path: StepPath, key: str) -> StepPath:
    """One model turn or tool call of a conversation."""
    return child(path, UnitSegment(key))


# --- reading paths ------------------------------------------------------------------------------------------


def step_of(path: StepPath) -> StepPath:
    """Return the granular step of a unit; any other path unchanged."""
    step, is_unit, _ = path.partition("/~u")
    around, _, last = step.rpartition("/")
    return StepPath(around if is_unit and last.startswith("~g") else step)


def parent_of(path: StepPath) -> StepPath:
    """Return the parent path."""
    return StepPath(path.rpartition("/")[0])


def is_top_level(path: StepPath) -> bool:
    """Return whether the path is a step of the run's own pipeline."""
    return "/" not in path and path[:2] not in ("~h", "~c")


def above_of(path: StepPath) -> Iterator[StepPath]:
    """Yield the ancestor paths, nearest first, without the run itself."""
    while "/" in path:
        path = parent_of(path)
        yield path


def compensated_by(path: StepPath) -> StepPath | None:
    """Return the step or unit compensated at `path`, or None."""
    around, _, last = path.rpartition("/")
    match known_segment(last):
        case Again():
            return compensated_by(StepPath(around))
        case Compensation(unit_way):
            return StepPath(around) if unit_way is None else inside(StepPath(around), unit_way)
        case _:
            return None


def is_undoing(path: StepPath) -> bool:
    """Return whether this is a compensation, or part of one."""
    return "~c" in path and any(isinstance(known_segment(each), Compensation) for each in path.split("/"))


def known_outside(path: StepPath) -> StepPath:
    """Return a step's idempotency path, shared by runs of its compensation."""
    if "/~r" not in path:
        return path
    return StepPath("/".join(each for each in path.split("/") if not isinstance(known_segment(each), Again)))


def within_of(path: StepPath) -> Iterator[StepPath]:
    """Yield the enclosing ancestors; a compensation is outside its step."""
    while "/" in path and not isinstance(known_segment(path.rpartition("/")[2]), Compensation | Again | Doubt):
        path = parent_of(path)
        yield path


def at_or_below(path: StepPath, others: Iterable[StepPath]) -> list[StepPath]:
    """Return the others that are the step or inside it.

    `path` may be the record of its failed attempts.
    """
    step = whose(path)
    around = f"{step}/" if step else ""
    return [other for other in others if other == step or other.startswith(around)]


def withdrawn_by(path: StepPath, others: Iterable[StepPath]) -> list[StepPath]:
    """Return the pauses withdrawn when the step at `path` settles or retries.

    A compensation inside a failed attempt keeps its pause: its work must still be compensated.
    """
    found = at_or_below(path, others)
    return [other for other in found if not is_undoing(other)] if is_tried(path) else found


def below(path: StepPath, other: StepPath) -> str | None:
    """Return the relative path to a nested step, or None.

    `path` may be the record of the step's failed attempts.
    """
    step = whose(path)
    around = f"{step}/" if step else ""
    return other.removeprefix(around) if other.startswith(around) else None


def inside(path: StepPath, way: str) -> StepPath:
    """Return the path at the end of a `below` result."""
    step = whose(path)
    return StepPath(f"{step}/{way}" if step else way)


def attempt_of(way: str) -> int | None:
    """Return the attempt of a relative path; `None` outside all."""
    match known_segment(way.partition("/")[0]):
        case Retry(number):
            return number
        case Mark.FALLBACK | Mark.ESCALATION | Mark.REJECTION | Mark.REVIEW | Handler() | Compensation():
            return None
        case _:
            return 1


def in_declaration(path: StepPath) -> list[Segment] | None:
    """Return the declaration path of a run path, or None.

    Attempts add nothing to it, and all items share one segment.
    """
    try:
        segments = parse(path)
    except ValueError:
        return None
    return [EACH if isinstance(each, Item) else each for each in segments if not isinstance(each, Retry | Again)]


# --- Display names of paths ---------------------------------------------------------------------------------------


def step_around(path: StepPath) -> StepPath:
    """Return the enclosing step, ignoring attempts; the run itself for top-level steps."""
    around = path.rpartition("/")[0]
    while around and around.rpartition("/")[2][:2] in _NO_STEPS:
        around = around.rpartition("/")[0]
    return StepPath(around)


_NO_STEPS = ("~a", "~g", "~u", "~t")


def last_name(path: StepPath) -> str:
    """Return the display name of the last segment."""
    match known_segment(path.rpartition("/")[2]):
        case Named(name):
            return name
        case Item(index):
            return f"[{index}]"
        case Mark() as mark:
            return mark.name.lower()
        case Handler(number):
            return f"handler {number}"
        case Compensation():
            return "compensation"
        case _:
            return path.rpartition("/")[2]


def unit_name(path: StepPath) -> str:
    """Return the key of a model turn or tool call."""
    return path.partition("/~u")[2]


def index_of(path: StepPath) -> int | None:
    """Return the index of the innermost map or loop, or None."""
    _, found, rest = path.partition("/~u")[0].rpartition("/~i")
    return number_of(rest.partition("/")[0]) if found else None


def number_of(key: str) -> int | None:
    """Return the number in the key of an item, or None."""
    return int(key) if key.isdecimal() and len(key) < 16 else None
