"""Cache of values per agent, for the agent's lifetime."""

from __future__ import annotations

import weakref
from typing import Generic, Never, TypeAlias, TypeVar

from pydantic_ai.agent import AbstractAgent

T = TypeVar("T")

SomeAgent: TypeAlias = AbstractAgent[Never, object]
"""pydantic-ai agent of any dependencies and output."""


class PerAgent(Generic[T]):
    """Cache with one value per agent, by identity: agents have no hash."""

    def __init__(self) -> None:
        self._kept: dict[int, tuple[weakref.ref[SomeAgent], T]] = {}

    def get(self, agent: SomeAgent) -> T | None:
        """Return the cached value of this agent, or None."""
        kept = self._kept.get(id(agent))
        return kept[1] if kept is not None and kept[0]() is agent else None

    def keep(self, agent: SomeAgent, value: T) -> T:
        """Keep the value until the agent is gone."""
        name = id(agent)
        self._kept[name] = weakref.ref(agent, lambda gone: self._forget(name, gone)), value
        return value

    def _forget(self, name: int, gone: weakref.ref[SomeAgent]) -> None:
        kept = self._kept.get(name)
        if kept is not None and kept[0] is gone:  # otherwise a new agent has the old one's place in memory
            del self._kept[name]

    def __len__(self) -> int:
        return len(self._kept)
