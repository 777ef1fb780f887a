"""Who takes part: a name for the table and the command that starts the contender.

Peers belong here too, each with the interpreter of its own virtual environment; the driver needs no other change.
"""

import sys

import attrs

YARDSTICK = "raw trio"
"""The contender that ratios are taken to."""


@attrs.frozen
class Contender:
    """A process that speaks `benchmarks.protocol`, started in the project's root directory."""

    name: str
    command: tuple[str, ...]


def local(name: str, module: str, *options: str) -> Contender:
    """A contender that lives in the project's own environment."""
    return Contender(name, (sys.executable, "-m", f"benchmarks.contenders.{module}", *options))


LOCAL = (
    local(YARDSTICK, "raw_trio"),
    local("raw trio, nowait", "raw_trio", "--nowait"),
    local("raw asyncio", "raw_asyncio"),
    local("flujo-actors", "ours"),
    local("flujo-actors in asyncio", "ours_in_asyncio"),
)

PEERS: tuple[Contender, ...] = ()
"""What people would pick instead, each in its own environment."""
