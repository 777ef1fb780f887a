"""The context of one step, assembled before its agent is called.

Rules:

1. It is assembled once per step, not per attempt: retries, redirects and answers that are asked for again see the same.
   A durable run writes it down, and so does a granular step; the next process sees what this one saw, and searches
   for nothing. A failure is never written down.
2. Sources are asked at the same time and shown in the order of their declaration.
3. A filter is a wall: one without a value fails the step, and so does whatever comes from behind it. `on_error="skip"`
   covers a retriever that fails or takes too long, never a wall.
4. What went wrong is told by source, collection and filter, never by the text of a passage.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeAlias, assert_never

import attrs
import trio
from outcome import Error, Value

from .._bridge.guard import guarded
from .._bridge.threads import in_thread
from .._context.isolation import own
from .._context.reading import read_path
from .._core import paths
from .._core.assembled import (
    AssembledContext,
    ContextSegment,
    Dropped,
    LiteralSegment,
    RetrievalResult,
    RetrievalSegment,
    Retrieved,
    Skipped,
    StateSegment,
)
from .._core.assembled_json import assembled_from_data, assembled_to_data
from .._core.attempts import Failed, escalating
from .._core.context_budget import within_budget, without_duplicates
from .._core.found import admitted, read_found
from .._core.usage import NO_USAGE, Usage
from .._dsl.call_plan import accepts, shape_of
from .._dsl.collections import collection_name, filterable
from .._dsl.context_format import shown_text
from .._dsl.context_sources import (
    ContextSources,
    FromHistory,
    FromLiteral,
    FromRetrieval,
    FromState,
    Source,
    filter_flaw,
)
from .._dsl.step import Step
from .._run.messages import Assembly, Work
from .._run.reports import report_left_thread
from .._run.run import Run
from .._run.searching import Answered, Search
from .._run.user_calls import told_of, with_context_copy
from ..errors import FlujoError, RetrievalError, StepTimeout

_Found: TypeAlias = tuple[tuple[RetrievalResult, ...], bool]
"""What a search found, and whether the run had searched for it before."""

_NOTHING = Retrieved(results=())
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


def noted(assembly: Assembly) -> dict[str, Any]:
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


class _Unassembled(Exception):
    """A source cannot be had; `cause` is what it raised."""

    def __init__(self, what: str, cause: BaseException) -> None:
        self.what, self.cause = what, cause
        super().__init__(what)


@attrs.define(kw_only=True, eq=False)
class Assembling:
    """How one step's context is assembled; see the module's rules."""

    run: Run
    step: Step
    work: Work
    sources: ContextSources
    _used: Usage = NO_USAGE

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
            await self.run.journal.commit_unit(self._place, text, self._used)

    # --- assembled ---

    async def assembled(self) -> Assembly | Failed:
        """The context, from its sources."""
        try:
            found = await self._all_found()
            context = await self._fitting(found)
        except _Unassembled as error:
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
            raise fitted.error if isinstance(fitted.error, FlujoError) else _Unassembled("the format", fitted.error)
        shown, dropped, tokens = fitted.value
        return AssembledContext(segments=shown, dropped=dropped, skipped=skipped, tokens=tokens)

    async def _within_budget(self, segments: tuple[ContextSegment, ...]) -> tuple[Any, Any, int]:
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
        failed: list[_Unassembled] = []

        async def find(place: int, source: Source) -> None:
            try:
                found[place] = await self._segment(source)
            except _Unassembled as error:
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
                return StateSegment(name, await self._state(source, what=what))
            case FromLiteral(text=text):
                return LiteralSegment(text)
            case FromRetrieval():
                return await self._retrieved(source)
            case FromHistory():
                raise AssertionError("a history is no segment")
            case _:
                assert_never(source)

    async def _state(self, source: FromState | Callable[..., Any], *, what: str) -> Any:
        """What a source, a query or a filter comes to."""
        where = source.where if isinstance(source, FromState) else source
        work = self.work
        if isinstance(where, str):
            got: Value[Any] | Error = await guarded(_read, work.context, where)
        else:
            got = await with_context_copy(self.run, where, own(work.data), work.context, work.scope)
        if isinstance(got, Error):
            raise _Unassembled(what, got.error)
        return got.value

    # --- searches ---

    async def _retrieved(self, source: FromRetrieval) -> RetrievalSegment | Skipped:
        name = collection_name(source.collection)
        what = f"retrieval from {name!r}"
        search = await self._search(source, what=what)
        got = await guarded(self._searched, source, search)
        if isinstance(got, Error):
            if source.on_error == "skip" and _may_be_skipped(got.error):
                reason = self.run.redact(told_of(self.run, got.error))
                return Skipped(source.name, reason)
            raise _Unassembled(what, got.error)
        return RetrievalSegment(name, got.value, if_empty=source.if_empty, name=source.name)

    async def _searched(self, source: FromRetrieval, search: Search) -> tuple[RetrievalResult, ...]:
        """The passages of a search, told to telemetry, in time and checked."""
        facts = {"collection": search.collection, "source": source.name}
        self._emit("retrieval.started", query=search.query, **facts)
        said: dict[str, Any] = {"status": "aborted"}
        try:
            got = await guarded(self._found, source, search)
            said = self._told_of(got)
            return got.unwrap()[0]
        finally:
            self._emit("retrieval.ended", **said, **facts)

    def _told_of(self, got: Value[_Found] | Error) -> dict[str, Any]:
        """What telemetry hears of a search that ended."""
        if isinstance(got, Error):
            return {"status": "failure", "feedback": self.run.redact(told_of(self.run, got.error))}
        found, cached = got.value
        best = max((each.score for each in found), default=None)
        documents = [{"id": each.source_id, "score": each.score} for each in found]
        return {"status": "success", "found": len(found), "best_score": best, "cached": cached, "documents": documents}

    async def _found(self, source: FromRetrieval, search: Search) -> _Found:
        answered = await self._in_time(source, search)
        return await self._admitted(source, search, answered), answered.cached

    async def _in_time(self, source: FromRetrieval, search: Search) -> Answered:
        if not search.query.strip() or any(value in ([], ()) for value in search.filters.values()):
            return Answered(found=_NOTHING)
        run, work = self.run, self.work
        assert run.searches is not None
        left = functools.partial(report_left_thread, run, work.name, work.span)
        with trio.move_on_after(source.timeout_s or float("inf")) as limit:
            answered = await run.searches.search(run, search, cache=source.cache, if_left=left, label=work.name)
            if not answered.cached:
                self._used += answered.found.usage
                work.spend(answered.found.usage)
            return answered
        assert limit.cancelled_caught
        raise StepTimeout(f"it took longer than timeout_s={source.timeout_s:g}")

    async def _admitted(self, source: FromRetrieval, search: Search, answered: Answered) -> tuple[RetrievalResult, ...]:
        keeps = functools.partial(
            admitted,
            collection=search.collection,
            filters=search.filters,
            min_relevance=search.min_relevance,
            top_k=search.top_k,
        )
        results = keeps(answered.found.results)
        if source.rerank is None or not results:
            return results
        again = await self._reranked(source.rerank, list(results), search)
        return keeps(again, in_order=False)

    async def _reranked(self, rerank: Callable[..., Any], results: list[RetrievalResult], search: Search) -> Any:
        """The passages as a function orders them: in a thread if it is synchronous, since it may be a model."""
        keywords = {"query": search.query} if accepts(rerank, "query") else {}
        call = functools.partial(rerank, results, **keywords)
        answer = call() if shape_of(rerank) == "async" else await self._aside(call)
        if isinstance(answer, Awaitable):
            answer = await self.run.host.finish(answer)
        return read_found(answer, collection=search.collection).results

    async def _aside(self, call: Callable[[], Any]) -> Any:
        run, work = self.run, self.work
        left = functools.partial(report_left_thread, run, work.name, work.span)
        return await in_thread(call, label=work.name, limit=run.sync_step_threads, if_left=left)

    async def _search(self, source: FromRetrieval, *, what: str) -> Search:
        filters = {field: await self._filter(source, field, what=what) for field in source.filters}
        return Search(
            collection=collection_name(source.collection),
            query=await self._query(source, what=what),
            top_k=source.top_k,
            min_relevance=source.min_relevance,
            filters=filters,
        )

    async def _query(self, source: FromRetrieval, *, what: str) -> str:
        query = source.query
        if query is None:
            asked: Any = self.work.data
        else:
            asked = query if isinstance(query, str) else await self._state(query, what=f"the query of {what}")
        if isinstance(asked, str):
            return asked
        whose = "the step's data" if query is None else "it"
        cure = ": say query=…" if query is None else ""
        why = f"a query must be a text, and {whose} is a {type(asked).__name__}{cure}"
        raise _Unassembled(f"the query of {what}", RetrievalError(why))

    async def _filter(self, source: FromRetrieval, field: str, *, what: str) -> Any:
        value = source.filters[field]
        if isinstance(value, FromState) or (callable(value) and not isinstance(value, type)):
            value = await self._state(value, what=f"filter {field!r} of {what}")
        flaw = filter_flaw(filterable(source.collection)[field], value)
        if flaw is not None:
            raise _Unassembled(what, RetrievalError(f"filter {field!r} {flaw}"))
        return list(value) if isinstance(value, tuple) else value

    def _emit(self, kind: Any, **facts: Any) -> None:
        work = self.work
        self.run.emit(kind, work.span, step_name=work.name, attempt=work.attempt, **facts)


def _is_only_read(source: Source) -> bool:
    """Whether there is nothing to wait for."""
    return isinstance(source, FromLiteral) or (isinstance(source, FromState) and isinstance(source.where, str))


def _may_be_skipped(error: BaseException) -> bool:
    """Whether a step may go on without what failed like this: not past a wall, and not when the run must stop."""
    return isinstance(error, Exception) and not isinstance(error, RetrievalError) and escalating(error) is None


async def _read(context: Any, where: str) -> Any:
    return own(read_path(context, where))
