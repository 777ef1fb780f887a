"""A journal in a dict, and a fate that ends a process at any point of its life."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import attrs

from flujo_actors._agents.granular.units import RecordedUnit, UnitKey
from flujo_actors._core.usage import Usage


class Died(BaseException):
    """The process ended here."""


def die() -> None:
    """What a killed process does."""
    raise Died


@attrs.define
class Fate:
    """Counts the points that a run passes, and ends it at one of them."""

    deadly: int | None = None
    """Which point, counted from 0; `None` for a long life."""
    end: Callable[[], object] = die
    passed: list[str] = attrs.field(factory=list)
    dead: bool = False

    def reach(self, point: str) -> None:
        """Go past a point, or end."""
        if self.dead:
            raise Died
        self.passed.append(point)
        if len(self.passed) - 1 == self.deadly:
            self.dead = self.end is die
            self.end()


@attrs.define
class MortalJournal:
    """Keeps units as a store would; what was not committed when fate struck is not there."""

    fate: Fate = attrs.field(factory=Fate)
    intents: dict[str, str] = attrs.field(factory=dict)
    results: dict[str, RecordedUnit] = attrs.field(factory=dict)
    recalled: list[str] = attrs.field(factory=list)

    async def recall(self, key: UnitKey) -> RecordedUnit | None:
        self.fate.reach(f"recall {key}")
        await asyncio.sleep(0)
        unit = self.results.get(str(key))
        if unit is not None:
            self.recalled.append(str(key))
        return unit

    async def answer(self, key: str) -> None:
        """Nobody answers here."""

    async def intend(self, key: UnitKey, intent: str) -> bool:
        self.fate.reach(f"before intent {key}")
        await asyncio.sleep(0)
        before = str(key) in self.intents
        self.intents[str(key)] = intent
        self.fate.reach(f"after intent {key}")
        return before

    async def commit(self, key: UnitKey, result: str, usage: Usage) -> None:
        self.fate.reach(f"before commit {key}")
        await asyncio.sleep(0)
        assert str(key) not in self.results, f"unit {key} was done twice after it was committed"
        assert str(key) in self.intents
        self.results[str(key)] = RecordedUnit(result=result, usage=usage)
        self.fate.reach(f"after commit {key}")

    def in_another_process(self) -> MortalJournal:
        """The same records, a new life."""
        return MortalJournal(intents=self.intents, results=self.results)
