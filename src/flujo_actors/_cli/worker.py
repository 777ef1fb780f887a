"""`flujo-actors worker`: one process of a fleet."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict, Unpack

import click

from .call import Call, pass_call

if TYPE_CHECKING:
    from .. import Flujo
    from .._durable.changes import ResumeMode


class WorkerOptions(TypedDict):
    """What the command line says of a worker."""

    queues: tuple[str, ...]
    slots: int
    engine: str | None
    store: str | None
    grace: float
    health: str | None
    every: float | None
    mode: ResumeMode
    once: bool


@click.command()
@click.argument("targets", nargs=-1, required=True, metavar="TARGET...")
@click.option("--queue", "queues", multiple=True, metavar="NAME", help="Play this queue (again for more; default).")
@click.option("--slots", default=8, show_default=True, metavar="N", help="How many runs to play at once.")
@click.option("--engine", metavar="NAME", help="What carries tickets, e.g. postgres; else the target's own, or none.")
@click.option("--store", metavar="URL", help="The store, for a target that is no Flujo.")
@click.option("--grace", default=30.0, show_default=True, metavar="SECONDS", help="What may be finished when stopped.")
@click.option("--health", metavar="PORT|FILE", help="Tell of its health: [HOST:]PORT over HTTP, or a file.")
@click.option("--every", type=float, metavar="SECONDS", help="How often to look at the store.")
@click.option("--mode", type=click.Choice(["strict", "compat", "force"]), default="strict", show_default=True)
@click.option("--once", is_flag=True, help="Play what waits now, then end.")
@pass_call
def worker(call: Call, /, targets: tuple[str, ...], **options: Unpack[WorkerOptions]) -> int:
    """Play the runs that wait in queues, until stopped.

    TARGET is a Flujo, a pipeline or a step: package.module:name, or file.py:name.

    SIGTERM or Ctrl-C: takes nothing new, finishes what it can in --grace seconds, gives up the rest for other workers
    to take over, and ends with 0. A second one: gives up at once.
    """
    from .working import serve  # trio, and the user's own modules

    return serve([_flujo(call, target, options) for target in targets], call, options)


def _flujo(call: Call, target: str, options: WorkerOptions) -> Flujo:
    from .working import flujo_at

    return flujo_at(call, target, store=options["store"])
