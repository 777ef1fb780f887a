"""`make_agent_async`: the short way to a model agent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar, Unpack, overload

from pydantic import PydanticSchemaGenerationError, PydanticUserError
from pydantic_ai import Agent, Tool
from pydantic_ai.models import Model
from pydantic_ai.settings import ModelSettings

from .._core.policies.rate_limits import RateLimit, checked_limits
from .._core.records.data_models import SCHEMAS, known_to_pydantic
from .._core.type_parameters import Out
from .._core.validators import checked_seconds
from ..errors import DeclarationError

if TYPE_CHECKING:
    from pydantic_ai.agent import EndStrategy
    from pydantic_ai.capabilities import AgentCapability
    from pydantic_ai.output import OutputSpec
    from pydantic_ai.tools import ToolFuncEither
    from pydantic_ai.toolsets import AgentToolset

O = TypeVar("O")  # noqa: E741


class AgentConfig(TypedDict, total=False):
    """Further arguments of pydantic-ai's `Agent`."""

    instructions: object
    description: str | None
    validation_context: object
    toolsets: Sequence[AgentToolset[Any]] | None
    capabilities: Sequence[AgentCapability[Any]] | None
    end_strategy: EndStrategy
    metadata: Any
    tool_timeout: float | None
    max_concurrency: object


class StepAgent(Agent[Any, Out]):
    """pydantic-ai agent with a timeout `timeout_s` per step call, tools included."""

    timeout_s: float | None = None
    rate_limits: tuple[RateLimit, ...] = ()
    """Rate limits of its requests."""


@overload
def make_agent_async(
    model: Model | str,
    system_prompt: str | Sequence[str] = (),
    *,
    name: str | None = None,
    tools: Sequence[Tool[Any] | ToolFuncEither[Any, ...]] = (),
    model_settings: ModelSettings | None = None,
    timeout_s: float | None = None,
    retries: int = 1,
    deps_type: object = None,
    rate_limit: RateLimit | Sequence[RateLimit] | None = None,
    **config: Unpack[AgentConfig],
) -> StepAgent[str]: ...
@overload
def make_agent_async(
    model: Model | str,
    system_prompt: str | Sequence[str] = (),
    output_type: OutputSpec[O] = ...,
    *,
    name: str | None = None,
    tools: Sequence[Tool[Any] | ToolFuncEither[Any, ...]] = (),
    model_settings: ModelSettings | None = None,
    timeout_s: float | None = None,
    retries: int = 1,
    deps_type: object = None,
    rate_limit: RateLimit | Sequence[RateLimit] | None = None,
    **config: Unpack[AgentConfig],
) -> StepAgent[O]: ...
def make_agent_async(
    model: Model | str,
    system_prompt: str | Sequence[str] = (),
    output_type: object = str,
    *,
    name: str | None = None,
    tools: Sequence[object] = (),
    model_settings: ModelSettings | None = None,
    timeout_s: float | None = None,
    retries: int = 1,
    deps_type: object = None,
    rate_limit: RateLimit | Sequence[RateLimit] | None = None,
    **config: object,
) -> StepAgent[Any]:
    """Return a stateless agent whose prompt is the step's data.

    It never gets `context` or `resources`.

    Args:
        model: pydantic-ai model or its name, resolved at the first call: no key is needed to declare a pipeline.
        system_prompt: one or several system prompts.
        output_type: type of the output, as in pydantic-ai.
        name: name of the agent.
        tools: functions and tools.
        model_settings: settings of the requests.
        timeout_s: timeout of one call, with its requests and tools; a step's own `timeout_s` also covers validators.
        retries: corrections of a tool call or an output that pydantic-ai refuses.
        deps_type: type of the dependencies of the tools.
        rate_limit: limits of every request.
        **config: further arguments of pydantic-ai's `Agent`: toolsets, instructions, capabilities.

    Raises:
        DeclarationError: an argument is not valid.
        TypeError: an argument is not one of the agent's.

    Example:
        ```python
        writer = make_agent_async(scripted_model("old pond"), "You write haiku.")  # or "openai:gpt-5"
        assert Flujo(Step("haiku", writer)).run("a frog").output == "old pond"
        ```
    """
    config |= {"name": name, "tools": tools, "model_settings": model_settings, "retries": retries}
    config |= {"system_prompt": system_prompt, "deps_type": deps_type or type(None), "defer_model_check": True}
    agent = _with_output_type(model, output_type, config)
    agent.timeout_s = None if timeout_s is None else checked_seconds(timeout_s, subject="make_agent_async: timeout_s")
    agent.rate_limits = checked_limits(rate_limit, "make_agent_async: rate_limit")
    return agent


def _with_output_type(model: Model | str, output_type: Any, config: dict[str, Any]) -> StepAgent[Any]:
    """Return the agent; raise `DeclarationError` for an unsupported output type."""
    try:
        return StepAgent(model, output_type=known_to_pydantic(output_type), **config)
    except (PydanticSchemaGenerationError, PydanticUserError) as error:
        raise DeclarationError(
            f"make_agent_async: {output_type!r:.100} is no type that pydantic-ai can ask a model for; for an attrs "
            f'class leave it out and give the step processing={{"schema": …}}, which takes {SCHEMAS}'
        ) from error


def approved_tool(function: Callable[..., object]) -> Tool[Any]:
    """Return a function as a tool whose calls wait for a person."""
    return Tool(function, requires_approval=True)
