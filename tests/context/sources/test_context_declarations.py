"""Wrong declarations of sources, collections and retrievers: refused when they are made, saying what is wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import pytest
from context_papers import Notes, Papers
from pydantic import BaseModel

from flujo_actors import (
    AgentStep,
    AssembledContext,
    Collection,
    ContextFormat,
    ContextSources,
    DeclarationError,
    Flujo,
    InMemoryRetriever,
    Step,
    from_history,
    from_literal,
    from_retrieval,
    from_state,
    make_agent_async,
)
from flujo_actors.testing import ScriptedRetriever, scripted_model


async def write(data: Any, *, assembled: AssembledContext) -> str:
    return assembled.to_prompt_string()


WRONG: dict[str, tuple[Callable[[], Any], str]] = {
    "top_k": (lambda: from_retrieval(Papers, top_k=0), "top_k must be at least 1, not 0"),
    "top_k of another type": (lambda: from_retrieval(Papers, top_k=True), "top_k must be at least 1"),
    "relevance too high": (
        lambda: from_retrieval(Papers, min_relevance=1.5),
        "min_relevance must be from 0 to 1, not 1.5",
    ),
    "relevance too low": (lambda: from_retrieval(Papers, min_relevance=-0.1), "min_relevance"),
    "relevance that is none": (lambda: from_retrieval(Papers, min_relevance=float("nan")), "min_relevance"),
    "an empty literal": (lambda: from_literal(""), "from_literal: the text must not be empty"),
    "a blank literal": (lambda: from_literal(" \n"), "from_literal: the text must not be empty"),
    "a literal that is no text": (lambda: from_literal(5), "from_literal"),  # type: ignore[arg-type]
    "an empty query": (lambda: from_retrieval(Papers, query=""), "query must be a text that is not empty"),
    "a query of one argument": (lambda: from_retrieval(Papers, query=lambda data: data), r"query .*\(data, context\)"),
    "a state of one argument": (lambda: from_state(lambda data: data), r"from_state .*\(data, context\)"),
    "a state of no name": (lambda: from_state(""), "from_state must be a field of the context"),
    "a path with a hole": (lambda: from_state("a..b"), "a dotted path"),
    "an unknown filter": (lambda: from_retrieval(Papers, filters={"yaer": 1}), "'yaer': did you mean 'year'?"),
    "a filter of another type": (
        lambda: from_retrieval(Papers, filters={"year": "2026"}),
        r"filters\['year'\] must be int",
    ),
    "a filter in a list": (
        lambda: from_retrieval(Papers, filters={"year": [1, "2"]}),
        r"filters\['year'\] must be int",
    ),
    "a filter of nothing": (lambda: from_retrieval(Papers, filters={"tenant": None}), "has no value"),
    "a number for a text": (lambda: from_retrieval(Papers, filters={"tenant": 5}), r"filters\['tenant'\] must be str"),
    "true for a number": (lambda: from_retrieval(Papers, filters={"year": True}), r"filters\['year'\] must be int"),
    "a filter of one argument": (
        lambda: from_retrieval(Papers, filters={"year": lambda data: 1}),
        r"filters\['year'\]",
    ),
    "filters that are none": (lambda: from_retrieval(Papers, filters=["year"]), "filters must be a dict"),  # type: ignore[arg-type]
    "no collection": (lambda: from_retrieval("papers"), "must be a class made from Collection"),  # type: ignore[arg-type]
    "the collection itself": (lambda: from_retrieval(Collection), "must be a class made from Collection"),
    "a time": (lambda: from_retrieval(Papers, timeout_s=0), "timeout_s must be seconds > 0"),
    "what to do on errors": (lambda: from_retrieval(Papers, on_error="ignore"), "on_error must be one of fail, skip"),  # type: ignore[arg-type]
    "a rerank": (lambda: from_retrieval(Papers, rerank=5), "rerank must be a function"),  # type: ignore[arg-type]
    "nothing to say": (lambda: from_retrieval(Papers, if_empty=""), "if_empty must be a text"),
    "a short memory": (lambda: from_history("messages", keep_last=0), "keep_last must be at least 1"),
    "a history that is a function": (lambda: from_history(len), "from_history must name a field"),  # type: ignore[arg-type]
    "a budget": (lambda: ContextSources([], max_tokens=0), "max_tokens must be at least 1"),
    "a format": (lambda: ContextSources([], format="cited"), "format must be a ContextFormat"),  # type: ignore[arg-type]
    "a counter": (lambda: ContextSources([], count_tokens=4), "count_tokens must be a function"),  # type: ignore[arg-type]
    "a switch of a format": (lambda: ContextFormat(framed="yes"), "framed must be True or False"),  # type: ignore[arg-type]
    "a name": (lambda: from_state("a", name=""), "name must be a non-empty text"),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_declaration_fails_when_it_is_made(what: str) -> None:
    """The error names the field."""
    make, said = WRONG[what]
    with pytest.raises(DeclarationError, match=said):
        make()


IN_A_STEP: dict[str, tuple[Any, str]] = {
    "two states of one name": ([from_state("a"), from_state("a")], "two sources named 'a'"),
    "two searches of one collection": ([from_retrieval(Papers), from_retrieval(Papers)], "two sources named 'papers'"),
    "a state named like a search": ([from_state("x", name="papers"), from_retrieval(Papers)], "two sources named"),
    "a text": ("summary", "context_sources must be a list"),
    "a text in the list": (["summary"], "context_sources holds 'summary'"),
    "something else": (5, "context_sources must be a list"),
}


@pytest.mark.parametrize("what", IN_A_STEP)
def test_a_step_adds_its_name_to_what_is_wrong_with_its_sources(what: str) -> None:
    """For all that only the whole list shows."""
    sources, said = IN_A_STEP[what]
    with pytest.raises(DeclarationError, match=f"step 'analyze': .*{said}"):
        Step("analyze", write, context_sources=sources)


def test_names_keep_searches_of_one_collection_apart() -> None:
    """And functions without a name are not confused."""
    sources = [
        from_retrieval(Papers, name="old"),
        from_retrieval(Papers, name="new"),
        from_state(lambda data, context: 1),
        from_state(lambda data, context: 2),
        from_literal("x"),
        from_literal("x"),
    ]
    assert Step("analyze", write, context_sources=sources).context_sources is not None


# --- collections --------------------------------------------------------------------------------------------


def test_a_collection_has_a_name_and_fields() -> None:
    """By default it is called like its class; fields are inherited."""

    class Base(Collection):
        tenant: str

    class Own(Base, name="own-name"):
        year: "int"  # noqa: UP037 - as with `from __future__ import annotations`
        score: float
        draft: bool

    retriever = InMemoryRetriever(Own).add("text", tenant="a", year=1, score=1, draft=False)
    found = retriever.search("text", filters={"draft": False, "score": 1.0, "tenant": "a"})
    assert found[0].metadata == {"tenant": "a", "year": 1, "score": 1, "draft": False}
    assert repr(retriever) == "InMemoryRetriever('own-name', 1 passages)"
    assert "'base'" in repr(InMemoryRetriever(Base))


@pytest.mark.parametrize("kind", [list, dict, "list[str]", None, "datetime"])
def test_a_field_that_cannot_be_filtered_by_is_refused(kind: Any) -> None:
    """Only what every store can index."""
    with pytest.raises(DeclarationError, match="field 'x' must be str, int, float or bool"):
        type("Odd", (Collection,), {"__annotations__": {"x": kind}})


@pytest.mark.parametrize("name", ["", "with space", "x" * 41, "1st", 'a"b', 5])
def test_a_name_that_no_database_takes_is_refused(name: Any) -> None:
    """It names tables."""
    with pytest.raises(DeclarationError, match="its name must be"):
        type("Odd", (Collection,), {}, name=name)


def test_a_field_named_id_is_refused() -> None:
    """Passages have one anyway."""
    with pytest.raises(DeclarationError, match="'id' is what passages have anyway"):
        type("Odd", (Collection,), {"__annotations__": {"id": str}})


# --- at Flujo -----------------------------------------------------------------------------------------------


def test_a_collection_without_a_retriever_is_refused_naming_the_steps() -> None:
    """Before anything runs."""
    pair = Step("a", write, context_sources=[from_retrieval(Papers)]) >> Step(
        "b", write, context_sources=[from_retrieval(Papers)]
    )
    with pytest.raises(DeclarationError, match="no retriever for Papers, which is searched by step 'a', 'b'"):
        Flujo(pair)


def test_a_step_at_any_depth_needs_its_retriever() -> None:
    """Branches, bodies and fallbacks are looked into."""
    step = Step("deep", write, context_sources=[from_retrieval(Papers)])
    with pytest.raises(DeclarationError, match="'deep'"):
        Flujo(Step.map_over("each", Step("x", write, fallback=Step.parallel("p", {"a": step}))))


def test_a_retriever_that_nobody_asks_is_refused() -> None:
    """It was meant for something."""
    with pytest.raises(DeclarationError, match="there is a retriever for Papers, but no step searches in it"):
        Flujo(Step("a", write), retrievers={Papers: ScriptedRetriever()})


@pytest.mark.parametrize("retriever", [None, 5, "papers.db", InMemoryRetriever])
def test_what_is_no_retriever_is_refused(retriever: Any) -> None:
    """It has a method `search`, or is a function."""
    step = Step("a", write, context_sources=[from_retrieval(Papers)])
    with pytest.raises(DeclarationError, match="must have a method `search`, or be a function"):
        Flujo(step, retrievers={Papers: retriever})


def test_a_retriever_of_another_collection_is_refused() -> None:
    """Its passages have other fields."""
    step = Step("a", write, context_sources=[from_retrieval(Papers)])
    with pytest.raises(DeclarationError, match="the retriever of Papers holds the passages of Notes"):
        Flujo(step, retrievers={Papers: InMemoryRetriever(Notes)})


def test_a_function_without_filters_is_refused_where_there_are_filters() -> None:
    """It would find what it must not."""
    step = Step("a", write, context_sources=[from_retrieval(Papers, filters={"year": 1})])
    with pytest.raises(DeclarationError, match="step 'a' filters Papers, but its retriever takes no `filters`"):
        Flujo(step, retrievers={Papers: lambda query, top_k: []})
    assert Flujo(step, retrievers={Papers: lambda query, **options: []}).run("q").success


@pytest.mark.parametrize("retrievers", [[], "x", {"papers": ScriptedRetriever()}])
def test_retrievers_are_a_dict_by_collection(retrievers: Any) -> None:
    """Anything else is refused."""
    step = Step("a", write, context_sources=[from_retrieval(Papers)])
    with pytest.raises(DeclarationError):
        Flujo(step, retrievers=retrievers)


class Inner(BaseModel):
    name: str = ""


class Review(BaseModel):
    summary: str = ""
    inner: Inner | None = None
    free: dict[str, Any] = {}
    anything: Any = None

    @property
    def short(self) -> str:
        return self.summary[:1]


@attrs.define
class AttrsReview:
    summary: str = ""
    inner: Inner = attrs.field(factory=Inner)


@pytest.mark.parametrize(
    "where", ["summary", "inner", "inner.name", "free", "free.any.depth", "anything.at.all", "short"]
)
def test_a_path_that_the_context_has_is_accepted(where: str) -> None:
    """As far as annotations say what is where."""
    Flujo(Step("a", write, context_sources=[from_state(where)]), context_model=Review)


@pytest.mark.parametrize("model", [Review, AttrsReview])
@pytest.mark.parametrize(
    ("where", "hint"), [("sumary", "did you mean 'summary'"), ("inner.nmae", "did you mean 'name'"), ("zzz", "it has")]
)
@pytest.mark.parametrize(
    "use",
    [
        lambda where: from_state(where),
        lambda where: from_retrieval(Papers, query=from_state(where)),
        lambda where: from_retrieval(Papers, filters={"tenant": from_state(where)}),
    ],
)
def test_a_path_that_the_context_has_not_is_refused(model: type, where: str, hint: str, use: Any) -> None:
    """As a source, as a query and as a filter; with the nearest name."""
    step = Step("a", write, context_sources=[use(where)])
    retrievers = {Papers: ScriptedRetriever()} if "Retrieval" in type(use(where)).__name__ else None
    with pytest.raises(DeclarationError, match=f"step 'a': from_state '{where}': .*{hint}"):
        Flujo(step, context_model=model, retrievers=retrievers)


# --- the class form -----------------------------------------------------------------------------------------


class Chat(BaseModel):
    question: str = ""
    answer: str = ""
    sources: list[str] = []


def test_an_agent_step_is_a_plain_step() -> None:
    """Prompt, context and result in one place; its search is for the data, not for the prompt."""
    model, retriever = scripted_model("80 degrees [s1]"), ScriptedRetriever(("Green tea wants 80.", 0.9))

    class Answer(AgentStep):
        agent = make_agent_async(model, "Answer from the context only.")
        context_sources = ContextSources([from_retrieval(Papers)], max_tokens=2_000, format=ContextFormat.cited())

        def user_prompt(self, data: str, context: Chat) -> str:
            return f"Question: {data} {context.question}"

        def apply(self, output: str, *, assembled: AssembledContext) -> dict[str, Any]:
            return {"answer": output, "sources": list(assembled.source_ids)}

    step = Answer().step("answer", max_retries=1)
    assert (step.name, step.max_retries, step.updates_context) == ("answer", 1, True)
    result = Flujo(step, context_model=Chat, retrievers={Papers: retriever}).run("How hot?", context={"question": "!"})
    assert result.output == {"answer": "80 degrees [s1]", "sources": ["s1"]}
    assert (result.final_context.answer, result.final_context.sources) == ("80 degrees [s1]", ["s1"])
    assert model.prompts == ["Question: How hot? !"]
    assert retriever.searches[0].query == "How hot?"
    assert model.asked[0].context == (
        'Context:\n<retrieved_passage id="s1" score="0.90">Green tea wants 80.</retrieved_passage>'
    )


def test_an_agent_step_needs_nothing_but_its_agent() -> None:
    """Without a prompt of its own it asks with the data; without `apply` it returns the answer."""

    class Echo(AgentStep):
        agent = make_agent_async(scripted_model("pong"))

    step = Echo().step("echo")
    assert not step.updates_context
    assert Flujo(step).run("ping").output == "pong"


def test_an_agent_step_may_have_a_function_for_its_agent() -> None:
    """In the class body it is no method."""

    class Write(AgentStep):
        agent = staticmethod(write)
        context_sources = [from_literal("L")]

        def apply(self, output: str, *, context: Any, assembled: AssembledContext) -> str:
            return f"{output}{len(assembled.segments)}"

    assert Flujo(Write().step("w", updates_context=False)).run("q").output == "L1"


def test_an_agent_step_has_no_other_processors() -> None:
    """Two ways would get in each other's way."""

    class Echo(AgentStep):
        agent = make_agent_async(scripted_model("pong"))

    with pytest.raises(DeclarationError, match="step 'echo': an AgentStep has user_prompt and apply"):
        Echo().step("echo", processors={"after": str})
