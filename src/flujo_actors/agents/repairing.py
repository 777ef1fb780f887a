"""The model that repairs: the one of the step's agent, with nothing of the agent but the model."""

from __future__ import annotations

from typing import Any

from pydantic_ai import Agent
from pydantic_ai.agent import AbstractAgent


def repairer(agent: AbstractAgent[Any, Any]) -> Agent[None, str] | None:
    """An agent without prompt, tools, deps or history; `None` if the agent has no model of its own."""
    model = getattr(agent, "model", None)
    return None if model is None else Agent(model, output_type=str, name="repair", retries=0)
