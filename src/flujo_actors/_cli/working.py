"""What `flujo-actors worker` does: the user's own `Flujo`s, played until a signal ends it."""

from __future__ import annotations

import contextlib
import logging
import signal
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import TYPE_CHECKING

from .._bridge.host import Host, in_own_loop
from .._fleet.worker import Worker
from .._runner import Flujo
from ..errors import DeclarationError
from .call import Call
from .exits import DONE
from .targets import target_of

if TYPE_CHECKING:
    from .worker import WorkerOptions

SIGNALS = (signal.SIGTERM, signal.SIGINT)


def serve(flujos: Sequence[Flujo], call: Call, options: WorkerOptions) -> int:
    """Work until told to stop; the exit code."""
    _log(call)
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
        )
        for place, flujo in enumerate(flujos)
    ]

    async def work(host: Host, _: None) -> int:
        async with contextlib.AsyncExitStack() as stack:
            for each in workers:
                await stack.enter_async_context(each)
            call.say(f"ready: {', '.join(each.name for each in workers)} on {', '.join(queues)}")
            with _told_by_signals(workers):
                for each in workers:
                    await each.stopped()
        return DONE

    return in_own_loop(work, backend=flujos[0].backend(), instead="worker")


@contextlib.contextmanager
def _told_by_signals(workers: Sequence[Worker]) -> Iterator[None]:
    """A first signal lets the workers finish what they can, a second one does not."""

    def told(number: int, frame: FrameType | None) -> None:
        for each in workers:
            each.stop()

    before = {number: signal.signal(number, told) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _log(call: Call) -> None:
    level = {-1: logging.ERROR, 0: logging.WARNING, 1: logging.INFO}.get(call.verbosity, logging.DEBUG)
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=max(level, logging.WARNING))
    logging.getLogger("flujo_actors").setLevel(level)


# --- what is played -----------------------------------------------------------------------------------------


def flujo_at(call: Call, target: str, *, store: str | None) -> Flujo:
    """The `Flujo` that a target names, or one made of the pipeline that it names."""
    found = target_of(target, config=call.config)
    if isinstance(found, Flujo):
        if store is not None:
            raise DeclarationError(f"{target} is a Flujo, which has its own store: leave --store out")
        return found
    settings = call.settings()
    url = store or settings.store
    if url is None:
        raise DeclarationError(
            f"{target} is a pipeline: say where its runs are, with --store, FLUJO_STORE or flujo.toml"
        )
    return Flujo(found, store=url, settings=settings)
