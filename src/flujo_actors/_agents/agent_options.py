"""Arguments of `Agent.run` that a step passes on: `agent_options`.

Rules:

1. Every argument of the installed pydantic-ai may be given, apart from those that a step has its own option for.
2. Unknown names and values of a wrong kind are refused: at declaration, or when the step's function has made them.
3. The step's own capabilities, toolsets and retries of structured output are added to those that are given.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic_ai.agent import AbstractAgent
from pydantic_ai.models import Model
from pydantic_ai.toolsets import AbstractToolset, DynamicToolset, FunctionToolset
from pydantic_ai.usage import UsageLimits

from .._core.validators import nearest
from ..errors import DeclarationError
from .agent_cache import SomeAgent
from .output_schema import has_own_validators

_OF_THE_STEP = {
    "user_prompt": "the data of the step is the prompt; give the step `input=`",
    "deps": "give the step `deps=`",
    "message_history": "give the step `message_history=`",
    "conversation": "give the step `message_history=`",
    "usage": "usage is counted by the run; see `StepResult.usage`",
    "run_id": "the run has an id of its own; `conversation_id` correlates calls",
    "deferred_tool_results": "a deferred call pauses the run; answer it with `resume`",
    "cancellation_token": "cancel the run, or give the step `timeout_s=`",
    "infer_name": "name the agent",
}
"""Arguments that steps do not pass on, with their replacements."""

_KINDS: dict[str, tuple[tuple[type, ...], str]] = {
    "model": ((str, Model), "a model or its name"),
    "model_settings": ((Mapping,), "a mapping, or a function that makes one"),
    "usage_limits": ((UsageLimits,), "pydantic_ai.UsageLimits; Flujo's own are the step's option `usage_limits`"),
    "toolsets": ((Sequence,), "a list"),
    "capabilities": ((Sequence,), "a list"),
    "retries": ((int, Mapping), "a number, or a mapping with `tools` and `output`"),
    "conversation_id": ((str,), "a text"),
    "event_stream_handler": ((), "a function of the run's context and its events"),
    "timeout": ((int, float), "a number of seconds"),
}
_CALLABLE = frozenset(("model_settings", "event_stream_handler"))


def checked_options(given: object, agent: SomeAgent, *, where: str) -> dict[str, Any]:
    """Return the arguments, or raise `DeclarationError` naming the first wrong one."""
    if not isinstance(given, Mapping):
        raise DeclarationError(f"{where} must be a mapping of arguments of Agent.run, not {type(given).__name__}")
    for name, value in given.items():
        _check_name(name, where)
        if value is not None:
            _check_kind(name, value, where)
    if given.get("output_type") is not None and has_own_validators(agent):
        raise DeclarationError(
            f"{where} has `output_type`, but the agent has output validators, which judge its own output type: "
            "leave out one of the two"
        )
    return {name: value for name, value in given.items() if value is not None}


def _check_name(name: object, where: str) -> None:
    if name in _OF_THE_STEP:
        raise DeclarationError(f"{where} has {name!r}, which is not passed on: {_OF_THE_STEP[str(name)]}")
    if name not in _known():
        near = nearest(str(name), sorted(_known()), cutoff=0.5)
        hint = f"did you mean {near!r}?" if near else f"there are {', '.join(sorted(_known()))}"
        raise DeclarationError(f"{where} has {name!r}, which is no argument of Agent.run: {hint}")


@functools.cache
def _known() -> frozenset[str]:
    return frozenset(inspect.signature(AbstractAgent.run).parameters) - {"self", *_OF_THE_STEP}


def _check_kind(name: str, value: object, where: str) -> None:
    kinds, wanted = _KINDS.get(name, ((object,), ""))
    listed = Sequence not in kinds or not isinstance(value, str | bytes)
    if not (isinstance(value, kinds) and listed) and not (name in _CALLABLE and callable(value)):
        raise DeclarationError(f"{where}: {name!r} must be {wanted}, not {value!r:.100}")


def has_tools(agent: Any) -> bool:
    """Return whether an agent has tools or toolsets of its own."""
    while hasattr(agent, "wrapped"):
        agent = agent.wrapped
    return any(getattr(toolset, "tools", True) for toolset in agent.toolsets)


def toolset_to_connect(agent: Any, options: object) -> str | None:
    """Return a toolset that connects to list its tools, or None."""
    while hasattr(agent, "wrapped"):
        agent = agent.wrapped
    given = options.get("toolsets") or () if isinstance(options, Mapping) else ()
    found: list[AbstractToolset[Any]] = []
    for toolset in (*agent.toolsets, *given):
        if isinstance(toolset, AbstractToolset):
            toolset.apply(found.append)
    connecting = (each for each in found if _connects(each))
    return next((each.id or each.label for each in connecting), None)


def _connects(toolset: AbstractToolset[Any]) -> bool:
    """Return whether entering a toolset runs code of its own."""
    own = type(toolset).__aenter__ not in (AbstractToolset.__aenter__, FunctionToolset.__aenter__)
    return own or isinstance(toolset, DynamicToolset)
