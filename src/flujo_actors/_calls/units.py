"""The units of one granular attempt, kept in the run's journal: the asyncio side asks, the trio side writes."""

from __future__ import annotations

from typing import Any

import attrs

from .._agents.granular.tool_outcomes import Returned, outcome_to_json
from .._agents.granular.units import RecordedUnit, RunAgain, UnitKey
from .._bridge.to_trio import TrioCaller
from .._core.paths import StepPath, unit
from .._core.usage import NO_USAGE, Usage
from .._durable.journal import Journal

RERUN = "rerun"
"""The answer that lets an uncertain tool call run again; any other answer is taken as what the call returned."""


@attrs.frozen(kw_only=True, eq=False)
class RunUnits:
    """The `UnitJournal` of one step: its units stand below the step's path."""

    journal: Journal
    path: StepPath
    """Below which the units stand; another one for every conversation with the agent."""
    trio: TrioCaller

    def place(self, key: UnitKey | str) -> StepPath:
        """Where a unit stands in the run."""
        return unit(self.path, str(key))

    async def recall(self, key: UnitKey) -> RecordedUnit | RunAgain | None:
        """The unit's result: recorded, or told by a person who was asked what became of it."""
        kept = self.journal.unit(self.place(key))
        if kept is not None:
            return RecordedUnit(result=kept.result, usage=kept.usage, counted=kept.counted)
        answered = self.journal.answered(self.place(key))
        if answered is None:
            return None
        if answered.answer == RERUN:
            return RunAgain()
        result = outcome_to_json(Returned(answered.answer), tool=answered.pause.step_name)
        await self.commit(key, result, NO_USAGE)
        return RecordedUnit(result=result)

    async def told(self, key: str) -> tuple[Any] | None:
        """What was answered to a question that the conversation asked under this key."""
        answered = self.journal.answered(self.place(key))
        return None if answered is None else (answered.answer,)

    async def intend(self, key: UnitKey, intent: str) -> bool:
        """Make it durable that the unit is about to be done; whether it may have been before."""
        return await self.trio.call(self.journal.intend, self.place(key), intent)

    async def commit(self, key: UnitKey, result: str, usage: Usage) -> None:
        """Make the unit's result durable."""
        await self.trio.call(self.journal.commit_unit, self.place(key), result, usage)
