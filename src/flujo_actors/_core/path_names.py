"""What paths say to people: the step around a step, what a segment is called, which item of a map something is."""

from __future__ import annotations

from .paths import Compensation, Handler, Item, Mark, Named, StepPath, known_segment


def step_around(path: StepPath) -> StepPath:
    """The step around a step, whatever attempt it is part of; the run itself is around the top-level ones."""
    around = path.rpartition("/")[0]
    while around and around.rpartition("/")[2][:2] in _NO_STEPS:
        around = around.rpartition("/")[0]
    return StepPath(around)


_NO_STEPS = ("~a", "~g", "~u", "~t")


def last_name(path: StepPath) -> str:
    """What the last segment of a path is called, where nobody has said the step's name."""
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
    """What a model turn or a tool call is called: its key in the step."""
    return path.partition("/~u")[2]


def index_of(path: StepPath) -> int | None:
    """Which item of the innermost map around it, or turn of a loop, a step is or belongs to; `None` in neither."""
    _, found, rest = path.partition("/~u")[0].rpartition("/~i")
    number = rest.partition("/")[0]
    return int(number) if found and number.isdigit() else None
