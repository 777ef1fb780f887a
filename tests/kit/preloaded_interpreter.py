"""An interpreter that has imported the slow packages, and forks into each command that it receives on a socket.

A fork becomes what `python ARGUMENTS` would be: its environment, folder, files, `sys.argv`, `sys.path` and `__main__`
are those of the command, and it ends as an interpreter ends.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import io
import json
import os
import re
import runpy
import signal
import socket
import sys
import time
import types
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

import flujo_actors
from flujo_actors.errors import DeclarationError

PACKAGES = (
    "anthropic", "click", "fastapi", "httpx", "openai", "opentelemetry.trace", "psycopg", "pydantic_ai",
    "pydantic_ai.models.anthropic", "pydantic_ai.models.function", "pydantic_ai.models.openai",
    "pydantic_ai.models.test", "trio", "uvicorn", "websockets",
)  # fmt: skip
LARGEST_REQUEST = 1 << 20


def own_modules() -> list[str]:
    """The modules of the library, except programs and engines, whose packages few commands need."""
    root = Path(flujo_actors.__file__).parent
    files = [file.relative_to(root.parent).with_suffix("") for file in sorted(root.rglob("*.py"))]
    names = [".".join(file.parts) for file in files]
    return [name for name in names if not re.search(r"__main__|__init__|engine|sidecar", name)]


def serve(requests: socket.socket) -> dict[str, Any]:
    """Fork for each request; return it in the fork that becomes its process."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        text, files, _, _ = socket.recv_fds(requests, LARGEST_REQUEST, 4)
        if not text:
            os._exit(0)
        if os.fork() == 0:
            requests.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)  # the tests may have been started without it
            *streams, status = files
            _report_the_end_of_a_fork(status)
            for number, file in enumerate(streams):
                os.dup2(file, number)
                os.close(file)
            return json.loads(text)
        for file in files:
            os.close(file)


def _report_the_end_of_a_fork(status: int) -> None:
    """Return in a fork; write its process id and, when it has ended, its exit code to the file."""
    child = os.fork()
    if child == 0:
        os.close(status)
        return
    os.write(status, b"%d\n" % child)
    os.closerange(0, status)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    os.write(status, b"%d\n" % code)
    os._exit(0)


_exit_codes: list[int] = []


@atexit.register  # before all others, so that it is called after them
def _end_at_once() -> None:
    if _exit_codes:
        vars(sys.modules["__main__"]).clear()
        gc.collect()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(_exit_codes[0] & 0xFF)


def become(request: dict[str, Any], searched: list[str]) -> None:
    """Run a command as a new interpreter would; `searched` is `sys.path` without a script."""
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    if request["session"]:
        os.setsid()
    time.tzset()
    sys.dont_write_bytecode = bool(os.environ.get("PYTHONDONTWRITEBYTECODE"))
    for stream in (sys.stdout, sys.stderr):
        assert isinstance(stream, io.TextIOWrapper)
        stream.reconfigure(write_through=bool(os.environ.get("PYTHONUNBUFFERED")))
    own = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    sys.path[:] = [*own, *(entry for entry in searched if entry not in own)]
    try:
        _run(request["arguments"])
    except SystemExit as end:
        _skip_finalization(end.code)
        raise
    except Exception:
        _skip_finalization(1)
        raise
    _skip_finalization(0)


def _skip_finalization(code: object) -> None:
    """End the process after its threads and exit handlers: to take apart 5,000 modules costs more than the fork."""
    number = code if isinstance(code, int) else int(code is not None)
    _exit_codes.append(number)


def _run(arguments: list[str]) -> None:
    sys.orig_argv[1:] = arguments
    while arguments[0] in {"-B", "-W"}:
        if arguments.pop(0) == "-W":
            warnings.simplefilter(arguments.pop(0))  # type: ignore[arg-type]
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    match arguments:
        case ["-m", module, *rest]:
            sys.argv[:] = [module, *rest]
            sys.path.insert(0, str(Path.cwd()))
            runpy._run_module_as_main(module)  # type: ignore[attr-defined]  # what the interpreter itself calls
        case ["-c", code, *rest]:
            sys.argv[:] = ["-c", *rest]
            sys.path.insert(0, "")
            exec(compile(code, "<string>", "exec"), vars(main))
        case [script, *_]:
            sys.argv[:] = arguments
            sys.path.insert(0, str(Path(script).resolve().parent))
            main.__file__ = script
            exec(compile(Path(script).read_bytes(), script, "exec"), vars(main))


if __name__ == "__main__":
    SEARCHED = sys.path[1:]
    for package in (*PACKAGES, *own_modules()):
        with suppress(ImportError, DeclarationError):  # some need a newer release of a package than the lowest
            importlib.import_module(package)
    gc.collect()
    gc.freeze()
    become(serve(socket.socket(fileno=int(sys.argv[1]))), SEARCHED)
