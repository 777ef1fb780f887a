"""Settings loader: constructor, `flujo.toml` and environment.

Rules:

1. The environment overrides the file, and values from code override both.
2. `flujo.toml` is read from the current directory if it exists; a file named by `FLUJO_CONFIG` must exist.
3. A variable is `FLUJO_` and the key in capitals, levels joined by two underscores:
   `FLUJO_AROS__REPAIR__MAX_ATTEMPTS=3`. One underscore works as well where it names a setting.
4. In code, a key may be written with dots, as the documentation does: `{"aros.repair.max_attempts": 3}`.
5. An unknown key in code or in the file is refused, with the nearest known one as a suggestion.
6. An unknown variable is no error, since other programs set such variables too: a Kubernetes service called
   "flujo" gives every pod `FLUJO_PORT`. One that is near a setting, and no service's, is a warning.
"""

from __future__ import annotations

import functools
import os
import re
import tomllib
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from .._bridge.host_loop import file_content
from .._core.default_settings import CONFIG_FILE, PREFIX
from .._core.settings_model import Price, Settings, unknown_setting
from .._core.validators import nearest
from ..errors import DeclarationError

_NOT_SETTINGS = frozenset({"FLUJO_CONFIG"})
_PRICES = ("usage", "prices")
_OF_A_SERVICE = re.compile(r"_(PORT|SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_\w+)?|NAME|ENV_\w+)\Z")
"""Suffixes of Kubernetes and Docker service variables."""
_TRUTHS = {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False}


def resolve_settings(given: Settings | Mapping[str, object] | None) -> Settings:
    """Return a `Flujo`'s settings: a `Settings`, or values over file and environment."""
    if isinstance(given, Settings):
        return given
    if given is not None and not isinstance(given, Mapping):
        raise DeclarationError(f"settings must be Settings(…) or a dict, not {given!r}")
    return load_settings(overrides=given or {})


def load_settings(
    *, environ: Mapping[str, str] | None = None, file: Path | None = None, overrides: Mapping[str, object] | None = None
) -> Settings:
    """Settings from the file, the environment and overrides, in that order.

    Args:
        environ: environment variables; by default those of the process.
        file: file to read; by default that of `FLUJO_CONFIG`, or `flujo.toml`.
        overrides: values that take precedence over both, by dotted name.

    Example:
        ```python
        settings = load_settings(environ={}, overrides={"usage.strict_pricing": True})
        assert settings.usage.strict_pricing
        ```
    """
    variables = os.environ if environ is None else environ
    named = file or variables.get("FLUJO_CONFIG")
    layers = (
        _from_file(str(named or CONFIG_FILE), needed=named is not None),
        _from_environment(variables),
        _undotted(overrides or {}),
    )
    merged: dict[str, object] = {}
    for layer in layers:
        merged = _overlaid(merged, layer)
    settings: Settings = _built(Settings, merged, where="")
    return settings


def _from_file(path: str, *, needed: bool) -> dict[str, object]:
    content = file_content(path)
    if content is None:
        if needed:
            raise DeclarationError(f"there is no configuration file {path}")
        return {}
    try:
        return tomllib.loads(content.decode("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise DeclarationError(f"{path} cannot be read as TOML: {error}") from error


def _from_environment(variables: Mapping[str, str]) -> dict[str, object]:
    found: dict[str, Any] = {}
    for name, text in variables.items():
        if name.startswith(PREFIX) and name not in _NOT_SETTINGS:
            path = _path(name.removeprefix(PREFIX).lower())
            if _is_setting(path):
                _put(found, path, text, name)
            elif not _OF_A_SERVICE.search(name):
                _warn_if_near(name)
    return found


def _put(found: dict[str, Any], path: Sequence[str], text: str, name: str) -> None:
    *levels, last = path
    place = found
    for level in levels:
        place = place.setdefault(level, {})
        if not isinstance(place, dict):
            raise DeclarationError(f"{name} is inside a setting that another variable gives a value to")
    place[last] = text


def _is_setting(path: Sequence[str]) -> bool:
    """Return whether the setting exists; prices are tables by model names."""
    return tuple(path) in _paths_by_flat_name().values() or (*path[:2],) == _PRICES


def _warn_if_near(name: str) -> None:
    near = _nearest_path(name.removeprefix(PREFIX).lower().replace("__", "_"))
    if near is not None:
        variable = PREFIX + "__".join(near).upper()
        warnings.warn(f"{name} is no setting, and is not read: did you mean {variable}?", UserWarning, stacklevel=2)


def _nearest_path(flat_name: str) -> Sequence[str] | None:
    """Return the setting of a similar name or last word."""
    paths = _paths_by_flat_name()
    last_words = {path[-1]: path for path in paths.values()}
    near, near_last = nearest(flat_name, list(paths)), nearest(flat_name, list(last_words), cutoff=0.8)
    return paths[near] if near else last_words[near_last] if near_last else None


def _path(name: str) -> Sequence[str]:
    return _paths_by_flat_name().get(name) or name.split("__")


@functools.cache
def _paths_by_flat_name() -> Mapping[str, tuple[str, ...]]:
    return {"_".join(path): path for path in _paths(Settings)}


def _paths(cls: Any) -> Iterator[tuple[str, ...]]:
    """Yield the path of each setting with a value."""
    for field in attrs.fields(attrs.resolve_types(cls)):
        if field.type is not None and attrs.has(field.type):
            yield from ((field.name, *rest) for rest in _paths(field.type))
        else:
            yield (field.name,)


def _undotted(values: Mapping[str, object]) -> dict[str, object]:
    """Return the values with top-level `a.b` keys nested."""
    nested: dict[str, object] = {}
    for key, value in values.items():
        *levels, last = str(key).split(".")
        inner: dict[str, object] = {last: value}
        for level in reversed(levels):
            inner = {level: inner}
        nested = _overlaid(nested, inner)
    return nested


def _overlaid(base: Mapping[str, object], above: Mapping[str, object]) -> dict[str, object]:
    merged = dict(base)
    for key, value in above.items():
        below = merged.get(key)
        if isinstance(below, Mapping) and isinstance(value, Mapping):
            merged[key] = _overlaid(below, value)
        else:
            merged[key] = value
    return merged


def _built(cls: Any, values: Any, *, where: str) -> Any:
    if isinstance(values, cls):
        return values
    if not isinstance(values, Mapping):
        raise DeclarationError(f"setting {where.rstrip('.')} must be a table of settings, not {values!r}")
    hints = attrs.fields_dict(attrs.resolve_types(cls))
    for key in values:
        if key not in hints:
            raise unknown_setting(where + str(key), [where + name for name in hints])
    missing = [where + key for key, field in hints.items() if field.default is attrs.NOTHING and key not in values]
    if missing:
        raise DeclarationError(f"setting {missing[0]!r} is missing")
    return cls(**{key: _value(hints[key], value, where + key) for key, value in values.items()})


def _value(field: attrs.Attribute[Any], value: object, where: str) -> object:
    kind = field.type
    if kind is not None and attrs.has(kind):
        return _built(kind, value, where=where + ".")
    if kind in (bool, int, float):
        return _scalar(kind, value, where)
    if field.name == "prices" and isinstance(value, Mapping):
        return {name: _built(Price, price, where=f"{where}.{name}.") for name, price in value.items()}
    return value


def _scalar(kind: Any, value: Any, where: str) -> object:
    """Return a value of its kind; the settings classes validate further."""
    try:
        if kind is bool:
            return value if isinstance(value, bool) else _TRUTHS[str(value).strip().lower()]
        if kind is int and isinstance(value, float):
            raise ValueError
        return kind(value) if isinstance(value, str) else value
    except (KeyError, ValueError):
        raise DeclarationError(f"setting {where} must be a {kind.__name__}, not {value!r}") from None
