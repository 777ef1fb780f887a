"""Parser from nodes to a file's model: agents, imports and steps."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ... import _core
from ..._core.validators import nearest
from ...errors import DeclarationError
from ..lint import unsupported_keys
from ..lint.edits import replacing
from ..lint.step_references import without_kind_key, without_steps_key
from . import field_table
from .blueprint_model import AgentEntry, AgentModel, BlueprintModel, Branch, Entries, ImportModel, StepModel
from .field_parser import FieldParser, described
from .nodes import FindingCollector, Mapping, Node, Scalar, Sequence, data_of, key_of


def read_model(collector: FindingCollector, root: Node | None, path: Path | None) -> BlueprintModel | None:
    """Return a file's model, as far as it is readable."""
    if not isinstance(root, Mapping):
        what = "the file is empty" if root is None else "a blueprint is a mapping"
        collector.report(
            "V-K2", root if root is not None else 0, f"{what}: write `steps:` and a list of steps below it"
        )
        return None
    reader = FieldParser(collector)
    entries = reader.group(root, "blueprint", "a blueprint") or {}
    steps_entry = entries.get("steps")
    sequence = StepReader(reader, collector)
    model = BlueprintModel(source=collector.source, path=path, root=root, entries=entries, steps=[])
    if steps_entry is not None:
        model.steps = sequence.steps(steps_entry.node, steps_entry.key, "`steps`")
    model.agents = _agents(reader, entries.get("agents"))
    model.imports = _imports(entries.get("imports"))
    model.schedules = dict(_schedules(reader, entries.get("schedules")))
    model.rate_limits = dict(_rate_limits(reader, entries.get("rate_limits")))
    _check_rate_limits(reader, model)
    return model


def _agents(reader: FieldParser, entry: AgentEntry | None) -> dict[str, AgentModel]:
    agents: dict[str, AgentModel] = {}
    for key, node in entry.node.pairs if entry is not None and isinstance(entry.node, Mapping) else ():
        name = key_of(key)
        found = reader.group(node, "agent", f"agent {name!r}")
        if found is not None and isinstance(node, Mapping):
            agents[name] = AgentModel(name=name, key=key, node=node, entries=found)
            _check_agent(reader, agents[name])
    return agents


def _rate_limits(reader: FieldParser, entry: AgentEntry | None) -> Iterator[tuple[str, dict[str, Any]]]:
    for key, node in entry.node.pairs if entry is not None and isinstance(entry.node, Mapping) else ():
        name = key_of(key)
        found = reader.group(node, "rate_limit", f"rate limit {name!r}")
        if found is not None:
            if not found.keys() & {"requests_per_min", "tokens_per_min", "at_once"}:
                reader.report("V-K2", key, f"rate limit {name!r} needs requests_per_min, tokens_per_min or at_once")
            yield name, {option: each.value for option, each in found.items()}


def _check_rate_limits(reader: FieldParser, model: BlueprintModel) -> None:
    for step in model.all_steps():
        entry = step.entries.get("rate_limit")
        if entry is not None and entry.value not in model.rate_limits:
            near = nearest(str(entry.value), list(model.rate_limits))
            hint = f"; did you mean `{near}`?" if near else ""
            reader.report("V-A6", entry.key, f"there is no rate limit {entry.value!r} under `rate_limits`{hint}")


def _schedules(reader: FieldParser, entry: AgentEntry | None) -> Iterator[tuple[str, dict[str, Any]]]:
    for key, node in entry.node.pairs if entry is not None and isinstance(entry.node, Mapping) else ():
        name = key_of(key)
        found = reader.group(node, "schedule", f"schedule {name!r}")
        if found is not None:
            options = {option: each.value for option, each in found.items()}
            _check_schedule(reader, key, name, found, options)
            yield name, options


def _check_schedule(reader: FieldParser, key: Scalar, name: str, found: Entries, options: dict[str, Any]) -> None:
    where = f"schedule {name!r}"
    cron, zone = options.get("cron"), options.get("zone", "UTC")
    if (cron is None) == (options.get("every_s") is None):
        reader.report("V-D1", key, f"{where}: give either cron or every_s")
        return
    wrong = None if cron is None else _core.cron_error(cron)
    if wrong is not None:
        reader.report("V-D1", found["cron"].key, f"{where}: cron {cron!r} is not valid ({wrong}); {_FIVE_FIELDS}")
    try:
        _core.zone_named(zone, where=where)
    except DeclarationError as error:
        reader.report("V-D1", found["zone"].key, str(error))
        return
    for option in ("starts_at", "ends_at"):
        _read_time(reader, where, option, found, options)
    if cron is not None and wrong is None and _core.is_ambiguous(cron, zone):
        reader.report(
            "V-D2",
            found["cron"].key,
            f"{where}: the clock of {zone!r} changes between 02:00 and 03:00; the run of that day begins at 03:00 in "
            "spring and once in autumn",
        )


_FIVE_FIELDS = "five fields: minute hour day month weekday"


def _read_time(reader: FieldParser, where: str, option: str, found: Entries, options: dict[str, Any]) -> None:
    if option not in options:
        return
    try:
        options[option] = dt.datetime.fromisoformat(options[option])
        aware = options[option].tzinfo is not None
    except ValueError:
        aware = False
    if not aware:
        reader.report("V-D1", found[option].key, f"{where}: {option} must be a time with an offset, as ISO 8601")


def _check_agent(reader: FieldParser, agent: AgentModel) -> None:
    given = agent.node.key("model") is not None
    made = agent.node.key("uses") is not None
    if not given and not made:
        reader.report("V-K2", agent.key, f"agent {agent.name!r} needs a `model`, or `uses` for one made in Python")
        agent.broken = True
    if made and any(name not in ("uses", "description", "name") for name in agent.entries):
        reader.report(
            "V-K2",
            agent.key,
            f"agent {agent.name!r} is made in Python: configure it there; only `uses` is allowed here",
        )


def _imports(entry: AgentEntry | None) -> dict[str, ImportModel]:
    found: dict[str, ImportModel] = {}
    for key, node in entry.node.pairs if entry is not None and isinstance(entry.node, Mapping) else ():
        path = entry.value.get(key_of(key)) if entry is not None and isinstance(entry.value, dict) else None
        if isinstance(path, str):
            found[key_of(key)] = ImportModel(name=key_of(key), key=key, node=node, path=path)
    return found


class StepReader:
    """Reads sequences of steps."""

    def __init__(self, reader: FieldParser, collector: FindingCollector) -> None:
        self._reader, self._told = reader, collector

    def steps(self, node: Node, key: Scalar, where: str) -> list[StepModel]:
        """Return the steps of a sequence; duplicate names are findings."""
        found = [step for each in self._items(node, key, where) if (step := self.step(each, where)) is not None]
        names: dict[str, StepModel] = {}
        for step in found:
            first = names.setdefault(step.name, step)
            if first is not step and step.name:
                line = self._told.source.place(first.at)[0]
                self._told.report(
                    "V-N1", step.at, f"two steps are called {step.name!r}, the other one is on line {line}"
                )
        return found

    def _items(self, node: Node, key: Scalar, where: str) -> list[Node]:
        if isinstance(node, Sequence) and node.items:
            return node.items
        if isinstance(node, Mapping) and isinstance(inner := node.get("steps"), Sequence) and len(node.pairs) == 1:
            fix = without_steps_key(self._told.source, key, node)
            self._told.report(
                "V-K4", key, f"write the steps of {where} as a list, without `steps:` around them", fix=fix
            )
            return inner.items
        if isinstance(node, Mapping) and any(node.key(name) for name in ("name", "uses", "kind", "step", "agent")):
            return [node]
        self._told.report("V-K2", key, f"{where} must be a list of at least one step, not {described(node)}")
        return []

    def step(self, node: Node, where: str) -> StepModel | None:
        """One step."""
        if not isinstance(node, Mapping):
            self._told.report("V-K2", node, f"a step in {where} must be a mapping with a `name`, not {described(node)}")
            return None
        kind = self._kind(node)
        name = _name_in(node)
        called = f"step {name!r}" if name else "a step"
        node = self._without_kind_key(node, kind, called)
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
        if isinstance(word, str) and word in field_table.STEP_KINDS:
            return word
        refused = unsupported_keys.KINDS.get(str(word).lower())
        if refused is not None:
            self._told.report("V-K3", key or node, f"`kind: {word}` is not of this language: {refused}")
            return None
        near = nearest(str(word).lower(), list(field_table.STEP_KINDS), cutoff=0.5)
        hint = f"did you mean `{near}`?" if near else f"there are {', '.join(field_table.STEP_KINDS)}"
        fix = replacing(given, near, near, safe=False) if near and isinstance(given, Scalar) else None
        self._told.report("V-K2", key or node, f"there is no kind {str(word)[:40]!r} of steps: {hint}", fix=fix)
        return None

    def _without_kind_key(self, node: Mapping, kind: str | None, called: str) -> Mapping:
        """Return a loop or map with its nested keys as its own."""
        inner = node.get(kind) if kind in field_table.NESTED_KINDS else None
        if not isinstance(inner, Mapping):
            return node
        key = next(key for key, value in node.pairs if value is inner)
        fix = without_kind_key(self._told.source, node, key, inner)
        self._told.report("V-K4", key, f"write the keys of `{kind}` of {called} into the step itself", fix=fix)
        pairs = [pair for key, value in node.pairs for pair in (inner.pairs if value is inner else [(key, value)])]
        return Mapping(node.start, node.end, pairs, node.flow, shared=node.shared)

    def _without_known_config(self, node: Mapping, called: str) -> Mapping:
        """Return the step without redundant import options; others are refused."""
        config = node.get("config")
        if not isinstance(config, Mapping):
            return node
        kept = [pair for pair in config.pairs if not self._is_statement(*pair)]
        if len(kept) == len(config.pairs):
            return node
        slim = Mapping(config.start, config.end, kept, config.flow)
        pairs = [(key, slim if value is config else value) for key, value in node.pairs]
        return Mapping(node.start, node.end, pairs, node.flow, shared=node.shared)

    def _is_statement(self, key: Scalar, value: Node) -> bool:
        name = key_of(key)
        if name == "outputs":
            if not _equal_paths(data_of(value)):
                why = "an import shares the context, so each path is the same on both sides"
                self._told.report("V-K3", key, f"`outputs` with other names is not of this language: {why}; use a step")
            return True
        if name not in unsupported_keys.ANYWAY:
            return False
        holds, reason = unsupported_keys.ANYWAY[name]
        if data_of(value) != holds:
            self._told.report("V-K3", key, f"`{name}: {data_of(value)}` is not of this language: {reason}")
        return True

    # --- contents of a step

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
        self._ways(step, called)

    def _ways(self, step: StepModel, called: str) -> None:
        """Read the steps after a timeout, a rejection or a failure."""
        for key in ("on_timeout", "on_rejection", "on_failure"):
            entry = step.entries.get(key)
            if entry is not None and not isinstance(entry.node, Scalar):
                step.ways[key] = self.steps(entry.node, entry.key, f"`{key}` of {called}")
        late = step.entries.get("on_timeout")
        if step.kind == "approval" and late is not None and late.value != "fail" and "timeout_s" not in step.entries:
            self._told.report("V-K2", late.key, f"`on_timeout` of {called} needs `timeout_s`, after which it happens")

    def _needs_uses(self, step: StepModel, called: str) -> None:
        if step.broken and not step.name:
            return
        if step.uses is None:
            step.broken = True
            if not any(_means_uses(key_of(key)) for key, _ in step.node.pairs):
                message = (
                    f"{called} has nothing to run: give it `uses`: agents.X, builtins.X, imports.X or pkg.mod:name"
                )
                self._told.report("V-A1", step.at, message)

    def _old_params(self, step: StepModel, called: str) -> None:
        """Parameters inside the old key `agent` are those of the step."""
        old = step.node.get("agent")
        given = old.get("params") if isinstance(old, Mapping) else None
        key = old.key("params") if isinstance(old, Mapping) else None
        if isinstance(given, Mapping) and given.pairs and key is not None and "params" not in step.entries:
            found = self._reader.entry(field_table.fields_of("step")["params"], key, given, "step", called)
            if found is not None:
                step.entries["params"] = found

    def _branches(self, step: StepModel, called: str) -> list[Branch]:
        entry = step.entries.get("branches")
        if entry is None or not isinstance(entry.node, Mapping):
            step.broken = True
            return []
        if not entry.node.pairs:
            self._told.report("V-K2", entry.key, f"`branches` of {called} must have at least one branch")
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
                message = f"`default_branch` of {called} names no branch: {hint} Or write the steps themselves"
                self._told.report("V-K2", entry.key, message)
                step.broken = True
            return
        step.default = self.steps(entry.node, entry.key, f"the default branch of {called}")


def _means_uses(key: str) -> bool:
    """Return whether a key, even misspelled, selects the target."""
    return key == "agent" or nearest(key, list(field_table.fields_of("step"))) == "uses"


def _name_in(node: Mapping) -> str:
    given = node.get("name") or node.get("step")
    value = given.value if isinstance(given, Scalar) else None
    return "" if value is None or isinstance(value, bool) else str(value)


def _equal_paths(outputs: object) -> bool:
    if isinstance(outputs, dict):
        return all(child == parent for child, parent in outputs.items())
    pairs = outputs if isinstance(outputs, list) else [None]
    return all(isinstance(each, dict) and each.get("child") == each.get("parent") for each in pairs)
