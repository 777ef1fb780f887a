"""For whom an agent works: `deps` made for every attempt, and the context of one run."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
from context_papers import heard
from pydantic import BaseModel
from pydantic_ai import Agent, RunContext
from pydantic_ai.messages import CachePoint, TextContent, UploadedFile

from flujo_actors import Backoff, Context, DeclarationError, Flujo, PipelineResult, Step, make_agent_async
from flujo_actors.testing import CallTool, scripted_model


@attrs.frozen
class Ticket:
    tenant: str
    number: int


def agent_with_tool(*replies: Any, seen: list[Any]) -> Agent[Any, str]:
    agent = make_agent_async(scripted_model(*replies), deps_type=object)

    @agent.tool
    def who(ctx: RunContext[Any]) -> str:
        seen.append(ctx.deps)
        return str(ctx.deps)

    return agent


def run(deps: Any, *, make: Any = Step, **config: Any) -> tuple[list[Any], PipelineResult]:
    seen: list[Any] = []
    step = make("ask", agent_with_tool(CallTool("who"), "done", seen=seen), deps=deps, **config)
    flujo = Flujo(step, initial_context_data={"tenant": "acme"}, resources={"db": "res"})
    return seen, flujo.run(7)


async def later(data: int, *, context: Context) -> Ticket:
    return Ticket(context.tenant, data)


@pytest.mark.parametrize(
    ("deps", "expected"),
    [
        ("fixed", "fixed"),
        (lambda data, context, resources: (data, context.tenant, resources["db"]), (7, "acme", "res")),
        (lambda data: Ticket("x", data), Ticket("x", 7)),
        (lambda context: context.tenant, "acme"),
        (lambda resources: resources["db"], "res"),
        (lambda: "nothing asked", "nothing asked"),
        (later, Ticket("acme", 7)),
        (lambda data, *, run_input: (data, run_input), (7, 7)),
    ],
)
@pytest.mark.parametrize("make", [Step, Step.granular], ids=["atomic", "granular"])
def test_deps_are_a_value_or_made_by_a_function_of_any_signature(deps: Any, expected: Any, make: Any) -> None:
    """Sync or async; a tool gets what it returned."""
    seen, result = run(deps, make=make)
    assert result.output == "done", result.feedback
    assert seen == [expected]


def test_deps_that_can_be_called_but_are_no_function_are_a_value() -> None:
    """An object with `__call__` is what tools want."""

    class Client:
        def __call__(self) -> str:
            return "called"

    client = Client()
    seen, _ = run(client)
    assert seen == [client]


def test_deps_may_ask_for_earlier_steps() -> None:
    """By name, as inputs do."""
    seen: list[Any] = []

    async def classify(data: str) -> str:
        return "complaint"

    ask = Step("ask", agent_with_tool(CallTool("who"), "done", seen=seen), deps=lambda data, *, steps: steps.classify)
    assert Flujo(Step("classify", classify) >> ask).run("q").output == "done"
    assert seen == ["complaint"]


def test_deps_are_made_once_per_attempt() -> None:
    """A retry gets new ones, whatever they were made of."""
    made: list[int] = []

    def deps(data: Any) -> int:
        made.append(1)
        return len(made)

    seen: list[Any] = []
    agent = agent_with_tool(CallTool("who"), "bad", CallTool("who"), "good", seen=seen)
    step = Step(
        "ask", agent, deps=deps, max_retries=1, backoff=Backoff.none(), validators=lambda output: output == "good"
    )
    assert Flujo(step).run("q").output == "good"
    assert (seen, len(made)) == ([1, 2], 2)


def test_a_function_that_fails_fails_the_attempt() -> None:
    """Told as what it is."""
    _, result = run(lambda context: context.nobody)
    assert "The deps of step 'ask': Agent execution failed with AttributeError" in (result.feedback or "")


def test_a_function_that_asks_for_what_nobody_passes_is_refused() -> None:
    """When the step is declared."""
    with pytest.raises(DeclarationError, match="needs 'tenant', which no caller passes"):
        run(lambda data, tenant: tenant)


def test_a_function_that_makes_deps_cannot_change_the_context() -> None:
    """It looks at a copy."""

    def spoil(context: Context) -> str:
        context.tenant = "rival"
        return "deps"

    _, result = run(spoil)
    assert result.final_context.tenant == "acme"


# --- the context of one run ---------------------------------------------------------------------------------


class Work(BaseModel):
    tenant: str
    user: str = "nobody"


async def told(data: Any, *, context: Any) -> str:
    return f"{context.tenant} {context.user}"


@pytest.mark.parametrize("context_model", [Work, None])
def test_a_run_sets_fields_of_its_own_context(context_model: Any) -> None:
    """Over those that all runs begin with; the next run begins with those again."""
    flujo = Flujo(Step("tell", told), context_model, initial_context_data={"tenant": "acme", "user": "ann"})
    assert flujo.run("q", context={"user": "bob"}).output == "acme bob"
    assert flujo.run("q").output == "acme ann"


def test_a_field_without_a_default_may_come_with_the_run() -> None:
    """A run that does not say it is refused before it starts, and wrong data when the `Flujo` is made."""
    flujo = Flujo(Step("tell", told), Work)
    assert flujo.run("q", context={"tenant": "acme"}).output == "acme nobody"
    with pytest.raises(DeclarationError, match="tenant"):
        flujo.run("q")
    with pytest.raises(DeclarationError, match="initial_context_data does not fit"):
        Flujo(Step("tell", told), Work, initial_context_data={"user": 5})


@pytest.mark.parametrize("context", [{"tennant": "x"}, {"tenant": 5}, "acme", [1]])
def test_a_context_that_does_not_fit_is_refused(context: Any) -> None:
    """Before the run starts."""
    flujo = Flujo(Step("tell", told), Work, initial_context_data={"tenant": "acme"})
    with pytest.raises(DeclarationError, match="context"):
        flujo.run("q", context=context)


@pytest.mark.trio
async def test_every_way_to_start_a_run_takes_a_context() -> None:
    """Awaited and iterated."""
    flujo = Flujo(Step("tell", told), initial_context_data={"tenant": "acme"})
    assert (await flujo.run_async("q", context={"user": "ann"})).output == "acme ann"
    outcomes = [each async for each in flujo.run_outcomes_async("q", context={"user": "bob"})]
    assert outcomes[-1].step_result.output == "acme bob"  # type: ignore[union-attr]


def test_what_a_run_was_given_is_its_own() -> None:
    """Nobody else sees what it makes of it."""

    async def spoil(data: Any, *, context: Any) -> int:
        context.log.append(1)
        return len(context.log)

    given: dict[str, Any] = {"log": []}
    flujo = Flujo(Step("spoil", spoil))
    assert [flujo.run("q", context=given).output for _ in range(2)] == [1, 1]
    assert given == {"log": []}


def test_a_resumed_run_has_the_context_it_was_given(tmp_path: Any) -> None:
    """It is stored with the run."""
    flujo = Flujo(
        Step.human_in_the_loop("wait", "well?") >> Step("tell", told), Work, store=f"sqlite:///{tmp_path}/runs.db"
    )
    paused = flujo.run("q", context={"tenant": "acme", "user": "ann"})
    assert flujo.resume(paused.state_token or "", "go on").output == "acme ann"


@pytest.mark.parametrize("listened", [False, True])
def test_a_secret_in_deps_that_were_made_is_told_nowhere(listened: bool) -> None:
    """An error of a tool that quotes it is redacted, as for deps that were given."""
    agent = make_agent_async(scripted_model(CallTool("call")), deps_type=object)

    @agent.tool
    def call(ctx: RunContext[Any]) -> str:
        raise ValueError(f"refused with key {ctx.deps['api_key']}")

    sink, settings = heard()
    step = Step("ask", agent, deps=lambda context: {"api_key": context.given})
    flujo = Flujo(step, settings=settings if listened else None)
    result = flujo.run("q", context={"given": "hunter2-hunter2-hunter2"})
    assert result.status == "failed"
    assert "refused with key" in (result.feedback or "")
    assert "hunter2" not in f"{result.feedback} {[getattr(each, 'feedback', '') for each in sink.events]}"


@pytest.mark.parametrize(
    "data",
    [TextContent("a"), [TextContent("a"), "b"], ["a", CachePoint()], [UploadedFile("f", provider_name="openai")]],
)
def test_content_of_pydantic_ai_is_sent_as_it_is(data: Any) -> None:
    """Whatever kind of content a prompt may hold; it is not written as JSON."""
    model = scripted_model("ok")
    Flujo(Step("ask", make_agent_async(model))).run(data)
    sent = model.asked[0].messages[0].parts[-1].content  # type: ignore[union-attr]
    assert list(sent) == (data if isinstance(data, list) else [data])  # type: ignore[arg-type]
