"""What `flujo-actors worker` does: the user's own `Flujo`s, played until a signal ends it."""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

from .._bridge.host import Host, in_own_loop
from .._fleet.worker import Worker
from .._runner import Flujo
from ..errors import DeclarationError
from .call import Call
from .exits import DONE

SIGNALS = (signal.SIGTERM, signal.SIGINT)


def serve(flujos: Sequence[Flujo[Any, Any, Any]], call: Call, options: dict[str, Any]) -> int:
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


def flujo_at(call: Call, target: str, *, store: str | None) -> Flujo[Any, Any, Any]:
    """The `Flujo` that a target names, or one made of the pipeline that it names."""
    found = _found(target)
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


def _found(target: str) -> Any:
    place, _, name = target.rpartition(":")
    if not place or not name:
        raise DeclarationError(f"{target!r} names nothing to play: use package.module:name, or file.py:name")
    found: Any = _module(place, target)
    for part in name.split("."):
        if not hasattr(found, part):
            raise DeclarationError(f"there is no {name!r} in {place!r}")
        found = getattr(found, part)
    return found


def _module(place: str, target: str) -> ModuleType:
    if place.endswith(".py"):
        return _from_file(Path(place))
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        return importlib.import_module(place)
    except ModuleNotFoundError as error:
        if error.name is None or not (place == error.name or place.startswith(f"{error.name}.")):
            raise
        raise DeclarationError(f"{target!r}: there is no module {error.name!r} here or on the path") from error


def _from_file(path: Path) -> ModuleType:
    """A file is imported under its own name, so that its functions are called what they are called elsewhere."""
    if not path.is_file():
        raise DeclarationError(f"there is no file {str(path)!r}")
    sys.path.insert(0, str(path.resolve().parent))
    return importlib.import_module(path.stem)
