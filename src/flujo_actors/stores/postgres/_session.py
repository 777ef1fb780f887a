"""Postgres sessions with bounded waits, and signals between processes.

Rules of a session:

1. Every use of a connection has a deadline. If the server does not answer until then, the connection is closed and the
   call raises `ServerSilent`.
2. The server ends a transaction whose client is silent, since its locks keep others from claiming the runs that it
   touched. `idle_in_transaction_session_timeout` does that where the server waits for a statement, and from version 17
   on `transaction_timeout` does it everywhere.
3. In pipeline mode a server that was only asked to flush does not report itself idle. So queries are sent with a
   `turn`, which costs as many round trips.

Rules of signals:

1. A signal may be lost: receivers also poll. So nothing is stored, and no sender waits for a delivery.
2. NOTIFY takes a server-wide lock at commit. So signals are sent in statements of their own, never in a
   transaction that writes: the first at once, those of the next milliseconds together.
3. There is one sender per database and process, shared by the fleet and the store. Its thread and its connection end
   when it is idle, and a forked child begins its own.
4. The store signals each commit that changes a run on the channel `RUNS`, by a part of the run's hash.

Rules of a listener for changed runs:

1. Its connection is used by one thread at a time, and stays open between two uses: `release` unsubscribes, so that
   signals do not pile up in the server. It is closed with the store.
2. Signals from before `LISTEN` are missed. So its user reads the runs once more after `listen` returned.
3. Any error of the connection is raised as `StoreError`; the user polls until it listens again.
4. Behind a pooler in transaction mode there is no session that could listen.

Sections:

- Signals to other processes: batched hints outside the journal.
- Listener for changed runs: the watches of one process.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import math
import selectors
import socket
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeAlias, TypeVar

import psycopg
from psycopg import Pipeline
from psycopg.abc import Params, PQGen
from psycopg.waiting import Ready, Wait

from ..._core.outcomes import RunId
from ...errors import StoreError
from .._dsn_redaction import message_without_password
from .._fork_safety import watch_forks
from . import _statements as sql

R = TypeVar("R")

_HAS_TRANSACTION_TIMEOUT = 170_000
_GRACE_S = 0.5
"""Extra transaction time, so that the server reports the lock."""


class ServerSilent(psycopg.OperationalError):
    """The server did not answer in time."""


class PostgresSession(psycopg.Connection[tuple[Any, ...]]):
    """Connection with the identity of its server session; see the module's rules."""

    session: tuple[object, ...] = ()
    """Server process id and start time, unique per session."""
    deadline = math.inf
    """Until when the server may be silent, on the monotonic clock."""
    pooled = False
    """Whether a pooler gives each transaction another session."""
    schema: str | None = None
    """Schema that each transaction behind a pooler chooses."""
    _limit_s = 0.0
    _pipelined: Pipeline | None = None

    def wait(self, gen: PQGen[R], *args: Any, **options: Any) -> R:
        """Wait as the driver does, until the deadline."""
        if self.deadline == math.inf:
            return super().wait(gen, *args, **options)
        try:
            return super().wait(_until(self.deadline, gen), *args, **options)
        except ServerSilent:
            self.close()
            raise

    def limit(self, seconds: float) -> None:
        """Set the server's lock and transaction timeouts from now on."""
        if seconds != self._limit_s and not self.pooled:
            self._set_limits(lock_s=seconds, transaction_s=seconds + _GRACE_S, local=False)
            self._limit_s = seconds

    def limit_rest(self, lock_s: float, transaction_s: float = 0.0) -> None:
        """Set the open transaction's remaining timeouts; 0 removes them."""
        self._set_limits(lock_s=lock_s, transaction_s=transaction_s, local=True)

    def begin_pooled(self, seconds: float) -> None:
        """Set the open transaction's limits and read its session."""
        self.limit_rest(seconds, seconds + _GRACE_S)
        self.choose_schema()
        [self.session] = self.ask(sql.TRANSACTION)

    def choose_schema(self) -> None:
        """Use the schema until the end of the open transaction."""
        if self.schema is not None:
            self.execute("SELECT set_config('search_path', %s, true)", (f'"{self.schema}"',))

    @contextlib.contextmanager
    def in_schema(self) -> Iterator[None]:
        """Read from the schema; behind a pooler that takes a transaction."""
        if self.schema is None:
            yield
            return
        with self.transaction():
            self.choose_schema()
            yield

    def _set_limits(self, *, lock_s: float, transaction_s: float, local: bool) -> None:
        knows_both = self.pgconn.server_version >= _HAS_TRANSACTION_TIMEOUT
        limits = {"lock": f"{lock_s * 1000:.0f}", "transaction": f"{transaction_s * 1000:.0f}", "local": local}
        self.execute(sql.LIMIT if knows_both else sql.LIMIT_IDLE, limits)

    def in_pipeline(self, do: Callable[[], R]) -> R:
        """Return the result of `do`, with statements sent together."""
        with self.pipeline() as self._pipelined:
            try:
                return do()
            finally:
                self._pipelined = None

    def ask(self, statement: Any, parameters: Params | None = None) -> list[tuple[Any, ...]]:
        """Return the rows that a statement returns."""
        cursor = self.execute(statement, parameters)
        self.turn()
        return cursor.fetchall()

    def turn(self) -> None:
        """Receive the results of everything sent; no effect outside a pipeline."""
        if self._pipelined is not None:
            self.wait(_all_sent(self))
            self._pipelined.sync()


def _until(deadline: float, gen: PQGen[R]) -> PQGen[R]:
    """Drive the driver's generator, ten times a second, until the deadline."""
    try:
        wanted = next(gen)
        while True:
            ready = yield wanted
            if time.monotonic() > deadline:
                raise ServerSilent("the server did not answer in time; its connection was given up")
            wanted = gen.send(ready)
    except StopIteration as end:
        result: R = end.value
        return result


def _all_sent(db: PostgresSession) -> PQGen[None]:
    """Send all pending output while consuming input.

    `sync` waits for results alone: if more was written than the socket accepts at once, the rest would stay in the
    client, and both sides would wait forever.
    """
    while db.pgconn.flush():
        ready = yield Wait.RW
        if ready & Ready.R:
            db.pgconn.consume_input()


# --- Signals to other processes ---------------------------------------------------------------------------------------


RUNS = "flujo_runs"
"""Channel of changed runs; it is that of all schemas of a database."""

GATHER_S = 0.005
"""For how long signals are gathered after some were sent."""

WAITING_AT_MOST = 10_000
"""Number of kept messages while the server does not answer; older ones are dropped."""

_IDLE_S = 30.0
"""Idle time after which a sender closes its connection."""

_EXIT_S = 0.5
"""Time limit of a process's end for its last messages."""

_NOTIFY = """
    SELECT set_config('synchronous_commit', 'off', true),
           pg_notify(coalesce((SELECT reply FROM flujo_runs WHERE run_hash = about), channel), message)
    FROM unnest(%s::text[], %s::text[], %s::bytea[]) AS t(channel, message, about)"""
"""The waiter of a remote step may have changed since its request: the address is looked up."""


Signal: TypeAlias = tuple[str, str, bytes | None]
"""Channel, message, and hash of the remote step whose new address counts, if any."""


def mark_of(run_id: RunId) -> str:
    """Return the name of a run in a signal."""
    return _hash_of(run_id).hex()[:16]


def _hash_of(run_id: str) -> bytes:
    return hashlib.sha256(run_id.encode("utf-8", "surrogatepass")).digest()


class Signals:
    """Sends messages through a Postgres database; from any thread."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._waiting: deque[Signal] = deque(maxlen=WAITING_AT_MOST)
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._taken_at, self._sending, self._closing = -GATHER_S, False, False
        watch_forks(self)

    def announce(self, run_ids: Iterable[RunId]) -> None:
        """Signal a change of these runs soon; never blocks or fails."""
        self._send([(RUNS, mark_of(run_id), None) for run_id in dict.fromkeys(run_ids)])

    def send(self, channel: str, message: str, *, about: str | None = None) -> None:
        """Send a message to the step's waiter soon; never blocks or fails."""
        self._send([(channel, message, None if about is None else _hash_of(about))])

    def _send(self, signals: list[Signal]) -> None:
        with self._changed:
            self._waiting.extend(signals)
            if self._thread is None:
                self._start()
            self._changed.notify_all()

    def _start(self) -> None:
        thread = threading.Thread(target=_send_all, args=(weakref.ref(self),), name="flujo signals", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # there are no more threads, or the interpreter ends: receivers poll
            self._waiting.clear()
        else:
            self._thread = thread

    def take(self) -> list[Signal] | None:
        """Return the messages after the batch delay; `None` when idle."""
        with self._changed:
            self._sending = False
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._waiting or self._closing, _IDLE_S)
            if not self._waiting:
                self._thread, self._closing = None, False
                return None
        time.sleep(max(0.0, self._taken_at + GATHER_S - time.monotonic()))
        with self._changed:
            taken = list(self._waiting)
            self._waiting.clear()
            self._taken_at, self._sending = time.monotonic(), True
            return taken

    def flush(self, timeout_s: float) -> None:
        """Wait until all messages are sent, or for the timeout."""
        with self._changed:
            self._changed.wait_for(lambda: not self._is_busy(), timeout_s)

    def close(self) -> None:
        """End the thread after its last messages."""
        with self._changed:
            thread, self._closing = self._thread, self._thread is not None
            self._changed.notify_all()
        if thread is not None:
            thread.join(_EXIT_S)

    def _is_busy(self) -> bool:
        return self._thread is not None and self._thread.is_alive() and (self._sending or bool(self._waiting))

    def before_fork(self) -> None:
        """Do nothing: the thread stays with the parent."""

    def after_fork_in_parent(self) -> None:
        """Do nothing."""

    def after_fork_in_child(self) -> None:
        """Begin anew: the thread is the parent's, and so are its messages."""
        self._changed, self._thread = threading.Condition(), None
        self._sending = self._closing = False
        self._waiting.clear()

    @property
    def url(self) -> str:
        """Return the database URL."""
        return self._url


def _send_all(me: weakref.ref[Signals]) -> None:
    """Run the sender's thread until it is idle; unsendable messages are lost."""
    db: Any = None
    try:
        while (signals := me()) is not None and (taken := signals.take()) is not None:
            db = _sent(db, signals.url, taken)
            del signals
    finally:
        if db is not None:
            db.close()


def _sent(db: Any, url: str, messages: list[Signal]) -> object:
    """Return the connection that the messages went out on, or would have."""
    with contextlib.suppress(psycopg.Error):
        if db is None or db.closed:
            # A statement that is not prepared can be sent through a pooler, too.
            db = psycopg.connect(
                url, autocommit=True, application_name="flujo signals", prepare_threshold=None, connect_timeout=10
            )
        for start in range(0, len(messages), 100):
            part = messages[start : start + 100]
            db.execute(_NOTIFY, [list(column) for column in zip(*part, strict=True)])
    return db


_senders: weakref.WeakValueDictionary[str, Signals] = weakref.WeakValueDictionary()
_lock = threading.Lock()


def signals_for(url: str) -> Signals:
    """Return this process's sender for a database."""
    with _lock:
        signals = _senders.get(url)
        if signals is None:
            signals = _senders[url] = Signals(url)
        return signals


@atexit.register
def _flush_all() -> None:
    """Send the last signals before the process exits."""
    for signals in list(_senders.values()):
        signals.flush(_EXIT_S)


# --- Listener for changed runs ----------------------------------------------------------------------------------------


_TIMEOUT_S = 5
"""Time limit of the server to connect, listen or unlisten."""


class RunListener:
    """Open subscription to changed runs; see the module's rules."""

    def __init__(self, url: str, keep: Callable[[RunListener], bool]) -> None:
        self._url, self._keep = url, keep
        with self._errors():
            self._db = PostgresSession.connect(
                url,
                autocommit=True,
                application_name="flujo watcher",
                connect_timeout=_TIMEOUT_S,
                prepare_threshold=None,
            )
        self._near, self._far = socket.socketpair()
        for each in (self._near, self._far):
            each.setblocking(False)
        self._ready = selectors.DefaultSelector()
        self._ready.register(self._near, selectors.EVENT_READ)
        self._ready.register(self._db.fileno(), selectors.EVENT_READ)

    def begin(self) -> None:
        """Subscribe; later signals are received."""
        self._execute(f"LISTEN {RUNS}")

    def wait(self, run_ids: Iterable[RunId], timeout_s: float) -> None:
        """Block until a run has changed, or `interrupt`, or the timeout."""
        wanted, deadline = {mark_of(run_id) for run_id in run_ids}, time.monotonic() + timeout_s
        while (left_s := deadline - time.monotonic()) > 0:
            ready = {key.fileobj for key, _ in self._ready.select(left_s)}
            if self._near in ready and self._drained():
                return
            if ready and not wanted.isdisjoint(self._received()):
                return

    def interrupt(self) -> None:
        """End a wait, the present or the next one; from any thread."""
        with contextlib.suppress(OSError):  # it is full, or closed
            self._far.send(b".")

    def release(self) -> None:
        """Unsubscribe; the store may keep the connection for the next use."""
        with contextlib.suppress(StoreError):
            self._execute("UNLISTEN *")
            self._received()
        self._drained()
        if self._db.closed or not self._keep(self):
            self.close()

    def close(self) -> None:
        """Close the connection."""
        self._ready.close()
        for each in (self._near, self._far):
            each.close()
        self._db.close()

    def _drained(self) -> bool:
        with contextlib.suppress(OSError):
            return bool(self._near.recv(4_096))
        return False

    def _received(self) -> Iterator[str]:
        with self._errors():
            self._db.pgconn.consume_input()
            notes = list(iter(self._db.pgconn.notifies, None))
        return (note.extra.decode() for note in notes)

    def _execute(self, statement: str) -> None:
        with self._errors():
            self._db.deadline = time.monotonic() + _TIMEOUT_S
            self._db.execute(statement.encode())
            self._db.deadline = math.inf

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except psycopg.Error as error:
            text = message_without_password(str(error), self._url).strip()
            raise StoreError(f"Postgres: {type(error).__name__}: {text}") from None


class RunListeners:
    """The listeners of one store: one connection is kept between two uses."""

    def __init__(self, url: str, *, direct: bool) -> None:
        self._url, self._direct = url, direct
        self._lock = threading.Lock()
        self._kept: RunListener | None = None
        self._closed = False
        watch_forks(self)

    def listen(self) -> RunListener | None:
        """Return a begun listener, or `None` where no session can listen; blocks."""
        if not self._direct:
            return None
        with self._lock:
            kept, self._kept, self._closed = self._kept, None, False
        if kept is not None:
            with contextlib.suppress(StoreError):
                kept.begin()
                return kept
            kept.close()
        listener = RunListener(self._url, self._keep)
        try:
            listener.begin()
        except StoreError:
            listener.close()
            raise
        return listener

    def _keep(self, listener: RunListener) -> bool:
        with self._lock:
            keeps = self._kept is None and not self._closed
            if keeps:
                self._kept = listener
            return keeps

    def close(self) -> None:
        """Close the kept connection, and one in use when it is released."""
        with self._lock:
            kept, self._kept, self._closed = self._kept, None, True
        if kept is not None:
            kept.close()

    def before_fork(self) -> None:
        """Do nothing: the connection stays with the parent."""

    def after_fork_in_parent(self) -> None:
        """Do nothing."""

    def after_fork_in_child(self) -> None:
        if self._kept is not None:
            _abandoned.append(self._kept)
        self._kept, self._lock = None, threading.Lock()


_abandoned: list[RunListener] = []
"""Listeners of the parent process: they are neither used nor closed here."""
