"""The context of one step, assembled before its agent is called.

Rules:

1. It is assembled once per step, not per attempt: retries, redirects and answers that are asked for again see the same.
   A durable run writes it down, and so does a granular step; the next process sees what this one saw, and searches
   for nothing. A failure is never written down.
2. Sources are asked at the same time and shown in the order of their declaration.
3. What went wrong is told by source, never by the text of a passage.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, assert_never

import attrs
import trio
from outcome import Error

from .._bridge.guard import guarded
from .._core import paths
from .._core.assembled import (
    AssembledContext,
    ContextSegment,
    Dropped,
    LiteralSegment,
    Skipped,
    StateSegment,
)
from .._core.assembled_json import assembled_from_data, assembled_to_data
from .._core.attempts import Failed, escalating
from .._core.context_budget import within_budget, without_duplicates
from .._dsl.context_format import shown_text
from .._dsl.context_sources import (
    ContextSources,
    FromHistory,
    FromLiteral,
    FromRetrieval,
    FromState,
    Source,
)
from .._dsl.step import Step
from .._run.messages import Assembly, Work
from .._run.run import Run
from .._run.user_calls import told_of
from ..errors import FlujoError
from .retrieving import Retrieving
from .state_sources import Unassembled, state_of

_NOTHING_DROPPED: tuple[Dropped, ...] = ()


async def assembled_for(run: Run, step: Step, work: Work) -> Assembly | Failed:
    """What the step's agent is shown besides its prompt, or why it cannot be assembled."""
    sources = step.context_sources
    assert sources is not None
    if work.tally.assembly is None:
        assembling = Assembling(run=run, step=step, work=work, sources=sources)
        ended = assembling.recalled() or await assembling.assembled()
        if isinstance(ended, Failed):
            return ended
        work.tally.assembly = ended
    return work.tally.assembly


def noted(assembly: Assembly) -> dict[str, object]:
    """What a step's metadata says of its context."""
    context = assembly.context
    return {
        "context": {
            "tokens": context.tokens,
            "sources": [[name, each.source_id, each.score] for name, each in context.passages()],
            "dropped": [list(each) for each in context.dropped],
            "skipped": [each.source for each in context.skipped],
        }
    }


@attrs.define(kw_only=True, eq=False)
class Assembling:
    """How one step's context is assembled; see the module's rules."""

    run: Run
    step: Step
    work: Work
    sources: ContextSources
    _retrieving: Retrieving = attrs.field(init=False)

    @_retrieving.default
    def _searches(self) -> Retrieving:
        return Retrieving(run=self.run, work=self.work)

    # --- remembered ---

    @property
    def _place(self) -> paths.StepPath:
        return paths.unit(self.work.span, "context")

    def recalled(self) -> Assembly | None:
        """The context that an earlier part of the run has assembled."""
        kept = self.run.journal.unit(self._place) if self.run.resumed else None
        if kept is None:
            return None
        if not kept.counted:
            self.work.spend(kept.usage)
        return self._shown(assembled_from_data(json.loads(kept.result)), recalled=True)

    async def _remember(self, context: AssembledContext) -> None:
        if self.run.journal.durable or self.step.resumable is not None:
            text = json.dumps(assembled_to_data(context), separators=(",", ":"))
            await self.run.journal.commit_unit(self._place, text, self._retrieving.used)

    # --- assembled ---

    async def assembled(self) -> Assembly | Failed:
        """The context, from its sources."""
        try:
            found = await self._all_found()
            context = await self._fitting(found)
        except Unassembled as error:
            return self._failed(f"{error.what} failed with {told_of(self.run, error.cause)}", error.cause)
        except FlujoError as error:
            return self._failed(told_of(self.run, error), error)
        await self._remember(context)
        return self._shown(context, recalled=False)

    def _failed(self, why: str, error: BaseException) -> Failed:
        text = self.run.redact(f"Assembling the context of step {self.step.name!r}: {why}")
        return Failed(error=escalating(error) or error, feedback=text)

    def _shown(self, context: AssembledContext, *, recalled: bool) -> Assembly:
        text = shown_text(self.sources.format, context)
        self._emit(
            "context.assembled",
            segments=len(context.segments),
            tokens=context.tokens,
            dropped=len(context.dropped),
            skipped=tuple(each.source for each in context.skipped),
            reasons=tuple(each.reason for each in context.skipped),
            recalled=recalled,
            text=text,
        )
        return Assembly(context=context, text=text)

    async def _fitting(self, found: list[ContextSegment | Skipped]) -> AssembledContext:
        """What there is room for."""
        segments = without_duplicates([each for each in found if not isinstance(each, Skipped)])
        skipped = [each for each in found if isinstance(each, Skipped)]
        fitted = await guarded(self._within_budget, segments)
        if isinstance(fitted, Error):
            raise fitted.error if isinstance(fitted.error, FlujoError) else Unassembled("the format", fitted.error)
        shown, dropped, tokens = fitted.value
        return AssembledContext(segments=shown, dropped=dropped, skipped=skipped, tokens=tokens)

    async def _within_budget(
        self, segments: tuple[ContextSegment, ...]
    ) -> tuple[tuple[ContextSegment, ...], tuple[Dropped, ...], int]:
        sources, dropped = self.sources, _NOTHING_DROPPED
        if sources.max_tokens is not None:
            segments, dropped = within_budget(
                segments, max_tokens=sources.max_tokens, render=sources.format, count=sources.counter
            )
        text = AssembledContext(segments=segments, tokens=0).to_prompt_string(sources.format)
        return segments, dropped, sources.counter(text) if text else 0

    async def _all_found(self) -> list[ContextSegment | Skipped]:
        """The segment of every source; they are asked at the same time, and the first that fails stops the others."""
        declared = [each for each in self.sources.sources if not isinstance(each, FromHistory)]
        found: dict[int, ContextSegment | Skipped] = {}
        slow: list[tuple[int, Source]] = []
        for place, source in enumerate(declared):
            if _is_only_read(source):
                found[place] = await self._segment(source)
            else:
                slow.append((place, source))
        if len(slow) == 1:
            found[slow[0][0]] = await self._segment(slow[0][1])
        elif slow:
            await self._at_once(slow, found)
        return [found[place] for place in range(len(declared))]

    async def _at_once(self, slow: Sequence[tuple[int, Source]], found: dict[int, ContextSegment | Skipped]) -> None:
        failed: list[Unassembled] = []

        async def find(place: int, source: Source) -> None:
            try:
                found[place] = await self._segment(source)
            except Unassembled as error:
                failed.append(error)
                nursery.cancel_scope.cancel()

        async with trio.open_nursery() as nursery:
            for place, source in slow:
                nursery.start_soon(find, place, source)
        if failed:
            raise failed[0]

    async def _segment(self, source: Source) -> ContextSegment | Skipped:
        match source:
            case FromState(name=name):
                what = f"state {name!r}" if name else "a state"
                return StateSegment(name, await state_of(self.run, self.work, source, what=what))
            case FromLiteral(text=text):
                return LiteralSegment(text)
            case FromRetrieval():
                return await self._retrieving.retrieved(source)
            case FromHistory():
                raise AssertionError("a history is no segment")
            case _:
                assert_never(source)

    def _emit(self, kind: Any, **facts: object) -> None:
        work = self.work
        self.run.emit(kind, work.span, step_name=work.name, attempt=work.attempt, **facts)


def _is_only_read(source: Source) -> bool:
    """Whether there is nothing to wait for."""
    return isinstance(source, FromLiteral) or (isinstance(source, FromState) and isinstance(source.where, str))
