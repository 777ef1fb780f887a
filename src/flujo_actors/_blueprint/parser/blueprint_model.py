"""Parsed blueprint: input of the rules and of the compiler."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, TypeAlias

import attrs

from .field_table import BlueprintField
from .nodes import Mapping, Node, Scalar, Source


@attrs.frozen(eq=False, repr=False)
class AgentEntry:
    """A key that is known and has a value of its kind."""

    field: BlueprintField
    key: Scalar
    node: Node
    value: Any


Entries: TypeAlias = dict[str, AgentEntry]


@attrs.frozen
class Used:
    """Target of a step."""

    kind: Literal["agent", "import", "builtin", "python"]
    name: str
    """The name in its table; of Python, `package.module:name`."""

    @property
    def module(self) -> str:
        """Return its Python module."""
        return self.name.partition(":")[0]

    @property
    def attribute(self) -> str:
        """Return its name in the module."""
        return self.name.partition(":")[2]


@attrs.define(kw_only=True, eq=False, repr=False)
class Branch:
    """The steps behind a name."""

    name: str
    key: Scalar
    steps: list[StepModel]


@attrs.define(kw_only=True, eq=False, repr=False)
class StepModel:
    """One step, with everything inside it."""

    kind: str
    name: str
    node: Mapping
    at: int
    """Position of its `name`, or of the step if it has none."""
    entries: Entries
    uses: Used | None = None
    branches: list[Branch] = attrs.field(factory=list)
    body: list[StepModel] = attrs.field(factory=list)
    default: list[StepModel] | None = None
    default_name: str | None = None
    """The name of the branch that is the default."""
    fallback: StepModel | None = None
    ways: dict[str, list[StepModel]] = attrs.field(factory=dict)
    """Steps of `on_timeout`, `on_rejection` and `on_failure`, where they are steps."""
    broken: bool = False
    """Whether an essential part is missing, so that dependent rules are skipped."""
    templates: list[Any] | None = None
    """Template slots of the step, computed on demand: see `lint.flow`."""

    def value(self, key: str, otherwise: Any = None) -> Any:
        """Return the value of a key of the step."""
        entry = self.entries.get(key)
        return otherwise if entry is None else entry.value

    def option(self, group: str, key: str) -> Any:
        """Return the value of a key in a group such as `config`."""
        inside = self.value(group)
        entry = inside.get(key) if isinstance(inside, dict) else None
        return entry.value if isinstance(entry, AgentEntry) else None

    def inner(self) -> Iterator[list[StepModel]]:
        """Yield the nested sequences; a fallback is a sequence of one step."""
        yield from (branch.steps for branch in self.branches)
        if self.default is not None:
            yield self.default
        if self.body:
            yield self.body
        if self.fallback is not None:
            yield [self.fallback]
        yield from self.ways.values()


@attrs.define(kw_only=True, eq=False, repr=False)
class AgentModel:
    """A model agent."""

    name: str
    key: Scalar
    node: Mapping
    entries: Entries
    used: bool = False
    broken: bool = False

    def value(self, key: str, otherwise: Any = None) -> Any:
        """Return the value of a key of the agent."""
        entry = self.entries.get(key)
        return otherwise if entry is None else entry.value


@attrs.define(kw_only=True, eq=False, repr=False)
class ImportModel:
    """Imported blueprint, with its model if it could be parsed."""

    name: str
    key: Scalar
    node: Node
    path: str
    child: BlueprintModel | None = None
    used: bool = False


@attrs.define(kw_only=True, eq=False, repr=False)
class BlueprintModel:
    """A whole file."""

    source: Source
    path: Path | None
    """Path of the file; `None` for standard input."""
    root: Mapping
    entries: Entries
    steps: list[StepModel]
    agents: dict[str, AgentModel] = attrs.field(factory=dict)
    imports: dict[str, ImportModel] = attrs.field(factory=dict)
    rate_limits: dict[str, dict[str, Any]] = attrs.field(factory=dict)
    """Options of `RateLimit` by name."""
    schedules: dict[str, dict[str, Any]] = attrs.field(factory=dict)
    """Options of `Flujo.schedule` by name."""

    @property
    def name(self) -> str | None:
        """Return the name of the pipeline."""
        entry = self.entries.get("name")
        return None if entry is None else str(entry.value)

    def value(self, key: str, otherwise: Any = None) -> Any:
        """Return the value of a key of the file."""
        entry = self.entries.get(key)
        return otherwise if entry is None else entry.value

    def all_steps(self) -> Iterator[StepModel]:
        """Yield every step, parents first."""
        yield from steps_in(self.steps)


def steps_in(steps: list[StepModel]) -> Iterator[StepModel]:
    """Yield the steps and all inside them, parents first."""
    for step in steps:
        yield step
        for inner in step.inner():
            yield from steps_in(inner)
