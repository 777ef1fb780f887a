"""Entry point of `flujo-actors`: errors become one line and exit codes.

Rules:

1. The script exists without its extra, and names the missing one.
2. An error of the library is one line on stderr; a traceback is printed with `-vv` only, also of a defect.
   An unexpected exception is called a defect only if no user code, system or driver raised it.
3. A closed pipe ends the command quietly, a first Ctrl-C with 130.

Sections:

- Extras that provide missing libraries.
"""

from __future__ import annotations

import gc
import os
import sys
from types import TracebackType

from ...errors import FlujoError
from .output import FAILED, INTERRUPTED, REFUSED, exit_code, printable

# --- Extras that provide missing libraries ------------------------------------------------------------------------


_EXTRAS = {
    "click": "cli",
    "rich": "cli",
    "yaml": "cli",
    "jinja2": "cli",
    "psycopg": "postgres",
    "psycopg_pool": "postgres",
    "procrastinate": "fleet",
    "starlette": "page",
    "sse_starlette": "page",
    "uvicorn": "page",
    "opentelemetry": "otel",
}


def missing_extra(error: ModuleNotFoundError) -> str | None:
    """Return the hint for a missing library; None without an extra."""
    library = (error.name or "").partition(".")[0]
    extra = _EXTRAS.get(library)
    if extra is None:
        return None
    return f"this command needs {library}, which comes with an extra: pip install 'flujo-actors[{extra}]'"


# --- Entry point of `flujo-actors`: every error becomes one line and an exit code ---------------------------------


def main(arguments: list[str] | None = None) -> int:
    """Carry out one command; the exit code."""
    sys.excepthook = _unexpected
    if arguments is None:
        gc.disable()  # in a separate process until the command is loaded: objects created by module loading remain
    try:
        from .command_group import carry_out  # the first thing that needs an extra

        return carry_out(sys.argv[1:] if arguments is None else arguments)
    except ModuleNotFoundError as error:
        return _without_extra(error)
    except FlujoError as error:
        return _refused(error)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        return _reader_left()
    finally:
        if arguments is None:
            gc.freeze()  # the interpreter's last collection has nothing to find: 0.3 s instead of 1.5 with pydantic-ai


def is_very_verbose() -> bool:
    """Return whether tracebacks are requested."""
    given = [each for each in sys.argv[1:] if each.startswith("-v") or each == "--verbose"]
    return sum(each.count("v") if each.startswith("-v") else 1 for each in given) >= 2


def _without_extra(error: ModuleNotFoundError) -> int:
    said = missing_extra(error)
    if said is None:
        raise error
    _print_error(said)
    return REFUSED


def _refused(error: FlujoError) -> int:
    if is_very_verbose():
        sys.__excepthook__(type(error), error, error.__traceback__)
    else:
        _print_error(str(error))
    return exit_code(error)


def _unexpected(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    """Report an unhandled exception; Python then exits with 1."""
    if is_very_verbose():
        sys.__excepthook__(kind, error, traceback)
    else:
        crash = _loop_crash(error) if kind.__name__ == "TrioInternalError" else None
        _print_error(crash or f"{_blamed(error)}: {kind.__name__}: {error}; `-vv` shows the traceback")


def _blamed(error: BaseException) -> str:
    """Return the origin of an error: user code, system or library."""
    from ..._core.error_info import own_place_of  # as in `_print_error`

    place = own_place_of(error)
    if place is not None:
        return f"your code raised, at {place}"
    if isinstance(error, OSError | MemoryError | ImportError):
        return "the system or an installed package refused"
    library = type(error).__module__.partition(".")[0]
    if library not in ("builtins", "flujo_actors"):
        return f"{library} raised"
    return "this is a defect of flujo-actors"


def _loop_crash(error: BaseException) -> str:
    """Return the message for a crash of trio's scheduler."""
    from ..._bridge.user_code_guard import task_behind_crash  # loads trio, as whatever raised this did

    name = task_behind_crash(error)
    whose = "a task" if name is None else f"step {name!r}"
    return (
        f"the event loop crashed, and every run of this process with it: code of {whose} ended a nursery or cancel "
        "scope in another task than the one that opened it; use `contextlib.aclosing` for an async generator that is "
        "not read to its end; `-vv` shows where"
    )


def _print_error(text: str) -> None:
    sys.stderr.write(f"flujo-actors: {printable(text)}\n")


def _reader_left() -> int:
    """Stop writing to a closed stdout, also at interpreter exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return FAILED
