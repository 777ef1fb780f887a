"""A blueprint as it was read: what rules look at and what becomes a pipeline."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, TypeAlias

import attrs

from .fields import Field
from .nodes import Mapping, Node, Scalar, Sequence
from .source import Source


@attrs.frozen(eq=False, repr=False)
class Entry:
    """A key that is known and has a value of its kind."""

    field: Field
    key: Scalar
    node: Node
    value: Any


Entries: TypeAlias = dict[str, Entry]


@attrs.frozen
class Used:
    """What a step runs."""

    kind: Literal["agent", "import", "builtin", "python"]
    name: str
    """The name in its table; of Python, `package.module:name`."""

    @property
    def module(self) -> str:
        """Where Python has it."""
        return self.name.partition(":")[0]

    @property
    def attribute(self) -> str:
        """What it is called there."""
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
    """Where its `name` stands; where the step begins, if it has none."""
    entries: Entries
    uses: Used | None = None
    branches: list[Branch] = attrs.field(factory=list)
    body: list[StepModel] = attrs.field(factory=list)
    body_node: Sequence | None = None
    default: list[StepModel] | None = None
    default_name: str | None = None
    """The name of the branch that is the default."""
    fallback: StepModel | None = None
    broken: bool = False
    """Whether something essential is missing, so that rules which need it are silent."""
    templates: list[Any] | None = None
    """The places of its templates, once somebody looked for them: see `places`."""

    def value(self, key: str, otherwise: Any = None) -> Any:
        """What the step says under a key."""
        entry = self.entries.get(key)
        return otherwise if entry is None else entry.value

    def option(self, group: str, key: str) -> Any:
        """What the step says under a key of a group of keys, such as `config`."""
        inside = self.value(group)
        entry = inside.get(key) if isinstance(inside, dict) else None
        return entry.value if isinstance(entry, Entry) else None

    def inner(self) -> Iterator[list[StepModel]]:
        """The sequences inside it; the fallback is one of a single step."""
        yield from (branch.steps for branch in self.branches)
        if self.default is not None:
            yield self.default
        if self.body:
            yield self.body
        if self.fallback is not None:
            yield [self.fallback]


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
        """What the agent says under a key."""
        entry = self.entries.get(key)
        return otherwise if entry is None else entry.value


@attrs.define(kw_only=True, eq=False, repr=False)
class ImportModel:
    """Another blueprint, and what it says if it could be read."""

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
    """Where it was read from; a text of standard input is nowhere."""
    root: Mapping
    entries: Entries
    steps: list[StepModel]
    steps_node: Sequence | None = None
    agents: dict[str, AgentModel] = attrs.field(factory=dict)
    imports: dict[str, ImportModel] = attrs.field(factory=dict)

    @property
    def name(self) -> str | None:
        """What the pipeline is called."""
        entry = self.entries.get("name")
        return None if entry is None else str(entry.value)

    def value(self, key: str, otherwise: Any = None) -> Any:
        """What the file says under a key."""
        entry = self.entries.get(key)
        return otherwise if entry is None else entry.value

    def all_steps(self) -> Iterator[StepModel]:
        """Every step, parents first."""
        yield from steps_in(self.steps)


def steps_in(steps: list[StepModel]) -> Iterator[StepModel]:
    """The steps and all inside them, parents first."""
    for step in steps:
        yield step
        for inner in step.inner():
            yield from steps_in(inner)
