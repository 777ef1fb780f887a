"""The connections of a Postgres store, and what happens when one is lost.

Rules:

1. A write is a function of a connection, run in one transaction. If the connection is lost before the commit was sent,
   nothing happened, and the write is made again on another one; so it is after a deadlock.
2. If it is lost while the commit is under way, its session is ended, and then the database shows whether the write is
   there: it is neither lost nor made twice. (Asking for the transaction by its id would not do: a server that crashed
   gives ids out again.)
3. A transaction that is lent and lost before its commit is a `TransactionLost`: its borrower has to do it again.
4. All of this takes at most `timeout_s`, also if the server is silent; then it is a `StoreError`. What a borrower of a
   connection does takes as long as it takes.
5. Connections open when they are first needed, and again after `close()` or a fork. A child forgets its parent's
   connections without a word to the server: they are still the parent's.
"""

from __future__ import annotations

import contextlib
import math
import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeAlias, TypeVar

import attrs
import psycopg
from psycopg import errors as pg
from psycopg.conninfo import conninfo_to_dict
from psycopg_pool import ConnectionPool

from ...errors import StoreError, TransactionLost, TransactionRefused
from .._passwords import said_without_password
from . import _statements as sql
from ._schema import migrate
from ._session import Connection

T = TypeVar("T")

IsThere: TypeAlias = Callable[[Connection], bool]
"""Whether a write that was made, and perhaps committed, is in the database; false if it does no harm to repeat it."""

_PAUSE_S = 0.05
_SHORTEST_LIMIT_S = 1.0
_GRACE_S = 0.5
"""How much longer to wait than the server waits for a lock: it says what is wrong."""
_CONNECT_TIMEOUT_S = 10
_DEFAULTS = {"tcp_user_timeout": 30_000, "application_name": "flujo-actors"}


class PostgresConnections:
    """Opens, lends and closes connections to one database."""

    def __init__(self, url: str, *, pool_size: int, timeout_s: float) -> None:
        self._url = url
        self._pool_size = pool_size
        self._timeout_s = self._limit_s = timeout_s
        self._pool: ConnectionPool[Connection] | None = None
        self._pid = os.getpid()
        """Whose connections these are."""
        self._reached = False
        """Whether the server has ever answered."""
        self._opening = threading.Lock()

    def write(
        self, do: Callable[[Connection], tuple[T, IsThere]], *, lease_s: float = math.inf, slow: bool = False
    ) -> T:
        """What `do` returns, once its transaction has committed; `slow` if it may take longer than a lease."""
        self._expect(lease_s)
        deadline = self._deadline()
        while True:
            write = _Write(do)
            try:
                with self._borrowed(deadline) as db:
                    db.limit(self._timeout_s if slow else self._limit_s)
                    return write.run(db)
            except psycopg.Error as error:
                self._raise_unless_passing(error, deadline)
                for session, result, is_there in write.committing:
                    if self._has_committed(session, is_there, deadline):
                        return result
            time.sleep(_PAUSE_S)

    def _expect(self, lease_s: float) -> None:
        """Leases may be so short: a transaction that is left open must not keep a run for longer than that."""
        self._limit_s = min(self._limit_s, max(lease_s, _SHORTEST_LIMIT_S))

    def read(self, do: Callable[[Connection], T], *, deadline: float | None = None) -> T:
        """What `do` returns; each of its statements sees a state of its own."""
        deadline = deadline or self._deadline()
        while True:
            try:
                with self._borrowed(deadline) as db:
                    return do(db)
            except psycopg.Error as error:
                self._raise_unless_passing(error, deadline)
            time.sleep(_PAUSE_S)

    @contextlib.contextmanager
    def lent(self, is_there: IsThere) -> Iterator[Connection]:
        """A connection in a transaction that commits at the end of the block."""
        begun, db = self._begun(self._deadline())
        deadline = None
        try:
            with begun:
                with self._losing(db):
                    yield db
                deadline = self._bound(db)  # from here on, the commit may be under way
        except psycopg.Error as error:
            if deadline is None:
                raise
            if isinstance(error, psycopg.IntegrityError):  # of a constraint that is looked at when all is written
                raise TransactionRefused(f"{self._failure(error)}; nothing was written") from error
            self._raise_unless_passing(error, deadline)
            if not self._has_committed(db.session, is_there, deadline):
                raise self._loss(error) from error

    def _begun(self, deadline: float) -> tuple[contextlib.ExitStack, Connection]:
        """A connection whose transaction has begun, and what ends both: of those in the pool, some may be dead."""
        while True:
            try:
                with contextlib.ExitStack() as stack:
                    db = stack.enter_context(self._borrowed(deadline))
                    stack.enter_context(db.transaction())
                    db.limit_rest(self._timeout_s)
                    return stack.pop_all(), db
            except psycopg.Error as error:
                self._raise_unless_passing(error, deadline)
            time.sleep(_PAUSE_S)

    @contextlib.contextmanager
    def _losing(self, db: Connection) -> Iterator[None]:
        """What goes wrong in the block is the borrower's own error, unless its connection or a lock was lost."""
        db.deadline = math.inf
        try:
            yield
        except Exception as error:
            if db.closed or _takes_back(error):
                raise self._loss(error) from error
            raise
        except BaseException:
            db.close()  # and the transaction with it: a thread that the borrower left behind writes to nobody
            raise
        finally:
            self._bound(db)

    @contextlib.contextmanager
    def appending(self, db: Connection, *, slow: bool = False) -> Iterator[None]:
        """A time in which a borrowed connection is the store's: in bounds, and what goes wrong is a `StoreError`."""
        self._bound(db)
        try:
            db.limit_rest(self._timeout_s, self._timeout_s if slow else self._limit_s)  # from now on it holds a run
            yield
        except psycopg.Error as error:
            raise self._failure(error) from error
        finally:
            db.deadline = math.inf

    def dispose(self) -> None:
        """Close when nobody refers to the store any more; the collector, who may be anywhere, does not wait for it."""
        try:
            threading.Thread(target=self.close, daemon=True).start()
        except RuntimeError:  # there are no more threads, or the interpreter ends
            self.close()

    def close(self) -> None:
        with self._opening:
            pool, self._pool = self._pool, None
        if pool is not None and self._pid == os.getpid():
            pool.close()

    def before_fork(self) -> None:
        """Nothing to do: the child takes nothing over."""

    def after_fork_in_parent(self) -> None:
        """Nothing to do: the parent goes on with what it has."""

    def after_fork_in_child(self) -> None:
        if self._pool is not None:
            _abandoned.append(self._pool)
        self._pool, self._opening = None, threading.Lock()

    def _deadline(self) -> float:
        return time.monotonic() + self._timeout_s

    def _bound(self, db: Connection) -> float:
        """Give the server until a deadline from now."""
        deadline = self._deadline()
        db.deadline = deadline + _GRACE_S
        return deadline

    @contextlib.contextmanager
    def _borrowed(self, deadline: float) -> Iterator[Connection]:
        pool = self._ready_pool(deadline)
        db = pool.getconn(timeout=max(deadline - time.monotonic(), _PAUSE_S))
        db.deadline = deadline + _GRACE_S
        try:
            yield db
        finally:
            if not db.closed:
                with contextlib.suppress(psycopg.OperationalError):  # the pool throws a broken connection away
                    db.rollback()
            pool.putconn(db)

    def _ready_pool(self, deadline: float) -> ConnectionPool[Connection]:
        if not self._opening.acquire(timeout=max(deadline - time.monotonic(), 0)):
            raise StoreError(f"Postgres: another thread has tried to connect for more than {self._timeout_s:g} s")
        try:
            if self._pool is None:
                with self._connect() as db:
                    db.deadline = deadline + _GRACE_S
                    migrate(db)
                self._pool, self._pid = self._open_pool(), os.getpid()
            return self._pool
        finally:
            self._opening.release()

    def _connect(self) -> Connection:
        try:
            db = Connection.connect(self._url, autocommit=True, **self._defaults())
        except psycopg.OperationalError as error:
            if not self._reached:  # a wrong address is more likely than a server that restarts just now
                raise self._failure(error) from error
            raise
        self._reached = True
        return db

    def _open_pool(self) -> ConnectionPool[Connection]:
        return ConnectionPool(
            self._url,
            connection_class=Connection,
            kwargs={"autocommit": True, **self._defaults()},
            configure=self._configure,
            min_size=1,
            max_size=self._pool_size,
            timeout=self._timeout_s,
            open=True,
        )

    def _configure(self, db: Connection) -> None:
        self._bound(db)
        [db.session] = db.ask(sql.SESSION)
        db.limit(self._limit_s)

    def _defaults(self) -> dict[str, Any]:
        said = conninfo_to_dict(self._url)
        defaults = {**_DEFAULTS, "connect_timeout": min(_CONNECT_TIMEOUT_S, max(1, math.ceil(self._timeout_s)))}
        return {name: value for name, value in defaults.items() if name not in said}

    def _raise_unless_passing(self, error: psycopg.Error, deadline: float) -> None:
        if not _passing(error) or time.monotonic() > deadline:
            raise self._failure(error) from error

    def _failure(self, error: psycopg.Error) -> StoreError:
        text = said_without_password(str(error), self._url)
        if text != str(error):
            error.args = (text,)  # it stays behind the `StoreError`, and is told with it
        return StoreError(f"Postgres: {type(error).__name__}: {text.strip()}")

    def _loss(self, error: Exception) -> TransactionLost:
        said = f"{type(error).__name__}: {said_without_password(str(error), self._url).strip()}"
        return TransactionLost(f"Postgres: {said}; nothing was written, it can be done again")

    def _has_committed(self, session: tuple[object, ...], is_there: IsThere, deadline: float) -> bool:
        """How a transaction ended whose connection was lost at its commit."""
        # The server may not have noticed the loss; the transaction could then still go either way.
        while self.read(lambda db: db.ask(sql.END_SESSION, session), deadline=deadline):
            if time.monotonic() > deadline:
                raise StoreError("Postgres: the connection was lost at a commit, and its end cannot be learned")
            time.sleep(_PAUSE_S)
        return self.read(is_there, deadline=deadline)


@attrs.define
class _Write(Generic[T]):
    """One attempt to write, and how far it came."""

    do: Callable[[Connection], tuple[T, IsThere]]
    committing: list[tuple[tuple[object, ...], T, IsThere]] = attrs.Factory(list)
    """From the moment at which the commit may be under way: in which session, and how to find out."""

    def run(self, db: Connection) -> T:
        """Two round trips, usually: the beginning travels with the first question, the commit with the last rows."""
        return db.in_pipeline(lambda: self._committed(db))

    def _committed(self, db: Connection) -> T:
        db.execute("BEGIN")
        result, is_there = self.do(db)
        self.committing.append((db.session, result, is_there))
        db.execute("COMMIT")
        return result  # answered when the pipeline is left, which is a turn of its own


_MAY_PASS = (pg.DeadlockDetected, pg.SerializationFailure, pg.LockNotAvailable)


def _passing(error: psycopg.Error) -> bool:
    """Whether the same write may succeed on another connection, or a moment later."""
    if isinstance(error, pg.IdleInTransactionSessionTimeout | pg.TransactionTimeout):
        return True  # this process was stopped for a while; what it may still write is for the next attempt to see
    lost = isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
    if not lost or isinstance(error, pg.PipelineAborted):
        return False
    state = error.sqlstate or "08000"  # a connection that is lost has no state
    return state.startswith(("08", "57P0")) or isinstance(error, _MAY_PASS)


def _takes_back(error: BaseException) -> bool:
    """Whether a borrower's error says that the server has undone the transaction, and why it may go well next time."""
    if isinstance(error, _MAY_PASS):
        return True
    state = error.sqlstate if isinstance(error, psycopg.Error) else None
    return state is not None and state.startswith(("08", "57P0"))


_abandoned: list[ConnectionPool[Connection]] = []
"""Pools of a parent process: closing them here would end the parent's sessions."""
