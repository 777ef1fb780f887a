"""Whose chunks somebody sees: `run_async(chunks=…)` in every kind of pipeline, on either library."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

import pytest
import trio
from scripted import collected

from flujo_actors import Chunk, DeclarationError, Failure, Flujo, Paused, Pipeline, Step, Success
from flujo_actors._dsl.chunk_filter import Chunks

each_library = pytest.mark.parametrize("library", [trio.run, lambda main: asyncio.run(main())], ids=["trio", "asyncio"])
Library = Callable[[Callable[[], Any]], Any]


async def spell(word: Any) -> AsyncIterator[str]:
    for letter in str(word):
        yield letter


class Speaker:
    """Says a word at once, or letter by letter where somebody sees it; notes which."""

    def __init__(self, fails: bool = False) -> None:
        self.asked: list[str] = []
        self.fails = fails

    async def run(self, data: Any) -> str:
        self.asked.append("run")
        if self.fails:
            raise OSError("no voice")
        return "said"

    async def stream(self, data: Any) -> AsyncIterator[str]:
        self.asked.append("stream")
        yield "sa"
        if self.fails:
            raise OSError("no voice")
        yield "id"


def shown(library: Library, flujo: Flujo[Any, Any, Any], chunks: Chunks, data: Any = "ab") -> set[str]:
    """The paths of the steps whose chunks were seen; the result is what it is without a reader."""

    async def main() -> list[Any]:
        outcomes: list[Any] = await collected(flujo.run_async(data, chunks=chunks))
        return outcomes

    async def awaited() -> Any:
        return await flujo.run_async(data)

    outcomes = library(main)
    last = next(each for each in reversed(outcomes) if isinstance(each, Success | Failure))
    assert last.step_result is not None
    assert last.step_result.output == library(awaited).step_history[-1].output
    return {each.path for each in outcomes if isinstance(each, Chunk)}


TEXTS = Pipeline([Step("plan", spell), Step("draft", spell), Step("check", spell)])
NESTED = Pipeline(
    [
        Step("plan", spell),
        Step.parallel("both", {"left": Step("one", spell), "right": Step("two", spell) >> Step("three", spell)}),
        Pipeline([Step("draft", spell), Step("polish", spell)], name="writing"),
    ]
)
ALL_NESTED = {"plan", "both/left", "both/right/two", "both/right/three", "writing/draft", "writing/polish"}


@each_library
@pytest.mark.parametrize(
    ("chunks", "seen"),
    [
        (True, {"plan", "draft", "check"}),
        (False, set()),
        ((), set()),
        ("last", {"check"}),
        (["draft"], {"draft"}),
        ("draft", {"draft"}),
        (frozenset({"plan"}), {"plan"}),
        (dict.fromkeys(["plan", "check"]), {"plan", "check"}),
    ],
    ids=["all", "none", "no names", "last", "list", "one name", "set", "keys"],
)
def test_only_the_steps_that_a_reader_names_are_seen(library: Library, chunks: Chunks, seen: set[str]) -> None:
    """A generator that nobody sees gives the same text all the same."""
    assert shown(library, Flujo(TEXTS), chunks) == seen


@each_library
@pytest.mark.parametrize(
    ("chunks", "seen"),
    [
        (True, ALL_NESTED),
        ("last", {"writing/polish"}),
        (["both"], {"both/left", "both/right/two", "both/right/three"}),
        (["left", "writing/draft"], {"both/left", "writing/draft"}),
        (["one"], {"both/left"}),
        (["both/right"], {"both/right/two", "both/right/three"}),
        (["writing"], {"writing/draft", "writing/polish"}),
    ],
    ids=["all", "last", "parallel", "branch and path", "step in a branch", "path of a branch", "pipeline"],
)
def test_a_name_stands_for_all_that_is_inside(library: Library, chunks: Chunks, seen: set[str]) -> None:
    """Names of steps, of branches and of nested pipelines at any depth, and paths."""
    assert shown(library, Flujo(NESTED), chunks) == seen


def kinds() -> Iterable[Any]:
    inner = Step("first", spell) >> Step("second", spell)
    yield "parallel", Step.parallel("p", {"a": inner, "b": spell}), "ab", {"p/a/second", "p/b"}
    yield "map", Step.map_over("m", inner), ["a", "b"], {"m/~i0/second", "m/~i1/second"}
    loop = Step.loop_until("l", inner, lambda output, context: context.update(n=context.get("n", 0) + 1) or True)
    yield "loop", loop, "ab", {"l/~i1/second"}
    branch = Step.branch_on("b", lambda data, context: "other", {"x": Step("x", spell)}, default=inner)
    yield "default", branch, "ab", {"b/other/second"}
    yield "sequence", Step.sequence("s", inner), "ab", {"s/second"}
    failing = Step("f", Speaker(fails=True), fallback=inner)
    yield "fallback", failing, "ab", {"f", "f/~f/second"}


@pytest.mark.trio
@pytest.mark.parametrize(("step", "data", "seen"), [case[1:] for case in kinds()], ids=[case[0] for case in kinds()])
async def test_the_last_step_of_every_kind_is_where_its_output_is_made(step: Any, data: Any, seen: set[str]) -> None:
    """Branches, bodies, defaults and what stands in: of a sequence only the last."""
    flujo = Flujo(Step("before", lambda data: data) >> step)
    outcomes: list[Any] = await collected(flujo.run_async(data, chunks="last"))
    assert {each.path for each in outcomes if isinstance(each, Chunk)} == seen


@pytest.mark.trio
async def test_an_agent_that_nobody_sees_is_asked_for_a_whole_answer() -> None:
    """What can answer both ways streams for readers only, also in a retry."""
    plan, write = Speaker(), Speaker(fails=True)
    flujo = Flujo(Step("plan", plan) >> Step("write", write, max_retries=1))
    await collected(flujo.run_async(1, chunks=["write"]))
    assert (plan.asked, write.asked) == (["run"], ["stream", "stream"])
    await collected(flujo.run_async(1, chunks=["plan"]))
    assert (plan.asked[1:], write.asked[2:]) == (["stream"], ["run", "run"])


@pytest.mark.trio
async def test_the_rest_of_a_paused_run_shows_what_its_reader_wants() -> None:
    """`resume_async` takes the same."""
    ask = Step.human_in_the_loop("ask", "go on?")
    flujo = Flujo(Step("a", spell) >> ask >> Step("b", spell) >> Step("c", spell))
    outcomes: list[Any] = await collected(flujo.run_async("xy", chunks=["c"]))
    assert isinstance(outcomes[-1], Paused)
    token = outcomes[-1].state_token
    rest: list[Any] = await collected(flujo.resume_async(token, "yes", chunks=["b"]))
    assert {each.path for each in [*outcomes, *rest] if isinstance(each, Chunk)} == {"b"}


@pytest.mark.parametrize("begin", ["run_async", "run_outcomes_async", "resume_async"])
def test_a_name_that_no_step_has_is_refused_with_those_there_are(begin: str) -> None:
    """At once, not when somebody iterates."""
    flujo = Flujo(NESTED)
    with pytest.raises(DeclarationError, match=r"no step is called 'drafts'; did you mean 'draft'\? There are 'plan'"):
        getattr(flujo, begin)("x", chunks=["plan", "drafts"])
    with pytest.raises(DeclarationError, match="no step is called 'first'"):
        getattr(flujo, begin)("x", chunks="first")


@pytest.mark.parametrize("chunks", [None, 3, 1.5, [3], [None]])
def test_what_is_no_choice_of_steps_is_refused(chunks: Any) -> None:
    """The message says what there is to choose from."""
    with pytest.raises(DeclarationError, match=r"chunks"):
        Flujo(TEXTS).run_async("x", chunks=chunks)


@pytest.mark.trio
async def test_names_may_be_told_by_whatever_gives_them_once() -> None:
    """They are read when the handle is made."""
    run = Flujo(TEXTS).run_async("ab", chunks=(name for name in ["plan", "check"]))
    outcomes: list[Any] = await collected(run)
    assert {each.path for each in outcomes if isinstance(each, Chunk)} == {"plan", "check"}


@pytest.mark.trio
async def test_a_path_of_one_item_stands_for_all_and_names_are_escaped() -> None:
    """A path as chunks have it can be given back."""
    flujo = Flujo(Step.map_over("m/n", Step("a~b", spell) >> Step("c", spell)))
    outcomes: list[Any] = await collected(flujo.run_async(["x", "y"]))
    path = next(each.path for each in outcomes if isinstance(each, Chunk) and each.step_name == "a~b")
    again: list[Any] = await collected(flujo.run_async(["x", "y"], chunks=[path]))
    assert {each.step_name for each in again if isinstance(each, Chunk)} == {"a~b"}
    assert len([each for each in again if isinstance(each, Chunk)]) == 2


@pytest.mark.trio
async def test_a_choice_changes_nothing_else_that_a_reader_is_told() -> None:
    """Outcomes, starts and their order are the same, and numbers of chunks count as before."""
    flujo = Flujo(NESTED)
    told = [each async for each in flujo.run_async("ab", started=True)]
    fewer = [each async for each in flujo.run_async("ab", started=True, chunks=["polish"])]
    kept = [each for each in told if not isinstance(each, Chunk)]
    assert sorted(map(_told, kept)) == sorted(_told(each) for each in fewer if not isinstance(each, Chunk))
    numbers = [each.seq for each in fewer if isinstance(each, Chunk)]
    assert numbers == list(range(len(numbers)))
    assert numbers


def _told(outcome: Any) -> tuple[str, str]:
    return type(outcome).__name__, outcome.path
