"""`make_agent_async`: the short way to a model agent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pydantic_ai import Agent
from pydantic_ai.models import Model
from pydantic_ai.settings import ModelSettings

from .._core.seconds import checked_seconds


class StepAgent(Agent[Any, Any]):
    """A pydantic-ai agent whose calls by steps take at most `timeout_s`, tools included."""

    timeout_s: float | None = None


def make_agent_async(
    model: Model | str,
    system_prompt: str | Sequence[str] = (),
    output_type: Any = str,
    *,
    name: str | None = None,
    tools: Sequence[Callable[..., Any]] = (),
    model_settings: ModelSettings | None = None,
    timeout_s: float | None = None,
    retries: int = 1,
    deps_type: Any = None,
    **config: Any,
) -> StepAgent:
    """A stateless agent for a step: it gets the step's data as its prompt, never `context` or `resources`.

    `model` is a pydantic-ai model name or `Model`; a name is resolved at the first call, so no key is needed to
    declare a pipeline. `timeout_s` is the time that one call may take, with all its requests and tools; a step's own
    `timeout_s` also covers validators and processors. `retries` is how often the model may mend a tool call or an
    output that pydantic-ai refuses. What else pydantic-ai's `Agent` takes (toolsets, instructions, capabilities, …)
    is handed on.
    """
    agent: StepAgent = StepAgent(
        model,
        output_type=output_type,
        system_prompt=system_prompt,
        name=name,
        tools=tools,
        model_settings=model_settings,
        retries=retries,
        deps_type=deps_type or type(None),
        defer_model_check=True,
        **config,
    )
    agent.timeout_s = None if timeout_s is None else checked_seconds(timeout_s, what="make_agent_async: timeout_s")
    return agent
