"""Cache of steps: outputs of earlier runs, by declaration, input and scope."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio
from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from flujo_actors import Cache, DeclarationError, Flujo, MemoryStore, RunClient, Step, load_blueprint, make_agent_async
from flujo_actors._core.telemetry_events import StepCached
from flujo_actors.telemetry import MemorySink

Now = list[float]


@pytest.fixture
def now() -> Now:
    """The store's clock."""
    return [1_000_000.0]


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def store(request: pytest.FixtureRequest, now: Now) -> Iterator[Any]:
    """A store of each kind on that clock."""
    if request.param == "memory":
        yield MemoryStore(wall=lambda: now[0])
    else:
        yield request.getfixturevalue(f"{request.param}_place").open(wall=lambda: now[0])


class Counted:
    """A function that counts its calls."""

    def __init__(self, *errors: Exception) -> None:
        self.calls: list[Any] = []
        self.errors = list(errors)

    async def __call__(self, data: Any) -> Any:
        self.calls.append(data)
        if self.errors:
            raise self.errors.pop(0)
        return {"sum": data}


def test_a_second_run_reuses_the_output(store: Any, now: Now) -> None:
    """Until the time is over, by the store's clock."""
    work, sink = Counted(), MemorySink()
    flujo = Flujo(Step("s", work, cache=Cache(60)), store=store, settings={"telemetry": {"sinks": [sink]}})
    first, second = flujo.run(1), flujo.run(1)
    assert (first.output, second.output, work.calls) == ({"sum": 1}, {"sum": 1}, [1])
    assert second.step_history[0].metadata["cached"] is True
    assert [event.step_name for event in sink.events if isinstance(event, StepCached)] == ["s"]
    assert flujo.run(2).output == {"sum": 2}
    now[0] += 61
    flujo.run(1)
    assert work.calls == [1, 2, 1]


def test_a_cached_agent_makes_no_request(store: Any) -> None:
    """A hit uses no tokens; another prompt is another entry."""
    asked: list[str] = []

    async def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        asked.append("!")
        return ModelResponse(parts=[TextPart("hi")])

    def flujo(prompt: str) -> Flujo[Any, Any, Any]:
        agent = make_agent_async(FunctionModel(answer), prompt)
        return Flujo(Step("s", agent, cache=Cache(60)), store=store)

    assert flujo("be brief").run("x").total_tokens > 0
    hit = flujo("be brief").run("x")
    assert (hit.output, hit.total_tokens, len(asked)) == ("hi", 0, 1)
    flujo("be long").run("x")
    assert len(asked) == 2


def test_a_failure_is_not_cached(store: Any) -> None:
    """The next run executes the step."""
    work = Counted(ValueError("no"))
    flujo = Flujo(Step("s", work, cache=Cache(60)), store=store)
    assert flujo.run(1).status == "failed"
    assert flujo.run(1).output == {"sum": 1}
    assert len(work.calls) == 2


def test_scopes_do_not_share_entries(store: Any) -> None:
    """A label of the run is part of the key."""
    work = Counted()
    flujo = Flujo(Step("s", work, cache=Cache(60, scope="label:tenant")), store=store)
    for tenant in ("a", "b", "a"):
        flujo.run(1, labels={"tenant": tenant})
    assert len(work.calls) == 2


def test_a_key_replaces_the_input(store: Any) -> None:
    """Data with the same key have the same output; a cleared entry is gone."""
    work = Counted()
    flujo = Flujo(Step("s", work, cache=Cache(60, key=lambda data, context: str(data % 2))), store=store)
    assert [flujo.run(number).output["sum"] for number in (1, 3, 2)] == [1, 1, 2]
    assert RunClient(store).clear_cache(step="s") == 2
    assert flujo.run(3).output == {"sum": 3}
    assert RunClient(store).clear_cache("other") == 0


def test_a_hit_updates_the_context(store: Any) -> None:
    """As the output of the step would."""
    work = Counted()
    flujo = Flujo(Step("s", work, cache=Cache(60), updates_context=True), store=store)
    flujo.run(1)
    assert getattr(flujo.run(1).final_context, "sum", None) == 1


def _sees(data: object, context: object) -> object:
    return data


def _tool() -> str:
    return "weather"


@pytest.mark.parametrize(
    ("agent", "options", "text"),
    [
        (_sees, {}, "step 'sum': cache is impossible: its function asks for 'context'"),
        (Counted(), {"compensate": lambda undo: None}, "cache is impossible: it has a compensation"),
        (
            Agent("test", tools=[_tool]),
            {},
            "step 'sum': cache needs key=: its agent has tools, whose results are not part of the input",
        ),
        (Agent("test"), {"deps": 1}, "cache needs key=: its agent has deps"),
    ],
)
def test_a_cache_of_more_than_the_input_is_refused(agent: Any, options: dict[str, Any], text: str) -> None:
    """The message has the reason."""
    with pytest.raises(DeclarationError, match=text):
        Step("sum", agent, cache=Cache(60), **options)


@pytest.mark.parametrize("ttl_s", [0, -1, float("inf"), True, "60"])
def test_an_impossible_time_is_refused(ttl_s: Any) -> None:
    """Of the cache itself."""
    with pytest.raises(DeclarationError, match="Cache: ttl_s must be a finite number > 0"):
        Cache(ttl_s)


def test_a_blueprint_caches_a_step(tmp_path: Path) -> None:
    """`cache: {ttl_s: 3600}`."""
    path = tmp_path / "p.yaml"
    path.write_text("version: '1'\nname: p\nsteps:\n- {name: s, uses: builtins.passthrough, cache: {ttl_s: 3600}}\n")
    [step] = load_blueprint(path).steps
    assert getattr(step, "cache", None) == Cache(3600)


def test_a_scope_by_key_takes_that_of_the_submitted_run(store: Any) -> None:
    """Runs of one key share entries."""
    work = Counted()
    flujo = Flujo(Step("s", work, cache=Cache(60, scope="key")), store=store)
    for key in ("a", "b", "a"):
        flujo.submit_sync(1, key=key)

        async def serve() -> None:
            async with flujo.worker(once=True, look_s=0.01) as worker:
                await worker.stopped()

        trio.run(serve)
    assert len(work.calls) == 2
