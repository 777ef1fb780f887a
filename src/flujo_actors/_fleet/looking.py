"""What a remote step leaves to undo that did not come to an end: its records are looked at, and nothing is done.

Rules:

1. The step is gone through as by a run that goes no further: what settled is recalled, what was begun and has not
   settled was cut short, and what comes after that was not begun.
2. Nothing is done, told or written by that. What is found is left to whoever stands around the step.
3. What the step's worker has undone is not undone again.
4. A step that nobody has begun has done nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

import attrs

from .._core.attempts import Attempt, Stopped
from .._core.ledger import Ledger
from .._core.outcomes import Aborted, Paused
from .._core.paths import StepPath, at_or_below
from .._core.undoing import Halt, ToUndo
from .._dsl.pipeline import AnyStep, Pipeline
from .._dsl.tree import walk_steps
from .._durable.journal import Recorded
from .._durable.undone import undone_in
from .._run.messages import Request, Settled, Tally
from .._run.run import Office, Run
from .._tree.step import StepActors
from .._tree.undoing import left
from ..telemetry._silence import SILENT
from .elsewhere import Elsewhere
from .seen_journal import SeenJournal


def is_undoable(step: AnyStep) -> bool:
    """Whether the step, or one inside it, has a compensation."""
    return any(each.compensate is not None for each in walk_steps(step))


@attrs.frozen(kw_only=True, eq=False)
class Look:
    """One remote step of a run, as far as it can be seen by its records."""

    run: Run
    request: Request
    journal: SeenJournal
    pipeline: Pipeline
    office: Office

    async def after(self, attempt: Attempt) -> None:
        """The step has ended: take in what was undone there, and what is left if it has no record of its end."""
        await self.take_in()
        paused = isinstance(attempt, Stopped) and isinstance(attempt.outcome, Paused)
        if self.journal.recall(self.request.path) is None and not paused:
            await self.leave_to_undo("the remote step was cut short")

    async def take_in(self) -> None:
        """What the step's worker has undone is part of what the run has undone; its tool calls are known to the run."""
        run, request = self.run, self.request
        undone = undone_in(self.journal, self.pipeline)
        run.undone.update({path: undone[path] for path in at_or_below(request.path, undone)})
        await _bring_compensations(run, request, self.journal)
        recorded = self.journal.recall(request.path)
        if recorded is not None:
            await _bring_tool_calls(run, self.journal, tuple(recorded.undo))

    async def leave_to_undo(self, reason: str) -> None:
        """Leave what the step has done to whoever stands around it; see the module's rules."""
        request, recorded = self.request, self.journal.recall(self.request.path)
        if recorded is None:
            found = await self._cut_short(reason)
        else:
            found = tuple(recorded.undo)  # it came to its end, and nobody waited for that
        undo = tuple(each for each in found if not self._is_known(each))
        await _bring_tool_calls(self.run, self.journal, undo)
        if undo:
            request.tally.leave(0, Settled(index=0, outcome=Aborted(reason=reason), context=None, undo=undo))

    def _is_known(self, entry: ToUndo) -> bool:
        """Whether it was undone (rule 3), or is the step itself, and was begun as far as the caller knows."""
        if isinstance(entry, Halt):
            return False
        own = entry.path == self.request.path and self.request.tally.attempts > 0
        return own or entry.path in self.run.undone

    async def _cut_short(self, reason: str) -> tuple[ToUndo, ...]:
        request = self.request
        around = attrs.evolve(request.around, quotas=())
        seen = attrs.evolve(request, parent=None, tally=Tally(), around=around)
        outcome = await StepActors(self._looking(reason)).play(seen)
        request.tally.usage += seen.tally.usage
        request.tally.history.extend(seen.tally.history)
        return left(seen, outcome, seen.context, attempts=seen.tally.attempts)

    def _looking(self, reason: str) -> Run:
        """The same run, in which nothing is done, told or written."""
        return attrs.evolve(
            self.run,
            journal=self.journal,
            office=Elsewhere(office=self.office, here=frozenset({self.request.path})),
            closing=reason,
            only_looks=True,
            resumed=True,
            hooks=None,
            outlet=None,
            telemetry=SILENT,
            ledger=Ledger(),
            untold=deque(),
            pausing=[],
        )


async def _bring_compensations(run: Run, request: Request, journal: SeenJournal) -> None:
    """Whoever goes on with the run is to know what was undone inside the step, which has settled by then."""
    done = dict(journal.compensations())
    for path in at_or_below(request.path, done):
        if run.journal.recall(path) is None:
            await run.journal.settled(path, Recorded(outcome=done[path], context=None, same_context=True))


async def _bring_tool_calls(run: Run, journal: SeenJournal, undo: tuple[ToUndo, ...]) -> None:
    """Who undoes a granular step call by call reads of its calls in the run that it belongs to."""
    for entry in undo:
        if isinstance(entry, Halt) or not isinstance(getattr(entry.step, "compensate", None), Mapping):
            continue
        known = {path for path, _ in run.journal.intents(entry.path)}
        for path, intent in journal.intents(entry.path):
            if path not in known:
                await _bring(run, journal, path, intent)


async def _bring(run: Run, journal: SeenJournal, path: StepPath, intent: str) -> None:
    await run.journal.intend(path, intent)
    unit = journal.unit(path)
    if unit is not None:
        await run.journal.commit_unit(path, unit.result, unit.usage)
