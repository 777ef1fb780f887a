"""From nodes to the model, by the table of fields: what is unknown, missing or of another kind is a finding."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .._core.near_names import nearest
from . import fields, refusals
from .edits import renaming, replacing
from .fields import Field, fields_of
from .model import AgentModel, BlueprintModel, Branch, Entries, Entry, ImportModel, StepModel
from .nodes import Mapping, Node, Scalar, Sequence, data_of, key_of
from .scalars import YES_AND_NO
from .telling import Told
from .used import read_agent_key, read_function, read_uses

_GROUPS_OF_STEPS = frozenset(fields.STEP_KINDS)


class Reader:
    """Reads one file."""

    def __init__(self, told: Told) -> None:
        self._told = told
        self.tell = told.tell

    # --- mappings

    def group(self, node: Node | None, group: str, where: str) -> Entries | None:
        """The entries of a mapping with the keys of a group."""
        if not isinstance(node, Mapping):
            if node is not None:
                self.tell("V-K2", node, f"{where} must be a mapping with keys such as {_some(group)}")
            return None
        entries: Entries = {}
        for key, value in node.pairs:
            field = self._field(node, key, value, group, where)
            if field is not None and field.name in entries:
                self.tell("V-Y2", key, f"the key {field.name!r} stands here twice, once in its old spelling")
            elif field is not None:
                entry = self.entry(field, key, value, group, where)
                if entry is not None:
                    entries[field.name] = entry
        for field in fields_of(group).values():
            if field.required and field.name not in entries and not _given(node, field):
                self._missing(node, field, where)
        return entries

    def _missing(self, node: Mapping, field: Field, where: str) -> None:
        if isinstance(field.kind, fields.Uses):
            return  # V-A1 says it
        at = node.key("name") or node
        self.tell("V-K2", at, f"{where} needs `{field.name}`: {_first_lower(field.doc)}")

    def _field(self, mapping: Mapping, key: Scalar, value: Node, group: str, where: str) -> Field | None:
        name = key_of(key)
        known = fields_of(group).get(name)
        if known is not None:
            return known
        old = fields.OLD_SPELLINGS[group].get(name)
        if old is not None:
            self._old_key(mapping, key, value, old)
            return old
        self._unknown(mapping, key, group, where)
        return None

    def _old_key(self, mapping: Mapping, key: Scalar, value: Node, field: Field) -> None:
        if field.name == "uses":
            return  # what stands in it says how to write it: see `_uses`
        fix = renaming(mapping, key, field.name, safe=True)
        self.tell("V-K4", key, f"`{key_of(key)}` is called `{field.name}` now", fix=fix)

    def _unknown(self, mapping: Mapping, key: Scalar, group: str, where: str) -> None:
        name = key_of(key)
        refused = _refused_key(group, name)
        if refused is not None:
            self.tell("V-K3", key, f"`{name}` is not of this language: {refused}")
            return
        known = list(fields_of(group))
        near = nearest(name, known)
        hint = f"did you mean `{near}`?" if near else f"it has {', '.join(known)}"
        fix = renaming(mapping, key, near, safe=False) if near and mapping.key(near) is None else None
        self.tell("V-K1", key, f"{where} has no key `{name[:60]}`: {hint}", fix=fix)

    # --- values

    def entry(self, field: Field, key: Scalar, node: Node, group: str, where: str) -> Entry | None:
        """The entry of a key, if its value is of its kind."""
        value = self.value(field.kind, node, key, f"`{field.name}` of {where}", (group, field.name))
        return None if value is _WRONG else Entry(field, key, node, value)

    def value(self, kind: fields.Kind, node: Node, key: Scalar, where: str, place: tuple[str, str]) -> Any:
        """The value of a node as its kind wants it; `_WRONG` if it is of another kind."""
        match kind:
            case fields.Text():
                return self._text(node, key, where, nullable=kind.nullable)
            case fields.Expression():
                return self._expression(node, key, where)
            case fields.Flag():
                return self._flag(node, key, where)
            case fields.Number():
                return self._number(kind, node, key, where)
            case fields.OneOf():
                return self._word(kind, node, key, where, place)
            case fields.Anything():
                return data_of(node)
            case fields.Table():
                return self._table(node, key, where)
            case fields.Schema():
                return self._schema(kind, node, key, where)
            case fields.Uses():
                return self._uses(node, key)
            case fields.Function():
                return self._function(node, key, where)
            case fields.ListOf():
                return self._list(kind, node, key, where, place)
            case fields.TableOf():
                return self._table_of(kind, node, key, where, place)
            case fields.Group():
                found = self.group(node, kind.name, where)
                return _WRONG if found is None else found
            case fields.Steps() | fields.OneStep():
                return node  # read by whoever knows where they stand
            case fields.Either():
                return self._either(kind, node, key, where, place)

    def _wrong(self, node: Node, key: Scalar, where: str, wanted: str) -> Any:
        self.tell("V-K2", key, f"{where} must be {wanted}, not {_described(node)}")
        return _WRONG

    def _text(self, node: Node, key: Scalar, where: str, *, nullable: bool) -> Any:
        if isinstance(node, Scalar):
            if nullable and node.value is None:
                return None
            if isinstance(node.value, str) and node.value:
                return node.value
            if isinstance(node.value, int | float) and not isinstance(node.value, bool):
                return self._told.source.text[node.start : node.end]  # a name such as 2024: as it is written
        return self._wrong(node, key, where, "a text")

    def _expression(self, node: Node, key: Scalar, where: str) -> Any:
        if isinstance(node, Scalar) and node.value is not None:
            return node.value if isinstance(node.value, str) else self._told.source.text[node.start : node.end]
        return self._wrong(node, key, where, "an expression")

    def _flag(self, node: Node, key: Scalar, where: str) -> Any:
        if not isinstance(node, Scalar):
            return self._wrong(node, key, where, "true or false")
        if isinstance(node.value, bool):
            return node.value
        meant = _meant_truth(node.value)
        if meant is None:
            return self._wrong(node, key, where, "true or false")
        fix = replacing(node, "true" if meant else "false", meant, safe=True)
        self.tell("V-K2", key, f"{where} must be true or false: {node.value!r} is a word in YAML 1.2", fix=fix)
        return _WRONG

    def _number(self, kind: fields.Number, node: Node, key: Scalar, where: str) -> Any:
        value = node.value if isinstance(node, Scalar) else None
        if isinstance(value, str) and isinstance(node, Scalar) and node.style in ("'", '"'):
            value = self._number_in_quotes(node, key, where)
        wanted = _wanted(kind)
        if isinstance(value, bool) or not isinstance(value, int | float) or (kind.whole and value != int_of(value)):
            self.tell("V-A7", key, f"{where} must be {wanted}, not {_described(node)}")
            return _WRONG
        small = value <= kind.least if kind.above else value < kind.least
        if small or not value < float("inf") or (kind.most is not None and value > kind.most):
            self.tell("V-A7", key, f"{where} must be {wanted}, not {value:g}")
            return _WRONG
        return int(value) if kind.whole else value

    def _number_in_quotes(self, node: Scalar, key: Scalar, where: str) -> Any:
        from .scalars import meaning

        meant = meaning(str(node.value).strip() or "-")
        if isinstance(meant, bool) or not isinstance(meant, int | float):
            return node.value
        fix = replacing(node, str(node.value).strip(), meant, safe=True)
        self.tell("V-K4", key, f"{where} is a number: write it without quotes", fix=fix)
        return meant

    def _word(self, kind: fields.OneOf, node: Node, key: Scalar, where: str, place: tuple[str, str]) -> Any:
        value = node.value if isinstance(node, Scalar) else None
        word = value if isinstance(value, str) else f"{value:g}" if isinstance(value, int | float) else None
        if word in kind.words and not isinstance(value, bool):
            return word
        refused = refusals.WORDS.get(place, {}).get(str(word))
        if refused is not None:
            self.tell("V-K3", key, f"`{place[1]}: {word}` is not of this language: {refused}")
            return _WRONG
        near = nearest(str(word), list(kind.words), cutoff=0.5) if isinstance(value, str) else None
        hint = f"; did you mean `{near}`?" if near else ""
        self.tell("V-K2", key, f"{where} must be one of {', '.join(kind.words)}, not {_described(node)}{hint}")
        return _WRONG

    def _table(self, node: Node, key: Scalar, where: str) -> Any:
        return data_of(node) if isinstance(node, Mapping) else self._wrong(node, key, where, "a mapping")

    def _schema(self, kind: fields.Schema, node: Node, key: Scalar, where: str) -> Any:
        if isinstance(node, Mapping):
            return data_of(node)
        if kind.reference and isinstance(node, Scalar) and isinstance(node.value, str):
            if node.value.startswith("agents."):
                return node.value
            return self._wrong(node, key, where, "a JSON Schema, or `agents.X`")
        return self._wrong(node, key, where, "a JSON Schema")

    def _uses(self, node: Node, key: Scalar) -> Any:
        found = read_agent_key(self._told, node, key) if key_of(key) == "agent" else read_uses(self._told, node, key)
        return _WRONG if found is None else found

    def _function(self, node: Node, key: Scalar, where: str) -> Any:
        found = read_function(self._told, node, key, where)
        return _WRONG if found is None else found

    def _list(self, kind: fields.ListOf, node: Node, key: Scalar, where: str, place: tuple[str, str]) -> Any:
        if not isinstance(node, Sequence):
            return self._wrong(node, key, where, "a list")
        values = [self.value(kind.item, item, _as_key(item, key), where, place) for item in node.items]
        return _WRONG if any(value is _WRONG for value in values) else values

    def _table_of(self, kind: fields.TableOf, node: Node, key: Scalar, where: str, place: tuple[str, str]) -> Any:
        if not isinstance(node, Mapping):
            return self._wrong(node, key, where, "a mapping")
        if isinstance(kind.item, fields.Steps | fields.Group):
            return node  # agents and branches, read one by one
        values = {
            key_of(name): self.value(kind.item, value, name, f"{key_of(name)!r} in {where}", place)
            for name, value in node.pairs
        }
        return {name: value for name, value in values.items() if value is not _WRONG}

    def _either(self, kind: fields.Either, node: Node, key: Scalar, where: str, place: tuple[str, str]) -> Any:
        chosen = kind.other if isinstance(node, Mapping) else kind.one
        return self.value(chosen, node, key, where, place)


_WRONG: Any = object()
"""Stands for a value that is not of its kind; a finding has been told."""


def int_of(value: float) -> float:
    """The whole number in a number; what is not finite has none."""
    return int(value) if value == value and abs(value) != float("inf") else 0.5


def _as_key(item: Node, key: Scalar) -> Scalar:
    return item if isinstance(item, Scalar) else key


def _given(node: Mapping, field: Field) -> bool:
    return any(node.key(name) is not None for name in (field.name, *field.old))


def _refused_key(group: str, name: str) -> str | None:
    where = "step" if group in _GROUPS_OF_STEPS else group
    return refusals.KEYS.get(where, {}).get(name)


def _some(group: str) -> str:
    return ", ".join(list(fields_of(group))[:3])


def _first_lower(text: str) -> str:
    return text[:1].lower() + text[1:].rstrip(".")


def _meant_truth(value: object) -> bool | None:
    word = value.lower() if isinstance(value, str) else ""
    return {"true": True, "false": False}.get(word, YES_AND_NO.get(word))


def _wanted(kind: fields.Number) -> str:
    what = "a whole number" if kind.whole else "a number"
    least = f"greater than {kind.least:g}" if kind.above else f"of at least {kind.least:g}"
    return f"{what} {least}" + (f" and at most {kind.most:g}" if kind.most is not None else "")


def _described(node: Node) -> str:
    match node:
        case Scalar(value=None):
            return "nothing"
        case Scalar(value=str() as text):
            return f"the text {text[:40]!r}"
        case Scalar():
            return str(data_of(node)).lower()
        case Sequence():
            return "a list"
        case Mapping():
            return "a mapping"


# --- the file ---------------------------------------------------------------------------------------------------


def read_model(told: Told, root: Node | None, path: Path | None) -> BlueprintModel | None:
    """The model of a file, as far as it can be read."""
    if not isinstance(root, Mapping):
        what = "the file is empty" if root is None else "a blueprint is a mapping"
        told.tell("V-K2", root if root is not None else 0, f"{what}: write `steps:` and a list of steps below it")
        return None
    reader = Reader(told)
    entries = reader.group(root, "blueprint", "a blueprint") or {}
    steps_entry = entries.get("steps")
    sequence = StepReader(reader, told)
    model = BlueprintModel(source=told.source, path=path, root=root, entries=entries, steps=[])
    if steps_entry is not None:
        model.steps = sequence.steps(steps_entry.node, steps_entry.key, "`steps`")
        model.steps_node = steps_entry.node if isinstance(steps_entry.node, Sequence) else None
    model.agents = _agents(reader, entries.get("agents"))
    model.imports = _imports(entries.get("imports"))
    return model


def _agents(reader: Reader, entry: Entry | None) -> dict[str, AgentModel]:
    agents: dict[str, AgentModel] = {}
    for key, node in entry.node.pairs if entry is not None and isinstance(entry.node, Mapping) else ():
        name = key_of(key)
        found = reader.group(node, "agent", f"agent {name!r}")
        if found is not None and isinstance(node, Mapping):
            agents[name] = AgentModel(name=name, key=key, node=node, entries=found)
            _check_agent(reader, agents[name])
    return agents


def _check_agent(reader: Reader, agent: AgentModel) -> None:
    given = agent.node.key("model") is not None
    made = agent.node.key("uses") is not None
    if not given and not made:
        reader.tell("V-K2", agent.key, f"agent {agent.name!r} needs a `model`, or `uses` for one made in Python")
        agent.broken = True
    if made and any(name not in ("uses", "description", "name") for name in agent.entries):
        reader.tell("V-K2", agent.key, f"agent {agent.name!r} is made in Python: configure it there, beside `uses` only")


def _imports(entry: Entry | None) -> dict[str, ImportModel]:
    found: dict[str, ImportModel] = {}
    for key, node in entry.node.pairs if entry is not None and isinstance(entry.node, Mapping) else ():
        path = entry.value.get(key_of(key)) if entry is not None and isinstance(entry.value, dict) else None
        if isinstance(path, str):
            found[key_of(key)] = ImportModel(name=key_of(key), key=key, node=node, path=path)
    return found


class StepReader:
    """Reads sequences of steps."""

    def __init__(self, reader: Reader, told: Told) -> None:
        self._reader, self._told = reader, told

    def steps(self, node: Node, key: Scalar, where: str) -> list[StepModel]:
        """The steps of a sequence; names that stand twice in it are told."""
        found = [step for each in self._items(node, key, where) if (step := self.step(each, where)) is not None]
        names: dict[str, StepModel] = {}
        for step in found:
            first = names.setdefault(step.name, step)
            if first is not step and step.name:
                line = self._told.source.place(first.at)[0]
                self._told.tell("V-N1", step.at, f"two steps are called {step.name!r}, the other one is on line {line}")
        return found

    def _items(self, node: Node, key: Scalar, where: str) -> list[Node]:
        if isinstance(node, Sequence) and node.items:
            return node.items
        if isinstance(node, Mapping) and isinstance(inner := node.get("steps"), Sequence) and len(node.pairs) == 1:
            self._told.tell("V-K4", key, f"write the steps of {where} as a list, without `steps:` around them")
            return inner.items
        if isinstance(node, Mapping) and any(node.key(name) for name in ("name", "uses", "kind", "step", "agent")):
            return [node]
        self._told.tell("V-K2", key, f"{where} must be a list of at least one step, not {_described(node)}")
        return []

    def step(self, node: Node, where: str) -> StepModel | None:
        """One step."""
        if not isinstance(node, Mapping):
            self._told.tell("V-K2", node, f"a step in {where} must be a mapping with a `name`, not {_described(node)}")
            return None
        kind = self._kind(node)
        name = _name_in(node)
        called = f"step {name!r}" if name else "a step"
        at = node.key("name") or node.key("step")
        entries = self._reader.group(self._without_known_config(node, called), kind or "step", called) if kind else {}
        broken = kind is None or not name
        step = StepModel(
            kind=kind or "step",
            name=name,
            node=node,
            at=at.start if at is not None else node.start,
            entries=entries or {},
            broken=broken,
        )
        self._inside(step, called)
        return step

    def _kind(self, node: Mapping) -> str | None:
        given = node.get("kind")
        if given is None:
            return "step"
        key = node.key("kind")
        word = given.value if isinstance(given, Scalar) else None
        if isinstance(word, str) and word in fields.STEP_KINDS:
            return word
        refused = refusals.KINDS.get(str(word).lower())
        if refused is not None:
            self._told.tell("V-K3", key or node, f"`kind: {word}` is not of this language: {refused}")
            return None
        near = nearest(str(word).lower(), list(fields.STEP_KINDS), cutoff=0.5)
        hint = f"did you mean `{near}`?" if near else f"there are {', '.join(fields.STEP_KINDS)}"
        fix = replacing(given, near, near, safe=False) if near and isinstance(given, Scalar) else None
        self._told.tell("V-K2", key or node, f"there is no kind {str(word)[:40]!r} of steps: {hint}", fix=fix)
        return None

    def _without_known_config(self, node: Mapping, called: str) -> Mapping:
        """The step without options of imports that say what holds anyway; others are refused."""
        config = node.get("config")
        if not isinstance(config, Mapping):
            return node
        kept = [pair for pair in config.pairs if not self._says_what_holds(*pair)]
        if len(kept) == len(config.pairs):
            return node
        slim = Mapping(config.start, config.end, kept, config.flow)
        pairs = [(key, slim if value is config else value) for key, value in node.pairs]
        return Mapping(node.start, node.end, pairs, node.flow, shared=node.shared)

    def _says_what_holds(self, key: Scalar, value: Node) -> bool:
        name = key_of(key)
        if name == "outputs":
            if not _equal_paths(data_of(value)):
                why = "an import shares the context, so each path is the same on both sides"
                self._told.tell("V-K3", key, f"`outputs` with other names is not of this language: {why}; use a step")
            return True
        if name not in refusals.ANYWAY:
            return False
        holds, reason = refusals.ANYWAY[name]
        if data_of(value) != holds:
            self._told.tell("V-K3", key, f"`{name}: {data_of(value)}` is not of this language: {reason}")
        return True

    # --- what is inside a step

    def _inside(self, step: StepModel, called: str) -> None:
        match step.kind:
            case "step":
                step.uses = step.value("uses")
                self._needs_uses(step, called)
            case "parallel" | "conditional":
                step.branches = self._branches(step, called)
                self._default(step, called)
            case "loop" | "map":
                body = step.entries.get("body")
                if body is not None:
                    step.body = self.steps(body.node, body.key, f"the body of {called}")
                step.broken = step.broken or not step.body
        fallback = step.entries.get("fallback")
        if fallback is not None:
            step.fallback = self.step(fallback.node, f"the fallback of {called}")

    def _needs_uses(self, step: StepModel, called: str) -> None:
        if step.broken and not step.name:
            return
        if step.uses is None:
            step.broken = True
            if step.node.key("uses") is None and step.node.key("agent") is None:
                told = f"{called} has nothing to run: give it `uses: agents.X`, `builtins.X`, `imports.X` or `pkg.mod:name`"
                self._told.tell("V-A1", step.at, told)

    def _branches(self, step: StepModel, called: str) -> list[Branch]:
        entry = step.entries.get("branches")
        if entry is None or not isinstance(entry.node, Mapping):
            step.broken = True
            return []
        if not entry.node.pairs:
            self._told.tell("V-K2", entry.key, f"`branches` of {called} must have at least one branch")
        found = [
            Branch(name=key_of(key), key=key, steps=self.steps(value, key, f"branch {key_of(key)!r} of {called}"))
            for key, value in entry.node.pairs
        ]
        step.broken = step.broken or not found or not all(branch.steps for branch in found)
        return found

    def _default(self, step: StepModel, called: str) -> None:
        entry = step.entries.get("default_branch")
        if entry is None:
            return
        if isinstance(entry.node, Scalar):
            names = [branch.name for branch in step.branches]
            step.default_name = key_of(entry.node)
            if step.default_name not in names:
                near = nearest(step.default_name, names)
                hint = f"did you mean `{near}`?" if near else f"there are {', '.join(names)}"
                told = f"`default_branch` of {called} names no branch: {hint} Or write the steps themselves"
                self._told.tell("V-K2", entry.key, told)
                step.broken = True
            return
        step.default = self.steps(entry.node, entry.key, f"the default branch of {called}")


def _name_in(node: Mapping) -> str:
    given = node.get("name") or node.get("step")
    value = given.value if isinstance(given, Scalar) else None
    return "" if value is None or isinstance(value, bool) else str(value)


def _equal_paths(outputs: Any) -> bool:
    if isinstance(outputs, dict):
        return all(child == parent for child, parent in outputs.items())
    pairs = outputs if isinstance(outputs, list) else [None]
    return all(isinstance(each, dict) and each.get("child") == each.get("parent") for each in pairs)
