"""A value written as almost-JSON: other quotes, other punctuation, commas and comments where none belong."""

from __future__ import annotations

import json

import attrs


@attrs.frozen(kw_only=True)
class Style:
    """How a value is written out. The default is plain JSON over several lines."""

    quotes: tuple[str, str] = ('"', '"')
    bare_keys: bool = False
    colon: str = ": "
    comma: str = ","
    trailing_comma: bool = False
    comment: str = ""
    """Stands after the first member of the outermost object or list."""


def write(value: object, style: Style, depth: int = 0) -> str:
    """The value in this style."""
    match value:
        case dict():
            members = [f"{_key(key, style)}{style.colon}{write(value[key], style, depth + 1)}" for key in value]
            return _enclose("{", members, "}", style, depth)
        case list():
            return _enclose("[", [write(item, style, depth + 1) for item in value], "]", style, depth)
        case str():
            return _quoted(value, style)
    return json.dumps(value)


def _enclose(opening: str, members: list[str], closing: str, style: Style, depth: int) -> str:
    if not members:
        return opening + closing
    pad = "  " * depth
    ends = [style.comma] * (len(members) - 1) + [style.comma if style.trailing_comma else ""]
    lines = [f"{pad}  {member}{end}" for member, end in zip(members, ends, strict=True)]
    if depth == 0 and style.comment:
        lines[0] += f" // {style.comment}"
    return "\n".join([opening, *lines, pad + closing])


def _key(key: str, style: Style) -> str:
    return key if style.bare_keys and key.isidentifier() and key.isascii() else _quoted(key, style)


def _quoted(text: str, style: Style) -> str:
    inside = json.dumps(text, ensure_ascii=False)[1:-1]
    if style.quotes == ("'", "'"):
        inside = inside.replace('\\"', '"').replace("'", "\\'")
    return f"{style.quotes[0]}{inside}{style.quotes[1]}"


def texts_in(value: object) -> str:
    """All text in a value, keys too."""
    match value:
        case dict():
            return "".join(key + texts_in(item) for key, item in value.items())
        case list():
            return "".join(texts_in(item) for item in value)
        case str():
            return value
    return ""
