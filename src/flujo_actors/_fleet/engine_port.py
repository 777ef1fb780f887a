"""Engine port: delivery of tickets from submitters to workers.

Rules:

1. A ticket is a hint and holds only names. Work, results and ownership are in the store: so a ticket may come late,
   twice, to the wrong worker, or not at all, and only time is lost.
2. Every method blocks, and may be called from any thread, from several at once.
3. A waiter of a run without a lease owner requests it `again`. An engine that loses tickets is slow; one
   without `again` is none.
"""

from __future__ import annotations

import importlib
import json
import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias, cast

import attrs

from .._core.outcomes import RunId
from ..errors import DeclarationError
from ..stores._store_port import Store

logger = logging.getLogger("flujo_actors")

DEFAULT_QUEUE = "default"
"""Default queue of submitted runs."""

TICKET_BYTES = 1_000
"""Maximum length of a ticket as JSON."""

QUEUE_CHARACTERS = 100
"""Maximum length of a queue name, in columns and channels."""


def checked_queue(queue: str, *, subject: str) -> str:
    """Return the name of a queue, if every engine accepts it."""
    if not isinstance(queue, str) or not 0 < len(queue) <= QUEUE_CHARACTERS or not queue.isprintable():
        raise DeclarationError(
            f"{subject} must be the name of a queue, 1 to {QUEUE_CHARACTERS} printable characters, not {queue!r:.120}"
        )
    if "," in queue or queue != queue.strip():
        raise DeclarationError(
            f"{subject} names one queue, without commas and outer spaces, not {queue!r}: write --queue a --queue b, or "
            'queues=["a", "b"]'
        )
    return queue


def names_of(queues: str | Iterable[str]) -> tuple[str, ...]:
    """One queue or several, each once."""
    return (queues,) if isinstance(queues, str) else tuple(dict.fromkeys(queues))


def run_named(text: object) -> str | None:
    """Return a ticket's run id; None, with a warning, if malformed."""
    try:
        named = json.loads(text) if isinstance(text, str) else None
    except ValueError:
        named = None
    if isinstance(named, str):
        return named
    logger.warning("a malformed ticket was dropped: %.200r names no run", text)
    return None


@attrs.frozen(kw_only=True)
class Ticket:
    """Notice that a run needs a worker: names only, below 1 kB."""

    run_id: str
    """Id of the run."""
    queue: str = DEFAULT_QUEUE
    """Queue of the run."""
    pipeline: str = ""
    """Pipeline name shared by its runs."""
    fingerprint: str = ""
    """Pipeline version of the run's start."""
    priority: int = 0
    """Priority in its queue, higher first, if the engine has priorities."""
    not_before: float | None = None
    """Seconds since the epoch before which it need not be delivered."""
    trace: Mapping[str, str] = attrs.field(factory=dict)
    """W3C trace headers."""

    def __attrs_post_init__(self) -> None:
        size = len(json.dumps(attrs.asdict(self)))
        if size >= TICKET_BYTES:
            raise DeclarationError(
                f"the ticket of run {self.run_id[:60]!r}… has {size} bytes, and a ticket holds names of less than "
                f"{TICKET_BYTES} in all: choose a shorter run_id, pipeline name or queue"
            )


ExecuteTicket: TypeAlias = Callable[[str], None]
"""Callback that executes a claimable run; blocks, never raises.

That of a worker is a `BatchExecutor`.
"""


class BatchExecutor(Protocol):
    """Callback of a worker that accepts several tickets without blocking."""

    def __call__(self, run_id: str) -> None:
        """Execute a claimable run; blocks, never raises."""

    def begin(self, run_ids: Sequence[str], done: Callable[[], None]) -> None:
        """Execute a run per ticket; call `done` from any thread."""


class TicketExecutor:
    """Callback of an engine for the tickets of one worker."""

    def __init__(
        self, deliver: Callable[[Sequence[RunId], Callable[[], None]], None], ended: Callable[[], bool]
    ) -> None:
        self._deliver, self._ended = deliver, ended

    def __call__(self, run_id: str) -> None:
        """Execute a run for a ticket, until its or the worker's end."""
        done = threading.Event()
        self.begin([run_id], done.set)
        while not done.wait(1.0) and not self._ended():
            pass

    def begin(self, run_ids: Sequence[str], done: Callable[[], None]) -> None:
        """Execute a run per ticket; call `done` for each at its end."""
        named = [RunId(run_id) for run_id in run_ids if isinstance(run_id, str)]
        for run_id in run_ids:
            if not isinstance(run_id, str):
                logger.warning("a ticket without a run was dropped: %.200r is no run id", run_id)
                done()
        if named:
            self._deliver(named, done)


class Engine(Protocol):
    """Carries tickets; see the module's rules."""

    def prepare(self) -> None:
        """Create the engine's tables or other resources, if missing."""

    def submit(self, tickets: Sequence[Ticket], connection: Any = None) -> None:
        """Submit tickets, durably if the engine is durable.

        With an open `connection` of the store's database, they are part of its transaction, if the engine lives in that
        database; otherwise it is ignored.
        """

    def again(self, tickets: Sequence[Ticket]) -> None:
        """Deliver tickets of abandoned runs, unless they are queued already."""

    def serve(self, queues: Sequence[str], slots: int, play: ExecuteTicket, stopping: threading.Event) -> None:
        """Call the callback per ticket in engine threads, at most `slots` concurrently.

        Return after `stopping` is set and running calls have ended; nothing new is claimed from then on. Survives a
        restart of the engine's server.
        """

    def withdraw(self, run_ids: Sequence[str]) -> None:
        """Drop the tickets of these runs that were not delivered; best effort."""


_METHODS = ("prepare", "submit", "again", "serve", "withdraw")

_KNOWN = (
    "'postgres' (a job queue in the store's own Postgres), 'temporal://host:7233', 'ray://host:6379' or 'ray' (the Ray "
    "cluster of this machine), 'dbos' (DBOS queues in the store's own Postgres), or an Engine"
)


def open_engine(given: object, store: Store | None) -> Engine | None:
    """Return the given or named engine for a store's runs."""
    if given is None:
        return None
    if store is None:
        raise DeclarationError(
            "engine: workers need a store, and there is none: pass `store` to Flujo, as in "
            "Flujo(pipeline, store='postgresql://…', engine='postgres')"
        )
    if isinstance(given, str):
        return _named(given, store)
    missing = [name for name in _METHODS if not callable(getattr(given, name, None))]
    if missing:
        raise DeclarationError(f"engine must be {_KNOWN}; {given!r:.100} has no {', '.join(missing)}")
    return cast(Engine, given)


def _named(name: str, store: Store) -> Engine:
    scheme = name.partition("://")[0]
    if "://" in name and scheme == "temporal":
        return cast(Engine, _load("temporal_engine", "TemporalEngine", extra="temporal").at(name))
    if scheme == "ray":
        return cast(Engine, _load("contrib.ray_engine", "RayEngine", extra="ray").at(name))
    if name == "postgres":
        return cast(Engine, _load("procrastinate_engine", "ProcrastinateEngine", extra="fleet")(_url_of(store, name)))
    if name == "dbos":
        return cast(Engine, _load("contrib.dbos_engine", "DbosEngine", extra="dbos")(_url_of(store, name)))
    raise DeclarationError(f"there is no engine {name!r:.100}: use {_KNOWN}")


def _url_of(store: Store, engine: str) -> str:
    if getattr(store, "pooler", None) is not None:
        raise DeclarationError(
            f"engine={engine!r} needs LISTEN and sessions, and the store is behind a pooler in transaction mode: give "
            "the engine a direct URL, or leave `engine` out: workers then look into the store"
        )
    url = getattr(store, "url", None)
    if not isinstance(url, str):
        raise DeclarationError(
            f"engine={engine!r} keeps its tickets in the store's own Postgres, and the store is a "
            f"{type(store).__name__}: pass store='postgresql://…', or leave `engine` out, for workers on one machine"
        )
    return url


def _load(module: str, name: str, *, extra: str) -> Any:
    try:
        return getattr(importlib.import_module(f".{module}", __package__), name)
    except ImportError as error:
        raise DeclarationError(f"this engine needs an extra: pip install 'flujo-actors[{extra}]' ({error})") from error
