"""Classification of model call errors about content, and their text."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any

from pydantic import ValidationError
from pydantic_ai.exceptions import (
    ContentFilterError,
    ModelAPIError,
    ModelConnectionError,
    ModelHTTPError,
    ModelRetry,
    UnexpectedModelBehavior,
)
from pydantic_ai.messages import ModelResponse, ThinkingPart, ToolCallPart
from pydantic_ai.models import StreamedResponse
from pydantic_core import to_json

_JSON_MODE_STATUSES = (400, 422)
_NO_ANSWER_ACCEPTED = "Exceeded maximum output retries"
"""pydantic-ai's message after its last output retry."""


def is_about_content(error: object) -> bool:
    """Return whether a retry or a repair of the text may help.

    It may if an answer broke off, is not in the requested format, or if a JSON mode failed; it does not if the provider
    is overloaded, unreachable for this account or refuses to serve.
    """
    if isinstance(error, ModelHTTPError):
        return error.status_code in _JSON_MODE_STATUSES and "json" in json.dumps(error.body, default=str).lower()
    if isinstance(error, ModelAPIError):
        return isinstance(error, ModelConnectionError) or type(error) is ModelAPIError
    return isinstance(error, UnexpectedModelBehavior | ModelRetry | ValidationError)


def broke_off(error: object) -> bool:
    """Return whether the answer ended because the connection did."""
    return isinstance(error, ModelAPIError) and not isinstance(error, ModelHTTPError)


_ENDED_BY_REASON = ("openai", "anthropic", "google", "groq", "mistral", "bedrock", "huggingface", "cohere")
"""Modules of pydantic-ai whose providers end every stream with a finish reason."""


def require_end(stream: StreamedResponse) -> None:
    """Raise `ModelAPIError` if the provider never ended a fully read stream."""
    response = stream.get()
    if stream.cancelled or not getattr(stream, "_finished", response.state == "complete"):
        return  # the reader left first
    details = response.provider_details or {}
    # pydantic-ai assumes "stop" where OpenAI's format has no reason; the provider's own is in the details.
    ended = (
        details.get("finish_reason") or response.finish_reason not in (None, "stop") or response.state == "suspended"
    )
    if not ended and any(_is_of_provider(kind.__module__) for kind in type(stream).__mro__):
        raise ModelAPIError(
            model_name=response.model_name or "",
            message="the stream ended without a finish reason, so its text is incomplete: the connection, or a proxy "
            "between, closed it; retry the step",
        )


def _is_of_provider(module: str) -> bool:
    package, _, rest = module.partition("pydantic_ai.models.")
    return not package and rest.partition(".")[0] in _ENDED_BY_REASON


def quoted_text(error: object) -> str:
    """Return the model's text quoted in a JSON mode error, if any."""
    body: Any = error.body if isinstance(error, ModelHTTPError) else None
    while isinstance(body, dict):
        text = body.get("failed_generation")
        if isinstance(text, str):
            return text
        body = body.get("error")
    return ""


def text_of_error(error: object) -> str:
    """Return the text that an error refers to, if known."""
    if isinstance(error, ValidationError):
        return _refused_input(error)
    if isinstance(error, UnexpectedModelBehavior) and not isinstance(error, ContentFilterError):
        return error.body or ""
    return quoted_text(error)


def _refused_input(error: ValidationError) -> str:
    """Return the validated input if a flaw concerns all of it."""
    for flaw in error.errors(include_url=False):
        if not flaw["loc"] or (flaw["type"] == "missing" and len(flaw["loc"]) == 1):
            found = flaw["input"]
            return found if isinstance(found, str) else to_json(found, fallback=str).decode()
    return ""


def own_refusal(error: object) -> str | None:
    """Return why no answer was accepted; `None` for other failures."""
    given_up = isinstance(error, UnexpectedModelBehavior) and error.message.startswith(_NO_ANSWER_ACCEPTED)
    return refusal_of(error) if given_up or isinstance(error, ModelRetry | ValidationError) else None


def refusal_of(error: object) -> str:
    """Return the agent's objection: the first reason in the error chain."""
    while isinstance(error, UnexpectedModelBehavior) and error.__cause__ is not None:
        error = error.__cause__
    return str(error)


def raw_text(response: ModelResponse, function_tools: Collection[str]) -> str:
    """Return a response's answer: output tool arguments, or its text.

    An unknown tool can only mean the output tool, under any name.
    """
    calls = [part for part in response.parts if isinstance(part, ToolCallPart)]
    answers = [_arguments(call) for call in calls if call.tool_name not in function_tools]
    if answers:
        return answers[-1]
    return "" if calls else (response.text or _after_thinking(response))


def _after_thinking(response: ModelResponse) -> str:
    """Return an answer taken for a thought because its mark was split."""
    thoughts = "".join(part.content for part in response.parts if isinstance(part, ThinkingPart))
    _, mark, answer = thoughts.rpartition("</think>")
    return answer if mark else ""


def _arguments(call: ToolCallPart) -> str:
    """Return the arguments as the model wrote them."""
    return call.args if isinstance(call.args, str) else call.args_as_json_str()
