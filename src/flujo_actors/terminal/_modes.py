"""Which kind of view fits a place: a terminal, a pipe, a build server, a program that reads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TextIO, TypeAlias, get_args

import attrs

from ..errors import DeclarationError

Progress: TypeAlias = Literal["auto", "live", "plain", "json", "quiet"]
"""How a run is shown: lines that change, lines that stay, a JSON document per line, or nothing."""

Color: TypeAlias = Literal["auto", "always", "never"]


@attrs.frozen(kw_only=True)
class Mode:
    """How to show a run, with nothing left to find out."""

    progress: Literal["live", "plain", "json", "quiet"]
    color: bool


def mode_for(progress: Progress, file: TextIO, environment: Mapping[str, str], *, color: Color = "auto") -> Mode:
    """`auto` is live in a terminal that can move its cursor and is watched by somebody, and plain elsewhere.

    `NO_COLOR` and `TERM=dumb` mean that no escape is written at all; `FORCE_COLOR` paints also what is not a terminal.
    """
    if progress not in get_args(Progress):
        raise DeclarationError(f"progress must be one of {', '.join(get_args(Progress))}, not {progress!r}")
    painted = _is_painted(file, environment, color)
    if progress != "auto":
        return Mode(progress=progress, color=painted)
    moves = is_terminal(file, environment) and not environment.get("CI") and not environment.get("NO_COLOR")
    return Mode(progress="live" if moves else "plain", color=painted)


def is_terminal(file: TextIO, environment: Mapping[str, str]) -> bool:
    """Whether a file is a terminal that can move its cursor."""
    isatty = getattr(file, "isatty", None)
    return bool(isatty and isatty()) and environment.get("TERM") != "dumb"


def _is_painted(file: TextIO, environment: Mapping[str, str], color: Color) -> bool:
    if color != "auto":
        return color == "always"
    if environment.get("NO_COLOR"):
        return False
    return bool(environment.get("FORCE_COLOR")) or is_terminal(file, environment)
