"""What a model is told of a failed attempt: why its answer was refused, and nothing else."""

from __future__ import annotations

import asyncio

import pytest
from agent_hosts import two_hosts
from pydantic import BaseModel
from pydantic_ai import Agent, ModelRetry
from pydantic_ai.exceptions import ModelAPIError, ModelHTTPError

from flujo_actors import Backoff, Flujo, Step
from flujo_actors.testing import CallTool, Delayed, scripted_model

INSIDE = "10.0.0.7"
"""Where something is that no provider should hear of."""
PROMPT = "Pay the bill"
REFUSED = f"{PROMPT}\n\nYour previous answer was not accepted: "
each_mode = pytest.mark.parametrize("make", [Step, Step.granular], ids=["atomic", "granular"])


class Bill(BaseModel):
    total: int


def tried(make, agent, *, retries=1, **config):
    """The result of a step that is tried again at once."""
    return Flujo(make("pay", agent, max_retries=retries, backoff=Backoff.none(), **config)).run(PROMPT)


def first_prompts(model):
    """The first message of each request, as the model gets it."""
    return [request.messages[0].parts[-1].content for request in model.asked]


# --- no answer was judged -----------------------------------------------------------------------------------

OUTAGES = {
    "connection": ConnectionError(f"{INSIDE} is down"),
    "server": ModelHTTPError(500, "scripted", {"host": INSIDE}),
    "rate": ModelHTTPError(429, "scripted", {"host": INSIDE}),
    "api": ModelAPIError("scripted", f"{INSIDE} hung up"),
    "other": RuntimeError(INSIDE),
}


@each_mode
@pytest.mark.parametrize("error", OUTAGES.values(), ids=list(OUTAGES))
@pytest.mark.parametrize(("output_type", "answer"), [(str, "paid"), (Bill, {"total": 7})], ids=["text", "typed"])
@two_hosts
def test_a_request_that_failed_is_made_again_as_it_was(host, make, error, output_type, answer):
    """A provider that is down says nothing about an answer: there was none."""
    model = scripted_model(error, answer)
    step = make("pay", Agent(model, output_type=output_type), max_retries=1, backoff=Backoff.none())
    assert host.result(Flujo(step), PROMPT).success
    assert first_prompts(model) == [PROMPT, PROMPT]


@each_mode
@pytest.mark.parametrize("error", [ConnectionError(INSIDE), ValueError(INSIDE), TimeoutError(INSIDE)])
def test_a_tool_that_raised_is_not_the_models_answer(make, error):
    """The conversation goes on, or begins again, with the same words."""
    model, calls = scripted_model(*[CallTool("pay")] * (2 if make is Step else 1), "paid"), []

    async def pay() -> str:
        calls.append(1)
        if len(calls) == 1:
            raise error
        return "done"

    assert tried(make, Agent(model, tools=[pay])).output == "paid"
    assert set(first_prompts(model)) == {PROMPT}


@each_mode
def test_a_tool_that_was_tried_too_often_is_not_the_models_answer(make):
    """The agent gives up on the tool, and is asked anew without reproach."""
    model, calls = scripted_model(*[CallTool("pay")] * 3, "paid"), []

    async def pay() -> str:
        calls.append(1)
        if len(calls) < 3:
            raise ModelRetry(f"not on {INSIDE}")
        return "done"

    assert tried(make, Agent(model, tools=[pay])).output == "paid"
    assert set(first_prompts(model)) == {PROMPT}


@pytest.mark.slow
@each_mode
@pytest.mark.parametrize("where", ["request", "tool"])
def test_a_timeout_is_not_the_models_answer(make, where):
    """Whatever took too long: the next attempt says the same."""
    calls = []

    async def pay() -> str:
        calls.append(1)
        await asyncio.sleep(30 if len(calls) == 1 else 0)
        return "done"

    slow = [Delayed(30, "late"), "paid"]
    script = slow if where == "request" else [CallTool("pay")] * (2 if make is Step else 1) + ["paid"]
    model = scripted_model(*script)
    assert tried(make, Agent(model, tools=[pay]), timeout_s=2).output == "paid"
    assert set(first_prompts(model)) == {PROMPT}


@each_mode
def test_a_processor_that_raised_is_not_the_models_answer(make):
    """It judges nothing: what it says stays inside."""
    calls = []

    def parse(text: str) -> str:
        calls.append(text)
        if len(calls) == 1:
            raise ConnectionError(INSIDE)
        return text

    model = scripted_model("paid", "paid")
    assert tried(make, Agent(model), processors={"after": parse}).output == "paid"
    assert set(first_prompts(model)) == {PROMPT}


# --- an answer was judged -----------------------------------------------------------------------------------


def too_short(text):
    return "say more" if len(text) < 5 else None


@each_mode
def test_what_judged_an_answer_is_told(make):
    """A validator, the schema, the agent's own validator: the next attempt has the reason, in each mode."""
    by_validator = scripted_model("no", "paid it")
    assert tried(make, Agent(by_validator), validators=too_short).output == "paid it"
    assert first_prompts(by_validator)[1] == f"{REFUSED}Validation failed: say more"

    by_itself = scripted_model("no", "no", "paid it")
    agent = Agent(by_itself)

    @agent.output_validator
    def judge(text: str) -> str:
        if too_short(text):
            raise ModelRetry("say more")
        return text

    assert tried(make, agent).output == "paid it"
    assert first_prompts(by_itself)[2] == f"{REFUSED}say more"

    by_schema = scripted_model("seven", {"total": 7})
    settings = {"aros": {"repair": {"enable_llm": False}, "fallback": {"max_stages": 0}}}
    step = make("pay", Agent(by_schema, output_type=Bill, retries=0), max_retries=1, backoff=Backoff.none())
    assert Flujo(step, settings=settings).run(PROMPT).output == Bill(total=7)
    assert first_prompts(by_schema)[1].startswith(f"{REFUSED}Structured output failed at stage 'deterministic'")


@each_mode
def test_an_outage_after_a_refusal_changes_no_word(make):
    """Refused, then cut off twice, then done: all that is said after the refusal is said with its reason."""
    down = ConnectionError(INSIDE)
    model = scripted_model("no", down, down, "paid it")
    assert tried(make, Agent(model), retries=3, validators=too_short).output == "paid it"
    assert first_prompts(model) == [PROMPT, *[f"{REFUSED}Validation failed: say more"] * 3]


def test_a_refused_answer_is_told_without_the_outages_around_it():
    """A typed answer that was refused, and a repair and a retry that failed: the model hears of the first alone."""
    down = ConnectionError(INSIDE)
    model = scripted_model("seven", down, down, down, {"total": 7})
    assert tried(Step, Agent(model, output_type=Bill, retries=0)).output == Bill(total=7)
    said = "\n".join(str(request.messages) for request in model.asked)
    assert INSIDE not in said
    assert first_prompts(model)[-1].startswith(f"{REFUSED}Structured output failed")


def test_a_stricter_retry_repeats_no_error_of_the_provider():
    """The instruction stands alone where there was no answer to speak of."""
    error = ModelHTTPError(400, "scripted", {"message": f"invalid JSON at {INSIDE}"})
    model = scripted_model(error, {"total": 7})
    assert Flujo(Step("pay", Agent(model, output_type=Bill))).run(PROMPT).output == Bill(total=7)
    assert first_prompts(model)[1] == f"{PROMPT}\n\nReturn only JSON. No extra text."


# --- what people are told -----------------------------------------------------------------------------------


@pytest.mark.parametrize("watched", [False, True])
@two_hosts
def test_an_empty_answer_is_called_one(host, watched):
    """The failure says what was wrong, and what can be done."""
    flujo = Flujo(Step("ask", Agent(scripted_model("", forever=True))))
    result = host.recorded(flujo, "?").result if watched else host.result(flujo, "?")
    assert "Agent execution failed with UnexpectedModelBehavior: " in result.feedback
    for said in ("the model's answer was empty", "`retries`", "`max_retries`", "`fallback`"):
        assert said in result.feedback


def test_an_answer_that_the_agent_refused_is_told_with_the_reason():
    """pydantic-ai names the number of tries only."""
    agent = Agent(scripted_model("no", forever=True))

    @agent.output_validator
    def judge(text: str) -> str:
        raise ModelRetry("say more")

    feedback = Flujo(Step("ask", agent)).run("?").feedback
    assert "Exceeded maximum output retries (1): the agent refused its model's answer: say more" in feedback
