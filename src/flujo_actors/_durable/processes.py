"""This process, and whether others of its machine live: what `_core.owners` decides on, read from Linux's `/proc`.

Elsewhere nothing is proven: a lease is then waited for. Nothing is taken from `/proc` if it shows the processes of
another namespace, and a process that it hides is not taken for a dead one.
"""

from __future__ import annotations

import functools
import os
import socket
import uuid
from pathlib import Path

from .._core.owners import GONE, Fate, Process, fate_of
from ..stores._clock import boot_id

_NAMESPACES = ("pid", "time")
"""Process ids are counted in the first, the moments at which processes begin in the second."""

_STATE, _STARTED = 0, 19
"""Places in `/proc/<pid>/stat` after the name of the program, which may hold anything."""


def new_owner() -> str:
    """A name for this process and this claim."""
    return this_process().owner(uuid.uuid4().hex[:8])


def fate_from_here(owner: str | None) -> Fate:
    """What this process can know of a lease's owner."""
    return fate_of(owner, here=this_process(), started_at=_started_at)


def this_process() -> Process:
    """This process; a fork is another one."""
    return _process(os.getpid())


@functools.lru_cache(maxsize=1)
def _process(pid: int) -> Process:
    host, boot, spaces = socket.gethostname(), boot_id(), _namespaces()
    started = _started_at(pid) if spaces else None
    if boot is None or started is None:
        return Process(host=host, pid=pid)
    return Process(host=host, pid=pid, boot=boot, spaces=spaces, started=started)


def _namespaces() -> str:
    """The numbers of this process's namespaces; empty if `/proc` does not show this process under its own number."""
    try:
        if os.readlink("/proc/self") != str(os.getpid()):
            return ""
        return ".".join(str(os.stat(f"/proc/self/ns/{name}").st_ino) for name in _NAMESPACES)
    except OSError:
        return ""


def _started_at(pid: int) -> str | None:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return GONE
    except OSError:
        pass  # it is somebody else's
    return _told_by_proc(pid)


def _told_by_proc(pid: int) -> str | None:
    place = Path(f"/proc/{pid}")
    try:
        facts = (place / "stat").read_text(errors="replace").rpartition(")")[2].split()
        ended = facts[_STATE] in "ZX" and len(os.listdir(place / "task")) <= 1  # no thread outlives its first one
    except (OSError, IndexError):
        return None
    return GONE if ended else facts[_STARTED]
