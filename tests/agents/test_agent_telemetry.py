"""What real runs of model agents tell: the vocabulary in order, spans that nest and end, and no secrets."""

from __future__ import annotations

import asyncio
import logging

import anyio
import pytest
import trio
from agent_hosts import HOSTS, each_host, two_hosts
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode
from pydantic_ai import Agent, RunContext
from wired import agent_of
from wired import connected as connected

from flujo_actors import (
    AbortRun,
    Backoff,
    Flujo,
    Paused,
    PostStep,
    Settings,
    Step,
    UsageLimitExceededError,
    UsageLimits,
    make_agent_async,
    to_json,
)
from flujo_actors._core.settings_model import TelemetrySettings
from flujo_actors.telemetry._sinks import LogSink
from flujo_actors.telemetry.otel._sink import OtelSink
from flujo_actors.testing import CallTool, Delayed, MemorySink, Recorder, ScriptedAgent, Streamed, scripted_model
from flujo_actors.testing.wire import ProviderStub, ServerError


def told_to(*sinks, content=False):
    """Settings with these sinks."""
    return Settings(telemetry=TelemetrySettings(sinks=sinks, content=content))


def tick() -> str:
    return "tock"


# --- the vocabulary -----------------------------------------------------------------------------------------


@each_host
def test_a_run_tells_its_story_in_order(host):
    """Every moment of a step with a refusal, a retry, tools and a fallback, on every host, in the same words."""
    sink = MemorySink()
    primary = scripted_model("bad", CallTool("tick"), ConnectionError("down"))
    step = Step(
        "ask",
        make_agent_async(primary, "Be brief.", tools=[tick]),
        validators=lambda text: None if text != "bad" else "bad is bad",
        max_retries=1,
        backoff=Backoff.none(),
        fallback=Step("second", make_agent_async(scripted_model("good"))),
    )
    host.result(Flujo(step, settings=told_to(sink)), "x")
    call = ["model.started", "model.ended", "agent.usage"]
    attempt = ["agent.input", "agent.system", *call]
    assert sink.kinds() == [
        *("run.started", "step.started"),
        *("attempt.started", *attempt, "agent.response", "attempt.ended", "step.retry"),
        *("attempt.started", *attempt, "tool.started", "tool.ended", "model.started", "model.ended"),
        *("agent.usage", "attempt.ended"),  # the tool call, which no request came after
        "step.fallback",
        *("step.started", "attempt.started", *attempt, "agent.response", "attempt.ended", "step.ended"),
        *("step.ended", "run.ended"),
    ]
    assert sink.of("step.retry")[0].feedback == "Validation failed: bad is bad"
    assert [event.status for event in sink.of("model.ended")] == ["success", "success", "failure", "success"]
    assert sink.of("model.ended")[2].error_type == "ConnectionError"
    assert sink.of("run.ended")[0].usage.tokens == 45
    times = [event.at for event in sink.events]
    assert times == sorted(times)


@pytest.mark.slow
@two_hosts
def test_events_of_calls_come_in_pairs_also_when_they_are_cut_short(host):
    """A request and a tool that were cancelled are told as aborted."""
    sink = MemorySink()

    async def sleep() -> str:
        await asyncio.sleep(30)
        return "never"

    for replies in ([Delayed(30, "late")], [CallTool("sleep")]):
        agent = make_agent_async(scripted_model(*replies), tools=[sleep])
        host.result(Flujo(Step("ask", agent, timeout_s=1.5), settings=told_to(sink)), "x")
    assert sink.of("model.ended")[0].status == "aborted"
    assert sink.of("tool.ended")[0].status == "aborted"
    assert len(sink.of("model.started")) == len(sink.of("model.ended")) == 2
    assert [event.call_id for event in sink.of("model.started")] == [event.call_id for event in sink.of("model.ended")]


def _counted(make, model, *, nested=None):
    """The tool calls in events, in the attempt's span and in the result of a step with a tool."""
    sink, spans = MemorySink(), Spans()

    async def ask(ctx: RunContext[None]) -> str:
        return "tock" if nested is None else (await nested.run("?", usage=ctx.usage)).output

    agent = Agent(model, tools=[ask])
    step = Flujo(make("ask", agent), settings=told_to(sink, spans.sink)).run("x").step_history[0]
    attempt = next(span for span in spans.ended if span.name.startswith("attempt"))
    told = sink.of("agent.usage")
    for name in ("input_tokens", "output_tokens", "requests"):
        assert sum(getattr(event, name) for event in told) == getattr(step.usage, name)
    calls = sum(event.tool_calls for event in told)
    return calls, attempt.attributes["flujo.tool_calls"], step.usage.tool_calls


@pytest.mark.parametrize("make", [Step, Step.granular], ids=["atomic", "granular"])
def test_tool_calls_are_counted_once_everywhere(make):
    """Events, spans and results agree: one call, two at once, one before a request that fails, and a nested agent's."""
    once, twice = CallTool("ask"), [CallTool("ask"), CallTool("ask")]
    assert _counted(make, scripted_model(once, "done")) == (1, 1, 1)
    assert _counted(make, scripted_model(twice, once, "done")) == (3, 3, 3)
    assert _counted(make, scripted_model(once, ConnectionError("down"))) == (1, 1, 1)
    helper = Agent(scripted_model(CallTool("tick"), "tock"), tools=[tick])
    assert _counted(make, scripted_model(once, "done"), nested=helper) == (2, 2, 2)


def test_a_pause_and_its_resumption_are_told():
    """Both stretches of the run have a beginning and an end."""
    sink = MemorySink()
    pipeline = Step("ask", make_agent_async(scripted_model("draft"))) >> Step.human_in_the_loop("sign", "Fine?")
    flujo = Flujo(pipeline, settings=told_to(sink))
    flujo.resume(flujo.run("x").state_token, "yes")
    kinds = [kind for kind in sink.kinds() if kind.startswith("run")]
    assert kinds == ["run.started", "run.paused", "run.ended", "run.resumed", "run.ended"]
    assert [event.status for event in sink.of("run.ended")] == ["paused", "completed"]


def test_the_system_prompt_is_told_as_the_model_gets_it():
    """Static prompts, prompts that are functions of the deps, and instructions: the resolved text, not the function."""
    sink = MemorySink()
    agent = Agent(scripted_model("ok"), deps_type=str, system_prompt="You are terse.", instructions="Use metric units.")

    @agent.system_prompt
    def whose(ctx: RunContext[str]) -> str:
        return f"You serve {ctx.deps}."

    @agent.instructions
    async def when(ctx: RunContext[str]) -> str:
        return "It is Monday."

    Flujo(Step("ask", agent, deps="Ada"), settings=told_to(sink, content=True)).run("x")
    text = sink.of("agent.system")[0].text
    for part in ("You are terse.", "You serve Ada.", "Use metric units.", "It is Monday."):
        assert text.count(part) == 1


def test_content_is_off_unless_it_is_switched_on():
    """Prompts, inputs, outputs and arguments are there or not; the rest is the same."""

    def shout(word: str) -> str:
        return word.upper()

    def run(content):
        sink = MemorySink()
        model = scripted_model(CallTool("shout", {"word": "private"}), "the private answer")
        agent = make_agent_async(model, "the private prompt", tools=[shout])
        Flujo(Step("ask", agent), settings=told_to(sink, content=content)).run("the private question")
        return sink

    silent, open_ = run(False), run(True)
    assert silent.kinds() == open_.kinds()
    assert "private" not in str(silent.events).lower()
    assert open_.of("agent.system")[0].text == "the private prompt"
    assert open_.of("agent.input")[0].data == "the private question"
    assert open_.of("agent.response")[0].output == "the private answer"
    assert open_.of("tool.started")[0].arguments == {"word": "private"}
    assert open_.of("tool.ended")[0].result == "PRIVATE"


# --- spans --------------------------------------------------------------------------------------------------


class Spans:
    """A sink for OpenTelemetry, and what it exported."""

    def __init__(self):
        self.exporter = InMemorySpanExporter()
        tracers = TracerProvider()
        tracers.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.sink = OtelSink(tracers, MeterProvider())

    @property
    def ended(self):
        """The ended spans, in the order of their beginnings."""
        return sorted(self.exporter.get_finished_spans(), key=lambda span: span.start_time)

    def tree(self):
        """Each span as the path of names down to it."""
        by_id = {span.context.span_id: span for span in self.ended}
        return [" > ".join(_names(span, by_id)) for span in self.ended]

    def statuses(self):
        return {span.name: span.status.status_code for span in self.ended}


def _names(span, by_id):
    names = [span.name]
    while span.parent is not None:
        span = by_id[span.parent.span_id]
        names.insert(0, span.name)
    return names


@each_host
def test_spans_nest_as_the_work_does(host):
    """run > step > attempt > model call, on every host, in parallel and in a fallback too."""
    spans = Spans()
    ask = Step("ask", make_agent_async(scripted_model(CallTool("tick"), "x"), tools=[tick]))
    other = Step(
        "other", ScriptedAgent(ValueError("no")), fallback=Step("plan b", make_agent_async(scripted_model("y")))
    )
    flujo = Flujo(Step.parallel("both", {"a": ask, "b": other}), settings=told_to(spans.sink))
    host.result(flujo, "x")
    run = spans.ended[0].name
    both = f"{run} > step both > attempt 1"
    assert sorted(spans.tree()) == sorted(
        [
            run,
            f"{run} > step both",
            both,
            f"{both} > step ask",
            f"{both} > step ask > attempt 1",
            f"{both} > step ask > attempt 1 > chat scripted",
            f"{both} > step ask > attempt 1 > execute_tool tick",
            f"{both} > step ask > attempt 1 > chat scripted",
            f"{both} > step other",
            f"{both} > step other > attempt 1",
            f"{both} > step other > step plan b",
            f"{both} > step other > step plan b > attempt 1",
            f"{both} > step other > step plan b > attempt 1 > chat scripted",
        ]
    )
    assert spans.sink.open_runs == 0
    chat = next(span for span in spans.ended if span.name == "chat scripted")
    assert chat.attributes["gen_ai.usage.input_tokens"] == 10


@pytest.mark.parametrize("host", HOSTS[:4], ids=[host.name for host in HOSTS[:4]])
@pytest.mark.parametrize("ending", ["success", "failure", "pause", "limit", "abort", "cancel", "left", "crash"])
def test_every_span_is_ended_whatever_the_ending(host, ending):
    """Nothing is open when the run is over, and the run's span says how it went."""
    spans = Spans()
    model = scripted_model(*REPLIES.get(ending, ["fine"]))
    step = Step("ask", make_agent_async(model))
    pipeline = step >> Step("then", ScriptedAgent(Paused(message="?") if ending == "pause" else "ok"))
    config = {"usage_limits": UsageLimits(total_tokens_limit=1)} if ending == "limit" else {}
    hooks = {"hooks": [abort]} if ending == "abort" else {}
    flujo = Flujo(pipeline, settings=told_to(spans.sink), **config, **hooks)
    host.drive(lambda: ended(flujo, ending, model))
    assert spans.sink.open_runs == 0
    names = set(spans.statuses())
    assert {"step ask", "attempt 1", "chat scripted"} <= names
    run = next(span for span in spans.ended if span.parent is None)
    well = ending in ("success", "pause")
    assert run.status.status_code is (StatusCode.OK if well else StatusCode.ERROR)


class Crash(BaseException):
    pass


REPLIES = {
    "failure": [ValueError("no")],
    "cancel": [Delayed(30, "late")],
    "left": [Streamed(["a", "b"]), "x"],
    "crash": [Crash("of a kind nobody expects")],
}


def abort(payload: PostStep) -> None:
    raise AbortRun("enough")


async def ended(flujo, ending, model):
    """Run it to its ending."""
    match ending:
        case "limit":
            with pytest.raises(UsageLimitExceededError):
                await flujo.run_async("x")
        case "cancel":
            with anyio.move_on_after(30) as scope:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(cancel_when_asked, model, scope)
                    await flujo.run_async("x")
        case "left":
            async with flujo.run_async("x") as run:
                async for _ in run:
                    break
        case _:
            await flujo.run_async("x")


async def cancel_when_asked(model, scope):
    while not model.asked:
        await anyio.sleep(0.005)
    scope.cancel()


# --- secrets ------------------------------------------------------------------------------------------------

CANARY = "canary-4f9d1c77e2b84a6f"
SHAPED = "sk-proj-Canary0123456789abcdefghijklmnopqrstuvwxyzCANARY"


class Deps:
    def __init__(self):
        self.api_key = CANARY


WHERE = ["tool error", "provider error", "prompt", "validator", "model error"]


@pytest.mark.parametrize("known_from", ["deps", "environment", "shape"])
@pytest.mark.parametrize("where", WHERE)
def test_a_key_appears_nowhere(monkeypatch, caplog, connected, where, known_from):
    """From deps, the environment or by its shape; in errors of tools, providers and validators, and in prompts."""
    caplog.set_level(logging.DEBUG)
    if known_from == "environment":
        monkeypatch.setenv("ACME_API_KEY", CANARY)
    secret = SHAPED if known_from == "shape" else CANARY
    sink, spans, recorder = MemorySink(), Spans(), Recorder()

    def leak() -> str:
        raise ValueError(f"401 for key {secret}")

    with ProviderStub(lambda request: ServerError(400, message=f"invalid key {secret}")) as stub:
        connected(stub)
        step = Step(
            "ask",
            leaking_agent(where, secret, leak),
            deps=Deps() if known_from == "deps" else None,
            validators=(lambda text: f"{text} with {secret}") if where == "validator" else (),
            max_retries=1,
            backoff=Backoff.none(),
            fallback=Step("second", ScriptedAgent(ValueError(f"also {secret}"))),
        )
        flujo = Flujo(step, settings=told_to(sink, spans.sink, LogSink()), hooks=recorder)
        trio.run(recorder.record, flujo.run_async("x"))
    assert recorder.result.status == "failed"
    assert secret not in caplog.text
    assert secret not in str(sink.events)
    assert secret not in " ".join(span.to_json() for span in spans.ended)
    assert list(recorder.failures()) == ["second", "ask"]
    assert secret not in " ".join([*recorder.failures().values(), recorder.result.feedback])
    assert secret not in to_json(recorder.result)


def leaking_agent(where, secret, leak):
    """An agent that has the secret in one place."""
    prompt = f"Use {secret}" if where == "prompt" else "Be brief."
    if where == "provider error":
        return agent_of("openai-chat:gpt-4o")
    replies = {
        "tool error": [CallTool("leak"), CallTool("leak")],
        "model error": [ConnectionError(f"denied {secret}")] * 2,
        "prompt": [ConnectionError("down")] * 2,
    }.get(where, ["x", "y"])
    return make_agent_async(scripted_model(*replies), prompt, tools=[leak], deps_type=object)


def test_the_redactor_is_the_only_thing_that_changes_an_errors_text():
    """Where there is no secret, the message is as it was; the exception itself stays the original."""
    error = ValueError("the token count of page_token=7 is odd: sort_key")
    recorder = Recorder()
    trio.run(recorder.record, Flujo(Step("ask", make_agent_async(scripted_model(error)))).run_async("x"))
    assert recorder.failures() == {"ask": f"Agent execution failed with ValueError: {error}"}
    assert recorder.outcomes[-1].error is error
