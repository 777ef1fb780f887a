"""Serialization: values to JSON and back, with nothing imported because stored data names it.

JSON's own types stand for themselves. Everything else is an object with the key `$`, whose value says what
it is; a dict that has that key itself, or keys that are not strings, is spelled out as pairs. Models (attrs,
dataclass, pydantic, enum, named tuple) carry their qualified name, which is looked up among the types that
`_type_registry` lets the reader know: an unknown name is an error, not an import.
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

from .._type_registry import known_type, name_to_write, type_name
from ..errors import NotSerializable
from .error_info import describe_error, message_of
from .models import (
    is_model,
    is_pydantic,
    own_parts_of,
    parts_of,
    put_together,
    register_annotation,
    written_by_pydantic,
)
from .outcomes import (
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
from .plain_json import TAG
from .usage import Usage

T = TypeVar("T")

_LARGEST_PLAIN_INT = 10**4000
_DEEPEST = 250
"""How many levels of JSON are written; far less than what a stack can hold, since the reader's may be fuller."""


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


def _encode_list(value: list[object]) -> list[object]:
    return [encode(each) for each in value]


def _encode_unordered(value: Iterable[object]) -> list[object]:
    """In an order that does not depend on the process, so that equal sets make equal texts."""
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
    """A dict; where a key is of a class that the reader does not know, the pairs as they are stored."""
    return _tagged("dict", pairs) if any(_is_unread(key) for key, _ in pairs) else dict(pairs)


def _set_from(kind: type[set[object] | frozenset[object]], items: list[object]) -> object:
    return _tagged(kind.__name__, items) if any(map(_is_unread, items)) else kind(items)


def _is_unread(value: object) -> bool:
    """Whether it is, or holds, plain data in place of an object: nothing that could be a key."""
    if isinstance(value, tuple):
        return any(map(_is_unread, value))
    return isinstance(value, dict) and TAG in value


def _bytes_from(text: str) -> bytes:
    """The bytes of a text that `b64encode` wrote; what it cannot have written is not guessed at."""
    data = base64.b64decode(text, validate=True)
    if base64.b64encode(data).decode("ascii") != text:
        raise ValueError("it is not base64 as it was written")
    return data


def encode(value: object) -> object:
    """The JSON form of any value the library knows how to keep."""
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
        with contextlib.suppress(NotSerializable):  # what the class makes by itself, it can make again
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
    """The value behind its JSON form."""
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
    """Fields by name; a brief one leaves out those that are as by default, and counts time in whole microseconds."""
    converter = cattrs.Converter(detailed_validation=True)
    for cls in _WRITTEN:
        attrs.resolve_types(cls)
        overrides: dict[str, Any] = {
            field.name: cattrs.override(struct_hook=_decode_hook, unstruct_hook=encode)
            for field in attrs.fields(cls)
            if field.type in (Any, Mapping[str, Any])
        }
        if brief:
            overrides |= _brief_overrides(cls)
        if cls in (Failure, PipelineResult):
            overrides["error"] = cattrs.override(
                struct_hook=_error_from_json,
                unstruct_hook=_error_to_json,
            )
        write = make_dict_unstructure_fn(cls, converter, _cattrs_omit_if_default=brief, **overrides)
        converter.register_unstructure_hook(cls, write)
        converter.register_structure_hook(cls, make_dict_structure_fn(cls, converter, **overrides))
    return converter


def _brief_overrides(cls: type) -> dict[str, object]:
    if cls is not StepResult:
        return {}
    return {
        # A value of the user's is not asked whether it equals the default: it may answer anything.
        "output": cattrs.override(unstruct_hook=encode, omit_if_default=False),
        "latency_s": cattrs.override(unstruct_hook=lambda seconds: round(seconds, 6)),
    }


def _decode_hook(data: object, _: object) -> object:
    return decode(data)


def json_of(value: object) -> str:
    """An outcome, a result or any value the library can keep, as JSON text and as it is: `to_json` hides secrets."""
    return _written(value, lambda: json.dumps(_data_of(value), allow_nan=False, separators=(",", ":")))


def to_data(value: object, *, brief: bool = False) -> Any:
    """The same as JSON data, for whoever makes it part of a larger text; briefly, what is as by default is left out."""
    return _written(value, lambda: _data_of(value, brief=brief))


def value_data(value: object) -> object:
    """A value of the user's as JSON data; `NotSerializable` whatever is wrong with it."""
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


def _not_too_deep(data: Any) -> object:
    level = [data]
    for _ in range(_DEEPEST):
        below = [each.values() if type(each) is dict else each for each in level if type(each) in (dict, list)]
        if not below:
            return data
        level = list(itertools.chain.from_iterable(below))
    raise RecursionError


def from_json(text: str, type: type[T] | object) -> T:
    """Read what `to_json` wrote; `type` is what is expected: an outcome type, a union of them, a result, a model."""
    try:
        return typing.cast("T", from_data(_parsed(text), type))
    except RecursionError:
        raise NotSerializable("stored value is nested too deeply to be read") from None


def from_data(data: object, type: type[T] | object) -> T:
    """Read what `to_data` made; the arguments are those of `from_json`, and the data is used up."""
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
