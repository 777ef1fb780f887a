"""The searches of one step: asked in time, checked, told to telemetry.

Rules:

1. A filter is a wall: one without a value fails the step, and so does whatever comes from behind it. `on_error="skip"`
   covers a retriever that fails or takes too long, never a wall.
2. What went wrong is told by collection and filter, never by the text of a passage.
3. Nothing to look for, or nobody who may be looked at, finds nothing, and nobody is asked.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeAlias

import attrs
import trio
from outcome import Error, Value

from .._bridge.guard import guarded
from .._bridge.threads import in_thread
from .._core.assembled import RetrievalResult, RetrievalSegment, Retrieved, Skipped
from .._core.attempts import escalating
from .._core.found import admitted, read_found
from .._core.usage import NO_USAGE, Usage
from .._dsl.call_plan import accepts, shape_of
from .._dsl.collections import collection_name, filterable
from .._dsl.context_sources import FromRetrieval, FromState, filter_flaw
from .._run.messages import Work
from .._run.reports import report_left_thread
from .._run.run import Run
from .._run.searching import Answered, Search
from .._run.user_calls import told_of
from ..errors import RetrievalError, StepTimeout
from .state_sources import Unassembled, state_of

_Found: TypeAlias = tuple[tuple[RetrievalResult, ...], bool]
"""What a search found, and whether the run had searched for it before."""

_NOTHING = Retrieved(results=())


@attrs.define(kw_only=True, eq=False)
class Retrieving:
    """How one step searches; see the module's rules."""

    run: Run
    work: Work
    used: Usage = NO_USAGE
    """What the searches that were made have used."""

    async def retrieved(self, source: FromRetrieval) -> RetrievalSegment | Skipped:
        """The passages of a source; `Unassembled` if it fails and is not to be skipped."""
        name = collection_name(source.collection)
        what = f"retrieval from {name!r}"
        search = await self._search(source, what=what)
        got = await guarded(self._searched, source, search)
        if isinstance(got, Error):
            if source.on_error == "skip" and _may_be_skipped(got.error):
                reason = self.run.redact(told_of(self.run, got.error))
                return Skipped(source.name, reason)
            raise Unassembled(what, got.error)
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

    def _told_of(self, got: Value[_Found] | Error) -> dict[str, object]:
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
                self.used += answered.found.usage
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

    async def _reranked(
        self, rerank: Callable[..., object], results: list[RetrievalResult], search: Search
    ) -> Sequence[RetrievalResult]:
        """The passages as a function orders them: in a thread if it is synchronous, since it may be a model."""
        keywords = {"query": search.query} if accepts(rerank, "query") else {}
        call = functools.partial(rerank, results, **keywords)
        answer = call() if shape_of(rerank) == "async" else await self._aside(call)
        if isinstance(answer, Awaitable):
            answer = await self.run.host.finish(answer)
        return read_found(answer, collection=search.collection).results

    async def _aside(self, call: Callable[[], object]) -> object:
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
        query, asked = source.query, self.work.data
        if isinstance(query, str):
            return query
        if query is not None:
            asked = await state_of(self.run, self.work, query, what=f"the query of {what}")
        if isinstance(asked, str):
            return asked
        whose = "the step's data" if query is None else "it"
        cure = ": say query=…" if query is None else ""
        why = f"a query must be a text, and {whose} is a {type(asked).__name__}{cure}"
        raise Unassembled(f"the query of {what}", RetrievalError(why))

    async def _filter(self, source: FromRetrieval, field: str, *, what: str) -> object:
        value = source.filters[field]
        if isinstance(value, FromState) or (callable(value) and not isinstance(value, type)):
            value = await state_of(self.run, self.work, value, what=f"filter {field!r} of {what}")
        flaw = filter_flaw(filterable(source.collection)[field], value)
        if flaw is not None:
            raise Unassembled(what, RetrievalError(f"filter {field!r} {flaw}"))
        return list(value) if isinstance(value, tuple) else value

    def _emit(self, kind: Any, **facts: object) -> None:
        work = self.work
        self.run.emit(kind, work.span, step_name=work.name, attempt=work.attempt, **facts)


def _may_be_skipped(error: BaseException) -> bool:
    """Whether a step may go on without what failed like this: not past a wall, and not when the run must stop."""
    return isinstance(error, Exception) and not isinstance(error, RetrievalError) and escalating(error) is None
