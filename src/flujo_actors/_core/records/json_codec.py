"""JSON serialization of values; stored data never triggers an import.

JSON's own types represent themselves. Any other value is an object with the key `$`, whose value names its kind. A dict
that has that key itself, or keys that are not strings, is stored as pairs. Models (attrs, dataclass, pydantic, enum,
named tuple) carry their qualified name, which is resolved among the types registered in `type_registry`. An unknown
name is an error.

Sections:

- JSON for browsers: without type tags and module names; one way only.
"""

from __future__ import annotations

import base64
import contextlib
import datetime as dt
import enum
import functools
import itertools
import json
import math
import typing
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from pathlib import Path, PurePath, PurePosixPath
from typing import Any, TypeVar
from uuid import UUID

import attrs
import cattrs
from cattrs.gen import make_dict_structure_fn, make_dict_unstructure_fn
from cattrs.v import format_exception

from ... import _core
from ...errors import NotSerializable
from ..error_info import describe_error, message_of
from ..outcomes import (
    Aborted,
    Chunk,
    ErrorInfo,
    Failure,
    Paused,
    PipelineResult,
    Started,
    StepResult,
    Success,
    ToolCalled,
)
from ..step_paths import StepPath, index_of
from ..type_registry import known_type, name_to_write, type_name
from ..usage import Usage
from .data_models import (
    is_model,
    is_pydantic,
    own_parts_of,
    parts_of,
    put_together,
    register_annotation,
    written_by_pydantic,
)

# --- JSON for browsers --------------------------------------------------------------------------------------------
# It is made from the tagged form of the codec. A set becomes a list, a datetime ISO text, bytes base64, an object the
# object of its fields, and a number beyond JavaScript's range a text.


TAG = "$"
_LARGEST_SAFE_INT = 2**53


def untagged(data: object) -> object:
    """Return the plain form of tagged JSON data."""
    if isinstance(data, list):
        return [untagged(each) for each in data]
    if isinstance(data, dict):
        return _object(data)
    if isinstance(data, int) and not isinstance(data, bool):
        return _number(data)
    return data


def _object(data: dict[str, Any]) -> object:
    if TAG not in data:
        plain = {name: untagged(each) for name, each in data.items()}
        return _with_index(plain)
    write = _UNTAG.get(data[TAG], untagged)
    return write(data.get("value"))


def _with_index(plain: dict[str, Any]) -> dict[str, object]:
    """Return an outcome with the item index of its path."""
    if "kind" in plain and isinstance(plain.get("path"), str) and "index" not in plain:
        plain["index"] = index_of(StepPath(plain["path"]))
    return plain


def _number(value: int) -> int | str:
    return value if -_LARGEST_SAFE_INT <= value <= _LARGEST_SAFE_INT else str(value)


def _pairs(pairs: list[list[Any]]) -> dict[str, object]:
    return {_key(untagged(key)): untagged(each) for key, each in pairs}


def _key(key: object) -> str:
    if isinstance(key, bool) or key is None:
        return {True: "true", False: "false", None: "null"}[key]
    return ", ".join(map(_key, key)) if isinstance(key, list) else str(key)


def _complex(parts: list[object]) -> str:
    return f"{untagged(parts[0])}+{untagged(parts[1])}j"


_UNTAG: dict[str, Callable[..., object]] = {
    "dict": _pairs,
    "complex": _complex,
    "timedelta": lambda parts: dt.timedelta(*parts).total_seconds(),
}
"""Conversions of tagged values that are more than removing the tag."""


# --- JSON serialization of values ---------------------------------------------------------------------------------


T = TypeVar("T")

_LARGEST_PLAIN_INT = 10**4000
_DEEPEST = 250
"""Maximum nesting of written JSON, far below any reader's stack limit."""


# --- values -----------------------------------------------------------------------------------------------


def _tagged(tag: str, value: object) -> dict[str, object]:
    return {TAG: tag, "value": value}


def _encode_dict(value: Mapping[Any, Any]) -> dict[str, object]:
    if TAG not in value and all(type(key) is str for key in value):
        return {key: encode(each) for key, each in value.items()}
    return _tagged("dict", [[encode(key), encode(each)] for key, each in value.items()])


def _encode_float(value: float) -> object:
    return value if math.isfinite(value) else _tagged("float", repr(value))


def _encode_int(value: int) -> object:
    return value if -_LARGEST_PLAIN_INT < value < _LARGEST_PLAIN_INT else _tagged("int", hex(value))


def _same(value: T) -> T:
    return value


_OWN_FORM = frozenset({str, bool, type(None)})


def _encode_list(value: list[object]) -> list[object]:
    if _OWN_FORM.issuperset(map(type, value)):  # 1,000 texts: 20 us instead of 100
        return list(value)
    return [encode(each) for each in value]


def _encode_unordered(value: Iterable[object]) -> list[object]:
    """Return the elements in an order equal in all processes."""
    return sorted((encode(each) for each in value), key=json.dumps)


_ENCODERS: dict[type, Callable[..., object]] = {
    str: _same,
    bool: _same,
    type(None): _same,
    int: _encode_int,
    float: _encode_float,
    list: _encode_list,
    dict: _encode_dict,
    tuple: lambda value: _tagged("tuple", _encode_list(value)),
    set: lambda value: _tagged("set", _encode_unordered(value)),
    frozenset: lambda value: _tagged("frozenset", _encode_unordered(value)),
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

_DECODERS: dict[str, Callable[..., object]] = {
    "dict": lambda pairs: _dict_from([[decode(key), decode(each)] for key, each in pairs]),
    "tuple": lambda items: tuple(decode(each) for each in items),
    "set": lambda items: _set_from(set, [decode(each) for each in items]),
    "frozenset": lambda items: _set_from(frozenset, [decode(each) for each in items]),
    "bytes": lambda text: _bytes_from(text),
    "int": lambda text: int(text, 16),
    "float": float,
    "complex": lambda parts: complex(decode(parts[0]), decode(parts[1])),
    "decimal": Decimal,
    "uuid": UUID,
    "path": PurePosixPath,
    "file_path": Path,
    "datetime": dt.datetime.fromisoformat,
    "date": dt.date.fromisoformat,
    "time": dt.time.fromisoformat,
    "timedelta": lambda parts: dt.timedelta(*parts),
    "error": lambda data: _error_from_json(data, ErrorInfo),
}


def _dict_from(pairs: list[list[Any]]) -> dict[Any, Any]:
    """Return a dict, or stored pairs with an unknown key class."""
    return _tagged("dict", pairs) if any(_is_unread(key) for key, _ in pairs) else dict(pairs)


def _set_from(kind: type[set[object] | frozenset[object]], items: list[object]) -> object:
    return _tagged(kind.__name__, items) if any(map(_is_unread, items)) else kind(items)


def _is_unread(value: object) -> bool:
    """Return whether a value contains undecoded data, unusable as a key."""
    if isinstance(value, tuple):
        return any(map(_is_unread, value))
    return isinstance(value, dict) and TAG in value


def _bytes_from(text: str) -> bytes:
    """Return the bytes of a strict base64 text."""
    data = base64.b64decode(text, validate=True)
    if base64.b64encode(data).decode("ascii") != text:
        raise ValueError("it is not base64 as it was written")
    return data


def encode(value: object) -> object:
    """Return the JSON form of a storable value."""
    encoder = _ENCODERS.get(type(value))
    return encoder(value) if encoder else _encode_other(value)


def _encode_other(value: object) -> Any:
    cls = type(value)
    if is_model(cls):
        return {TAG: "model", "type": name_to_write(cls, is_model), "value": _model_data(value)}
    if isinstance(value, BaseException):
        return _tagged("error", _converter().unstructure(describe_error(value)))
    if isinstance(value, PurePath):
        return _tagged("file_path" if isinstance(value, Path) else "path", value.as_posix())
    if isinstance(value, Mapping):
        return _encode_dict(value)
    for plain in _SUBCLASSED:
        if isinstance(value, plain):
            return _ENCODERS[plain](plain(value))
    raise NotSerializable(
        f"a value of type {type_name(cls)} cannot be written as JSON: {value!r:.100}; "
        "make it plain data, a dataclass, an attrs class or a pydantic model"
    )


def _model_data(value: object) -> object:
    if isinstance(value, enum.Enum):
        return encode(value.value)
    data = {name: _part_data(value, name, part) for name, part in parts_of(value).items()}
    for name, part in own_parts_of(value).items():
        with contextlib.suppress(NotSerializable):  # fields that the class computes are not stored
            data[name] = encode(part)
    return data


def _part_data(model: object, name: str, part: object) -> object:
    try:
        return encode(part)
    except NotSerializable:
        if not is_pydantic(type(model)):
            raise
        return encode(written_by_pydantic(model, name))


def decode(data: object) -> Any:
    """Return the value behind its JSON form."""
    if isinstance(data, list):
        return [decode(each) for each in data]
    if not isinstance(data, dict):
        return data
    if TAG not in data:
        return {key: decode(each) for key, each in data.items()}
    return _decode_tagged(data)


def _decode_tagged(data: dict[str, object]) -> object:
    tag, value = data[TAG], data.get("value")
    if tag == "model":
        cls = known_type(data.get("type"), is_model)
        return {**data, "value": decode(value)} if cls is None else _model_from(cls, value)
    decoder = _DECODERS.get(tag) if isinstance(tag, str) else None
    if decoder is None:
        raise NotSerializable(f"stored value has the unknown type tag {tag!r}")
    try:
        return decoder(value)
    except NotSerializable:
        raise
    except (
        TypeError,
        ValueError,
        LookupError,
        ArithmeticError,
        AttributeError,
        cattrs.BaseValidationError,
    ) as error:
        raise NotSerializable(f"stored {tag} cannot be read from {value!r:.100}: {error}") from error


def _model_from(cls: type, data: object) -> object:
    if issubclass(cls, enum.Enum):
        return put_together(cls, {"value": decode(data)})
    if not isinstance(data, dict):
        raise NotSerializable(f"stored {type_name(cls)} is {type(data).__name__}, not an object")
    return put_together(cls, {name: decode(part) for name, part in data.items()})


# --- messages ---------------------------------------------------------------------------------------------

_KINDS: dict[str, type] = {
    "success": Success,
    "failure": Failure,
    "paused": Paused,
    "aborted": Aborted,
    "chunk": Chunk,
    "started": Started,
    "tool_call": ToolCalled,
    "step_result": StepResult,
    "pipeline_result": PipelineResult,
    "error": ErrorInfo,
}
_KIND_OF = {cls: kind for kind, cls in _KINDS.items()}
_WRITTEN = (ErrorInfo, Usage, StepResult, Success, Failure, Paused, Aborted, Chunk, Started, ToolCalled, PipelineResult)


def _error_to_json(error: BaseException | ErrorInfo | None) -> object:
    if error is None:
        return None
    info = error if isinstance(error, ErrorInfo) else describe_error(error)
    return _converter().unstructure(info)


def _error_from_json(data: object, _: object) -> ErrorInfo | None:
    return None if data is None else _converter().structure(data, ErrorInfo)


@functools.cache
def _converter(*, brief: bool = False) -> cattrs.Converter:
    """Return a cattrs converter; a brief one omits defaults."""
    converter = cattrs.Converter(detailed_validation=True)
    for cls in _WRITTEN:
        attrs.resolve_types(cls)
        overrides: dict[str, Any] = {
            field.name: cattrs.override(struct_hook=_decode_hook, unstruct_hook=encode)
            for field in attrs.fields(cls)
            if field.type in (Any, Mapping[str, Any])
        }
        if cls is StepResult:
            overrides["transcript"] = cattrs.override(unstruct_hook=_transcript_text, struct_hook=lambda text, _: text)
        if brief:
            overrides |= _brief_overrides(cls)
        if cls in (Failure, PipelineResult):
            overrides["error"] = cattrs.override(
                struct_hook=_error_from_json,
                unstruct_hook=_error_to_json,
            )
        converter.register_structure_hook(cls, make_dict_structure_fn(cls, converter, **overrides))
        if cls is StepResult and not brief:  # the journal keeps it, results that are shown or sent do without
            overrides["transcript"] = cattrs.override(omit=True)
        write = make_dict_unstructure_fn(cls, converter, _cattrs_omit_if_default=brief, **overrides)
        converter.register_unstructure_hook(cls, write)
    return converter


def _brief_overrides(cls: type) -> dict[str, object]:
    if cls is not StepResult:
        return {}
    return {
        # A user's value is not compared with the default: its `__eq__` may return anything.
        "output": cattrs.override(unstruct_hook=encode, omit_if_default=False),
        "latency_s": cattrs.override(unstruct_hook=lambda seconds: round(seconds, 6)),
    }


def _transcript_text(transcript: Any) -> object:
    """Return an agent's messages as JSON text; journal text unchanged."""
    if transcript is None or isinstance(transcript, str):
        return transcript
    return _core.text_of_messages(transcript())


def _decode_hook(data: object, _: object) -> object:
    return decode(data)


def json_of(value: object) -> str:
    """Return a storable value as JSON text without redaction; `to_json` redacts secrets."""
    return _written(value, lambda: json.dumps(_data_of(value), allow_nan=False, separators=(",", ":")))


def to_data(value: object, *, brief: bool = False) -> Any:
    """Return a value as JSON data; `brief` omits default fields."""
    return _written(value, lambda: _data_of(value, brief=brief))


def value_data(value: object) -> object:
    """Return a user's value as JSON data, or raise `NotSerializable`."""
    return _written(value, lambda: _not_too_deep(encode(value)))


def _data_of(value: object, *, brief: bool = False) -> object:
    kind = _KIND_OF.get(type(value))
    return _not_too_deep(
        encode(value) if kind is None else {"kind": kind, **_converter(brief=brief).unstructure(value)}
    )


def _written(value: object, write: Callable[[], T]) -> T:
    try:
        return write()
    except RecursionError:
        raise NotSerializable(
            f"it is nested too deeply to be written, or contains itself: a {type(value).__name__}"
        ) from None
    except NotSerializable:
        raise
    except Exception as error:  # user code: attributes, iteration and comparison of a value may do anything
        why = f"{type(error).__name__}: {message_of(error)}"
        raise NotSerializable(f"this {type(value).__name__} cannot be written as JSON: {why}") from error


_NESTED = frozenset({dict, list})


def _not_too_deep(data: Any) -> object:
    level = [data]
    for _ in range(_DEEPEST):
        if _NESTED.isdisjoint(map(type, level)):
            return data
        below = [each.values() if type(each) is dict else each for each in level if type(each) in (dict, list)]
        level = list(itertools.chain.from_iterable(below))
    raise RecursionError


def from_json(text: str, type: type[T] | object) -> T:
    """Return the value of a `to_json` text of the expected `type`.

    Args:
        text: JSON text of `to_json`.
        type: expected type; by default any.
    """
    try:
        return typing.cast("T", from_data(_not_too_deep(_parsed(text)), type))
    except RecursionError:
        raise NotSerializable("stored value is nested too deeply to be read") from None


def from_data(data: object, type: type[T] | object) -> T:
    """Return the value of `to_data` output; the data is consumed.

    Arguments are those of `from_json`.
    """
    try:
        allowed = typing.get_args(type) or (type,)
        if all(each in _KIND_OF for each in allowed):
            return typing.cast("T", _message_from(data, allowed))
        register_annotation(type)
        return typing.cast("T", _checked(decode(data), type))
    except RecursionError:
        raise NotSerializable("stored value is nested too deeply to be read") from None


def _parsed(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError as error:
        raise NotSerializable(f"not JSON: {error}") from error


def _checked(value: object, expected: object) -> Any:
    if isinstance(expected, type) and is_model(expected) and not isinstance(value, expected):
        raise NotSerializable(f"expected a stored {type_name(expected)}, found {type(value).__name__}")
    return value


def _message_from(data: object, allowed: tuple[Any, ...]) -> object:
    kind = data.pop("kind", None) if isinstance(data, dict) else None
    cls = _KINDS.get(kind) if isinstance(kind, str) else None
    if cls not in allowed:
        wanted = " or ".join(_KIND_OF[each] for each in allowed)
        raise NotSerializable(f"expected a stored {wanted}, found kind {kind!r}")
    try:
        return _converter().structure(data, typing.cast("type", cls))
    except cattrs.BaseValidationError as error:
        details = "; ".join(cattrs.transform_error(error, format_exception=_reason))
        raise NotSerializable(f"stored {kind} cannot be read: {details}") from error


def _reason(error: BaseException, expected: Any) -> str:
    return str(error) if isinstance(error, NotSerializable) else format_exception(error, expected)
