"""`flujo-actors worker`: the user's `Flujo`s, executed until a signal.

Sections:

- `flujo-actors worker`: one process of a fleet.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import TYPE_CHECKING, TypedDict, Unpack

import click
import trio

from ... import Flujo
from ..._dsl.declared_step import Declared
from ..._dsl.pipeline import Pipeline
from ..._fleet.health_probe import HealthPort, health_place
from ..._fleet.worker_loop import Worker
from ...errors import DeclarationError
from .command_group import Invocation, pass_call
from .output import DONE
from .run_filters import option_seconds
from .targets import target_of

if TYPE_CHECKING:
    from ..._core.default_settings import Backend
    from ..._durable.pipeline_diff import ResumeMode


SIGNALS = (signal.SIGTERM, signal.SIGINT)


def serve(flujos: Sequence[Flujo], call: Invocation, options: WorkerOptions) -> int:
    """Work until stopped; return the exit code."""
    _log(call)
    if options["migrate"]:
        _migrate(flujos)
    for flujo in flujos:
        for name, schedule in flujo.pipeline.schedules.items():
            flujo.schedule(name, **schedule)
    queues = options["queues"] or ("default",)
    workers = [
        flujo.worker(
            queues=queues,
            slots=options["slots"],
            grace_s=options["grace"],
            health=options["health"] if place == 0 else None,
            mode=options["mode"],
            engine=options["engine"],
            look_s=options["every"],
            once=options["once"],
            per_key=options["per_key"],
        )
        for place, flujo in enumerate(flujos)
    ]

    async def work() -> int:
        async with contextlib.AsyncExitStack() as stack:
            for each in workers:
                await stack.enter_async_context(each)
            call.print_note(f"ready: {', '.join(each.name for each in workers)} on {', '.join(queues)}")
            place = health_place(options["health"])
            if isinstance(place, HealthPort):
                call.print_note(place.address(workers[0].health_port))
            with _stopped_by_signals(workers):
                for each in workers:
                    await each.stopped()
        return DONE

    if _backend(flujos, options["backend"]) == "trio":
        return trio.run(work)
    return asyncio.run(work())


def _migrate(flujos: Sequence[Flujo]) -> None:
    """Migrate the stores of the targets, as `flujo-actors store migrate` does."""
    for flujo in flujos:
        if migrate := getattr(flujo.store, "migrate_now", None):
            migrate()


def _backend(flujos: Sequence[Flujo], asked: Backend | None) -> Backend:
    """Return the worker's backend: requested, or common to all targets."""
    found: dict[Backend, str] = {flujo.backend(asked): flujo.pipeline.title for flujo in flujos}
    if len(found) > 1:
        named = ", ".join(f"{title!r} has run.backend={backend}" for backend, title in found.items())
        raise DeclarationError(
            f"the targets of one worker run on one loop, and {named}: choose with --backend, or start a worker for each"
        )
    return next(iter(found))


@contextlib.contextmanager
def _stopped_by_signals(workers: Sequence[Worker]) -> Iterator[None]:
    """Drain the workers on the first signal, stop them on the second."""

    def stop_workers(number: int, frame: FrameType | None) -> None:
        for each in workers:
            each.stop()

    before = {number: signal.signal(number, stop_workers) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _log(call: Invocation) -> None:
    level = {-1: logging.ERROR, 0: logging.WARNING, 1: logging.INFO}.get(call.verbosity, logging.DEBUG)
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=max(level, logging.WARNING))
    logging.getLogger("flujo_actors").setLevel(level)
    if call.verbosity < 1:  # the engine reports a lost server in one line, its library each of its tasks
        logging.getLogger("procrastinate").setLevel(logging.CRITICAL)


# --- targets ------------------------------------------------------------------------------------------------


def _a(value: object) -> str:
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name}"


def flujo_at(call: Invocation, target: str, *, store: str | None) -> Flujo:
    """Return the `Flujo` of a target, or one made from its pipeline."""
    found = target_of(target, config=call.config)
    if isinstance(found, Flujo):
        if store is not None:
            raise DeclarationError(f"{target} is a Flujo, which has its own store: leave --store out")
        return found
    if not isinstance(found, Declared | Pipeline) and not callable(found):
        raise DeclarationError(f"{target} is {_a(found)}; name a Flujo, a pipeline or a step")
    settings = call.settings()
    url = store or settings.store
    if url is None:
        raise DeclarationError(
            f"{target} is a pipeline: say where its runs are, with --store, FLUJO_STORE or flujo.toml"
        )
    return Flujo(found, store=url, settings=settings)


# --- `flujo-actors worker`: one process of a fleet ----------------------------------------------------------------


class WorkerOptions(TypedDict):
    """Command line options of a worker."""

    queues: tuple[str, ...]
    slots: int
    engine: str | None
    store: str | None
    backend: Backend | None
    grace: float
    health: str | None
    every: float | None
    mode: ResumeMode
    once: bool
    per_key: int | None
    migrate: bool


@click.command()
@click.argument("targets", nargs=-1, required=True, metavar="TARGET...")
@click.option("--queue", "queues", multiple=True, metavar="NAME", help="Execute this queue (repeat for more; default).")
@click.option("--slots", default=8, show_default=True, metavar="N", help="Number of concurrent runs.")
@click.option("--engine", metavar="NAME", help="What carries tickets, e.g. postgres; else the target's own, or none.")
@click.option("--store", metavar="URL", help="The store, for a target that is no Flujo.")
@click.option(
    "--grace",
    type=option_seconds,
    default="30",
    show_default=True,
    metavar="SECONDS",
    help="Time to finish runs after SIGTERM.",
)
@click.option("--backend", type=click.Choice(["asyncio", "trio"]), help="The event loop; else run.backend, or trio.")
@click.option("--health", metavar="PORT|FILE", help="Health probes: [HOST:]PORT over HTTP, or a file.")
@click.option("--every", type=option_seconds, metavar="SECONDS", help="How often to look at the store.")
@click.option("--mode", type=click.Choice(["strict", "compat", "force"]), default="strict", show_default=True)
@click.option("--once", is_flag=True, help="Execute the queued runs, then exit.")
@click.option("--per-key", type=int, metavar="N", help="Number of concurrent runs of a key, over all workers.")
@click.option("--migrate", is_flag=True, help="Migrate an older store first, also one that workers must not migrate.")
@pass_call
def worker(call: Invocation, /, targets: tuple[str, ...], **options: Unpack[WorkerOptions]) -> int:
    """Execute queued runs until stopped.

    TARGET is a Flujo, a pipeline or a step: package.module:name, or file.py:name; or a blueprint, whose schedules are
    applied.

    SIGTERM or Ctrl-C: stops claiming, finishes running work within --grace seconds, releases the rest for other
    workers, and exits with 0. A second one: releases everything at once.
    """

    return serve([_flujo(call, target, options) for target in targets], call, options)


def _flujo(call: Invocation, target: str, options: WorkerOptions) -> Flujo:

    return flujo_at(call, target, store=options["store"])
