"""Safe text for terminals and logs, without control sequences or CI commands.

Rules:

1. Control characters, escape sequences and characters that change the direction of text are shown by their number.
2. A newline stays in multi-line text; otherwise it becomes a space.
3. Color only with `--color` or on a terminal; `NO_COLOR` and `FORCE_COLOR` decide before the terminal.

Sections:

- Exit codes: one number per next action of a script.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from typing import Literal, TextIO, TypeAlias

from ... import errors

Color: TypeAlias = Literal["auto", "always", "never"]

_OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]")
_STYLES = {"error": "31;1", "warning": "33;1", "note": "36", "rule": "1", "path": "", "dim": "2", "good": "32"}


def amount(count: int, noun: str) -> str:
    """Return a count with its noun: `1 run`, `312 runs`."""
    return f"{count} {noun if count == 1 else noun + 's'}"


def printable(text: str, *, lines: bool = False) -> str:
    """Return the text with control sequences escaped; one line unless `lines`."""
    escaped = _OBEYED.sub(_written_out, text.replace("\r\n", "\n").replace("\t", "    "))
    return escaped if lines else " ".join(escaped.split("\n"))


def _written_out(found: re.Match[str]) -> str:
    number = ord(found.group())
    return f"\\x{number:02x}" if number < 256 else f"\\u{number:04x}"


def wants_color(color: Color, stream: TextIO, environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether output to the stream may be colored (rule 3)."""
    if color != "auto":
        return color == "always"
    if environ.get("NO_COLOR"):
        return False
    if environ.get("FORCE_COLOR"):
        return True
    return stream.isatty() and environ.get("TERM") != "dumb"


def styled(text: str, style: str, *, color: bool) -> str:
    """Return the text in the style's color, if color is wanted."""
    code = _STYLES.get(style, "")
    return f"\x1b[{code}m{text}\x1b[0m" if color and code else text


def print_note(text: str, *, quiet: bool = False) -> None:
    """A line for people, on stderr; stdout is for the result alone."""
    if not quiet:
        sys.stderr.write(f"{printable(text, lines=True)}\n")


# --- Exit codes: one number per next action of a script ----------------------------------------------------------
# | code | meaning |
# |---|---|
# | 0 | done |
# | 1 | the work failed: findings are left, a diff is not empty, a run failed or was aborted |
# | 2 | it could not start: usage, something unreadable, a refused blueprint, bad settings, an invalid answer |
# | 3 | paused: the run waits for an answer |
# | 4 | another process has it: leased, already answered, the run exists |
# | 5 | there is no such run |
# | 130, 143 | stopped by a signal |

DONE = 0
FAILED = 1
REFUSED = 2
PAUSED = 3
TAKEN = 4
NOT_FOUND = 5
INTERRUPTED = 130

_BY_ERROR: tuple[tuple[type[errors.FlujoError], int], ...] = (
    (errors.RunNotFound, NOT_FOUND),
    (errors.RunLeased, TAKEN),
    (errors.LeaseLost, TAKEN),
    (errors.AlreadyAnswered, TAKEN),
    (errors.RunExists, TAKEN),
    (errors.RunPaused, PAUSED),
    (errors.NoOutput, FAILED),
    (errors.DeclarationError, REFUSED),
    (errors.ControlError, FAILED),
)
"""The first class that an error is of decides."""


def exit_code(error: errors.FlujoError) -> int:
    """Return the exit code of a library error.

    An answer to a deleted run is reported as `not paused`; its exit code is that of a missing run.
    """
    if isinstance(error, errors.NotPaused) and isinstance(error.__cause__, errors.RunNotFound):
        return NOT_FOUND
    return next((code for kind, code in _BY_ERROR if isinstance(error, kind)), REFUSED)
