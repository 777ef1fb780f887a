"""What runs tell about themselves: every field of the vocabulary that a run can fill, filled by a run."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import anyio
import pytest
from pydantic_ai import Agent
from recorded_spans import Recording

from flujo_actors import DeclarationError, Flujo, Pipeline, RunClient, Step
from flujo_actors.telemetry.otel._sink import OtelSink
from flujo_actors.testing import CallTool, MemorySink, scripted_model

BACKENDS = pytest.mark.parametrize("backend", ["trio", "asyncio"])


async def same(data: Any) -> Any:
    return data


def heard(*, content: bool = True) -> tuple[MemorySink, dict[str, Any]]:
    """A sink, and the settings of a Flujo that tells it."""
    sink = MemorySink()
    return sink, {"telemetry": {"sinks": [sink], "content": content}}


# --- the run ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pipeline", "name"),
    [
        (Pipeline([Step("a", same)], name="orders"), "orders"),
        (Step("a", same) >> Step("b", same), "a >> b"),
        (Step("alone", same), "alone"),
    ],
)
def test_a_run_says_which_pipeline_it_is_of(pipeline: Any, name: str, tmp_path: Path) -> None:
    """By the name under which the store lists it, and its span by the same."""
    (sink, settings), otel = heard(), Recording()
    settings["telemetry"]["sinks"].append(otel.sink)
    url = f"sqlite:///{tmp_path}/runs.db"
    Flujo(pipeline, settings=settings, store=url).run(1)
    assert [event.pipeline_name for event in sink.of("run.started")] == [name]
    assert [run.pipeline for run in RunClient(url).list()] == [name]
    assert (otel.spans[f"run {name}"].attributes or {})["gen_ai.workflow.name"] == name


@pytest.mark.parametrize("content", [True, False])
def test_a_run_tells_its_input_and_its_output_if_content_is_on(content: bool) -> None:
    """As its steps do."""
    sink, settings = heard(content=content)
    Flujo(Step("a", lambda data: {"said": data}), settings=settings).run("hello")
    [started], [ended] = sink.of("run.started"), sink.of("run.ended")
    assert (started.input, ended.output) == (("hello", {"said": "hello"}) if content else (None, None))


@pytest.mark.parametrize("content", [True, False])
def test_a_resumed_run_tells_its_answer_if_content_is_on(content: bool) -> None:
    """And it is known by the same name as the part before."""
    sink, settings = heard(content=content)
    flujo = Flujo(Pipeline([Step.human_in_the_loop("ask", "Fine?")], name="asking"), settings=settings)
    token = flujo.run(1).state_token
    assert token is not None
    flujo.resume(token, {"verdict": "yes"})
    [resumed] = sink.of("run.resumed")
    assert (resumed.pipeline_name, resumed.answer) == ("asking", {"verdict": "yes"} if content else None)
    assert sink.of("run.ended")[-1].output == ({"verdict": "yes"} if content else None)


def test_a_resumed_run_has_a_span_of_the_same_name() -> None:
    """The parts of a run are found under one name."""
    otel = Recording()
    flujo = Flujo(Pipeline([Step.human_in_the_loop("ask", "Fine?")], name="asking"), settings=otel.settings())
    flujo.resume(str(flujo.run(1).state_token), "yes")
    assert [span.name for span in otel.ended if span.parent is None] == ["run asking", "run asking"]
    assert {(span.attributes or {}).get("gen_ai.workflow.name") for span in otel.ended if span.parent is None} == {
        "asking"
    }


# --- steps, hooks and tools ---------------------------------------------------------------------------------


def test_a_thread_that_cannot_be_stopped_is_told_as_one() -> None:
    """Its step has ended by then, and its result is not used."""
    release = threading.Event()
    sink, settings = heard()
    try:
        Flujo(Step("slow", lambda data: release.wait(60), timeout_s=0.5), settings=settings).run(1)
    finally:
        release.set()
    [told] = sink.of("step.unstoppable")
    assert (told.what, told.step_name, told.path) == ("thread", "slow", "slow")
    assert "continues" in told.feedback


def test_a_failing_hook_is_told_with_its_step() -> None:
    """Where a hook failed is part of what is told."""
    sink, settings = heard()

    def hook(payload: Any) -> None:
        if payload.kind == "pre_step":
            raise ValueError("no")

    Flujo(Step("a", same), hooks=hook, settings=settings).run(1)
    [told] = sink.of("hook.failed")
    assert (told.hook_kind, told.step_name, told.path, told.feedback) == ("pre_step", "a", "a", "ValueError: no")


@pytest.mark.parametrize("make", [Step, Step.granular], ids=["atomic", "granular"])
def test_a_tool_tells_its_result_and_its_failure(make: Any) -> None:
    """In both modes the same."""
    sink, settings = heard()
    agent = Agent(scripted_model(CallTool("add", {"a": 1, "b": 2}), CallTool("fail", {}), "done"))

    @agent.tool_plain
    async def add(a: int, b: int) -> int:
        return a + b

    @agent.tool_plain
    async def fail() -> str:
        raise ConnectionError("bank is down")

    Flujo(make("ask", agent), settings=settings).run("?")
    good, bad = sink.of("tool.ended")
    assert (good.status, good.result, good.feedback) == ("success", 3, None)
    assert (bad.status, bad.result, bad.feedback) == ("failure", None, "ConnectionError: bank is down")
    assert sink.of("tool.started")[0].arguments == {"a": 1, "b": 2}


@pytest.mark.parametrize("value", ["yes", 1, None])
def test_mergeable_output_is_a_switch(value: Any) -> None:
    """Whatever else is a mistake, and found when the step is declared."""
    with pytest.raises(DeclarationError, match="step 'a': mergeable_output must be True or False"):
        Step("a", same, mergeable_output=value)


# --- spans of user code -------------------------------------------------------------------------------------


@BACKENDS
def test_the_spans_of_user_code_stand_below_their_step(backend: str) -> None:
    """Of a coroutine, of a thread, of a validator, and of whatever they call, on both loops."""
    otel = Recording()

    async def fetch(data: int) -> int:
        with otel.tracer.start_as_current_span("http"):
            await anyio.sleep(0)
            with otel.tracer.start_as_current_span("dns"):
                return data

    def compute(data: int) -> int:
        with otel.tracer.start_as_current_span("numbers"):
            return data

    def check(data: int) -> bool:
        with otel.tracer.start_as_current_span("check"):
            return True

    steps = Step("fetch", fetch) >> Step("compute", compute, validators=[check])
    Flujo(Pipeline([steps], name="p"), settings=otel.settings()).run(1, backend=backend)
    attempt = ("run p", "step pipeline 1")
    assert (*attempt, "step fetch", "attempt 1", "http", "dns") in otel.tree()
    assert (*attempt, "step compute", "attempt 1", "numbers") in otel.tree()
    assert (*attempt, "step compute", "attempt 1", "check") in otel.tree()


@BACKENDS
def test_the_spans_of_branches_do_not_mix(backend: str) -> None:
    """Steps that run at once each have a current span of their own, over every retry."""
    otel = Recording()
    met = {}

    def work(name: str) -> Any:
        async def step(data: int) -> int:
            met[name] = met.get(name, 0) + 1
            with otel.tracer.start_as_current_span(f"work {name}"):
                for _ in range(3):
                    await anyio.sleep(0)
                    with otel.tracer.start_as_current_span(f"more {name}"):
                        await anyio.sleep(0)
            if met[name] == 1:
                raise ValueError("once more")
            return data

        return step

    names = [f"n{number}" for number in range(8)]
    branches = {name: Step(name, work(name), max_retries=1) for name in names}
    Flujo(Step.parallel("all", branches), settings=otel.settings()).run(1, backend=backend)
    own = {path for path in otel.tree() if path[-1].startswith(("work", "more"))}
    below = {
        ("run all", "step all", "attempt 1", f"step {name}", f"attempt {number}", f"work {name}", *more)
        for name in names
        for number in (1, 2)
        for more in ((), (f"more {name}",))
    }
    assert own == below


@BACKENDS
def test_the_span_of_the_caller_is_current_again_after_a_run(backend: str) -> None:
    """Also after one that failed, and one that was cancelled in the middle."""
    otel = Recording()

    async def fail(data: int) -> int:
        raise ValueError("no")

    async def wait(data: int) -> None:
        await anyio.sleep(30)

    async def main() -> None:
        with otel.tracer.start_as_current_span("caller"):
            await Flujo(Step("a", fail), settings=otel.settings()).run_async(1)
            with anyio.move_on_after(0.01):
                await Flujo(Step("b", wait), settings=otel.settings()).run_async(1)
            with otel.tracer.start_as_current_span("after"):
                pass

    anyio.run(main, backend=backend)
    assert {("caller", "run a"), ("caller", "run b"), ("caller", "after")} <= otel.tree()


@pytest.mark.parametrize("make", [Step, Step.granular], ids=["atomic", "granular"])
@BACKENDS
def test_the_spans_of_a_tool_stand_below_its_call(backend: str, make: Any) -> None:
    """An instrumented client in a tool is told as part of that tool, or of the attempt where its loop is a thread."""
    otel = Recording()
    above = "execute_tool look" if backend == "asyncio" else "attempt 1"
    agent = Agent(scripted_model([CallTool("look", {"at": "x"}), CallTool("look", {"at": "y"})], "done"))

    @agent.tool_plain
    async def look(at: str) -> str:
        with otel.tracer.start_as_current_span(f"GET {at}"):
            await anyio.sleep(0)
            return at

    Flujo(make("ask", agent), settings=otel.settings()).run("?", backend=backend)
    assert {path[-2:] for path in otel.tree() if path[-1].startswith("GET")} == {
        (above, "GET x"),
        (above, "GET y"),
    }


# --- without the SDK ----------------------------------------------------------------------------------------


WITHOUT_SDK = """
import importlib.abc, sys
class Missing(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.startswith("opentelemetry.sdk"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Missing())
from flujo_actors import DeclarationError
from flujo_actors.telemetry.otel import OtelSink
try:
    OtelSink()
except DeclarationError as error:
    print(error)
"""


def test_a_sink_without_the_sdk_says_which_extra_is_missing() -> None:
    """Spans would be made and dropped, without a word."""
    done = subprocess.run([sys.executable, "-c", WITHOUT_SDK], capture_output=True, text=True, timeout=240, check=True)
    assert "pip install 'flujo-actors[otel]'" in done.stdout


def test_a_sink_with_the_sdk_takes_the_global_providers() -> None:
    """Whoever sets them up later is heard from then on."""
    assert OtelSink().open_runs == 0
