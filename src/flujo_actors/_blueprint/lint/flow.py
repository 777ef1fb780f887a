"""Data flow of a blueprint: input, output and names per step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import attrs

from ..parser.blueprint_model import AgentEntry, BlueprintModel, StepModel, Used
from ..parser.nodes import Mapping as MappingNode
from ..parser.nodes import Node, Scalar, Sequence, Source
from ..parser.project import Project, look_up
from ..templates.template_parser import EACH, Parsed, Reference, parse_expression, parse_template
from .value_schemas import LIST, OBJECT, TEXT, Shape, follow, list_of, object_of, type_of

SEES_EVERYTHING = frozenset({"previous_step", "steps", "context", "this", "input", "scheduled_at"})
SEES_ITS_OUTPUT = frozenset({"previous_step", "context"})


@attrs.frozen(kw_only=True, eq=False, repr=False)
class TemplateSlot:
    """One text of a step that is a template or an expression."""

    key: str
    """Key of the step that contains it."""
    near: Scalar
    """Key or item on whose line findings are reported."""
    node: Scalar
    parsed: Parsed
    sees: frozenset[str] = SEES_EVERYTHING

    def at(self, source: Source, line: int) -> int:
        """Return a text line's position; outside blocks that of the key."""
        if self.node.style not in ("|", ">") or self.node.start < self.near.start:
            return self.near.start
        start = source.next_line(self.node.start)
        for _ in range(line - 1):
            start = source.next_line(start)
        within = source.text[start : source.line_end(start)]
        return min(start + len(within) - len(within.lstrip()), max(self.node.end - 1, self.node.start))

    def refers_to(self, root: str) -> bool:
        """Return whether the text refers to a variable."""
        return any(each.root == root for each in self.parsed.references)


_TEMPLATES = {
    "message": SEES_EVERYTHING,
    "seconds": SEES_EVERYTHING,
    "until": SEES_EVERYTHING,
    "key": SEES_EVERYTHING,
    "conversation": SEES_EVERYTHING,
    "output_template": SEES_ITS_OUTPUT,
}
_EXPRESSIONS = ("condition_expression", "exit_expression", "iterable_input")


def templates_of(step: StepModel) -> list[TemplateSlot]:
    """Return every template and expression of a step, parsed once."""
    if step.templates is None:
        step.templates = list(_found(step))
    return step.templates


def _found(step: StepModel) -> list[TemplateSlot]:
    found: list[TemplateSlot] = []
    entry = step.entries.get("input")
    if entry is not None:
        found.extend(_in_value(entry.node, entry.key))
    for key, sees in _TEMPLATES.items():
        if (said := step.entries.get(key)) is not None and isinstance(said.node, Scalar):
            parsed = parse_template(str(said.value))
            found.append(TemplateSlot(key=key, near=said.key, node=said.node, parsed=parsed, sees=sees))
    found.extend(_expression(said, key) for key in _EXPRESSIONS if (said := step.entries.get(key)) is not None)
    return found


def _expression(entry: AgentEntry, key: str) -> TemplateSlot:
    assert isinstance(entry.node, Scalar)
    return TemplateSlot(key=key, near=entry.key, node=entry.node, parsed=parse_expression(str(entry.value)))


def _in_value(node: Node, near: Scalar) -> Iterator[TemplateSlot]:
    match node:
        case Scalar(value=str() as text):
            yield TemplateSlot(key="input", near=near, node=node, parsed=parse_template(text))
        case Sequence():
            for each in node.items:
                yield from _in_value(each, each if isinstance(each, Scalar) and each.start > near.start else near)
        case MappingNode():
            for key, value in node.pairs:
                yield from _in_value(value, key)


@attrs.frozen(eq=False, repr=False)
class VisibleSteps:
    """Steps up to a position, with enclosing sequences and outputs."""

    places: Mapping[str, int] = attrs.field(factory=dict)
    """Position of each step in the sequence."""
    outputs: Mapping[str, Shape] = attrs.field(factory=dict)
    """Outputs of visited steps; `before` limits the visible ones."""
    before: int = 0
    around: VisibleSteps | None = None

    def __contains__(self, name: str) -> bool:
        own = name in self.places and self.places[name] < self.before
        return own or (self.around is not None and name in self.around)

    def output(self, name: str) -> Shape:
        """Return the output shape of a visible step."""
        if name in self.places and self.places[name] < self.before:
            return self.outputs.get(name)
        return None if self.around is None else self.around.output(name)

    def follows(self, name: str) -> bool:
        """Return whether a step of this name follows, here or outside."""
        own = name in self.places and self.places[name] >= self.before
        return own or (self.around is not None and self.around.follows(name))

    def names(self) -> list[str]:
        """Return the names in sight, the nearest last."""
        around = [] if self.around is None else self.around.names()
        return [*around, *(name for name, place in self.places.items() if place < self.before)]


@attrs.frozen(kw_only=True, eq=False, repr=False)
class VisibleNames:
    """Names visible to a step: lexical, inner names first."""

    steps: VisibleSteps = attrs.field(factory=VisibleSteps)
    in_map: bool = False
    item: Shape = None

    def rooted(self, reference: Reference, previous: Shape, context: Shape) -> tuple[Shape, tuple[str | int, ...]]:
        """Return a variable's shape and the fields that a reference follows."""
        match reference.root:
            case "previous_step":
                return previous, reference.path
            case "context":
                return context, reference.path
            case "this":
                return self.item, reference.path
            case "steps" if reference.path:
                return self.steps.output(str(reference.path[0])), reference.path[2:]
        return None, ()

    def shape_of(self, reference: Reference, previous: Shape, context: Shape) -> Shape:
        """Return the shape of a reference, if known."""
        found = follow(*self.rooted(reference, previous, context))
        return found if isinstance(found, Mapping) else None


@attrs.frozen(kw_only=True, eq=False, repr=False)
class StepVisit:
    """One step in its place."""

    step: StepModel
    sequence: list[StepModel]
    index: int
    visible: VisibleNames
    handed: Shape
    """Output shape of the previous step."""
    data: Shape
    """Input shape: its `input`, else the previous output."""
    output: Shape
    body_output: Shape
    """Output shape of a loop turn."""
    places: list[TemplateSlot]
    limited: bool
    """Whether usage limits hold around it."""

    def previous_of(self, place: TemplateSlot) -> Shape:
        """Return the shape of `previous_step` in one of the step's texts."""
        if place.key == "input":
            return self.handed
        if place.key in ("exit_expression", "output_template"):
            return self.body_output
        return self.data

    def shape_of(self, reference: Reference, place: TemplateSlot, context: Shape) -> Shape:
        """Return the shape of a reference in a step's text, if known."""
        return self.visible.shape_of(reference, self.previous_of(place), context)

    def rooted(self, reference: Reference, place: TemplateSlot, context: Shape) -> tuple[Shape, tuple[str | int, ...]]:
        """Return the shape of a variable, and the fields followed from it."""
        return self.visible.rooted(reference, self.previous_of(place), context)


class Flow:
    """Goes through a blueprint once, from the first step to the last."""

    def __init__(self, model: BlueprintModel, project: Project, output_of: Callable[[BlueprintModel], Shape]) -> None:
        self._model, self._project, self._output_of = model, project, output_of
        self.visits: list[StepVisit] = []
        self.output: Shape = None

    def walk(self) -> None:
        """Compute the visits and the final output."""
        limited = bool(self._model.value("usage_limits"))
        self.output = self._sequence(self._model.steps, None, VisibleNames(), limited)

    def _sequence(self, steps: list[StepModel], handed: Shape, visible: VisibleNames, limited: bool) -> Shape:
        places = {step.name: index for index, step in enumerate(steps)}
        outputs: dict[str, Shape] = {}
        for index, step in enumerate(steps):
            here = VisibleNames(
                steps=VisibleSteps(places, outputs, index, visible.steps), in_map=visible.in_map, item=visible.item
            )
            handed = outputs[step.name] = self._step(step, steps, index, here, handed, limited)
        return handed

    def _step(
        self,
        step: StepModel,
        sequence: list[StepModel],
        index: int,
        visible: VisibleNames,
        handed: Shape,
        limited: bool,
    ) -> Shape:
        places = templates_of(step)
        data = self._data(step, places, handed, visible)
        limited = limited or "usage_limits" in step.entries
        body = self._inside(step, data, visible, limited, places)
        output = None if step.broken else self._output(step, data, body)
        visit = StepVisit(
            step=step,
            sequence=sequence,
            index=index,
            visible=visible,
            handed=handed,
            data=data,
            output=output,
            body_output=body,
            places=places,
            limited=limited,
        )
        self.visits.append(visit)
        for way in step.ways.values():
            self._sequence(way, None, visible, limited)
        if step.fallback is not None:
            other = self._step(step.fallback, [step.fallback], 0, visible, handed, limited)
            return output if other == output else None
        return output

    def _data(self, step: StepModel, places: list[TemplateSlot], handed: Shape, visible: VisibleNames) -> Shape:
        entry = step.entries.get("input")
        if entry is None or entry.value is None:
            return handed
        (only,) = places[:1] or (None,)
        if not isinstance(entry.value, str) or only is None:
            return OBJECT if isinstance(entry.value, dict) else LIST if isinstance(entry.value, list) else None
        if only.parsed.expression is None:
            return TEXT
        return self._referred(only, handed, visible)

    def _referred(self, place: TemplateSlot, previous: Shape, visible: VisibleNames) -> Shape:
        """Return the shape of a text that is a single reference."""
        references = place.parsed.references
        plain = len(references) == 1 and str(references[0]) == place.parsed.text.strip("{} ")
        return visible.shape_of(references[0], previous, self.context) if plain else None

    @property
    def context(self) -> Shape:
        """Return the declared shape of the context."""
        declared = self._model.value("context")
        entry = declared.get("schema") if isinstance(declared, dict) else None
        return None if entry is None else entry.value

    # --- inside composites

    def _inside(
        self, step: StepModel, data: Shape, visible: VisibleNames, limited: bool, places: list[TemplateSlot]
    ) -> Shape:
        match step.kind:
            case "parallel" | "conditional":
                outputs = {each.name: self._sequence(each.steps, data, visible, limited) for each in step.branches}
                default = None if step.default is None else self._sequence(step.default, data, visible, limited)
                return _gathered(step, outputs, default)
            case "loop":
                return self._sequence(step.body, None, visible, limited)
            case "map":
                item = self._item(data, places, visible)
                inner = attrs.evolve(visible, in_map=True, item=item)
                return list_of(self._sequence(step.body, item, inner, limited))
            case "sequence" | "pipeline":
                return self._sequence(step.body, data, visible, limited)
        return None

    def _item(self, data: Shape, places: list[TemplateSlot], visible: VisibleNames) -> Shape:
        place = next((each for each in places if each.key == "iterable_input"), None)
        items = data if place is None else self._referred(place, data, visible)
        found = follow(items, (EACH,))
        return found if isinstance(found, Mapping) else None

    # --- outputs

    def _output(self, step: StepModel, data: Shape, body: Shape) -> Shape:
        if step.option("processors", "after"):
            return None
        match step.kind:
            case "step":
                return self._of_used(step, data)
            case "hitl":
                schema: Shape = step.value("input_schema")
                return schema
            case "wait_for":
                received: Shape = step.value("schema")
                return received
            case "sleep":
                return data
            case "parallel":
                return _reduced(step, body)
            case "loop" if "output_template" in step.entries:
                return TEXT if not _is_one_expression(step) else None
        return body

    def _of_used(self, step: StepModel, data: Shape) -> Shape:
        used = step.uses
        assert used is not None
        match used.kind:
            case "agent":
                return self._of_agent(step, used)
            case "builtin":
                return _of_builtin(step, used.name, data)
            case "import":
                found = self._model.imports.get(used.name)
                return None if found is None or found.child is None else self._output_of(found.child)
            case "python":
                own = step.option("processing", "schema")
                return own if isinstance(own, Mapping) else look_up(self._project, used.module, used.attribute).returns

    def _of_agent(self, step: StepModel, used: Used) -> Shape:
        agent = self._model.agents.get(used.name)
        if agent is None or "uses" in agent.entries:
            return None
        if step.option("processing", "structured_output") == "openai_json" and self.schema_of(step) is None:
            return None
        if type_of(self.schema_of(step)) == "string":
            return TEXT
        return self.schema_of(step) or TEXT

    def schema_of(self, step: StepModel) -> Shape:
        """Return a step's schema after promotion: its own, else its agent's."""
        own = step.option("processing", "schema")
        if isinstance(own, Mapping):
            return own
        name = own.removeprefix("agents.") if isinstance(own, str) else None
        if name is None and step.uses is not None and step.uses.kind == "agent":
            name = step.uses.name
        agent = self._model.agents.get(name or "")
        schema = None if agent is None else agent.value("output_schema")
        return schema if isinstance(schema, Mapping) else None


def _is_one_expression(step: StepModel) -> bool:
    return any(place.parsed.expression is not None for place in templates_of(step) if place.key == "output_template")


def _gathered(step: StepModel, outputs: dict[str, Shape], default: Shape) -> Shape:
    if step.kind == "parallel":
        return object_of(outputs)
    shapes = [*outputs.values(), *([default] if step.default is not None else [])]
    return shapes[0] if shapes and all(each == shapes[0] for each in shapes) else None


def _reduced(step: StepModel, body: Shape) -> Shape:
    reduce = step.value("reduce")
    if step.value("on_branch_failure") == "ignore" and reduce is None:
        return OBJECT
    match reduce:
        case None:
            return body
        case "keys":
            return list_of(TEXT)
        case "values" | "concat":
            return LIST
        case "union":
            return OBJECT
    return None


def _of_builtin(step: StepModel, name: str, data: Shape) -> Shape:
    match name:
        case "passthrough":
            return data
        case "stringify":
            return TEXT
        case "wrap_dict":
            return object_of({str(step.option("params", "key") or "value"): data})
        case "ensure_object":
            return OBJECT
    return None
