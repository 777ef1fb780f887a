"""Counts and durations for OpenTelemetry meters."""

from __future__ import annotations

from opentelemetry.metrics import MeterProvider, get_meter_provider

from ..._core.events import (
    AgentUsage,
    ArosFallbackStage,
    ArosRepairFailed,
    ArosRepairStarted,
    ArosRepairSuccess,
    ModelEnded,
    RunTaken,
)
from ._semantic_conventions import Attributes, provider_attributes, written

_Repair = ArosRepairStarted | ArosRepairSuccess | ArosRepairFailed


class Metrics:
    """The instruments: the two of the GenAI conventions, and those of structured output."""

    def __init__(self, provider: MeterProvider | None) -> None:
        meter = (provider or get_meter_provider()).get_meter("flujo_actors")
        self._tokens = meter.create_histogram("gen_ai.client.token.usage", "{token}", "Tokens used.")
        self._duration = meter.create_histogram("gen_ai.client.operation.duration", "s", "Length of a call.")
        self._cost = meter.create_counter("flujo.cost", "{USD}", "Dollars spent.")
        self._waits = meter.create_histogram("flujo.queue.wait", "s", "How long runs waited for a worker.")
        self._repairs = meter.create_counter("flujo.aros.repair", "{repair}", "Repairs of structured output.")
        self._stages = meter.create_counter("flujo.aros.fallback.stage", "{stage}", "Fallback stages entered.")

    def taken(self, event: RunTaken) -> None:
        """Note how long a run waited for a worker."""
        self._waits.record(event.waited_s, written({"flujo.queue": event.queue}))

    def usage(self, event: AgentUsage) -> None:
        """Count tokens and dollars."""
        asked = _asked(event, "invoke_agent")
        if event.requests:  # what an agent did after its last request may be tool calls alone
            self._tokens.record(event.input_tokens, asked | {"gen_ai.token.type": "input"})
            self._tokens.record(event.output_tokens, asked | {"gen_ai.token.type": "output"})
        if event.cost_usd:
            self._cost.add(event.cost_usd, asked)

    def model_call(self, event: ModelEnded, duration_s: float) -> None:
        """Note how long a model call took."""
        self._duration.record(duration_s, _asked(event, "chat") | written({"error.type": event.error_type}))

    def repair(self, event: _Repair) -> None:
        """Count a repair that began, succeeded or failed."""
        ending = event.kind.rpartition(".")[2]
        self._repairs.add(1, _tags(event) | {"flujo.event": ending})

    def fallback_stage(self, event: ArosFallbackStage) -> None:
        """Count a fallback stage."""
        self._stages.add(1, _tags(event))


def _asked(event: AgentUsage | ModelEnded, operation: str) -> Attributes:
    model = written({"gen_ai.operation.name": operation, "gen_ai.request.model": event.model})
    return model | provider_attributes(event.provider)


def _tags(event: _Repair | ArosFallbackStage) -> Attributes:
    return written(
        {
            "flujo.stage": event.stage,
            "flujo.provider_error": event.provider_error,
            "flujo.schema_hash": event.schema_hash,
        }
    )
