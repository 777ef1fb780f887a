"""Agents that can call no tools: in their calls there are no tool calls to count, to limit or to tell of.

A capability that is given to one run makes pydantic-ai compose all capabilities of the agent anew for that run, which
takes a fifth of its time. Where tools may come from a place that cannot be seen, they may come.
"""

from __future__ import annotations

import functools

from pydantic_ai import Agent
from pydantic_ai.toolsets import FunctionToolset

from .per_agent import SomeAgent


def has_no_tools(agent: SomeAgent) -> bool:
    """Whether the agent has no tools now, and nothing that could bring some to a run."""
    if not isinstance(agent, Agent) or type(agent).run is not Agent.run or type(agent).iter is not Agent.iter:
        return False
    own, *more = agent.toolsets
    if more or not isinstance(own, FunctionToolset) or own.tools or _may_be_overridden(agent):
        return False
    return all(type(each) in _of_every_agent() for each in agent.root_capability.capabilities)


def _may_be_overridden(agent: object) -> bool:
    """Whether `Agent.override` may have given the agent other capabilities, which it keeps in a variable of its own."""
    override = getattr(agent, "_override_root_capability", None)
    return override is None or override.get() is not None


@functools.cache
def _of_every_agent() -> frozenset[type]:
    """The capabilities that pydantic-ai gives to every agent; they bring no tools to one that has none."""
    return frozenset(map(type, Agent().root_capability.capabilities))
