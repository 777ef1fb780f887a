"""OpenTelemetry attributes of events: GenAI semantic conventions, and `flujo.*`."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import TypeAlias

from opentelemetry.trace import Span, SpanContext, TraceFlags

from ..._core.telemetry_events import (
    AgentUsage,
    Event,
    ModelEnded,
    ModelStarted,
    RetrievalEnded,
    RetrievalStarted,
    ToolEnded,
    ToolStarted,
    facts,
)
from ..._core.usage import Usage

AttributeValue: TypeAlias = str | bool | int | float | list[str]
Attributes: TypeAlias = dict[str, AttributeValue]

# The conventions name some providers differently from the clients that talk to them.
_PROVIDERS = {
    "azure": "azure.ai.openai",
    "bedrock": "aws.bedrock",
    "google": "gcp.gen_ai",
    "google-gla": "gcp.gemini",
    "google-vertex": "gcp.vertex_ai",
    "grok": "x_ai",
    "mistral": "mistral_ai",
    "xai": "x_ai",
}


def written(values: Mapping[str, object]) -> Attributes:
    """Return the non-empty values as attributes; non-scalars as JSON."""
    return {name: _written(value) for name, value in values.items() if not _says_nothing(value)}


def _says_nothing(value: object) -> bool:
    return value is None or (isinstance(value, str) and not value)


def _written(value: object) -> AttributeValue:
    if isinstance(value, str | bool | int | float):
        return value
    return json.dumps(value, ensure_ascii=False, default=str)


def event_attributes(event: Event) -> Attributes:
    """Return all attributes of an event, for a span event."""
    attributes = facts(event)
    return written(
        {f"flujo.{name}": attributes[name] for name in attributes.keys() - {"kind", "at", "run_id", "labels"}}
    )


def label_attributes(labels: Mapping[str, str]) -> Attributes:
    """Return the labels of a run."""
    return {f"flujo.label.{name}": value for name, value in labels.items()}


def provider_attributes(provider: str | None) -> Attributes:
    """Return the provider, also under the older name `gen_ai.system`."""
    name = _PROVIDERS.get(provider, provider) if provider else None
    return written({"gen_ai.provider.name": name, "gen_ai.system": name})


def model_attributes(event: ModelStarted) -> Attributes:
    """Return the attributes of a model call at its start."""
    call = written({"gen_ai.operation.name": "chat", "gen_ai.request.model": event.model})
    call |= written({"gen_ai.agent.name": event.agent_name})
    return call | provider_attributes(event.provider) | _settings_attributes(event.settings or {})


def _settings_attributes(settings: Mapping[str, object]) -> Attributes:
    """Return temperature, token limit and other settings."""
    attributes = {f"gen_ai.request.{name}": value for name, value in settings.items() if name != "stop_sequences"}
    stops = settings.get("stop_sequences")
    listed: Attributes = {"gen_ai.request.stop_sequences": list(map(str, stops))} if isinstance(stops, list) else {}
    return written(attributes) | listed


def model_result_attributes(event: ModelEnded) -> Attributes:
    """Return the attributes of a model call at its end."""
    attributes = written({"gen_ai.response.model": event.response_model})
    if event.finish_reason:
        attributes["gen_ai.response.finish_reasons"] = [event.finish_reason]
    return attributes | token_attributes(event)


def error_attributes(error_type: str | None, *, failed: bool) -> Attributes:
    """Return a span's error class; `_OTHER` for a failure without one."""
    return written({"error.type": error_type or ("_OTHER" if failed else None)})


def token_attributes(counted: ModelEnded | Usage) -> Attributes:
    """Tokens in, out and from the cache."""
    return written(
        {
            "gen_ai.usage.input_tokens": counted.input_tokens,
            "gen_ai.usage.output_tokens": counted.output_tokens,
            "gen_ai.usage.cache_read.input_tokens": counted.cached_tokens or None,
        }
    )


def usage_attributes(usage: Usage) -> Attributes:
    """Return tokens, calls and dollars of calls; empty for none."""
    if usage == Usage():
        return {}
    calls = {"flujo.requests": usage.requests, "flujo.tool_calls": usage.tool_calls}
    return token_attributes(usage) | written({**calls, "flujo.cost_usd": usage.cost_usd})


def agent_attributes(event: AgentUsage) -> Attributes:
    """Return the agent of an attempt."""
    agent = written({"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": event.agent_name or event.step_name})
    model = written({"gen_ai.request.model": event.model, "flujo.zero_tokens": event.zero_tokens or None})
    return agent | model | provider_attributes(event.provider)


def tool_attributes(event: ToolStarted) -> Attributes:
    """Return the attributes of a tool call at its start."""
    return written(
        {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": event.tool_name,
            "gen_ai.tool.call.id": event.tool_call_id,
            "gen_ai.tool.call.arguments": event.arguments,
        }
    )


def tool_result_attributes(event: ToolEnded) -> Attributes:
    """Return the attributes of a tool call at its end."""
    return written({"gen_ai.tool.call.result": event.result})


def retrieval_attributes(event: RetrievalStarted) -> Attributes:
    """Return the attributes of a search at its start."""
    return written(
        {
            "gen_ai.operation.name": "retrieval",
            "gen_ai.data_source.id": event.collection,
            "gen_ai.retrieval.query.text": event.query,
        }
    )


def retrieval_result_attributes(event: RetrievalEnded) -> Attributes:
    """Return the attributes of a search at its end."""
    attributes = {"flujo.found": event.found, "flujo.best_score": event.best_score, "flujo.cached": event.cached}
    return written({"gen_ai.retrieval.documents": event.documents, **attributes})


def system_attributes(text: str | None) -> Attributes:
    """Return the system prompt, as the conventions write instructions."""
    return written({"gen_ai.system_instructions": [{"type": "text", "content": text}] if text else None})


# --- Spans of a run before and after a wait -----------------------------------------------------------------------


_TRACEPARENT = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")


def traceparent(span: SpanContext) -> str:
    """Return a span as W3C `traceparent`."""
    return f"00-{span.trace_id:032x}-{span.span_id:016x}-{span.trace_flags:02x}"


def link(span: Span, former: str | None) -> None:
    """Link a span to that of a stored `traceparent`, if any."""
    found = _TRACEPARENT.fullmatch(former or "")
    if found is not None:
        trace_id, span_id, flags = (int(part, 16) for part in found.groups())
        span.add_link(SpanContext(trace_id, span_id, is_remote=True, trace_flags=TraceFlags(flags)))
