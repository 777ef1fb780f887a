"""Values to JSON and back, with nothing imported because stored data names it.

JSON's own types stand for themselves. Everything else is an object with the key `$`, whose value says what
it is; a dict that has that key itself, or keys that are not strings, is spelled out as pairs. Models (attrs,
dataclass, pydantic, enum, named tuple) carry their qualified name, which is looked up among the types this
process has registered, declared in a pipeline or written before: an unknown name is an error, not an import.
"""

from __future__ import annotations

import base64
import datetime as dt
import enum
import functools
import json
import math
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import fields as dataclass_fields
from dataclasses import is_dataclass
from decimal import Decimal
from pathlib import PurePath, PurePosixPath
from typing import Any, TypeVar
from uuid import UUID

import attrs
import cattrs
from cattrs.gen import make_dict_structure_fn, make_dict_unstructure_fn

from ..errors import NotSerializable
from .outcomes import (
    Aborted,
    Chunk,
    ErrorInfo,
    Failure,
    Paused,
    PipelineResult,
    StepOutcome,
    StepResult,
    Success,
)
from .usage import Usage

T = TypeVar("T")

TAG = "$"
_LARGEST_PLAIN_INT = 10**4000
_LONGEST_CAUSE_CHAIN = 20


# --- exceptions -------------------------------------------------------------------------------------------


def message_of(error: BaseException) -> str:
    """The text of an exception, also of one whose `__str__` is broken."""
    try:
        return str(error)
    except Exception as broken:  # user code: an exception class may do anything here
        return f"<no message: its __str__ raised {type(broken).__name__}>"


def describe_error(error: BaseException, *, depth: int = _LONGEST_CAUSE_CHAIN) -> ErrorInfo:
    """What can be kept of an exception: type name, message, notes and what stands behind it."""
    behind: list[BaseException] = []
    if isinstance(error, BaseExceptionGroup):
        behind.extend(error.exceptions)
    cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    if cause is not None:
        behind.append(cause)
    return ErrorInfo(
        type_name=type(error).__name__,
        message=message_of(error),
        notes=tuple(str(note) for note in getattr(error, "__notes__", ())),
        causes=tuple(describe_error(each, depth=depth - 1) for each in behind) if depth else (),
    )


# --- models by name ---------------------------------------------------------------------------------------

_known: dict[str, type] = {}


def type_name(cls: type) -> str:
    """The name under which values of `cls` are stored."""
    return f"{cls.__module__}.{cls.__qualname__}"


def register_type(cls: type[T]) -> type[T]:
    """Let stored values of `cls` be read back in this process. Usable as a decorator."""
    _known[type_name(cls)] = cls
    return cls


def register_annotation(annotation: object) -> None:
    """Register every model named in a type annotation, with the models of their fields."""
    pending, seen = [annotation], set[int]()
    while pending:
        each = pending.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        pending.extend(typing.get_args(each))
        if isinstance(each, type) and not isinstance(each, types.GenericAlias) and _is_model(each):
            register_type(each)
            pending.extend(_field_types(each))


def _field_types(cls: type) -> list[object]:
    if issubclass(cls, enum.Enum):
        return []
    try:
        return list(typing.get_type_hints(cls).values())
    except (NameError, TypeError, AttributeError):  # a forward reference that only a type checker can follow
        return []


def _is_model(cls: type) -> bool:
    return (
        attrs.has(cls)
        or is_dataclass(cls)
        or hasattr(cls, "model_validate")
        or hasattr(cls, "__flujo_data__")
        or issubclass(cls, enum.Enum)
        or (issubclass(cls, tuple) and hasattr(cls, "_fields"))
    )


def _model_data(value: Any) -> Any:
    cls: Any = type(value)
    if isinstance(value, enum.Enum):
        return encode(value.value)
    if hasattr(cls, "__flujo_data__"):
        return encode(value.__flujo_data__())
    if hasattr(cls, "model_validate"):
        return value.model_dump(mode="json", round_trip=True)
    if isinstance(value, tuple):
        return {name: encode(each) for name, each in zip(cls._fields, value, strict=True)}
    return {name: encode(getattr(value, name)) for name, init in _fields(cls) if init}


def _fields(cls: type) -> list[tuple[str, bool]]:
    if attrs.has(cls):
        return [(field.name, field.init) for field in attrs.fields(cls)]
    return [(field.name, field.init) for field in dataclass_fields(cls)]


def _model_from(cls: type, data: Any) -> Any:
    if issubclass(cls, enum.Enum):
        return cls(decode(data))
    if hasattr(cls, "model_validate"):
        return cls.model_validate(data)
    if not isinstance(data, dict):
        raise NotSerializable(f"stored {type_name(cls)} is {type(data).__name__}, not an object")
    plain = {key: decode(each) for key, each in data.items()}
    if attrs.has(cls):
        aliases = {field.name: field.alias or field.name for field in attrs.fields(cls)}
        return cls(**{aliases.get(key, key): each for key, each in plain.items()})
    return cls(**plain)


# --- values -----------------------------------------------------------------------------------------------


def _tagged(tag: str, value: Any) -> dict[str, Any]:
    return {TAG: tag, "value": value}


def _encode_dict(value: Mapping[Any, Any]) -> dict[str, Any]:
    if TAG not in value and all(type(key) is str for key in value):
        return {key: encode(each) for key, each in value.items()}
    return _tagged("dict", [[encode(key), encode(each)] for key, each in value.items()])


def _encode_float(value: float) -> Any:
    return value if math.isfinite(value) else _tagged("float", repr(value))


def _encode_int(value: int) -> Any:
    return value if -_LARGEST_PLAIN_INT < value < _LARGEST_PLAIN_INT else _tagged("int", hex(value))


def _same(value: T) -> T:
    return value


def _encode_list(value: list[Any]) -> list[Any]:
    return [encode(each) for each in value]


_ENCODERS: dict[type, Callable[[Any], Any]] = {
    str: _same,
    bool: _same,
    type(None): _same,
    int: _encode_int,
    float: _encode_float,
    list: _encode_list,
    dict: _encode_dict,
    tuple: lambda value: _tagged("tuple", _encode_list(value)),
    set: lambda value: _tagged("set", _encode_list(value)),
    frozenset: lambda value: _tagged("frozenset", _encode_list(value)),
    bytes: lambda value: _tagged("bytes", base64.b64encode(value).decode("ascii")),
    complex: lambda value: _tagged("complex", [encode(value.real), encode(value.imag)]),
    Decimal: lambda value: _tagged("decimal", str(value)),
    UUID: lambda value: _tagged("uuid", str(value)),
    dt.datetime: lambda value: _tagged("datetime", value.isoformat()),
    dt.date: lambda value: _tagged("date", value.isoformat()),
    dt.time: lambda value: _tagged("time", value.isoformat()),
    dt.timedelta: lambda value: _tagged("timedelta", [value.days, value.seconds, value.microseconds]),
}

_SUBCLASSED: tuple[type[Any], ...] = (str, int, float, list, tuple, bytes)
"""Built-in types whose subclasses are stored as the built-in."""

_DECODERS: dict[str, Callable[[Any], Any]] = {
    "dict": lambda pairs: {decode(key): decode(each) for key, each in pairs},
    "tuple": lambda items: tuple(decode(each) for each in items),
    "set": lambda items: {decode(each) for each in items},
    "frozenset": lambda items: frozenset(decode(each) for each in items),
    "bytes": base64.b64decode,
    "int": lambda text: int(text, 16),
    "float": float,
    "complex": lambda parts: complex(decode(parts[0]), decode(parts[1])),
    "decimal": Decimal,
    "uuid": UUID,
    "path": PurePosixPath,
    "datetime": dt.datetime.fromisoformat,
    "date": dt.date.fromisoformat,
    "time": dt.time.fromisoformat,
    "timedelta": lambda parts: dt.timedelta(*parts),
    "error": lambda data: _error_from_json(data, ErrorInfo),
}


def encode(value: Any) -> Any:
    """The JSON form of any value the library knows how to keep."""
    encoder = _ENCODERS.get(type(value))
    return encoder(value) if encoder else _encode_other(value)


def _encode_other(value: Any) -> Any:
    cls = type(value)
    if _is_model(cls):
        register_type(cls)
        return {TAG: "model", "type": type_name(cls), "value": _model_data(value)}
    if isinstance(value, BaseException):
        return _tagged("error", _converter().unstructure(describe_error(value)))
    if isinstance(value, PurePath):
        return _tagged("path", value.as_posix())
    if isinstance(value, Mapping):
        return _encode_dict(value)
    for plain in _SUBCLASSED:
        if isinstance(value, plain):
            return _ENCODERS[plain](plain(value))
    raise NotSerializable(
        f"a value of type {type_name(cls)} cannot be written as JSON: {value!r:.100}; "
        "return plain data, a dataclass, an attrs class or a pydantic model"
    )


def decode(data: Any) -> Any:
    """The value behind its JSON form."""
    if isinstance(data, list):
        return [decode(each) for each in data]
    if not isinstance(data, dict):
        return data
    if TAG not in data:
        return {key: decode(each) for key, each in data.items()}
    return _decode_tagged(data)


def _decode_tagged(data: dict[str, Any]) -> Any:
    tag = data[TAG]
    if tag == "model":
        cls = _known.get(data.get("type", ""))
        if cls is None:
            raise NotSerializable(
                f"stored value is a {data.get('type')!r}, which this process does not know; "
                "annotate the step that returns it, or call register_type(cls)"
            )
        return _model_from(cls, data.get("value"))
    decoder = _DECODERS.get(tag) if isinstance(tag, str) else None
    if decoder is None:
        raise NotSerializable(f"stored value has the unknown type tag {tag!r}")
    return decoder(data.get("value"))


# --- messages ---------------------------------------------------------------------------------------------

_KINDS: dict[str, type] = {
    "success": Success,
    "failure": Failure,
    "paused": Paused,
    "aborted": Aborted,
    "chunk": Chunk,
    "step_result": StepResult,
    "pipeline_result": PipelineResult,
    "error": ErrorInfo,
}
_KIND_OF = {cls: kind for kind, cls in _KINDS.items()}


def _error_to_json(error: BaseException | ErrorInfo | None) -> Any:
    if error is None:
        return None
    info = error if isinstance(error, ErrorInfo) else describe_error(error)
    return _converter().unstructure(info)


def _error_from_json(data: Any, _: object) -> ErrorInfo | None:
    return None if data is None else _converter().structure(data, ErrorInfo)


@functools.cache
def _converter() -> cattrs.Converter:
    converter = cattrs.Converter(detailed_validation=True)
    for cls in (ErrorInfo, Usage, StepResult, Success, Failure, Paused, Aborted, Chunk, PipelineResult):
        attrs.resolve_types(cls)
        overrides: dict[str, Any] = {
            field.name: cattrs.override(struct_hook=_decode_hook, unstruct_hook=encode)
            for field in attrs.fields(cls)
            if field.type in (Any, Mapping[str, Any])
        }
        if cls is Failure:
            overrides["error"] = cattrs.override(
                struct_hook=_error_from_json,
                unstruct_hook=_error_to_json,
            )
        converter.register_unstructure_hook(cls, make_dict_unstructure_fn(cls, converter, **overrides))
        converter.register_structure_hook(cls, make_dict_structure_fn(cls, converter, **overrides))
    return converter


def _decode_hook(data: Any, _: object) -> Any:
    return decode(data)


def to_json(value: Any) -> str:
    """An outcome, a result or any value the library can keep, as JSON text."""
    kind = _KIND_OF.get(type(value))
    try:
        data = encode(value) if kind is None else {"kind": kind, **_converter().unstructure(value)}
        return json.dumps(data, allow_nan=False, separators=(",", ":"))
    except RecursionError:
        raise NotSerializable(
            f"this {type(value).__name__} is nested too deeply to be written, or contains itself"
        ) from None


def from_json(text: str, type: type[T] | Any) -> T:
    """Read what `to_json` wrote; `type` is what is expected: an outcome type, `StepOutcome`, a result type."""
    try:
        data = json.loads(text)
    except ValueError as error:
        raise NotSerializable(f"not JSON: {error}") from error
    if type not in _KIND_OF and type != StepOutcome:
        return typing.cast("T", decode(data))
    return typing.cast("T", _message_from(data, type))


def _message_from(data: Any, expected: Any) -> Any:
    kind = data.pop("kind", None) if isinstance(data, dict) else None
    cls = _KINDS.get(kind) if isinstance(kind, str) else None
    allowed = typing.get_args(StepOutcome) if expected == StepOutcome else (expected,)
    if cls not in allowed:
        wanted = " or ".join(_KIND_OF[each] for each in allowed)
        raise NotSerializable(f"expected a stored {wanted}, found kind {kind!r}")
    try:
        return _converter().structure(data, typing.cast("type", cls))
    except cattrs.BaseValidationError as error:
        details = "; ".join(cattrs.transform_error(error))
        raise NotSerializable(f"stored {kind} cannot be read: {details}") from error
