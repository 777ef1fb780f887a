"""How the output of a step is turned into a value: the switches of structured output."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias, get_args

import attrs

from .._core.near_names import nearest
from ..errors import DeclarationError

StructuredOutput: TypeAlias = Literal["off", "auto", "openai_json"]
"""`auto`: structured where a schema is known, the step's or its agent's; `openai_json`: ask the provider for JSON that
fits the schema, too, where it can do that (without a schema: read any object or list); `off`: the output is what the
agent returned."""

Enforcement: TypeAlias = Literal["off", "validate", "repair"]
"""`repair`: read, mend, ask again and fall back until the value fits; `validate`: read and mend, then fail; `off`: the
output is what the agent returned, whether it fits or not."""


ANY_JSON = {"type": ["object", "array"]}
"""The schema of an answer that shall be JSON and nothing more."""


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise DeclarationError(f"processing.{name} must be one of {', '.join(allowed)}, not {value!r}")


def _check_schema(schema: object) -> None:
    from .answer_schema import reader_of  # loads pydantic, which only those who ask for a schema need

    try:
        reader_of(schema)
    except DeclarationError as error:
        raise DeclarationError(f"processing.schema cannot serve as a schema: {error}") from error.__cause__


@attrs.frozen(kw_only=True)
class Processing:
    """The switches of one step."""

    structured_output: StructuredOutput = "auto"
    schema: Any = None
    """A JSON Schema, a pydantic model, an attrs class, a TypedDict or a dataclass; by default the agent's own."""
    enforcement: Enforcement = "repair"
    degrade: bool | None = None
    """Whether the model's text may stand for the value when nothing else is left, marked as such. By default it may
    where the agent returns text, and a schema of the step asks for more; what an agent declares it never becomes."""

    def __attrs_post_init__(self) -> None:
        if self.degrade not in (None, True, False):
            raise DeclarationError(f"processing.degrade must be True, False or None, not {self.degrade!r}")
        _one_of("structured_output", self.structured_output, get_args(StructuredOutput))
        _one_of("enforcement", self.enforcement, get_args(Enforcement))
        if self.schema is not None:
            _check_schema(self.schema)

    @property
    def wanted(self) -> Any:
        """What the step itself wants its output to fit: its schema, or any JSON if it asks for JSON without one."""
        asked = self.schema is None and self.structured_output == "openai_json"
        return ANY_JSON if asked else self.schema


NO_PROCESSING = Processing()


def as_processing(value: Processing | Mapping[str, Any]) -> Processing:
    """The switches, from a value or a dict."""
    if isinstance(value, Processing):
        return value
    if not isinstance(value, Mapping):
        raise DeclarationError(f"processing must be Processing(…) or a dict, not {value!r}")
    known = list(attrs.fields_dict(Processing))
    for key in value:
        if key not in known:
            near = nearest(str(key), known)
            hint = f"did you mean {near!r}?" if near else f"it has {', '.join(known)}"
            raise DeclarationError(f"processing has no switch {key!r}: {hint}")
    return Processing(**value)
