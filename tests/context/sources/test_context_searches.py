"""Searches of a step: what retrievers are asked, what of their answers counts, how often, and for how long."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import anyio
import pytest
import trio
from context_papers import Notes, Papers, heard, passage

from flujo_actors import (
    Aborted,
    AssembledContext,
    Backoff,
    Context,
    Flujo,
    InMemoryRetriever,
    PipelineResult,
    RetrievalResult,
    Retrieved,
    Step,
    StepTimeout,
    Usage,
    UsageLimitExceededError,
    UsageLimits,
    abandoned_threads,
    from_literal,
    from_retrieval,
    from_state,
)
from flujo_actors.testing import Delayed, HashingEmbedder, ScriptedRetriever


async def shown(data: Any, *, assembled: AssembledContext) -> list[str]:
    """An agent that says which passages it was shown."""
    return [result.content for result in assembled.retrieval_results]


def ask(source: Any, **config: Any) -> Step:
    return Step("ask", shown, context_sources=source if isinstance(source, list) else [source], **config)


def run(source: Any, retriever: Any, data: Any = "q", context: Mapping[str, Any] | None = None) -> PipelineResult:
    return Flujo(ask(source), initial_context_data=context, retrievers={Papers: retriever}).run(data)


# --- what is asked ------------------------------------------------------------------------------------------


def test_a_retriever_is_asked_for_exactly_what_was_declared() -> None:
    """Query and filters come from the state, the rest from the declaration."""
    retriever = ScriptedRetriever(("found", 0.9))
    source = from_retrieval(
        Papers,
        query=from_state("question"),
        top_k=3,
        min_relevance=0.25,
        filters={"tenant": from_state("who.tenant"), "year": 2026},
    )
    assert run(source, retriever, context={"question": "why?", "who": {"tenant": "acme"}}).output == ["found"]
    search = retriever.searches[0]
    assert (search.query, search.top_k, search.min_relevance) == ("why?", 3, 0.25)
    assert search.filters == {"tenant": "acme", "year": 2026}


@pytest.mark.parametrize(
    ("query", "asked"),
    [
        (None, "q"),
        ("fixed", "fixed"),
        (from_state("question"), "why?"),
        (lambda data, context: f"{data} {context.question}", "q why?"),
        (from_state(lambda data, context: data * 2), "qq"),
    ],
)
def test_a_query_is_a_text_a_state_a_function_or_the_data(query: Any, asked: str) -> None:
    """Without one the step's data is looked for."""
    retriever = ScriptedRetriever()
    run(from_retrieval(Papers, query=query), retriever, context={"question": "why?"})
    assert [search.query for search in retriever.searches] == [asked]


@pytest.mark.parametrize(
    ("value", "asked"),
    [
        (2026, 2026),
        ([2025, 2026], [2025, 2026]),
        (from_state("year"), 2024),
        (from_state("years"), [1, 2]),
        (lambda data, context: context.year + 1, 2025),
    ],
)
def test_a_filter_is_a_value_a_list_a_state_or_a_function(value: Any, asked: Any) -> None:
    """Whatever it comes to is what the retriever gets."""
    retriever = ScriptedRetriever()
    run(from_retrieval(Papers, filters={"year": value}), retriever, context={"year": 2024, "years": (1, 2)})
    assert retriever.searches[0].filters == {"year": asked}


def test_data_that_is_no_text_is_no_query() -> None:
    """The step fails, and says what to do."""
    feedback = run(from_retrieval(Papers), ScriptedRetriever(), data={"a": 1}).feedback or ""
    assert "the step's data is a dict: say query=…" in feedback


@pytest.mark.parametrize("data", ["", "  \n "])
def test_an_empty_question_finds_nothing_and_is_not_asked(data: str) -> None:
    """There is nothing to look for."""
    retriever = ScriptedRetriever(("found", 1.0))
    assert run(from_retrieval(Papers), retriever, data=data).output == []
    assert retriever.searches == []


def test_two_questions_find_different_passages() -> None:
    """And a question about nothing that is there finds nothing."""
    papers = (
        InMemoryRetriever(Papers)
        .add("Green tea wants 80 degrees.", id="tea", tenant="a", year=1)
        .add("Espresso is pressed at nine bar.", id="coffee", tenant="a", year=1)
        .add("The capital of Peru is Lima.", id="lima", tenant="a", year=1)
    )
    first = [
        run(from_retrieval(Papers), papers, q).output for q in ("how hot for tea", "pressure for espresso", "dogs")
    ]
    assert [found[:1] for found in first] == [["Green tea wants 80 degrees."], ["Espresso is pressed at nine bar."], []]


def test_a_function_is_a_retriever_called_by_its_signature() -> None:
    """It gets those of the parameters that it takes; sync ones run in a thread."""
    threads: list[str] = []

    def by_sql(query: str, *, top_k: int) -> list[RetrievalResult]:
        threads.append(threading.current_thread().name)
        return [passage(f"{query} {top_k}", 0.5)]

    assert run(from_retrieval(Papers, top_k=2), by_sql).output == ["q 2"]
    assert threads != [threading.main_thread().name]

    async def alone(query: str) -> list[RetrievalResult]:
        await anyio.sleep(0)
        return [passage(query, 1)]

    assert run(from_retrieval(Papers), alone).output == ["q"]


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
def test_an_async_retriever_runs_on_the_library_of_the_host(backend: Any) -> None:
    """Whatever it awaits is of that library."""

    class Own:
        async def search(self, query: str, **options: Any) -> Sequence[RetrievalResult]:
            await (trio.sleep(0) if backend == "trio" else asyncio.sleep(0))
            return [passage(f"{query} {options['filters']}", 0.5)]

    flujo = Flujo(ask(from_retrieval(Papers, filters={"year": 1})), retrievers={Papers: Own()})
    assert flujo.run("q", backend=backend).output == ["q {'year': 1}"]


# --- what comes back ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("score", [1.7, -0.2, math.nan, math.inf, "0.5", None, True])
@pytest.mark.parametrize("on_error", ["fail", "skip"])
def test_a_score_that_is_no_relevance_fails_the_step(score: Any, on_error: Any) -> None:
    """Naming the collection and the score, never the text; skipping does not cover it."""
    result = run(from_retrieval(Papers, on_error=on_error), lambda query: [passage("a secret text", score, "p7")])
    assert result.status == "failed"
    assert "passage 'p7' of 'papers' has the score" in (result.feedback or "")
    assert repr(score) in (result.feedback or "")
    assert "secret" not in (result.feedback or "")


def test_order_floor_and_top_k_are_applied_again() -> None:
    """Whatever the retriever made of them: the best first, equals as they came."""

    def unsorted(query: str) -> list[RetrievalResult]:
        return [passage("low", 0.3), passage("one", 0.9), passage("two", 0.9)]

    assert run(from_retrieval(Papers), unsorted).output == ["one", "two", "low"]
    assert run(from_retrieval(Papers, min_relevance=0.5), unsorted).output == ["one", "two"]
    assert run(from_retrieval(Papers, top_k=1), unsorted).output == ["one"]


def test_of_too_many_results_the_best_are_taken() -> None:
    """Nine for five: the five best."""
    found = [passage(f"r{n}", n / 10) for n in range(9)]
    assert run(from_retrieval(Papers, top_k=5), lambda query: found).output == ["r8", "r7", "r6", "r5", "r4"]


@pytest.mark.parametrize("answer", ["text", None, 5, {"a": 1}, [("a", 0.5)], [{"content": "x"}]])
def test_an_answer_that_is_no_list_of_results_fails_the_step(answer: Any) -> None:
    """It is told what the retriever returned, and what it should."""
    feedback = run(from_retrieval(Papers), lambda query: answer).feedback or ""
    assert "the retriever of 'papers' returned a " in feedback
    assert "RetrievalResult(…)" in feedback


def test_a_content_that_is_no_text_fails_the_step() -> None:
    """A prompt is made of text."""
    feedback = run(from_retrieval(Papers), lambda query: [passage(b"x", 0.5)]).feedback or ""  # type: ignore[arg-type]
    assert "has a bytes as its content, not text" in feedback


def test_passages_can_be_reranked() -> None:
    """In an order that is kept, by a function that may ask for the query; what it adds is checked as well."""

    def reverse(passages: list[RetrievalResult], *, query: str) -> list[RetrievalResult]:
        assert query == "q"
        return passages[::-1]

    async def best(passages: list[RetrievalResult]) -> list[RetrievalResult]:
        return [passage("other", 0.2), *passages]

    retriever = ScriptedRetriever(("a", 0.9), ("b", 0.8))
    assert run(from_retrieval(Papers, rerank=reverse), retriever).output == ["b", "a"]
    assert run(from_retrieval(Papers, rerank=best, top_k=2), retriever).output == ["other", "a"]
    wrong = run(from_retrieval(Papers, rerank=lambda passages: [passage("x", 7)]), retriever)
    assert "has the score 7" in (wrong.feedback or "")


def test_what_is_said_if_nothing_is_found() -> None:
    """An agent that knows that there is nothing can say so."""

    async def text(data: str, *, assembled: AssembledContext) -> str:
        return assembled.to_prompt_string()

    source = from_retrieval(Papers, if_empty="Nothing was found.")
    step = Step("ask", text, context_sources=[source])
    assert Flujo(step, retrievers={Papers: ScriptedRetriever()}).run("q").output == "Nothing was found."
    assert Flujo(step, retrievers={Papers: ScriptedRetriever(("x", 0.1))}).run("q").output == "x"


# --- walls --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("on_error", ["fail", "skip"])
@pytest.mark.parametrize("value", [from_state("tenant"), lambda data, context: None, lambda data, context: ["a", None]])
def test_a_filter_without_a_value_fails_the_step(value: Any, on_error: Any) -> None:
    """It would let everything through; nobody is asked, and skipping does not cover it."""
    retriever = ScriptedRetriever(("another's", 1.0))
    source = from_retrieval(Papers, filters={"tenant": value}, on_error=on_error)
    result = run(source, retriever, context={"tenant": None})
    assert result.status == "failed"
    assert "retrieval from 'papers' failed with RetrievalError: filter 'tenant' has no value" in (result.feedback or "")
    assert retriever.searches == []


def test_a_filter_of_another_type_fails_the_step() -> None:
    """A year that is a text finds nothing, or everything."""
    result = run(
        from_retrieval(Papers, filters={"year": from_state("year")}), ScriptedRetriever(), context={"year": "1"}
    )
    assert "filter 'year' must be int, or a list of them, not str" in (result.feedback or "")


def test_a_filter_of_no_values_lets_nothing_through() -> None:
    """Somebody who may see nothing sees nothing; a retriever that takes it for no filter is not asked."""
    retriever = ScriptedRetriever(("another's", 1.0))
    source = from_retrieval(Papers, filters={"tenant": from_state("tenants")})
    assert run(source, retriever, context={"tenants": []}).output == []
    assert retriever.searches == []


@pytest.mark.parametrize("on_error", ["fail", "skip"])
def test_a_passage_from_behind_a_wall_fails_the_step_and_leaks_nowhere(on_error: Any) -> None:
    """Not into feedback, results, events or the context; collection, filter and id are named."""
    sink, settings = heard(content=True)
    source = from_retrieval(Papers, filters={"tenant": "acme"}, on_error=on_error)

    def leaky(query: str, filters: Any) -> list[RetrievalResult]:
        return [passage("fine", 0.9, "p1", tenant="acme"), passage("rival's secret", 0.8, "p2", tenant="rival")]

    result = Flujo(ask(source), retrievers={Papers: leaky}, settings=settings).run("q")
    assert result.status == "failed"
    assert "passage 'p2' of 'papers' has another 'tenant' than was asked for" in (result.feedback or "")
    assert "secret" not in f"{result!r} {sink.events!r}"
    assert "rival" not in f"{result!r} {sink.events!r}"


def test_one_of_a_list_is_let_through_and_true_is_not_1() -> None:
    """Values are compared with their type."""
    source = from_retrieval(Papers, filters={"tenant": ["a", "b"], "year": 1})
    assert run(source, lambda query, filters: [passage("x", 0.5, tenant="b", year=1)]).output == ["x"]
    assert run(source, lambda query, filters: [passage("x", 0.5, tenant="b", year=True)]).status == "failed"


# --- once ---------------------------------------------------------------------------------------------------


def test_the_same_search_is_made_once_in_a_run() -> None:
    """In two steps, and in twenty branches at the same time."""
    retriever = ScriptedRetriever(Delayed(0.01, [("found", 0.9)]))
    branches = {n: ask(from_retrieval(Papers, query="same")) for n in range(20)}
    after = Step("after", shown, context_sources=[from_retrieval(Papers, query="same")], input="x")
    flujo = Flujo(Step.parallel("all", branches) >> after, retrievers={Papers: retriever})
    result = flujo.run("q")
    assert result.output == ["found"]
    assert result.step_history[0].output == {n: ["found"] for n in range(20)}
    assert len(retriever.searches) == 1
    flujo.run("q")
    assert len(retriever.searches) == 2


def test_a_source_without_cache_searches_each_time() -> None:
    """It says so, and does not fill the cache of others either."""
    retriever = ScriptedRetriever(("found", 0.9))
    branches = {n: ask(from_retrieval(Papers, cache=False)) for n in range(3)}
    Flujo(Step.parallel("all", branches), retrievers={Papers: retriever}).run("q")
    assert len(retriever.searches) == 3


@pytest.mark.parametrize(
    "other",
    [
        {"query": "other"},
        {"top_k": 4},
        {"min_relevance": 0.1},
        {"filters": {"year": 2}},
        {"filters": {"year": [1]}},
        {"filters": {"tenant": "1"}},
    ],
)
def test_another_search_is_another_search(other: dict[str, Any]) -> None:
    """All that decides what is found is part of it."""
    retriever = ScriptedRetriever(("found", 0.9))
    options: dict[str, Any] = {"query": "q", "filters": {"year": 1}}
    two = [from_retrieval(Papers, **options), from_retrieval(Papers, **{**options, **other}, name="second")]
    run(two, retriever)
    assert len(retriever.searches) == 2


def test_a_failed_search_is_made_again_by_the_next_attempt() -> None:
    """Failures are not kept; what another source found meanwhile is."""
    papers = ScriptedRetriever(OSError("down"), ("found", 0.9))
    notes = ScriptedRetriever(("note", 0.5))
    step = ask([from_retrieval(Notes), from_retrieval(Papers)], max_retries=1, backoff=Backoff.none())
    result = Flujo(step, retrievers={Papers: papers, Notes: notes}).run("q")
    assert result.output == ["note", "found"]
    assert (len(papers.searches), len(notes.searches)) == (2, 1)
    assert result.step_history[0].attempts == 2


@pytest.mark.trio
async def test_a_search_whose_maker_is_cancelled_is_made_by_who_waits(autojump_clock: Any) -> None:
    """A short patience of one step is no failure of another."""
    begun, searches = trio.Event(), []

    async def slow(query: str) -> list[RetrievalResult]:
        searches.append(query)
        begun.set()
        await trio.sleep(5)
        return [passage("late", 0.9)]

    async def once_begun(data: str, context: Context) -> str:
        await begun.wait()
        return data

    impatient = ask(from_retrieval(Papers, timeout_s=1, on_error="skip"))
    patient = ask(from_retrieval(Papers, query=once_begun, timeout_s=60))
    flujo = Flujo(Step.parallel("both", {"a": impatient, "b": patient}), retrievers={Papers: slow})
    result = await flujo.run_async("q")
    assert result.output == {"a": [], "b": ["late"]}
    assert searches == ["q", "q"]


# --- time ---------------------------------------------------------------------------------------------------


def test_two_slow_sources_take_as_long_as_one() -> None:
    """They are asked at the same time: each waits until the other was asked."""
    both = threading.Barrier(2, timeout=120)

    def meet(query: str) -> list[RetrievalResult]:
        both.wait()
        return [passage(query, 0.5)]

    two = [from_retrieval(Papers, query="a"), from_literal("L"), from_retrieval(Notes, query="b")]
    result = Flujo(ask(two), retrievers={Papers: meet, Notes: meet}).run("q")
    assert result.output == ["a", "b"]


@pytest.mark.trio
@pytest.mark.parametrize("on_error", ["fail", "skip"])
async def test_a_search_that_takes_too_long_is_cancelled(on_error: Any, autojump_clock: Any) -> None:
    """The step fails like one that timed out, or goes on without and says so."""
    sink, settings = heard()
    retriever = ScriptedRetriever(Delayed(10, [("late", 0.9)]))
    source = from_retrieval(Papers, timeout_s=0.05, on_error=on_error)
    begun = trio.current_time()
    result = await Flujo(ask(source), retrievers={Papers: retriever}, settings=settings).run_async("q")
    assert trio.current_time() - begun < 1
    if on_error == "fail":
        assert isinstance(result.error, StepTimeout)
        assert (result.feedback or "").endswith(
            "Assembling the context of step 'ask': retrieval from 'papers' failed with StepTimeout: "
            "it took longer than timeout_s=0.05"
        )
        return
    assert result.output == []
    assert result.step_history[0].metadata["context"]["skipped"] == ["papers"]
    assembled = next(event for event in sink.events if event.kind == "context.assembled")
    assert list(assembled.skipped) == ["papers"]
    assert "StepTimeout" in assembled.reasons[0]


def test_a_search_in_a_thread_is_left_behind_in_time() -> None:
    """A thread cannot be stopped: it is counted, and the step goes on."""
    release = threading.Event()

    def slow(query: str) -> list[RetrievalResult]:
        release.wait(30)
        return []

    try:
        result = run(from_retrieval(Papers, timeout_s=0.5), slow)
        assert isinstance(result.error, StepTimeout)
        assert abandoned_threads() == ("ask",)
    finally:
        release.set()


def test_a_search_on_asyncio_is_cancelled_in_time() -> None:
    """The coroutine sees the cancellation."""
    ended: list[str] = []

    async def slow(query: str) -> list[RetrievalResult]:
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise
        return []

    step = ask(from_retrieval(Papers, timeout_s=0.5))
    result = Flujo(step, retrievers={Papers: slow}).run("q", backend="asyncio")
    assert isinstance(result.error, StepTimeout)
    assert ended == ["cancelled"]


@pytest.mark.trio
async def test_cancelling_the_run_cancels_the_search(autojump_clock: Any) -> None:
    """The step is told as aborted, and nothing runs on."""
    searching, ended = trio.Event(), []

    async def slow(query: str) -> list[RetrievalResult]:
        searching.set()
        try:
            await trio.sleep(60)
        finally:
            ended.append(query)
        return []

    told: list[Any] = []
    flujo = Flujo(ask(from_retrieval(Papers)), retrievers={Papers: slow}, hooks=lambda payload: told.append(payload))

    async with trio.open_nursery() as nursery:

        async def play() -> None:
            await flujo.run_async("q")

        nursery.start_soon(play)
        await searching.wait()
        nursery.cancel_scope.cancel()
    assert ended == ["q"]
    assert [type(each.outcome) for each in told if each.kind == "post_step"] == [Aborted]


def test_a_failed_source_stops_the_others() -> None:
    """Nobody waits for passages that nobody will see."""
    retriever = ScriptedRetriever(Delayed(30, []))
    two = [from_state(lambda data, context: 1 / 0, name="odd"), from_retrieval(Papers)]
    feedback = run(two, retriever).feedback or ""
    assert "Assembling the context of step 'ask': state 'odd' failed with ZeroDivisionError" in feedback


# --- failures -----------------------------------------------------------------------------------------------


def test_a_failed_retriever_is_told_and_retried_with_the_step() -> None:
    """As any failed attempt."""
    retriever = ScriptedRetriever(OSError("no route"))
    result = Flujo(
        ask(from_retrieval(Papers), max_retries=2, backoff=Backoff.none()), retrievers={Papers: retriever}
    ).run("q")
    assert isinstance(result.error, OSError)
    text = "Assembling the context of step 'ask': retrieval from 'papers' failed with OSError: no route"
    assert (result.feedback or "").endswith(text)
    assert len(retriever.searches) == 3


def test_a_fallback_stands_in_for_a_step_without_its_context() -> None:
    """A context that cannot be assembled is a failed attempt for all around it."""

    async def standby(data: str) -> str:
        return "without"

    step = ask(from_retrieval(Papers), fallback=Step("standby", standby))
    assert Flujo(step, retrievers={Papers: ScriptedRetriever(OSError())}).run("q").output == "without"


def test_a_skipped_source_leaves_the_others() -> None:
    """The step runs with what there is, and its metadata names what was skipped."""
    sources = [from_retrieval(Papers, on_error="skip", name="library"), from_retrieval(Notes)]
    retrievers = {Papers: ScriptedRetriever(OSError("down")), Notes: ScriptedRetriever(("note", 0.4))}
    result = Flujo(ask(sources), retrievers=retrievers).run("q")
    assert result.output == ["note"]
    assert result.step_history[0].metadata["context"]["skipped"] == ["library"]


def test_a_missing_field_is_told_with_the_nearest_name() -> None:
    """A free-form context is looked at when the step runs."""
    feedback = Flujo(ask(from_state("sumary")), initial_context_data={"summary": "S"}).run("q").feedback or ""
    assert "the context has no 'sumary'; did you mean 'summary'?" in feedback


def test_a_control_error_of_a_retriever_stops_the_run() -> None:
    """Also where the source would be skipped."""

    def limited(query: str) -> list[RetrievalResult]:
        raise UsageLimitExceededError("no more")

    with pytest.raises(UsageLimitExceededError):
        run(from_retrieval(Papers, on_error="skip"), limited)


# --- usage and events ---------------------------------------------------------------------------------------


def test_what_an_embedder_uses_counts_in_the_step() -> None:
    """Once per search, however many steps see what it found."""
    found = Retrieved(results=[passage("x", 0.5)], usage=Usage(input_tokens=7, requests=1, cost_usd=0.25))
    retriever = ScriptedRetriever(found)
    flujo = Flujo(
        ask(from_retrieval(Papers, query="same"))
        >> Step("b", shown, context_sources=[from_retrieval(Papers, query="same")]),
        retrievers={Papers: retriever},
    )
    result = flujo.run("q")
    assert (result.total_tokens, result.total_cost_usd) == (7, 0.25)
    assert [each.token_counts for each in result.step_history] == [7, 0]


def test_what_an_embedder_uses_counts_against_limits() -> None:
    """Before the agent is called."""
    found = Retrieved(results=[passage("x", 0.5)], usage=Usage(input_tokens=70))
    step = ask(from_retrieval(Papers), usage_limits=UsageLimits(total_tokens_limit=50))
    with pytest.raises(UsageLimitExceededError):
        Flujo(step, retrievers={Papers: ScriptedRetriever(found)}).run("q")


def test_an_embedder_of_pydantic_ai_embeds_the_query_of_a_run(tmp_path: Any) -> None:
    """On any host; its tokens count, and what adding passages took does not."""
    from flujo_actors import SqliteRetriever

    papers = SqliteRetriever(tmp_path / "papers.db", Papers, HashingEmbedder(64))
    papers.add("Green tea wants 80 degrees.", id="p1", tenant="a", year=1)
    for backend in ("trio", "asyncio"):
        flujo = Flujo(ask(from_retrieval(Papers)), retrievers={Papers: papers})
        result = flujo.run("green tea", backend=backend)  # type: ignore[arg-type]
        assert result.output == ["Green tea wants 80 degrees."]
        assert result.total_tokens == 2


def test_events_tell_of_searches_and_of_the_assembled_context() -> None:
    """What was looked for is content; how much was found is not."""
    sink, settings = heard(content=True)
    retriever = ScriptedRetriever(("r1", 0.9), ("r2", 0.8))
    pair = ask(from_retrieval(Papers)) >> Step("b", shown, context_sources=[from_retrieval(Papers, query="q")])
    Flujo(pair, retrievers={Papers: retriever}, settings=settings).run("q")
    told = [event for event in sink.events if event.kind.startswith(("retrieval", "context"))]
    assert [event.kind for event in told] == ["retrieval.started", "retrieval.ended", "context.assembled"] * 2
    started, ended, assembled, _, again, _ = told
    assert (started.collection, started.query, started.step_name) == ("papers", "q", "ask")
    assert (ended.status, ended.found, ended.best_score, ended.cached) == ("success", 2, 0.9, False)
    assert (assembled.segments, assembled.tokens, assembled.dropped, assembled.recalled) == (1, 3, 0, False)
    assert again.cached


def test_without_content_events_hold_nothing_of_queries_and_passages() -> None:
    """Unless content is on, nothing of a text reaches telemetry."""
    sink, settings = heard(content=False)
    Flujo(
        ask(from_retrieval(Papers)), retrievers={Papers: ScriptedRetriever(("passage text", 0.9))}, settings=settings
    ).run("query text")
    told = [event for event in sink.events if event.kind.startswith(("retrieval", "context"))]
    assert len(told) == 3
    said = "".join(map(repr, told))
    assert "query text" not in said
    assert "passage text" not in said


def test_a_context_is_not_changed_by_functions_that_look_at_it() -> None:
    """They get a copy."""

    def spoil(data: str, context: Context) -> str:
        context.s = "spoiled"
        return "seen"

    step = ask([from_state(spoil), from_state("s")])
    result = Flujo(step, initial_context_data={"s": "S"}).run("q")
    assert result.final_context.s == "S"


def test_opentelemetry_gets_spans_in_the_words_of_its_conventions() -> None:
    """Operation, data source, query and documents; content only where it is on."""
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    from flujo_actors.telemetry.otel import OtelSink

    for content in (True, False):
        exporter, provider = InMemorySpanExporter(), TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(exporter))
        settings = {"telemetry": {"sinks": [OtelSink(tracer_provider=provider)], "content": content}}
        retriever = ScriptedRetriever(("r1", 0.9))
        Flujo(ask(from_retrieval(Papers)), retrievers={Papers: retriever}, settings=settings).run("q")
        spans = {span.name: span for span in exporter.get_finished_spans()}
        found = spans["retrieval papers"]
        assert found.attributes is not None
        assert found.attributes["gen_ai.operation.name"] == "retrieval"
        assert found.attributes["gen_ai.data_source.id"] == "papers"
        assert found.attributes["flujo.found"] == 1
        assert found.attributes.get("gen_ai.retrieval.query.text") == ("q" if content else None)
        assert ("gen_ai.retrieval.documents" in found.attributes) is content
        assert found.parent is not None
        assert found.parent.span_id == spans["attempt 1"].context.span_id
        assert [event.name for event in spans["attempt 1"].events] == ["context.assembled"]


def test_functions_of_sources_may_ask_for_earlier_steps() -> None:
    """States, queries and filters, as inputs do."""
    retriever = ScriptedRetriever(("x", 0.5))

    async def classify(data: str) -> str:
        return "complaint"

    sources = [
        from_state(lambda data, context, *, steps: steps.classify, name="kind"),
        from_retrieval(
            Papers,
            query=lambda data, context, *, run_input: run_input,
            filters={"tenant": from_state(lambda data, context, *, steps: steps["classify"])},
        ),
    ]
    step = Step("ask", shown, context_sources=sources)
    assert Flujo(Step("classify", classify) >> step, retrievers={Papers: retriever}).run("q").output == ["x"]
    assert (retriever.searches[0].query, retriever.searches[0].filters) == ("q", {"tenant": "complaint"})
