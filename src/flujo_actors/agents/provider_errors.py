"""Which errors of a model call are about the content of an answer, and what text they bring along."""

from __future__ import annotations

import json
from typing import Any

from pydantic import ValidationError
from pydantic_ai.exceptions import ModelAPIError, ModelHTTPError, ModelRetry, UnexpectedModelBehavior
from pydantic_ai.messages import ModelResponse, ToolCallPart

OUTPUT_TOOL = "final_result"
"""How pydantic-ai names the tools through which a model returns structured output."""


def is_about_content(error: object) -> bool:
    """Whether asking again, or repairing the text, may help.

    It may where a stream broke off, an answer is not in the provider's format, or a JSON mode failed; it does not where
    the provider is unreachable or overloaded.
    """
    if isinstance(error, ModelHTTPError):
        return error.status_code in (400, 422) and "json" in json.dumps(error.body, default=str).lower()
    return isinstance(error, UnexpectedModelBehavior | ModelRetry | ValidationError | ModelAPIError)


def text_of_error(error: object) -> str:
    """The model's text inside a provider's error, if it quotes one."""
    body: Any = error.body if isinstance(error, ModelHTTPError) else None
    while isinstance(body, dict):
        text = body.get("failed_generation")
        if isinstance(text, str):
            return text
        body = body.get("error")
    return ""


def raw_text(response: ModelResponse) -> str:
    """What a response says as an answer: the arguments of its output tool, or its text."""
    calls = [part for part in response.parts if isinstance(part, ToolCallPart)]
    answers = [call.args_as_json_str() for call in calls if call.tool_name.startswith(OUTPUT_TOOL)]
    return answers[-1] if answers else (response.text or "")
