"""Context assembly of one step before its agent is called.

Rules:

1. It is assembled once per step, not per attempt: retries, redirects and repeated requests see the same.
   A durable run records it, and so does a granular step; the next process reuses it without a search. A failure is
   never recorded.
2. Sources are queried concurrently and shown in declaration order.
3. Errors name the source, never the text of a passage.

Sections:

- Values of states, queries and filters: read from the context, or computed.
- Searches of one step: timed, checked and reported to telemetry.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeAlias, assert_never

import attrs
import trio
from outcome import Error, Value

from ..._bridge.threads import in_thread
from ..._bridge.user_code_guard import guarded
from ..._core import step_paths
from ..._core.attempt_results import AttemptFailed, escalating
from ..._core.records.assembled import (
    AssembledContext,
    ContextSegment,
    Dropped,
    LiteralSegment,
    RetrievalResult,
    RetrievalSegment,
    Retrieved,
    Skipped,
    StateSegment,
    admitted,
    assembled_from_data,
    assembled_to_data,
    read_found,
    within_budget,
    without_duplicates,
)
from ..._core.usage import NO_USAGE, Usage, sanitized
from ..._dsl.call_plan import accepts, shape_of
from ..._dsl.context_format import shown_text
from ..._dsl.context_sources import (
    ContextSources,
    FromHistory,
    FromLiteral,
    FromRetrieval,
    FromState,
    Source,
    filter_flaw,
)
from ..._dsl.retrieval_collections import collection_name, filterable
from ..._dsl.step_declaration import Step
from ...errors import FlujoError, RetrievalError, StepTimeout
from ..context.context_paths import read_path
from ..context.copies import own
from ..run.messages import AssembledInput, AttemptInput
from ..run.retrieval_cache import RetrievalAnswer, Search
from ..run.run_environment import Run
from ..run.step_results import report_left_thread
from ..run.user_functions import error_text, with_context_copy

# --- Values of states ---------------------------------------------------------------------------------------------


class Unassembled(Exception):
    """Unavailable source; `cause` is its exception."""

    def __init__(self, subject: str, cause: BaseException) -> None:
        self.what, self.cause = subject, cause
        super().__init__(subject)


async def state_of(run: Run, work: AttemptInput, source: FromState | Callable[..., Any], *, subject: str) -> object:
    """Return a source's, query's or filter's value; raise `Unassembled`."""
    where = source.where if isinstance(source, FromState) else source
    if isinstance(where, str):
        got: Value[object] | Error = await guarded(_read, work.context, where)
    else:
        got = await with_context_copy(run, where, own(work.data), work.context, work.scope)
    if isinstance(got, Error):
        raise Unassembled(subject, got.error)
    return got.value


async def _read(context: object, where: str) -> object:
    return own(read_path(context, where))


# --- Searches of one step -----------------------------------------------------------------------------------------
# Rules:
#
# 1. A filter is strict: one without a value fails the step, and so does a result that violates it. `on_error="skip"`
#    covers a retriever that fails or times out, never a filter.
# 2. Errors name collection and filter, never the text of a passage.
# 3. An empty query or an empty filter list finds nothing, without a search.


_Found: TypeAlias = tuple[tuple[RetrievalResult, ...], bool]
"""Results of a search, and whether they were cached."""

_NOTHING = Retrieved(results=())


@attrs.define(kw_only=True, eq=False)
class RetrievalCall:
    """Searches of one step; see the module's rules."""

    run: Run
    work: AttemptInput
    used: Usage = NO_USAGE
    """Usage of the executed searches."""

    async def retrieved(self, source: FromRetrieval) -> RetrievalSegment | Skipped:
        """Return a source's passages; raise `Unassembled` if a required one fails."""
        name = collection_name(source.collection)
        subject = f"retrieval from {name!r}"
        search = await self._search(source, subject=subject)
        got = await guarded(self._searched, source, search)
        if isinstance(got, Error):
            if source.on_error == "skip" and _may_be_skipped(got.error):
                reason = self.run.redact(error_text(self.run, got.error))
                return Skipped(source.name, reason)
            raise Unassembled(subject, got.error)
        return RetrievalSegment(name, got.value, if_empty=source.if_empty, name=source.name)

    async def _searched(self, source: FromRetrieval, search: Search) -> tuple[RetrievalResult, ...]:
        """Return the passages of a search, reported, timed and checked."""
        facts = {"collection": search.collection, "source": source.name}
        self._emit("retrieval.started", query=search.query, **facts)
        facts_of_end: dict[str, Any] = {"status": "aborted"}
        try:
            got = await guarded(self._found, source, search)
            facts_of_end = self._facts_of(got)
            return got.unwrap()[0]
        finally:
            self._emit("retrieval.ended", **facts_of_end, **facts)

    def _facts_of(self, got: Value[_Found] | Error) -> dict[str, object]:
        """Return the telemetry facts of an ended search."""
        if isinstance(got, Error):
            text = self.run.redact(error_text(self.run, got.error))
            return {"status": "failure", "feedback": text, "error_type": type(got.error).__name__}
        found, cached = got.value
        best = max((each.score for each in found), default=None)
        documents = [{"id": each.source_id, "score": each.score} for each in found]
        return {"status": "success", "found": len(found), "best_score": best, "cached": cached, "documents": documents}

    async def _found(self, source: FromRetrieval, search: Search) -> _Found:
        answered = await self._in_time(source, search)
        return await self._admitted(source, search, answered), answered.cached

    async def _in_time(self, source: FromRetrieval, search: Search) -> RetrievalAnswer:
        if not search.query.strip() or any(value in ([], ()) for value in search.filters.values()):
            return RetrievalAnswer(found=_NOTHING)
        run, work = self.run, self.work
        assert run.searches is not None
        if run.journal.lapsed:
            await run.journal.confirm()
        left = functools.partial(report_left_thread, run, work.name, work.span)
        with trio.move_on_after(source.timeout_s or float("inf")) as limit:
            answered = await run.searches.search(run, search, cache=source.cache, if_left=left, label=work.name)
            if not answered.cached:
                used = sanitized(answered.found.usage)
                self.used += used
                work.spend(used)
            return answered
        assert limit.cancelled_caught
        raise StepTimeout(f"it took longer than timeout_s={source.timeout_s:g}")

    async def _admitted(
        self, source: FromRetrieval, search: Search, answered: RetrievalAnswer
    ) -> tuple[RetrievalResult, ...]:
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
        """Return the reranked passages; sync functions run in a thread."""
        keywords = {"query": search.query} if accepts(rerank, "query") else {}
        call = functools.partial(rerank, results, **keywords)
        answer = call() if shape_of(rerank) == "async" else await self._in_thread(call)
        if isinstance(answer, Awaitable):
            answer = await self.run.host.finish(answer)
        return read_found(answer, collection=search.collection).results

    async def _in_thread(self, call: Callable[[], object]) -> object:
        run, work = self.run, self.work
        left = functools.partial(report_left_thread, run, work.name, work.span)
        return await in_thread(
            call, label=work.name, limit=run.sync_step_threads, if_left=left, waited=run.journal.confirm
        )

    async def _search(self, source: FromRetrieval, *, subject: str) -> Search:
        filters = {field: await self._filter(source, field, subject=subject) for field in source.filters}
        return Search(
            collection=collection_name(source.collection),
            query=await self._query(source, subject=subject),
            top_k=source.top_k,
            min_relevance=source.min_relevance,
            filters=filters,
        )

    async def _query(self, source: FromRetrieval, *, subject: str) -> str:
        query, asked = source.query, self.work.data
        if isinstance(query, str):
            return query
        if query is not None:
            asked = await state_of(self.run, self.work, query, subject=f"the query of {subject}")
        if isinstance(asked, str):
            return asked
        whose = "the step's data" if query is None else "it"
        cure = ": say query=…" if query is None else ""
        why = f"a query must be a text, and {whose} is a {type(asked).__name__}{cure}"
        raise Unassembled(f"the query of {subject}", RetrievalError(why))

    async def _filter(self, source: FromRetrieval, field: str, *, subject: str) -> object:
        value = source.filters[field]
        if isinstance(value, FromState) or (callable(value) and not isinstance(value, type)):
            value = await state_of(self.run, self.work, value, subject=f"filter {field!r} of {subject}")
        flaw = filter_flaw(filterable(source.collection)[field], value)
        if flaw is not None:
            raise Unassembled(subject, RetrievalError(f"filter {field!r} {flaw}"))
        return list(value) if isinstance(value, tuple) else value

    def _emit(self, kind: Any, **facts: object) -> None:
        work = self.work
        self.run.emit(kind, work.span, step_name=work.name, attempt=work.attempt, **facts)


def _may_be_skipped(error: BaseException) -> bool:
    """Return whether a step may continue after this error."""
    return isinstance(error, Exception) and not isinstance(error, RetrievalError) and escalating(error) is None


# --- Context assembly of one step before its agent is called ------------------------------------------------------


_NOTHING_DROPPED: tuple[Dropped, ...] = ()


async def assembled_for(run: Run, step: Step, work: AttemptInput) -> AssembledInput | AttemptFailed:
    """Return the assembled context of the step's agent, or the failure."""
    sources = step.context_sources
    assert sources is not None
    if work.state.assembly is None:
        assembling = ContextAssembly(run=run, step=step, work=work, sources=sources)
        ended = assembling.recalled() or await assembling.assembled()
        if isinstance(ended, AttemptFailed):
            return ended
        work.state.assembly = ended
    return work.state.assembly


def noted(assembly: AssembledInput) -> dict[str, object]:
    """Return the context metadata of a step."""
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
class ContextAssembly:
    """Context assembly of one step; see the module's rules."""

    run: Run
    step: Step
    work: AttemptInput
    sources: ContextSources
    _retrieving: RetrievalCall = attrs.field(init=False)

    @_retrieving.default
    def _searches(self) -> RetrievalCall:
        return RetrievalCall(run=self.run, work=self.work)

    # --- remembered ---

    @property
    def _place(self) -> step_paths.StepPath:
        return step_paths.unit(self.work.span, "context")

    def recalled(self) -> AssembledInput | None:
        """Return the context assembled by an earlier session, or None."""
        kept = self.run.journal.unit(self._place) if self.run.resumed or self.run.gate is not None else None
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

    async def assembled(self) -> AssembledInput | AttemptFailed:
        """Return the context, from its sources."""
        try:
            found = await self._all_found()
            context = await self._fitting(found)
        except Unassembled as error:
            return self._failed(f"{error.what} failed with {error_text(self.run, error.cause)}", error.cause)
        except FlujoError as error:
            return self._failed(error_text(self.run, error), error)
        await self._remember(context)
        return self._shown(context, recalled=False)

    def _failed(self, why: str, error: BaseException) -> AttemptFailed:
        text = self.run.redact(f"Assembling the context of step {self.step.name!r}: {why}")
        return AttemptFailed(error=escalating(error) or error, feedback=text)

    def _shown(self, context: AssembledContext, *, recalled: bool) -> AssembledInput:
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
        return AssembledInput(context=context, text=text)

    async def _fitting(self, found: list[ContextSegment | Skipped]) -> AssembledContext:
        """Return the context that fits the budget."""
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
        """Return all sources' segments, queried concurrently; a failure stops them."""
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
                subject = f"state {name!r}" if name else "a state"
                return StateSegment(name, await state_of(self.run, self.work, source, subject=subject))
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
    """Return whether the source needs no waiting."""
    return isinstance(source, FromLiteral) or (isinstance(source, FromState) and isinstance(source.where, str))
