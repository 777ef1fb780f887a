"""From nodes to the model of a whole file: its agents, its imports and its steps, however deeply they are nested."""

from __future__ import annotations

from pathlib import Path

from .._core.near_names import nearest
from . import fields, refusals
from .edits import replacing
from .model import AgentModel, BlueprintModel, Branch, Entry, ImportModel, StepModel
from .nodes import Mapping, Node, Scalar, Sequence, data_of, key_of
from .old_forms import without_steps_key
from .reading import Reader, described
from .telling import Told


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
        reader.tell(
            "V-K2", agent.key, f"agent {agent.name!r} is made in Python: configure it there, beside `uses` only"
        )


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
            fix = without_steps_key(self._told.source, key, node)
            self._told.tell("V-K4", key, f"write the steps of {where} as a list, without `steps:` around them", fix=fix)
            return inner.items
        if isinstance(node, Mapping) and any(node.key(name) for name in ("name", "uses", "kind", "step", "agent")):
            return [node]
        self._told.tell("V-K2", key, f"{where} must be a list of at least one step, not {described(node)}")
        return []

    def step(self, node: Node, where: str) -> StepModel | None:
        """One step."""
        if not isinstance(node, Mapping):
            self._told.tell("V-K2", node, f"a step in {where} must be a mapping with a `name`, not {described(node)}")
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
        if kind is not None:
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
                self._old_params(step, called)
            case "parallel" | "conditional":
                step.branches = self._branches(step, called)
                self._default(step, called)
            case "loop" | "map" | "sequence" | "pipeline":
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
            if not any(_means_uses(key_of(key)) for key, _ in step.node.pairs):
                told = f"{called} has nothing to run: give it `uses`: agents.X, builtins.X, imports.X or pkg.mod:name"
                self._told.tell("V-A1", step.at, told)

    def _old_params(self, step: StepModel, called: str) -> None:
        """Parameters inside the old key `agent` are those of the step."""
        old = step.node.get("agent")
        given = old.get("params") if isinstance(old, Mapping) else None
        key = old.key("params") if isinstance(old, Mapping) else None
        if isinstance(given, Mapping) and given.pairs and key is not None and "params" not in step.entries:
            found = self._reader.entry(fields.fields_of("step")["params"], key, given, "step", called)
            if found is not None:
                step.entries["params"] = found

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


def _means_uses(key: str) -> bool:
    """Whether a key says what to run; if it is misspelt, that has been told of."""
    return key == "agent" or nearest(key, list(fields.fields_of("step"))) == "uses"


def _name_in(node: Mapping) -> str:
    given = node.get("name") or node.get("step")
    value = given.value if isinstance(given, Scalar) else None
    return "" if value is None or isinstance(value, bool) else str(value)


def _equal_paths(outputs: object) -> bool:
    if isinstance(outputs, dict):
        return all(child == parent for child, parent in outputs.items())
    pairs = outputs if isinstance(outputs, list) else [None]
    return all(isinstance(each, dict) and each.get("child") == each.get("parent") for each in pairs)
