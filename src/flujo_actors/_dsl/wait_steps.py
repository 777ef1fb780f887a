"""Steps that wait for a time, an event or a decision."""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, ClassVar, Literal, NoReturn, TypeAlias, cast, get_args

import attrs
import cattrs
import jsonschema_rs
from pydantic import PydanticSchemaGenerationError, PydanticUserError, TypeAdapter

from .. import _dsl
from .._core.policies.approval_policy import DEFAULT_OPTIONS, Decision, Option, as_options, option_of_kind
from .._core.records.data_models import SCHEMAS, known_to_pydantic
from .._core.step_paths import ESCALATION, REJECTION, Segment
from .._core.type_parameters import In, Out
from .._core.type_registry import register_type
from .._core.validators import checked_seconds, is_number
from ..errors import DeclarationError
from .call_plan import check_takes_pair
from .declared_step import EMPTY, Declared, checked_count, frozen_mapping, of_type
from .pipeline import AnyStep, StepLike, as_step, step_of

Instant: TypeAlias = datetime.datetime | float
"""Aware datetime, or seconds since the epoch."""

OnWaitTimeout: TypeAlias = Literal["fail", "none"]
"""Result of a wait without an event, unless it is a step."""

LONGEST_NAME = 200
"""Maximum number of characters of an event's name and key."""


def checked_delay_s(seconds: object, *, subject: str) -> float:
    """Return the seconds of a wait; `ValueError` with the reason for others."""
    if not is_number(seconds) or seconds < 0:
        raise ValueError(f"{subject} must be a finite number >= 0, not {seconds!r:.100}")
    return float(seconds)


def epoch_of(instant: object, *, subject: str) -> float:
    """Return an instant in epoch seconds; `ValueError` with the reason for others."""
    if isinstance(instant, datetime.datetime):
        if instant.utcoffset() is None:
            raise ValueError(f'{subject} has no time zone; use datetime(..., tzinfo=ZoneInfo("..."))')
        return instant.timestamp()
    if not is_number(instant):
        raise ValueError(f"{subject} must be an aware datetime or seconds since the epoch, not {instant!r:.100}")
    return float(instant)


def checked_event_name(text: object, *, subject: str) -> str:
    """Return the name or key of an event; `ValueError` for others."""
    if not isinstance(text, str) or not 0 < len(text) <= LONGEST_NAME or not text.isprintable():
        raise ValueError(f"{subject} must be a text of 1 to {LONGEST_NAME} printable characters, not {text!r:.250}")
    return text


@attrs.frozen(kw_only=True, eq=False, repr=False)
class Sleep(Declared[In, Out]):
    """Pass the input on after a time."""

    seconds: float | Callable[..., float] | None = attrs.field(default=None, kw_only=False)
    """Duration, or a callable `(data, context) -> seconds`."""
    until: Instant | Callable[..., Instant] | None = None
    """End, or a callable `(data, context) -> end`."""

    kind: ClassVar[str] = "sleep"

    def deciding(self) -> Iterator[tuple[str, object]]:
        """Yield the options of every step, and the time."""
        yield from Declared.deciding(self)
        yield "seconds", self.seconds
        yield "until", self.until.isoformat() if isinstance(self.until, datetime.datetime) else self.until

    def _check(self) -> None:
        if (self.seconds is None) == (self.until is None):
            raise DeclarationError(f"step {self.name!r}: give either seconds or until")
        for name, given in (("seconds", self.seconds), ("until", self.until)):
            if callable(given):
                check_takes_pair(given, subject=f"step {self.name!r}: {name}", first="data")
        try:
            if self.seconds is not None and not callable(self.seconds):
                checked_delay_s(self.seconds, subject=f"step {self.name!r}: seconds")
            if self.until is not None and not callable(self.until):
                epoch_of(self.until, subject=f"step {self.name!r}: until")
        except ValueError as error:
            raise DeclarationError(str(error)) from None


def _as_path(value: object) -> Any:
    if value is None or isinstance(value, str):
        return value
    return step_of(cast("StepLike", value))


@attrs.frozen(kw_only=True, eq=False, repr=False)
class WaitFor(Declared[In, Out]):
    """Wait for an event of this name and key; output its data."""

    event: str = attrs.field(kw_only=False)
    key: str | Callable[..., str] | None = None
    """Key, or a callable `(data, context) -> key`; by default the run's id."""
    schema: Any = None
    """Type or JSON Schema of the data."""
    deadline_s: float | None = None
    """Timeout of the event, from the start of the wait."""
    on_timeout: OnWaitTimeout | AnyStep = attrs.field(default="fail", converter=_as_path)

    kind: ClassVar[str] = "wait_for"

    def _inside(self) -> Iterable[tuple[Segment, AnyStep]]:
        """Yield the step that runs without an event."""
        if not isinstance(self.on_timeout, str):
            yield ESCALATION, self.on_timeout

    def deciding(self) -> Iterator[tuple[str, object]]:
        """Yield the options of every step, and the awaited event."""
        yield from Declared.deciding(self)
        yield "event", self.event
        yield "key", self.key

    def _check(self) -> None:
        where = f"step {self.name!r}"
        try:
            checked_event_name(self.event, subject=f"{where}: event")
            if self.key is not None and not callable(self.key):
                checked_event_name(self.key, subject=f"{where}: key")
        except ValueError as error:
            raise DeclarationError(str(error)) from None
        if callable(self.key):
            check_takes_pair(self.key, subject=f"{where}: key", first="data")
        if self.deadline_s is not None:
            checked_seconds(self.deadline_s, subject=f"{where}: timeout_s")
        self._check_timeout(where)
        if self.schema is not None:
            try:
                _dsl.reader_of(self.schema)
            except DeclarationError as error:
                raise DeclarationError(f"{where}: schema: {error}") from error.__cause__

    def _check_timeout(self, where: str) -> None:
        if not isinstance(self.on_timeout, str):
            as_step(self.on_timeout, where=f"{where}: on_timeout")
        elif self.on_timeout not in get_args(OnWaitTimeout):
            allowed = ", ".join(map(repr, get_args(OnWaitTimeout)))
            raise DeclarationError(f"{where}: on_timeout must be one of {allowed}, or a step, not {self.on_timeout!r}")
        if self.deadline_s is None and self.on_timeout != "fail":
            raise DeclarationError(f"{where}: on_timeout needs timeout_s, the seconds after which it happens")


OnTimeout: TypeAlias = Literal["approve", "reject", "fail"]
"""Decision at the timeout, unless it is a step."""

register_type(Decision)


def _as_options(value: object) -> Any:
    return DEFAULT_OPTIONS if value is None else value


@attrs.frozen(kw_only=True, eq=False, repr=False)
class Approval(Declared[In, Out]):
    """Pause until an approver decides or the timeout expires."""

    message: str | Callable[..., str] = attrs.field(kw_only=False)
    """Prompt: a text, or a callable `(data, context) -> text`."""
    options: tuple[Option, ...] = attrs.field(default=DEFAULT_OPTIONS, converter=_as_options)
    to: str | None = None
    """Addressee; the application defines its meaning."""
    deadline_s: float | None = None
    """Timeout of the answer, from the start of the pause."""
    on_timeout: OnTimeout | AnyStep = attrs.field(default="fail", converter=_as_path)
    on_rejection: AnyStep | None = attrs.field(default=None, converter=_as_path)
    max_deferrals: int = attrs.field(default=3, validator=checked_count)
    comment_required: bool = attrs.field(default=False, validator=of_type(bool, "True or False"))
    """Whether a rejection needs a comment."""
    metadata: Mapping[str, Any] = attrs.field(default=EMPTY, converter=frozen_mapping)
    """Further facts for the approver, as JSON data."""

    kind: ClassVar[str] = "approval"

    def _inside(self) -> Iterable[tuple[Segment, AnyStep]]:
        """Yield the way after a no, and after no answer."""
        if self.on_rejection is not None:
            yield REJECTION, self.on_rejection
        if not isinstance(self.on_timeout, str):
            yield ESCALATION, self.on_timeout

    def deciding(self) -> Iterator[tuple[str, object]]:
        """Yield the options of every step, and the prompt."""
        yield from Declared.deciding(self)
        yield "message", self.message

    def resume_options(self) -> Iterator[tuple[str, object]]:
        """Yield the possible answers."""
        yield "options", [f"{option.name}: {option.kind}" for option in self.options]

    def _check(self) -> None:
        where = f"step {self.name!r}"
        if not isinstance(self.message, str) and not callable(self.message):
            raise DeclarationError(f"{where}: message must be a text or a callable")
        if callable(self.message):
            check_takes_pair(self.message, subject=f"{where}: message", first="data")
        object.__setattr__(self, "options", as_options(self.options, where=where))
        if self.to is not None and (not isinstance(self.to, str) or not self.to):
            raise DeclarationError(f"{where}: to must be a non-empty text, not {self.to!r}")
        self._check_metadata(where)
        self._check_ways(where)

    def _check_metadata(self, where: str) -> None:
        if not isinstance(self.metadata, Mapping):
            raise DeclarationError(f"{where}: metadata must be a dict, not {self.metadata!r:.100}")
        try:
            json.dumps(dict(self.metadata), allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise DeclarationError(f"{where}: metadata must be JSON data: {error}") from None

    def _check_ways(self, where: str) -> None:
        if self.deadline_s is not None:
            checked_seconds(self.deadline_s, subject=f"{where}: timeout_s")
        if self.on_rejection is not None:
            as_step(self.on_rejection, where=f"{where}: on_rejection")
            if option_of_kind("reject", self.options) is None:
                raise DeclarationError(f"{where}: on_rejection needs an option that rejects: Option(…, kind='reject')")
        if isinstance(self.on_timeout, str):
            self._check_word(where)
        else:
            as_step(self.on_timeout, where=f"{where}: on_timeout")
        if self.deadline_s is None and self.on_timeout != "fail":
            raise DeclarationError(f"{where}: on_timeout needs timeout_s, the seconds after which it happens")

    def _check_word(self, where: str) -> None:
        if self.on_timeout not in get_args(OnTimeout):
            allowed = ", ".join(map(repr, get_args(OnTimeout)))
            raise DeclarationError(f"{where}: on_timeout must be one of {allowed}, or a step, not {self.on_timeout!r}")
        if self.on_timeout == "reject" and option_of_kind("reject", self.options) is None:
            raise DeclarationError(f"{where}: on_timeout is 'reject', but no option rejects")


Reader: TypeAlias = Callable[[object], object]
"""Function that converts an answer to its schema, or raises."""


def reader_of(schema: object) -> Reader:
    """Return the answer reader of a schema, or raise `DeclarationError`.

    A schema is a JSON Schema, an attrs class or a type that pydantic accepts.
    """
    if isinstance(schema, Mapping):
        return _json_reader(schema)
    if isinstance(schema, type) and attrs.has(schema):
        return lambda answer: answer if isinstance(answer, schema) else cattrs.structure(answer, schema)
    if isinstance(schema, str):  # which pydantic treats as a type name and resolves too late
        raise DeclarationError(f"{schema!r:.100} is a text, not {SCHEMAS}")
    try:
        return TypeAdapter(known_to_pydantic(schema)).validate_python
    except PydanticSchemaGenerationError as error:
        raise DeclarationError(f"{schema!r:.100} is not {SCHEMAS}") from error
    except PydanticUserError as error:
        raise DeclarationError(f"{schema!r:.100} cannot be validated against: {error.message}") from error


def _json_reader(schema: Mapping[str, object]) -> Reader:
    try:
        validator = jsonschema_rs.validator_for(dict(schema), retriever=refuse_to_fetch)
    except (ValueError, jsonschema_rs.ReferencingError) as error:
        raise DeclarationError(f"{schema!r:.500} is not a JSON Schema: {error}") from error

    def read(answer: object) -> object:
        validator.validate(answer)
        return answer

    return read


def refuse_to_fetch(uri: str) -> NoReturn:
    """Raise `ValueError`: a schema is complete in itself."""
    raise ValueError(f"the schema refers to {uri}, and schemas are never fetched")
