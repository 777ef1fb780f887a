"""OpenTelemetry: the spans of runs nest, carry the GenAI attributes, and always end."""

from __future__ import annotations

import json
import threading
import time
from typing import Any

import anyio
import pytest
from opentelemetry.trace import SpanKind, StatusCode
from recorded_spans import Recording
from told_runs import (
    AT_ONCE,
    asking,
    broken,
    falling_back,
    left_in_a_thread,
    mending,
    report,
    retried,
    same,
    with_a_broken_hook,
)

from flujo_actors import Aborted, DeclarationError, Flujo, MemoryStore, Paused, Pipeline, Step, make_agent_async
from flujo_actors.telemetry.otel._sink import OtelSink
from flujo_actors.testing import CallTool, scripted_model


@pytest.fixture
def otel() -> Recording:
    """A fresh recording."""
    return Recording()


def test_spans_nest_run_step_attempt_call(otel: Recording) -> None:
    """The tree of spans is the tree of the work."""
    report(otel.settings())
    assert otel.tree() == {
        ("run report",),
        ("run report", "step write"),
        ("run report", "step write", "attempt 1"),
        ("run report", "step write", "attempt 1", "chat scripted"),
        ("run report", "step write", "attempt 2"),
        ("run report", "step write", "attempt 2", "chat scripted"),
        ("run report", "step write", "attempt 2", "execute_tool search"),
    }


def test_a_model_call_carries_the_genai_attributes(otel: Recording) -> None:
    """What backends for language models read."""
    report(otel.settings())
    span = otel.spans["chat scripted"]
    assert span.kind is SpanKind.CLIENT
    assert dict(span.attributes or {}) == {
        "flujo.path": "write",
        "flujo.step": "write",
        "flujo.status": "success",
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "scripted",
        "gen_ai.system": "scripted",
        "gen_ai.request.model": "scripted",
        "gen_ai.response.model": "scripted",
        "gen_ai.usage.input_tokens": 10,
        "gen_ai.usage.output_tokens": 5,
    }


def test_an_attempt_of_an_agent_is_an_agent_invocation(otel: Recording) -> None:
    """Usage and prompt belong to the attempt that asked, and the usage of its calls adds up."""
    report(otel.settings(content=True))
    said = otel.spans["attempt 2"].attributes or {}
    assert said["gen_ai.operation.name"] == "invoke_agent"
    assert said["gen_ai.agent.name"] == "write"
    assert (said["gen_ai.usage.input_tokens"], said["gen_ai.usage.output_tokens"]) == (20, 10)
    assert (said["flujo.requests"], said["flujo.tool_calls"]) == (2, 1)
    assert said["flujo.cost_usd"] == pytest.approx(0.04)
    assert json.loads(str(said["gen_ai.system_instructions"])) == [{"type": "text", "content": "You write reports."}]


ENDINGS: dict[str, tuple[Any, str, StatusCode, str | None]] = {
    "success": ("done", "completed", StatusCode.OK, None),
    "paused": (Paused(message="go on?"), "paused", StatusCode.OK, None),
    "failure": (ValueError("why"), "failed", StatusCode.ERROR, "ValueError: why"),
    "aborted": (Aborted(reason="why"), "aborted", StatusCode.ERROR, "why"),
}


@pytest.mark.parametrize("status", ENDINGS)
def test_spans_end_with_the_status_of_their_step_and_their_run(otel: Recording, status: str) -> None:
    """Success, failure, pause and abort each end the spans and say what happened."""
    answer, run_status, code, description = ENDINGS[status]

    async def end(data: Any) -> Any:
        if isinstance(answer, BaseException):
            raise answer
        return answer

    Flujo(Step("a", end), settings=otel.settings()).run(1)
    for name, said in (("attempt 1", status), ("step a", status), ("run a", run_status)):
        span = otel.spans[name]
        assert span.status.status_code is code
        assert (span.attributes or {})["flujo.status"] == said
        assert (description is None) is (span.status.description is None)
        assert (description or "") in (span.status.description or "")


def test_a_run_that_is_cut_short_ends_what_is_still_open(otel: Recording) -> None:
    """Cancellation gives an attempt no chance to end; its step ends it, and nothing is called a success."""

    async def main() -> None:
        with anyio.CancelScope() as scope:

            async def wait(data: Any) -> None:
                scope.cancel()
                await anyio.sleep(30)

            await Flujo(Step("a", wait), settings=otel.settings()).run_async(1)

    anyio.run(main)
    assert otel.sink.open_runs == 0
    assert [span.name for span in otel.ended] == ["attempt 1", "step a", "run a"]
    assert {span.status.status_code for span in otel.ended} == {StatusCode.ERROR}
    assert otel.spans["attempt 1"].status.description == "still open when its step ended"


def test_nested_steps_nest_by_path(otel: Recording) -> None:
    """Items, attempts and fallbacks in a path belong to the step they extend."""
    body = Step("body", broken, fallback=Step("stand-in", same))
    Flujo(Step.map_over("map", body) >> Step("sibling", same), settings=otel.settings()).run([1])
    run = "run map >> sibling"
    assert {
        (run, "step map", "attempt 1", "step body", "attempt 1"),
        (run, "step map", "attempt 1", "step body", "step stand-in", "attempt 1"),
        (run, "step sibling", "attempt 1"),
    } <= otel.tree()


def test_the_run_span_is_a_child_of_the_callers_span(otel: Recording) -> None:
    """A run inside a traced request is part of its trace, and its steps hang below the run alone."""
    with otel.tracer.start_as_current_span("request"):
        report(otel.settings())
    assert otel.parent_of("run report") == "request"
    assert otel.parent_of("step write") == "run report"
    assert len({span.context.trace_id for span in otel.ended if span.context}) == 1


def test_concurrent_runs_do_not_mix(otel: Recording) -> None:
    """The same paths in many runs at once are as many trees."""

    async def work(data: int) -> int:
        await anyio.sleep(0)
        return data

    flujo = Flujo(Step("a", work) >> Step("b", work), settings=otel.settings())

    async def main() -> None:
        async with anyio.create_task_group() as tasks:
            for number in range(5):
                tasks.start_soon(lambda number=number: flujo.run_async(number))

    anyio.run(main)
    by_trace: dict[int, int] = {}
    for span in otel.ended:
        assert span.context is not None
        by_trace[span.context.trace_id] = by_trace.get(span.context.trace_id, 0) + 1
    assert list(by_trace.values()) == [5] * 5


def test_a_run_that_ended_is_forgotten(otel: Recording) -> None:
    """Memory is freed with the run."""
    left_in_a_thread(otel.settings())
    report(otel.settings())
    assert otel.sink.open_runs == 0


def test_a_resumed_run_opens_a_span_of_its_own(otel: Recording) -> None:
    """The stretch before the pause has ended; the next one begins with the answer."""
    asking(otel.settings(content=True))
    first, second = (span for span in otel.ended if span.name == "run asking")
    assert (first.attributes or {})["flujo.status"] == "paused"
    assert (second.attributes or {})["flujo.resumed"] is True
    assert (second.attributes or {})["flujo.answer"] == "yes"
    assert [event.name for span in otel.ended for event in span.events] == ["run.paused"]


def test_spans_have_the_time_of_day_and_the_length_of_the_runs_clock(otel: Recording) -> None:
    """A clock that starts anywhere still gives the right dates, and spans lie inside each other."""
    before = time.time_ns()
    report(otel.settings())
    run, step = otel.spans["run report"], otel.spans["step write"]
    times = [run.start_time, step.start_time, step.end_time, run.end_time]
    assert times == sorted(times, key=int)
    assert before <= int(run.start_time or 0) <= time.time_ns()


def test_what_happens_between_shows_as_events_of_the_nearest_span(otel: Recording) -> None:
    """Retries, fallbacks, repairs and hooks are noted where they happened."""
    falling_back(otel.settings())
    with_a_broken_hook(otel.settings())
    noted = {name: [event.name for event in span.events] for name, span in otel.spans.items() if span.events}
    assert noted == {"step try": ["step.retry", "step.fallback"], "step a": ["hook.failed"]}
    fallback = otel.spans["step try"].events[1]
    assert "no luck" in str((fallback.attributes or {})["flujo.feedback"])


def test_overlapping_calls_of_one_run_are_told_apart(otel: Recording) -> None:
    """Parallel model calls each end their own span."""
    models = {"m1": scripted_model("fine", name="m1"), "m2": scripted_model(ValueError("no"), name="m2")}
    branches = {name: Step(name, make_agent_async(model)) for name, model in models.items()}
    Flujo(Step.parallel("both", branches, on_branch_failure="ignore"), settings=otel.settings()).run("?")
    assert otel.spans["chat m1"].status.status_code is StatusCode.OK
    assert otel.spans["chat m2"].status.status_code is StatusCode.ERROR
    assert (otel.spans["chat m2"].attributes or {})["error.type"] == "ValueError"


def test_metrics_count_tokens_dollars_time_and_repairs(otel: Recording) -> None:
    """The figures dashboards are made of."""
    report(otel.settings())
    points = otel.metrics()
    tokens = {point.attributes["gen_ai.token.type"]: point.sum for point in points["gen_ai.client.token.usage"]}
    assert tokens == {"input": 20, "output": 10}
    assert sum(point.count for point in points["gen_ai.client.operation.duration"]) == 3
    assert sum(point.value for point in points["flujo.cost"]) == pytest.approx(0.04)
    mending(otel.settings())
    points = otel.metrics()
    assert {point.attributes["flujo.event"] for point in points["flujo.aros.repair"]} == {
        "started",
        "success",
        "failed",
    }
    stages = {point.attributes["flujo.stage"] for point in points["flujo.aros.fallback.stage"]}
    assert stages == {"retry", "extractor", "degrade"}


def test_spans_of_runs_have_their_labels_and_metrics_only_the_named_ones(otel: Recording) -> None:
    """Each value of a label in a metric is a time series."""
    settings = otel.settings(metric_labels=["tenant"])
    labels = {"tenant": "7", "user": "ada"}
    Flujo(Pipeline([Step("same", same)], name="p"), settings=settings).run(1, labels=labels)
    attributes = otel.spans["run p"].attributes or {}
    assert (attributes["flujo.label.tenant"], attributes["flujo.label.user"]) == ("7", "ada")
    [ended] = otel.metrics()["flujo.runs.ended"]
    assert (ended.value, dict(ended.attributes)) == (
        1,
        {"pipeline": "p", "status": "completed", "flujo.label.tenant": "7"},
    )


def test_metrics_have_no_labels_unless_they_are_named(otel: Recording) -> None:
    """A pause is no end; the end after it is one."""
    asking(otel.settings())
    [ended] = otel.metrics()["flujo.runs.ended"]
    assert (ended.value, dict(ended.attributes)) == (1, {"pipeline": "asking", "status": "completed"})


def test_a_retry_is_an_event_of_the_run_span(otel: Recording) -> None:
    """With its number and reason, once."""
    retried(otel.settings())
    events = [event for span in otel.ended for event in span.events if event.name == "run.retried"]
    assert [(event.attributes or {})["flujo.reason"] for event in events] == ["the cause is gone"]


@pytest.mark.parametrize("names", [7, ["a b"], "a b"])
def test_names_of_metric_labels_are_checked(names: Any) -> None:
    """A text is a list with commas, for the environment."""
    with pytest.raises(DeclarationError):
        Flujo(Step("same", same), settings={"telemetry": {"metric_labels": names}})
    Flujo(Step("same", same), settings={"telemetry": {"metric_labels": "tenant, user"}})


def test_without_providers_the_global_ones_are_used() -> None:
    """An application that configures nothing gets no spans and no errors."""
    sink = OtelSink()
    report({"telemetry": {"sinks": [sink]}})
    assert sink.open_runs == 0


@pytest.mark.parametrize("content", [False, True])
def test_no_span_carries_a_secret(otel: Recording, content: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The canary test of the spans: prompts, inputs, arguments, results and what errors say."""
    canary = "canary-9000-canary"
    monkeypatch.setenv("SERVICE_API_KEY", canary)
    report(otel.settings(content=content), question={"api_key": "another-one", "said": f"the question {canary}"})

    async def refuse(data: Any) -> Any:
        raise PermissionError(f"401 for {canary}")

    Flujo(Step("a", refuse, max_retries=1, backoff=AT_ONCE), settings=otel.settings(content=content)).run(canary)
    written = "".join(span.to_json() for span in otel.ended)
    assert canary not in written
    assert "another-one" not in written
    assert "401 for [redacted]" in written
    assert ("the question" in written) is content


def test_a_deep_tree_that_is_given_up_ends_from_the_leaves(otel: Recording) -> None:
    """A hundred levels deep is no reason to fail."""

    async def wait(data: Any) -> None:
        reached.set()
        await anyio.sleep(30)

    reached = threading.Event()
    step: Any = Step("s", wait)
    for _ in range(100):
        step = Step.parallel("s", {"s": step})

    async def main() -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: Flujo(step, settings=otel.settings()).run_async(1))
            while not reached.is_set():
                await anyio.sleep(0.01)
            tasks.cancel_scope.cancel()

    anyio.run(main)
    ended = [str((span.attributes or {})["flujo.path"]) for span in otel.ended if span.name == "step s"]
    assert len(ended) == 101
    assert ended == sorted(ended, key=len, reverse=True)


def test_spans_of_an_agent_carry_its_own_name_and_the_request_settings(otel: Recording) -> None:
    """Name and settings of the agent, under the names of the conventions."""
    settings: Any = {"temperature": 0.3, "max_tokens": 50, "stop_sequences": ["END"]}
    agent = make_agent_async(scripted_model("four"), name="clerk", model_settings=settings)
    Flujo(Step("ask", agent), settings=otel.settings()).run("?")
    call, attempt = (dict(otel.spans[name].attributes or {}) for name in ("chat scripted", "attempt 1"))
    assert call["gen_ai.agent.name"] == attempt["gen_ai.agent.name"] == "clerk"
    assert (call["gen_ai.request.temperature"], call["gen_ai.request.max_tokens"]) == (0.3, 50)
    assert call["gen_ai.request.stop_sequences"] == ("END",)


def test_each_failed_span_says_the_type_of_its_error(otel: Recording) -> None:
    """Run, step, attempt and tool call; a failure without an exception is `_OTHER`."""
    agent = make_agent_async(scripted_model(CallTool("look", {})), tools=[_failing_tool])
    Flujo(Step("ask", agent), settings=otel.settings()).run("?")
    failed = {name: (span.attributes or {}).get("error.type") for name, span in otel.spans.items()}
    assert failed.pop("chat scripted") is None
    assert set(failed) == {"run ask", "step ask", "attempt 1", "execute_tool look"}
    assert set(failed.values()) == {"KeyError"}
    Flujo(Step("check", same, validators=lambda data: "no"), settings=otel.settings()).run(1)
    assert (otel.spans["step check"].attributes or {})["error.type"] == "_OTHER"


def _failing_tool() -> str:
    raise KeyError("id")


_failing_tool.__name__ = "look"


def test_histograms_have_the_bounds_of_the_conventions(otel: Recording) -> None:
    """Calls of less than five seconds are told apart."""
    Flujo(Step("ask", make_agent_async(scripted_model("four"))), settings=otel.settings()).run("?")
    points = otel.metrics()
    assert points["gen_ai.client.operation.duration"][0].explicit_bounds[:3] == (0.01, 0.02, 0.04)
    assert points["gen_ai.client.operation.duration"][0].explicit_bounds[-1] == 81.92
    assert points["gen_ai.client.token.usage"][0].explicit_bounds == tuple(4.0**power for power in range(14))


def test_the_span_after_a_wait_links_to_the_one_before() -> None:
    """In any process: the record of the wait has the former span."""
    now, first, second = [1000.0], Recording(), Recording()
    store = MemoryStore(wall=lambda: now[0])
    pipeline = Pipeline([Step.sleep("nap", 60)], name="napping")
    assert Flujo(pipeline, store=store, settings=first.settings()).run(1).status == "sleeping"
    now[0] += 61
    [result] = Flujo(pipeline, store=store, settings=second.settings()).recover()
    assert result.success
    [link] = second.spans["run napping"].links
    before = first.spans["run napping"].context
    assert (link.context.trace_id, link.context.span_id) == (before.trace_id, before.span_id)
