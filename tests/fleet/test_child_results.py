"""Results of remote steps are stored once, and found by whoever reads the run that asked for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psycopg
import pytest
import trio
from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from test_remote_steps import fleet, make

from flujo_actors import Context, CorruptRecord, Flujo, Pipeline, RunClient, Step
from kit.postgres_server import session_server

pytestmark = pytest.mark.slow

LONG = 100_000


@pytest.fixture
def url() -> str:
    return session_server().fresh_url()


def rows(url: str, statement: Any) -> list[Any]:
    with psycopg.connect(url) as db:
        return db.execute(statement).fetchall()


async def grow(text: str) -> str:
    return text * LONG


async def shorten(text: str) -> str:
    return text[:3]


async def first(both: dict[str, str]) -> str:
    return both["a"]


def pipeline() -> Pipeline[Any, Any]:
    twice = Step.parallel("twice", {"a": Step("grown", grow), "b": Step("other", shorten)})
    inner = Pipeline([Step("grow", grow), Step("again", shorten), twice, Step("first", first)])
    away = Step.loop_until("away", inner, lambda output, context: True, runs_on="gpu")
    return Pipeline([away, Step("nested", shorten)], name="long")


def run(flujo: Flujo[Any, Any, Any], data: Any, **options: Any) -> Any:
    async def main() -> Any:
        async with fleet(flujo):
            with trio.fail_after(120):
                return await flujo.run_async(data, **options)

    return trio.run(main)


def test_a_long_result_is_stored_once(url: str) -> None:
    """The record of whoever asked holds names and numbers; every reader is given the whole."""
    result = run(make(pipeline(), url), "abc", run_id="r")
    assert result.output == "abc"
    sizes = rows(
        url,
        "SELECT run_id, sum(length(body)) + coalesce(sum(length(data)), 0) FROM flujo_runs JOIN flujo_records "
        "ON run = flujo_runs.id LEFT JOIN flujo_blobs ON hash = blob GROUP BY run_id ORDER BY run_id",
    )
    [(_, root), (_, child)] = sizes
    assert root < 5_000 < 600_000 < child
    client = RunClient(url)
    state = client.state("r")
    away = client.outcomes("r")["away"]
    assert away.step_result.output == "abc" * LONG
    home = Flujo(pipeline()).run("abc")
    assert outputs(away.step_result) == outputs(home.step_history[0])
    [seq] = [record.seq for record in client.records("r") if (record.kind, record.path) == ("settled", "away")]
    assert "abc" * 10 in client.record("r", seq).body
    assert state.outcomes["nested"].step_result.output == "abc"
    assert client.state_at("r", seq).outcomes["away"].step_result.output == "abc" * LONG


def outputs(result: Any) -> Any:
    return result.name, result.output, [outputs(each) for each in result.step_history]


def test_a_run_goes_on_with_what_its_remote_steps_came_to(url: str) -> None:
    """In another process, and in a fork, which holds copies: it survives the run that it was forked from."""
    tried: list[str] = []

    async def fails_once(text: str) -> int:
        tried.append(text)
        if len(tried) == 1:
            raise KeyboardInterrupt
        return len(text)

    steps = Pipeline([Step("away", grow, runs_on="gpu"), Step("counts", fails_once)], name="counts")
    flujo = make(steps, url)
    with pytest.raises(KeyboardInterrupt):
        run(flujo, "abc", run_id="r")
    client = RunClient(url)
    [seq] = [record.seq for record in client.records("r") if (record.kind, record.path) == ("settled", "away")]
    fork = client.fork("r", seq)
    assert flujo.resume("r").output == 3 * LONG
    client.delete("r")
    assert rows(url, "SELECT run_id FROM flujo_runs") == [(fork,)]
    assert flujo.resume(fork).output == 3 * LONG
    client.delete(fork)
    assert rows(url, "SELECT count(*) FROM flujo_blobs") == [(0,)]


def test_a_run_with_remote_steps_is_imported_under_another_id(url: str, tmp_path: Path) -> None:
    """Its remote steps get ids of the new run, and its records refer to these; the replay is the same."""
    flujo = make(pipeline(), url)
    run(flujo, "abc", run_id="r")
    client = RunClient(url)
    file = client.export("r", tmp_path / "r.flujo.jsonl")
    for store in (client, RunClient(f"sqlite:///{tmp_path}/runs.db")):
        assert store.import_run(file, "copy") == "copy"
        assert store.outcomes("copy")["away"].step_result.output == "abc" * LONG
    client.delete("r")
    assert rows(url, "SELECT run_id FROM flujo_runs ORDER BY run_id") == [("copy",), ("copy@away",)]
    assert str(flujo.replay("copy")) == "same"
    again = client.export("copy", tmp_path / "copy.flujo.jsonl")
    assert client.import_run(again, "r") == "r"
    assert Path(client.export("r", tmp_path / "r2.flujo.jsonl")).read_bytes() == Path(file).read_bytes()


def test_a_remote_agent_is_replayed_and_rehearsed_by_its_turns(url: str, tmp_path: Path) -> None:
    """Its turns and tool calls are in its own run; the tool is executed once in all."""
    paid: list[int] = []
    asked: list[str | None] = []

    def respond(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        asked.append(info.instructions)
        if len(messages) == 1:
            return ModelResponse(parts=[ToolCallPart("pay", {"n": 1})])
        return ModelResponse(parts=[TextPart("done")])

    def steps(prompt: str) -> Pipeline[Any, Any]:
        agent = Agent(FunctionModel(respond), instructions=prompt)
        agent.tool_plain(pay)
        return Pipeline([Step.granular("ask", agent, runs_on="gpu"), Step("b", str.upper)], name="pays")

    def pay(n: int) -> str:
        paid.append(n)
        return "paid"

    flujo = make(steps("Pay."), url)
    assert run(flujo, "abc", run_id="r").output == "DONE"
    file = RunClient(url).export("r", tmp_path / "r.flujo.jsonl")
    for source in ("r", file):
        replay = flujo.replay(source)
        assert (str(replay), replay.checked, replay.taken) == ("same", ("ask",), ("b",))
    assert asked == ["Pay."] * 2
    [again] = flujo.rehearse("r", changed=Flujo(steps("Pay more.")), max_cost_usd=1).runs
    assert (again.verdict, again.fork_seq, again.turns_before, again.turns_after) == ("same", 1, 2, 2)
    assert (asked, paid) == (["Pay."] * 2 + ["Pay more."] * 2, [1])


def test_a_paused_remote_step_goes_on_under_another_id(url: str, tmp_path: Path) -> None:
    """Its question has a token of the new run, and a worker claims the renamed remote step."""
    ask = Pipeline([Step.human_in_the_loop("ask", "May I?"), Step("after", shorten)])
    away = Step.branch_on("away", lambda data, context: "yes", {"yes": ask}, runs_on="gpu")
    flujo = make(Pipeline([away], name="asks"), url)
    assert run(flujo, "abc", run_id="r").status == "paused"
    client = RunClient(url)
    client.import_run(client.export("r", tmp_path / "r.flujo.jsonl"), "copy")
    client.delete("r")
    [question] = client.prompts()

    async def main() -> None:
        async with fleet(flujo):
            with trio.fail_after(120):
                result = await flujo.resume_async(question.state_token, "yes please")
        assert (result.run_id, result.output) == ("copy", "yes")

    trio.run(main)


def test_a_result_that_is_gone_is_said_to_be(url: str) -> None:
    """By the record that refers to it."""
    run(make(Pipeline([Step("away", grow, runs_on="gpu")], name="gone"), url), "abc", run_id="r")
    with psycopg.connect(url, autocommit=True) as db:
        db.execute("DELETE FROM flujo_runs WHERE run_id = 'r@away'")
    with pytest.raises(CorruptRecord, match="r@away"):
        RunClient(url).state("r")


def test_the_context_of_a_long_result_is_stored_once_too(url: str) -> None:
    """Where it was written; whoever goes on with the run, or looks at it, is given it."""
    told: list[int] = []

    async def note(data: str, *, context: Context) -> str:
        context.notes = "note" * LONG
        return "short"

    async def count(data: str, *, context: Context) -> int:
        told.append(len(context.notes))
        if len(told) == 1:
            raise KeyboardInterrupt
        return told[-1]

    flujo = make(Pipeline([Step("note", note, runs_on="gpu"), Step("count", count)], name="notes"), url)
    with pytest.raises(KeyboardInterrupt):
        run(flujo, "abc", run_id="r")
    assert rows(url, "SELECT count(*) FROM flujo_records WHERE blob IS NOT NULL") == [(1,)]
    assert RunClient(url).state("r").context.notes == "note" * LONG
    assert flujo.resume("r").output == 4 * LONG
    assert told == [4 * LONG, 4 * LONG]
