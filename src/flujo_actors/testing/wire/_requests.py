"""What a client asked, in one shape for all providers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

import attrs

Body: TypeAlias = dict[str, object]
"""A JSON object as it stands on the wire."""

Received: TypeAlias = dict[str, Any]
"""One that a client sent: it is read as its provider documents it, and what does not fit is the client's mistake."""

Dialect: TypeAlias = Literal["openai-chat", "openai-responses", "anthropic"]
"""The wire format a request came in."""

OUTPUT_TOOL = "final_result"
"""How pydantic-ai begins the names of the tools that carry a run's output."""


@attrs.frozen(kw_only=True)
class Called:
    """A tool call the client repeats from an earlier answer."""

    id: str
    name: str
    arguments: str


@attrs.frozen(kw_only=True)
class Message:
    """One entry of the conversation. A tool's result has the role `tool` and names the call it answers."""

    role: str
    text: str = ""
    calls: tuple[Called, ...] = ()
    call_id: str | None = None


@attrs.frozen(kw_only=True)
class Tool:
    """A tool the model may call, with the JSON Schema of its arguments."""

    name: str
    description: str = ""
    parameters: Mapping[str, Any] = attrs.field(factory=dict)


@attrs.frozen(kw_only=True)
class Asked:
    """What a dialect reads out of a body."""

    messages: tuple[Message, ...]
    tools: tuple[Tool, ...]
    response_format: str = "text"


@attrs.frozen(kw_only=True)
class Request:
    """A request as a script sees it. `body` and `headers` (lower-case names) are the raw ones."""

    index: int
    """0 for the first request of this stub."""
    dialect: Dialect
    model: str
    messages: tuple[Message, ...]
    tools: tuple[Tool, ...]
    stream: bool
    response_format: str
    """`text`, `json_object` or `json_schema`."""
    body: Mapping[str, Any]
    headers: Mapping[str, str]

    @property
    def text(self) -> str:
        """All text of the conversation, a line per message."""
        return "\n".join(message.text for message in self.messages)

    @property
    def prompt(self) -> str:
        """The text of the last message a user wrote, or nothing."""
        return next((message.text for message in reversed(self.messages) if message.role == "user"), "")

    @property
    def output_tool(self) -> str | None:
        """The tool that takes the run's structured output, if the output is asked for that way."""
        return next((tool.name for tool in self.tools if tool.name.startswith(OUTPUT_TOOL)), None)


def text_of(content: object) -> str:
    """The text in a message's content: a string, a list of blocks, or nothing."""
    match content:
        case str():
            return content
        case list():
            return "".join(text_of(block) for block in content)
        case {"text": str() as text}:
            return text
        case {"content": inner}:
            return text_of(inner)
    return ""
