"""The testing kit: what a user has to test pipelines without a network and without waiting."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time

import attrs
import pytest
import trio
from pydantic import BaseModel
from pydantic_ai import Agent
from pydantic_ai.messages import ModelResponse, TextPart

from flujo_actors import Chunk, Failure, Flujo, Paused, PostRun, Step, Success, Usage, make_agent_async
from flujo_actors._core.settings_model import Settings, TelemetrySettings
from flujo_actors.testing import (
    Billed,
    CallTool,
    Delayed,
    JumpingClock,
    MemorySink,
    Recorder,
    ScriptedAgent,
    Streamed,
    run_on_mock_clock,
    scripted_model,
)
from flujo_actors.testing.fixtures import jumping_clock as jumping_clock
from flujo_actors.testing.fixtures import mock_clock_run as mock_clock_run
from flujo_actors.testing.fixtures import recorder as recorder

# --- agents -------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_importing_the_kit_does_not_import_pydantic_ai():
    """Who scripts no model does not pay for the library of models."""
    code = "import sys, flujo_actors.testing; sys.exit('pydantic_ai' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=240).returncode == 0


def test_a_scripted_agent_plays_its_replies_and_keeps_its_calls():
    """Values are outputs, exceptions are raised, and every call is there to look at."""
    agent = ScriptedAgent(ValueError("not yet"), "done")
    result = run_on_mock_clock(Flujo(Step("work", agent, max_retries=1), resources={"db": 1}), "go")
    assert (result.output, result.step_history[0].attempts) == ("done", 2)
    assert agent.inputs == ["go", "go"]
    assert agent.calls[0].resources == {"db": 1}
    assert agent.calls[1].feedback == "Agent execution failed with ValueError: not yet"


def test_a_scripted_agent_may_compute_its_replies():
    """Callables get the data, sync or async, and may return any other reply."""

    async def later(data):
        return Streamed([data, "!"])

    agent = ScriptedAgent(lambda data: data * 2, later, lambda data: KeyError(data))
    flujo = Flujo(Step("work", agent))
    assert flujo.run("ab").output == "abab"
    assert flujo.run("ab").output == "ab!"
    assert flujo.run("ab").step_history[0].feedback == "Agent execution failed with KeyError: 'ab'"


def test_a_script_that_is_used_up_says_so():
    """One call too many is a failure that names the agent and the count; `forever` repeats the last reply."""
    once = Flujo(Step("work", ScriptedAgent("one", name="writer")))
    once.run()
    assert "the script of writer has 1 replies, but this is call 2" in once.run().feedback
    again = Flujo(Step("work", ScriptedAgent("one", "two", forever=True)))
    assert [again.run().output for _ in range(3)] == ["one", "two", "two"]


def test_a_streamed_reply_is_live_where_the_run_is_watched():
    """The same script gives chunks to a watcher and the whole to everybody else."""
    flujo = Flujo(Step("work", ScriptedAgent(Streamed(["a", "a", "b"]), forever=True)))
    seen = Recorder()
    assert run_on_mock_clock(flujo, recorder=seen).output == "aab"
    assert seen.chunks("work") == ["a", "a", "b"]
    assert flujo.run().output == "aab"
    assert Flujo(Step("x", ScriptedAgent(Streamed([b"a", b"b"])))).run().output == b"ab"
    assert Flujo(Step("x", ScriptedAgent(Streamed([1, 2])))).run().output == [1, 2]


@pytest.mark.parametrize("watched", [True, False])
def test_a_stream_may_break(watched):
    """What came before stays, the step fails with the error."""
    seen = Recorder() if watched else None
    flujo = Flujo(Step("work", ScriptedAgent(Streamed(["half"], error=ConnectionError("cut")))))
    result = run_on_mock_clock(flujo, recorder=seen)
    assert result.step_history[0].feedback == "Agent execution failed with ConnectionError: cut"
    if seen:
        assert seen.results("work")[0].output == "half"


@pytest.mark.parametrize("watched", [True, False])
def test_replies_that_are_outcomes_are_the_steps_outcomes(watched):
    """A scripted agent can pause; a class is an output, an exception class is raised."""
    seen = Recorder() if watched else None
    assert run_on_mock_clock(Flujo(Step("ask", ScriptedAgent(Paused(message="?")))), recorder=seen).status == "paused"
    assert run_on_mock_clock(Flujo(Step("ask", ScriptedAgent(int))), recorder=seen).output is int
    assert "TimeoutError" in run_on_mock_clock(Flujo(Step("ask", ScriptedAgent(TimeoutError))), recorder=seen).feedback


# --- the clock ----------------------------------------------------------------------------------------------


def test_a_mock_clock_passes_over_delays_backoffs_and_timeouts(mock_clock_run):
    """Hours on the run's clock take no time, and add up as they should."""
    agent = ScriptedAgent(Delayed(3600, "late"), Delayed(10, "in time"))
    began = time.perf_counter()
    result = mock_clock_run(Flujo(Step("work", agent, timeout_s=60, max_retries=1)))
    assert time.perf_counter() - began < 600
    assert result.output == "in time"
    assert 70 <= result.step_history[0].latency_s < 80


def test_a_mock_clock_waits_for_models_and_threads():
    """Work outside the loop is not overtaken by a deadline: it takes real time, and no time on the clock."""
    model = scripted_model(Delayed(0.05, "answer"))

    def in_a_thread(text):
        time.sleep(0.05)
        return text.upper()

    pipeline = Step("ask", make_agent_async(model), timeout_s=0.01) >> Step("loud", in_a_thread, timeout_s=0.01)
    result = run_on_mock_clock(Flujo(pipeline), "x")
    assert (result.output, result.step_history[0].latency_s) == ("ANSWER", 0.0)


@pytest.mark.trio
async def test_the_clock_is_a_fixture_for_trio_tests(jumping_clock):
    """pytest-trio runs the test on it."""
    await trio.sleep(1000)
    assert trio.current_time() == jumping_clock.current_time() == 1000


def test_the_clock_looks_for_input_before_it_jumps():
    """Something that arrives over a socket comes before a deadline that lies in the future."""

    async def main():
        one, two = trio.socket.socketpair()
        with one, two, trio.move_on_after(10) as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(one.send, b"hello")
                assert await two.recv(5) == b"hello"
        return scope.cancelled_caught

    assert trio.run(main, clock=JumpingClock()) is False


# --- models -------------------------------------------------------------------------------------------------


class City(BaseModel):
    name: str
    people: int


@attrs.frozen
class Point:
    x: int


def answered(model, output_type=str, *, watched=False, tools=()):
    """The result of a step whose agent has this model."""
    flujo = Flujo(Step("ask", make_agent_async(model, "Be brief.", output_type, tools=tools)))
    recorder = Recorder() if watched else None
    result = run_on_mock_clock(flujo, "hello", recorder=recorder)
    return result, recorder


@pytest.mark.parametrize("watched", [False, True])
def test_a_scripted_model_answers_in_text(watched):
    """The agent gets the text, and the model keeps what it was asked."""
    model = scripted_model("one two")
    result, seen = answered(model, watched=watched)
    assert result.output == "one two"
    assert model.prompts == ["hello"]
    assert model.asked[0].streamed is watched
    if seen:
        assert seen.chunks() == ["one ", "two"]


@pytest.mark.parametrize("watched", [False, True])
@pytest.mark.parametrize(
    ("reply", "output_type", "output"),
    [
        ({"name": "Lima", "people": 10}, City, City(name="Lima", people=10)),
        (City(name="Lima", people=10), City, City(name="Lima", people=10)),
        ([1, 2], list[int], [1, 2]),
        (7, int, 7),
    ],
    ids=["dict", "model", "list", "number"],
)
def test_a_value_goes_to_the_output_tool(reply, output_type, output, watched):
    """A structured reply is what a model would send for the agent's output type."""
    assert answered(scripted_model(reply), output_type, watched=watched)[0].output == output


def test_a_value_is_json_text_where_there_is_no_output_tool():
    """An agent that wants text gets it, attrs values too."""
    assert answered(scripted_model(Point(x=1)))[0].output == '{"x":1}'


@pytest.mark.parametrize("watched", [False, True])
def test_a_scripted_model_calls_tools(watched):
    """One at a time, or several in one response with text before them."""
    called = []

    def look(city: str) -> str:
        called.append(city)
        return f"{city} is sunny"

    several = ["Looking. ", CallTool("look", {"city": "Lima"}), CallTool("look", {"city": "Pune"})]
    model = scripted_model(several, CallTool("look", {"city": "Oslo"}), "done")
    result, seen = answered(model, watched=watched, tools=[look])
    assert (result.output, sorted(called)) == ("done", ["Lima", "Oslo", "Pune"])
    assert result.step_history[0].usage.tool_calls == 3
    assert [asked.tools for asked in model.asked] == [("look",)] * 3
    if seen:
        assert seen.chunks() == ["Looking. ", "done"]


@pytest.mark.parametrize("watched", [False, True])
def test_a_scripted_model_bills_what_it_is_told(watched):
    """Usage per reply, or the same for all; the model keeps the sum."""
    model = scripted_model(Billed("a", 100, 20, 30), "b", usage=Usage(input_tokens=7, output_tokens=1))
    for _ in range(2):
        result, _ = answered(model, watched=watched)
    assert result.total_tokens == 8
    assert model.billed == Usage(input_tokens=107, output_tokens=21, cached_tokens=30, requests=2)


@pytest.mark.parametrize("watched", [False, True])
def test_a_scripted_model_raises(watched):
    """An exception, at once or in the middle of a stream, is the model's."""
    for reply in (ConnectionError("down"), Streamed(["par", "t"], error=ConnectionError("down"))):
        result, _ = answered(scripted_model(reply), watched=watched)
        assert result.step_history[0].feedback == "Agent execution failed with ConnectionError: down"


def test_a_scripted_model_may_compute_its_replies():
    """A callable gets the messages; a pydantic-ai response is given as it is."""
    model = scripted_model(lambda messages: f"{len(messages)} message", ModelResponse(parts=[TextPart("own")]))
    assert answered(model)[0].output == "1 message"
    assert answered(model)[0].output == "own"


def test_a_scripted_model_needs_no_flujo():
    """It is a pydantic-ai model like any other."""
    model = scripted_model("hello")
    agent = Agent(model, instructions="Be kind.")
    assert asyncio.run(agent.run("hi")).output == "hello"
    assert model.asked[0].instructions == "Be kind."


# --- the recorder -------------------------------------------------------------------------------------------


def test_a_recorder_has_views_by_step_and_by_moment(recorder):
    """Outcomes by step, in the order of their ends; payloads by kind; endings by path."""
    write = Step("write", ScriptedAgent(Streamed(["a", "b"])))
    check = Step("check", ScriptedAgent(ValueError("no")), fallback=Step("trust", ScriptedAgent("fine")))
    flujo = Flujo(write >> check >> Step("fail", ScriptedAgent(KeyError("x"))), hooks=recorder)
    result = run_on_mock_clock(flujo, recorder=recorder)
    assert recorder.result is result
    assert recorder.settled() == ["write", "trust", "check", "fail"]
    assert recorder.output("check") == "fine"
    assert [type(outcome) for outcome in recorder.of("write")] == [Chunk, Chunk, Success]
    assert recorder.chunks() == ["a", "b"]
    assert recorder.failures() == {"fail": "Agent execution failed with KeyError: 'x'"}
    assert recorder.kinds()[0] == "pre_run"
    assert recorder.of_kind(PostRun)[0].result == result
    assert [type(outcome) for outcome in recorder.endings().values()][-1] is Failure
    with pytest.raises(LookupError, match="step 'fail' did not succeed; these did: 'write', 'trust', 'check'"):
        recorder.output("fail")


def test_a_recorder_works_in_an_asyncio_program():
    """It only iterates the handle, so it works where handles do."""
    flujo = Flujo(Step("work", ScriptedAgent(Streamed(["a"]))))
    recorder = Recorder()

    async def main():
        return await recorder.record(flujo.run_async())

    assert asyncio.run(main()).output == "a"
    assert recorder.chunks() == ["a"]


def test_a_memory_sink_keeps_what_telemetry_says():
    """The sink for tests is part of the kit."""
    sink = MemorySink()
    settings = Settings(telemetry=TelemetrySettings(sinks=[sink]))
    Flujo(Step("work", ScriptedAgent("x")), settings=settings).run()
    assert sink.kinds() == [
        "run.started",
        "step.started",
        "attempt.started",
        "attempt.ended",
        "step.ended",
        "run.ended",
    ]
