"""How a text is refused, and the one guard around all reading.

1. Whatever goes wrong while a model's text is read is a `StructuredOutputError` that names its stage: what the schema's
   class raises, what a parser raises, what nobody thought of.
2. Only what stops a run passes: control errors, also those that a group holds.
"""

from __future__ import annotations

import attrs

from .._core.attempts import escalating
from .._core.error_info import message_of
from ..errors import StructuredOutputError
from ._limits import TooMuchWork
from ._reading import Flaw
from ._schema import Schema

_MAX_REASON = 300


@attrs.frozen
class refusing:  # noqa: N801 - a context manager, read as a verb
    """What is raised in this block comes out as the refusal of `text` at `stage`."""

    stage: str
    text: str
    schema: Schema | None

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, TooMuchWork):
            raise refusal("limits", str(error), self.text, self.schema) from None
        if not isinstance(error, Exception) or isinstance(error, StructuredOutputError):
            return
        if control := escalating(error):
            raise control from None
        reason = f"{type(error).__name__}: {message_of(error)}"
        raise refusal(self.stage, reason[:_MAX_REASON], self.text, self.schema) from error


def refusal(
    stage: str, reason: str, text: str, schema: Schema | None, flaws: list[Flaw] | None = None
) -> StructuredOutputError:
    """The error that says at which stage, and why, `text` was refused."""
    excerpt = text if len(text) <= 200 else f"{text[:120]} … {text[-60:]}"
    error = StructuredOutputError(f"no structured value ({stage}): {reason}")
    error.stage, error.errors, error.text_excerpt = stage, list(flaws or ()), excerpt
    error.schema_hash = schema.schema_hash if schema else None
    return error
