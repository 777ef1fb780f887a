"""Which errors of a model call are about the content of an answer, and what text they bring along."""

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
from pydantic_core import to_json

_JSON_MODE_STATUSES = (400, 422)
_NO_ANSWER_ACCEPTED = "Exceeded maximum output retries"
"""How pydantic-ai says that it gave up; that a tool was tried too often is an error of the same class."""


def is_about_content(error: object) -> bool:
    """Whether asking again, or repairing the text, may help.

    It may where an answer broke off, is not in the provider's format or not what was asked for, or where a JSON mode
    failed; it does not where the provider is overloaded, out of reach for this account or unwilling to serve.
    """
    if isinstance(error, ModelHTTPError):
        return error.status_code in _JSON_MODE_STATUSES and "json" in json.dumps(error.body, default=str).lower()
    if isinstance(error, ModelAPIError):
        return isinstance(error, ModelConnectionError) or type(error) is ModelAPIError
    return isinstance(error, UnexpectedModelBehavior | ModelRetry | ValidationError)


def broke_off(error: object) -> bool:
    """Whether the answer ended because the connection did."""
    return isinstance(error, ModelAPIError) and not isinstance(error, ModelHTTPError)


def quoted_text(error: object) -> str:
    """The model's text inside the error of a provider's JSON mode, if it quotes one."""
    body: Any = error.body if isinstance(error, ModelHTTPError) else None
    while isinstance(body, dict):
        text = body.get("failed_generation")
        if isinstance(text, str):
            return text
        body = body.get("error")
    return ""


def text_of_error(error: object) -> str:
    """The text that an error is about, as far as the error itself has it."""
    if isinstance(error, ValidationError):
        return _refused_input(error)
    if isinstance(error, UnexpectedModelBehavior) and not isinstance(error, ContentFilterError):
        return error.body or ""
    return quoted_text(error)


def _refused_input(error: ValidationError) -> str:
    """What was validated, where a flaw concerns all of it: pydantic keeps only the part that is wrong."""
    for flaw in error.errors(include_url=False):
        if not flaw["loc"] or (flaw["type"] == "missing" and len(flaw["loc"]) == 1):
            found = flaw["input"]
            return found if isinstance(found, str) else to_json(found, fallback=str).decode()
    return ""


def own_refusal(error: object) -> str | None:
    """Why whoever asked a model accepted none of its answers; `None` if it was something else that failed."""
    given_up = isinstance(error, UnexpectedModelBehavior) and error.message.startswith(_NO_ANSWER_ACCEPTED)
    return refusal_of(error) if given_up or isinstance(error, ModelRetry | ValidationError) else None


def refusal_of(error: object) -> str:
    """What the agent itself had against an answer: the first reason in the chain that names one."""
    while isinstance(error, UnexpectedModelBehavior) and error.__cause__ is not None:
        error = error.__cause__
    return str(error)


def raw_text(response: ModelResponse, function_tools: Collection[str]) -> str:
    """What a response says as an answer: the arguments of its output tool, or its text; nothing if it calls tools.

    A tool that is none of the agent's can only be meant as the output tool, by whatever name the model called it.
    """
    calls = [part for part in response.parts if isinstance(part, ToolCallPart)]
    answers = [_arguments(call) for call in calls if call.tool_name not in function_tools]
    if answers:
        return answers[-1]
    return "" if calls else (response.text or _after_thinking(response))


def _after_thinking(response: ModelResponse) -> str:
    """The answer that was taken for a thought, because the mark between them came in two pieces."""
    thoughts = "".join(part.content for part in response.parts if isinstance(part, ThinkingPart))
    _, mark, answer = thoughts.rpartition("</think>")
    return answer if mark else ""


def _arguments(call: ToolCallPart) -> str:
    """The arguments as the model wrote them."""
    return call.args if isinstance(call.args, str) else call.args_as_json_str()
