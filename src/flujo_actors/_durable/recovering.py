"""Taking over what other processes left: many runs at once, and none of them suffers from another."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

import attrs
import trio

from .._core.error_info import message_of
from .._core.outcomes import PipelineResult, RunId
from .._core.recovery import LeftRun, RecoveryReport
from ..errors import ControlError, FlujoError, NotPaused, RunLeased
from .processes import fate_from_here
from .runs import OpenRun, Runs

logger = logging.getLogger("flujo_actors")

Finish = Callable[[OpenRun], Awaitable[PipelineResult]]
"""Works on an open run until it ends or pauses."""


@attrs.define(kw_only=True, eq=False)
class Recovery:
    """One call of `recover()`."""

    runs: Runs
    finish: Finish
    redact: Callable[[str], str]
    wait: bool
    at_once: int
    _results: dict[RunId, PipelineResult] = attrs.field(factory=dict, init=False)
    _left: dict[RunId, LeftRun] = attrs.field(factory=dict, init=False)

    async def report(self) -> RecoveryReport:
        """Take over what can be had, and say what could not."""
        await self.runs.expire()
        found = await self.runs.left_behind()
        places = trio.Semaphore(self.at_once)
        async with trio.open_nursery() as nursery:
            for run_id in found:
                await places.acquire()
                nursery.start_soon(self._take_over, run_id, places)
        results = [self._results[run_id] for run_id in found if run_id in self._results]
        return RecoveryReport(results, left=[self._left[run_id] for run_id in found if run_id in self._left])

    async def _take_over(self, run_id: RunId, places: trio.Semaphore) -> None:
        try:
            self._results[run_id] = await self._finished(run_id)
        except NotPaused:
            pass  # somebody else has ended it meanwhile
        except Exception as error:  # whatever one run raises, the others are recovered
            self._leave(run_id, error)
        finally:
            places.release()

    async def _finished(self, run_id: RunId) -> PipelineResult:
        try:
            return await self.finish(await self.runs.reopen(run_id, wait=self.wait))
        except ControlError as error:
            if error.result is None:
                raise
            partial: PipelineResult = error.result
            return partial

    def _leave(self, run_id: RunId, error: Exception) -> None:
        raised = "" if isinstance(error, FlujoError) else f"it raised {type(error).__name__}: "
        left = LeftRun(run_id=run_id, reason=self.redact(raised + message_of(error)), error=error)
        self._left[run_id] = left
        level = logging.INFO if _is_in_good_hands(error) else logging.WARNING
        logger.log(level, "recover() left run %r: %s", run_id, left.reason)


def _is_in_good_hands(error: Exception) -> bool:
    return isinstance(error, RunLeased) and fate_from_here(error.owner) in ("alive", "here")
