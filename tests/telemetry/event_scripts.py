"""Hand-made event sequences: what a run would tell, without a run."""

from __future__ import annotations

from typing import Any

from flujo_actors.core import events as ev
from flujo_actors.core.usage import Usage


class Script:
    """Makes events of one run, a second apart."""

    def __init__(self, run_id: str = "r1", begins_at: float = 1000.0) -> None:
        self.run_id = run_id
        self.now = begins_at

    def __call__(self, kind: type[Any], path: str = "", **facts: Any) -> Any:
        """The next event; a step's name is the last segment of its path unless given."""
        self.now += 1
        if "step_name" in {field.name for field in kind.__attrs_attrs__} and path:
            facts.setdefault("step_name", path.rpartition("/")[2])
        return kind(run_id=self.run_id, path=path, at=self.now, **facts)


def agent_run(run_id: str = "r1") -> list[ev.Event]:
    """A run of one agent step that succeeds at its second attempt, with a model call and a tool call."""
    make = Script(run_id)
    return [
        make(ev.RunStarted, pipeline_name="report"),
        make(ev.StepStarted, "write", input="the question"),
        make(ev.AttemptStarted, "write", attempt=1),
        make(ev.ModelStarted, "write", model="gpt-4o", provider="openai", attempt=1),
        make(
            ev.ModelEnded,
            "write",
            model="gpt-4o",
            provider="openai",
            status="failure",
            error_type="TimeoutError",
            feedback="too slow",
        ),
        make(ev.AttemptEnded, "write", attempt=1, status="failure", feedback="too slow"),
        make(ev.StepRetry, "write", attempt=1, delay_s=0.5, feedback="too slow"),
        make(ev.AttemptStarted, "write", attempt=2),
        make(ev.AgentSystem, "write", text="You write reports.", attempt=2),
        make(ev.ModelStarted, "write", model="gpt-4o", provider="openai", attempt=2),
        make(
            ev.ModelEnded,
            "write",
            model="gpt-4o",
            provider="openai",
            response_model="gpt-4o-2024-08-06",
            finish_reason="stop",
            input_tokens=10,
            output_tokens=5,
        ),
        make(ev.ToolStarted, "write", tool_name="search", tool_call_id="c1", arguments={"q": "x"}),
        make(ev.ToolEnded, "write", tool_name="search", tool_call_id="c1", result=["y"]),
        make(
            ev.AgentUsage,
            "write",
            model="gpt-4o",
            provider="openai",
            input_tokens=10,
            output_tokens=5,
            cached_tokens=2,
            requests=1,
            tool_calls=1,
            cost_usd=0.25,
            attempt=2,
        ),
        make(ev.AttemptEnded, "write", attempt=2, status="success"),
        make(
            ev.StepEnded,
            "write",
            status="success",
            attempts=2,
            usage=Usage(input_tokens=10, output_tokens=5, requests=1, cost_usd=0.25),
            output="the answer",
        ),
        make(ev.RunEnded, status="completed", usage=Usage(input_tokens=10, output_tokens=5, cost_usd=0.25)),
    ]
