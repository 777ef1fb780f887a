"""What an event says in OpenTelemetry's words: the GenAI semantic conventions, and `flujo.*` for the rest."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TypeAlias

from ..._core.events import (
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
    """The values that say something, as attribute values; what is no scalar is written as JSON."""
    return {name: _written(value) for name, value in values.items() if not _says_nothing(value)}


def _says_nothing(value: object) -> bool:
    return value is None or (isinstance(value, str) and not value)


def _written(value: object) -> AttributeValue:
    if isinstance(value, str | bool | int | float):
        return value
    return json.dumps(value, ensure_ascii=False, default=str)


def event_attributes(event: Event) -> Attributes:
    """All an event says, for an event of a span."""
    said = facts(event)
    return written({f"flujo.{name}": said[name] for name in said.keys() - {"kind", "at", "run_id"}})


def provider_attributes(provider: str | None) -> Attributes:
    """Who answers; `gen_ai.system` is the older name, which many backends still read."""
    name = _PROVIDERS.get(provider, provider) if provider else None
    return written({"gen_ai.provider.name": name, "gen_ai.system": name})


def model_attributes(event: ModelStarted) -> Attributes:
    """What is known of a model call when it begins."""
    call = written({"gen_ai.operation.name": "chat", "gen_ai.request.model": event.model})
    return call | provider_attributes(event.provider)


def model_result_attributes(event: ModelEnded) -> Attributes:
    """What is known of a model call when it has ended."""
    said = written({"gen_ai.response.model": event.response_model, "error.type": _error_type(event)})
    if event.finish_reason:
        said["gen_ai.response.finish_reasons"] = [event.finish_reason]
    return said | token_attributes(event)


def _error_type(event: ModelEnded) -> str | None:
    return (event.error_type or "_OTHER") if event.status == "failure" else event.error_type


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
    """Tokens, calls and dollars of one or more calls; empty if there was none."""
    if usage == Usage():
        return {}
    calls = {"flujo.requests": usage.requests, "flujo.tool_calls": usage.tool_calls}
    return token_attributes(usage) | written({**calls, "flujo.cost_usd": usage.cost_usd})


def agent_attributes(event: AgentUsage) -> Attributes:
    """Who an attempt asked."""
    agent = written({"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": event.step_name})
    model = written({"gen_ai.request.model": event.model, "flujo.zero_tokens": event.zero_tokens or None})
    return agent | model | provider_attributes(event.provider)


def tool_attributes(event: ToolStarted) -> Attributes:
    """What is known of a tool call when it begins."""
    return written(
        {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": event.tool_name,
            "gen_ai.tool.call.id": event.tool_call_id,
            "gen_ai.tool.call.arguments": event.arguments,
        }
    )


def tool_result_attributes(event: ToolEnded) -> Attributes:
    """What is known of a tool call when it has ended."""
    return written({"gen_ai.tool.call.result": event.result})


def retrieval_attributes(event: RetrievalStarted) -> Attributes:
    """What is known of a search when it begins."""
    return written(
        {
            "gen_ai.operation.name": "retrieval",
            "gen_ai.data_source.id": event.collection,
            "gen_ai.retrieval.query.text": event.query,
        }
    )


def retrieval_result_attributes(event: RetrievalEnded) -> Attributes:
    """What is known of a search when it has ended."""
    said = {"flujo.found": event.found, "flujo.best_score": event.best_score, "flujo.cached": event.cached}
    return written({"gen_ai.retrieval.documents": event.documents, **said})


def system_attributes(text: str | None) -> Attributes:
    """The system prompt, as the conventions write instructions."""
    return written({"gen_ai.system_instructions": [{"type": "text", "content": text}] if text else None})
