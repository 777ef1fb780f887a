"""Where `flujo-actors` begins and ends: every error becomes one line and an exit code.

Rules:

1. The script is there without its extra, and says which one is missing.
2. An error of the library is one line on stderr; a traceback is printed with `-vv` only, also of a defect.
3. A closed pipe ends the command quietly, a first Ctrl-C with 130.
"""

from __future__ import annotations

import gc
import os
import sys
from types import TracebackType

from ..errors import FlujoError
from .exits import FAILED, INTERRUPTED, REFUSED, exit_code
from .extras import missing_extra


def main(arguments: list[str] | None = None) -> int:
    """Carry out one command; the exit code."""
    sys.excepthook = _defect
    if arguments is None:
        gc.disable()  # in a process of its own, until the command is loaded: what modules make while they load stays
    try:
        from .group import carry_out  # the first thing that needs an extra

        return carry_out(sys.argv[1:] if arguments is None else arguments)
    except ModuleNotFoundError as error:
        return _without_extra(error)
    except FlujoError as error:
        return _refused(error)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        return _reader_left()


def is_very_verbose() -> bool:
    """Whether somebody asked for tracebacks."""
    given = [each for each in sys.argv[1:] if each.startswith("-v") or each == "--verbose"]
    return sum(each.count("v") if each.startswith("-v") else 1 for each in given) >= 2


def _without_extra(error: ModuleNotFoundError) -> int:
    said = missing_extra(error)
    if said is None:
        raise error
    _say(said)
    return REFUSED


def _refused(error: FlujoError) -> int:
    if is_very_verbose():
        sys.__excepthook__(type(error), error, error.__traceback__)
    else:
        _say(str(error))
    return exit_code(error)


def _defect(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    """What is said of an exception that nobody expected; Python ends with 1 after it."""
    if is_very_verbose():
        sys.__excepthook__(kind, error, traceback)
    else:
        _say(f"this is a defect of flujo-actors: {kind.__name__}: {error}; `-vv` shows where")


def _say(text: str) -> None:
    from .printing import printable  # loads nothing, but what is said of a missing extra must not depend on it

    sys.stderr.write(f"flujo-actors: {printable(text)}\n")


def _reader_left() -> int:
    """Nobody reads stdout any more: nothing more is written there, not even when the interpreter ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return FAILED
