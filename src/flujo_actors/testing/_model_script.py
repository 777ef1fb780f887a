"""What a scripted model may answer, beyond plain values. Importing this does not import pydantic-ai."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import attrs

from .._core.usage import Usage

if TYPE_CHECKING:
    from ._model_player import ScriptedModel

DEFAULT_USAGE = Usage(input_tokens=10, output_tokens=5)
"""What a reply bills unless it is said."""


@attrs.frozen
class CallTool:
    """The model calls a tool. A list of these, with texts between, is one response."""

    name: str
    arguments: Mapping[str, Any] = attrs.field(factory=dict)


@attrs.frozen
class Billed:
    """A reply with its own usage; zero tokens are possible."""

    reply: Any
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0


def scripted_model(
    *replies: object, name: str = "scripted", usage: Usage = DEFAULT_USAGE, forever: bool = False
) -> ScriptedModel:
    """A pydantic-ai model that plays a script, one reply per request, and keeps what it was asked.

    A reply is a text; `Streamed(pieces)`; `CallTool(name, arguments)` or a list of them; any other value, which
    goes to the agent's output tool (as JSON text, if it has none); an exception; `Delayed(seconds, reply)`, in real
    time; `Billed(reply, …)`; a `ModelResponse`; or a callable on the messages that returns one of these.
    """
    from ._model_player import ScriptedModel  # loads pydantic-ai, which only model agents need

    return ScriptedModel(*replies, name=name, usage=usage, forever=forever)
