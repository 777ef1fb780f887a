"""Who holds a lease, and what can be known of them from here: liveness of a lease owner.

Rules:

1. An owner's text names its process so that no other one ever has the same name: host, boot, namespaces, process id
   and the moment at which the process began.
2. An owner is dead only if that is proven: a process of this boot and of these namespaces that is not there any more,
   or whose number belongs to another one by now. Processes elsewhere, and names of another form, are unknown.
3. The same numbers of namespaces at two times mean the same namespaces, or that all processes of the former ones have
   ended: a number is given out again only when its namespace is gone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeAlias

import attrs

Fate: TypeAlias = Literal["here", "alive", "dead", "unknown"]
"""An owner is this very process, another living one of this machine, a dead one, or none that can be seen from here."""

GONE = "gone"
"""Stands for the beginning of a process that is not there any more."""

StartedAt: TypeAlias = Callable[[int], str | None]
"""When the process of that number began, by the system's count: `GONE` if there is none, `None` if it is not told."""


@attrs.frozen(kw_only=True)
class Process:
    """A process of a machine, named for good."""

    host: str
    pid: int
    boot: str = ""
    """The boot of the machine; empty where the system does not name its boots."""
    spaces: str = ""
    """The namespaces in which `pid` and `started` are counted; empty where they are not known."""
    started: str = ""

    def owner(self, claim: str) -> str:
        """The text under which the process holds what it claimed."""
        return ":".join((self.host, str(self.pid), claim, self.boot, self.spaces, self.started))


def process_of(owner: str | None) -> Process | None:
    """The process that an owner's text names; `None` if it is of another form."""
    parts = (owner or "").rsplit(":", 5)
    if len(parts) != 6 or not parts[1].isdecimal() or int(parts[1]) < 1:
        return None
    host, pid, _, boot, spaces, started = parts
    return Process(host=host, pid=int(pid), boot=boot, spaces=spaces, started=started)


def fate_of(owner: str | None, *, here: Process, started_at: StartedAt) -> Fate:
    """What is known of an owner in the process `here`; see the module's rules."""
    process = process_of(owner)
    if process is None or not _comparable(process, here):
        return "unknown"
    if process == here:
        return "here"
    match started_at(process.pid):
        case None:
            return "unknown"
        case process.started:
            return "alive"
        case _:
            return "dead"


def _comparable(process: Process, here: Process) -> bool:
    known = here.boot and here.spaces and process.started
    return bool(known) and (process.host, process.boot, process.spaces) == (here.host, here.boot, here.spaces)
