"""The tool calls of one attempt that limits have counted as they began."""

from __future__ import annotations

import asyncio

import attrs

from .._core.usage import Usage


class ToolCount:
    """How many tool calls began, are under way and did not return."""

    def __init__(self) -> None:
        self._begun = self._under_way = self._failed = 0
        self._ended: asyncio.Event | None = None

    def begin(self) -> None:
        """One more has begun."""
        self._begun += 1
        self._under_way += 1

    def end(self, *, returned: bool) -> None:
        """One has ended."""
        self._under_way -= 1
        self._failed += not returned
        if self._ended is not None:
            self._ended.set()

    def uncounted(self, nested: Usage) -> Usage:
        """What was used through tools, without the calls that were counted when they began."""
        counted = self._begun - self._failed
        return attrs.evolve(nested, tool_calls=max(0, nested.tool_calls - counted)) if counted else nested

    async def none_under_way(self) -> None:
        """Wait until no call is under way: who hears of a refusal cancels the others, which have begun."""
        while self._under_way:
            self._ended = asyncio.Event()
            await self._ended.wait()
