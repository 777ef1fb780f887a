"""Connections of a Postgres store, and recovery from lost ones.

Rules:

1. A write is a function of a connection, run in one transaction. If the connection is lost before the commit was sent,
   nothing happened, and the write is repeated on another one; likewise after a deadlock.
2. If it is lost while the commit is in flight, its session is terminated, and then the database shows whether the write
   exists: it is neither lost nor made twice. (The transaction id would not do: a server that crashed reuses ids.)
3. A borrowed transaction that is lost before its commit raises `TransactionLost`: its borrower must repeat it.
4. All of this takes at most `timeout_s`, even if the server does not answer; then it is a `StoreError`. The borrower's
   own work is not bounded.
5. Connections open on demand, and again after `close()` or a fork. A child drops its parent's connections without
   contacting the server: they still belong to the parent.
6. Behind a pooler in transaction mode no session belongs to this process: statements are not prepared, limits are set
   in each transaction, and a lost transaction is known by its start.
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

from ..._core.records.records import RECORD_VERSION
from ...errors import StoreError, TransactionLost, TransactionRefused
from .._dsn_redaction import message_without_password
from .._record_rows import other_schema
from . import _statements as sql
from ._schema import MIGRATIONS, former_views, migrate, readable, record_format
from ._session import PostgresSession, RunListeners, signals_for

T = TypeVar("T")

IsThere: TypeAlias = Callable[[PostgresSession], bool]
"""Check whether a write is in the database, else repeatable."""

_PAUSE_S = 0.05
_SHORTEST_LIMIT_S = 1.0
_GRACE_S = 0.5
"""Extra wait beyond the server's lock timeout, whose error is more precise."""
_CONNECT_TIMEOUT_S = 10
_DEFAULTS = {"tcp_user_timeout": 30_000, "application_name": "flujo-actors"}


class PostgresConnections:
    """Opens, lends and closes connections to one database."""

    def __init__(
        self,
        url: str,
        *,
        pool_size: int,
        timeout_s: float,
        migrates: bool = True,
        pooled: bool = False,
        schema: str | None = None,
    ) -> None:
        self._url, self._schema = url, schema
        self._pooled = pooled
        """Whether a transaction-mode pooler is before the server (rule 6)."""
        self._pool_size = pool_size
        self._timeout_s = self._limit_s = timeout_s
        self._pool: ConnectionPool[PostgresSession] | None = None
        self._pid = os.getpid()
        """Process id of the owner of these connections."""
        self._reached = False
        """Whether the server has ever answered."""
        self._opening = threading.Lock()
        self._migrates, self._version = migrates, 0
        self.creates = migrates
        """Whether a write creates missing tables."""
        self.record_format = RECORD_VERSION
        """Format of the records that writers of the store write."""
        self.listeners, self.signals = RunListeners(url, direct=not pooled), signals_for(url)

    def may_migrate(self) -> None:
        """Let the next use of reading connections migrate the schema."""
        if not self._migrates:
            self._migrates = True
            self.close()

    @property
    def is_current(self) -> bool:
        """Return whether the schema in use is that of this version."""
        return self._version == len(MIGRATIONS)

    def refuse_former(self) -> None:
        """Raise `StoreVersionError` unless the schema is that of this version."""
        if not self.is_current:
            raise other_schema(self._version, len(MIGRATIONS))

    def write(
        self, do: Callable[[PostgresSession], tuple[T, IsThere]], *, lease_s: float = math.inf, slow: bool = False
    ) -> T:
        """Return `do`'s result after commit; `slow` may exceed a lease."""
        self._expect(lease_s)
        deadline = self._deadline()
        while True:
            limit_s = self._timeout_s if slow else self._limit_s
            write = _PostgresWrite(do, limit_s if self._pooled else None)
            try:
                with self._borrowed(deadline) as db:
                    db.limit(limit_s)
                    return write.run(db)
            except psycopg.Error as error:
                self._raise_unless_passing(error, deadline)
                for session, result, is_there in write.committing:
                    if self._has_committed(session, is_there, deadline):
                        return result
            time.sleep(_PAUSE_S)

    def _expect(self, lease_s: float) -> None:
        """Bound open transactions by the shortest lease."""
        self._limit_s = min(self._limit_s, max(lease_s, _SHORTEST_LIMIT_S))

    def read(self, do: Callable[[PostgresSession], T], *, deadline: float | None = None) -> T:
        """Return `do`'s result, one snapshot per statement; empty without schema."""
        deadline = deadline or self._deadline()
        while True:
            try:
                with self._borrowed(deadline, creates=self._migrates) as db, db.in_schema():
                    return do(db)
            except _EmptySchema:
                return do(_NO_ROWS)
            except psycopg.Error as error:
                self._raise_unless_passing(error, deadline)
            time.sleep(_PAUSE_S)

    @contextlib.contextmanager
    def inspecting(self, *, creates: bool = False) -> Iterator[PostgresSession]:
        """Yield a connection of any schema; behind a pooler in one transaction."""
        try:
            with self._connect() as db, self._in_own_schema(db, creates=creates):
                yield db
        except psycopg.Error as error:
            raise self._failure(error) from error

    @contextlib.contextmanager
    def commanding(self) -> Iterator[PostgresSession]:
        """Yield a connection for statements outside of transactions.

        Other statements need its `in_schema`.
        """
        try:
            with self._connect() as db:
                if self._pooled:
                    db.schema = self._schema
                elif self._schema is not None:
                    self._enter_schema(db, self._schema, creates=False)
                yield db
        except psycopg.Error as error:
            raise self._failure(error) from error

    @property
    def pool_size(self) -> int:
        """Return the maximum number of pooled connections."""
        return self._pool_size

    @contextlib.contextmanager
    def lent_connection(self, is_there: IsThere, *, slow: bool | None = None) -> Iterator[PostgresSession]:
        """Yield a connection in a transaction that commits finally.

        Without `slow`, its duration is limited from the first append on; with it, from its beginning.
        """
        begun, db = self._open_transaction(self._deadline(), 0.0 if slow is None else self._transaction_s(slow))
        deadline = None
        try:
            with begun:
                with self._reporting_loss(db):
                    yield db
                deadline = self._bound(db)  # from here on, the commit may be in flight
        except psycopg.Error as error:
            if deadline is None:
                raise
            if isinstance(error, psycopg.IntegrityError):  # a deferred constraint
                raise TransactionRefused(f"{self._failure(error)}; nothing was written") from error
            self._raise_unless_passing(error, deadline)
            if not self._has_committed(db.session, is_there, deadline):
                raise self._transaction_lost(error) from error

    def _transaction_s(self, slow: bool) -> float:
        return self._timeout_s if slow else self._limit_s

    def _open_transaction(self, deadline: float, transaction_s: float) -> tuple[contextlib.ExitStack, PostgresSession]:
        """Return a connection with an open transaction, skipping dead ones."""
        while True:
            try:
                with contextlib.ExitStack() as stack:
                    db = stack.enter_context(self._borrowed(deadline))
                    stack.enter_context(db.transaction())
                    db.limit_rest(self._timeout_s, transaction_s)
                    if self._pooled:
                        db.choose_schema()
                        [db.session] = db.ask(sql.TRANSACTION)
                    return stack.pop_all(), db
            except psycopg.Error as error:
                self._raise_unless_passing(error, deadline)
            time.sleep(_PAUSE_S)

    @contextlib.contextmanager
    def _reporting_loss(self, db: PostgresSession) -> Iterator[None]:
        """Pass borrower errors through, unless connection or lock was lost."""
        db.deadline = math.inf
        try:
            yield
        except Exception as error:
            if db.closed or _is_rolled_back(error):
                raise self._transaction_lost(error) from error
            raise
        except BaseException:
            db.close()  # and the transaction with it: a thread left behind by the borrower writes nowhere
            raise
        finally:
            self._bound(db)

    @contextlib.contextmanager
    def appending(self, db: PostgresSession, *, slow: bool | None = False) -> Iterator[None]:
        """Run store operations on a borrowed connection, with a timeout and `StoreError`.

        Without `slow`, the transaction was limited at its beginning, which saves a round trip.
        """
        self._bound(db)
        try:
            if slow is not None:
                db.limit_rest(self._timeout_s, self._transaction_s(slow))  # from now on it holds a run
            yield
        except psycopg.Error as error:
            raise self._failure(error) from error
        finally:
            db.deadline = math.inf

    def dispose(self) -> None:
        """Close without waiting when the store is garbage collected."""
        try:
            threading.Thread(target=self.close, daemon=True).start()
        except RuntimeError:  # there are no more threads, or the interpreter ends
            self.close()

    def close(self) -> None:
        with self._opening:
            pool, self._pool = self._pool, None
        if pool is not None and self._pid == os.getpid():
            pool.close()
        self.listeners.close()
        self.signals.close()

    def before_fork(self) -> None:
        """Nothing to do: the child takes nothing over."""

    def after_fork_in_parent(self) -> None:
        """Do nothing: the parent keeps its connections."""

    def after_fork_in_child(self) -> None:
        if self._pool is not None:
            _abandoned.append(self._pool)
        self._pool, self._opening = None, threading.Lock()

    def _deadline(self) -> float:
        return time.monotonic() + self._timeout_s

    def _bound(self, db: PostgresSession) -> float:
        """Give the server until a deadline from now."""
        deadline = self._deadline()
        db.deadline = deadline + _GRACE_S
        return deadline

    @contextlib.contextmanager
    def _borrowed(self, deadline: float, *, creates: bool = True) -> Iterator[PostgresSession]:
        pool = self._ready_pool(deadline, creates=creates)
        db = pool.getconn(timeout=max(deadline - time.monotonic(), _PAUSE_S))
        db.pooled, db.schema = self._pooled, self._schema if self._pooled else None
        db.deadline = deadline + _GRACE_S
        try:
            yield db
        finally:
            if not db.closed:
                with contextlib.suppress(psycopg.OperationalError):  # the pool throws a broken connection away
                    db.rollback()
            pool.putconn(db)

    def _ready_pool(self, deadline: float, *, creates: bool) -> ConnectionPool[PostgresSession]:
        if not self._opening.acquire(timeout=max(deadline - time.monotonic(), 0)):
            raise StoreError(f"Postgres: another thread has tried to connect for more than {self._timeout_s:g} s")
        try:
            if self._pool is None:
                with self._connect() as db:
                    db.deadline = deadline + _GRACE_S
                    self._version = self._prepared(db, creates=creates)
                self._pool, self._pid = self._open_pool(), os.getpid()
            return self._pool
        finally:
            self._opening.release()

    def _prepared(self, db: PostgresSession, *, creates: bool) -> int:
        """Return the schema version after migration, where these connections may migrate."""
        with self._in_own_schema(db, creates=creates):
            return self._migrated(db, creates=creates)

    def _migrated(self, db: PostgresSession, *, creates: bool) -> int:
        found = 0 if self._migrates else readable(db)
        if self._pooled and 0 < found < len(MIGRATIONS):  # views of a former schema need a session
            raise other_schema(found, len(MIGRATIONS))
        if found == 0 and not creates:
            raise _EmptySchema
        if found == 0 and not self._migrates and not self.creates:
            raise other_schema(found, len(MIGRATIONS))
        if found == 0:
            migrate(db)
        self.record_format = record_format(db, found or len(MIGRATIONS))
        return found or len(MIGRATIONS)

    @contextlib.contextmanager
    def _in_own_schema(self, db: PostgresSession, *, creates: bool) -> Iterator[None]:
        """Use the store's schema, behind a pooler for one transaction."""
        if self._schema is None:
            yield
            return
        with db.transaction() if self._pooled else contextlib.nullcontext():
            self._enter_schema(db, self._schema, creates=creates)
            yield

    def _enter_schema(self, db: PostgresSession, schema: str, *, creates: bool) -> None:
        """Use a schema, after creating it where these connections may migrate."""
        known = db.execute("SELECT 1 FROM pg_namespace WHERE nspname = %s", (schema,)).fetchall()
        if not known and creates and (self._migrates or self.creates):
            db.execute(f'CREATE SCHEMA IF NOT EXISTS "{schema}"'.encode())
        db.execute("SELECT set_config('search_path', %s, %s)", (f'"{schema}"', self._pooled))

    def _connect(self) -> PostgresSession:
        try:
            db = PostgresSession.connect(self._url, autocommit=True, **self._defaults())
        except psycopg.OperationalError as error:
            if not self._reached:  # a wrong address is more likely than a server that is restarting now
                raise self._failure(error) from error
            raise
        self._reached = True
        return db

    def _open_pool(self) -> ConnectionPool[PostgresSession]:
        return ConnectionPool(
            self._url,
            connection_class=PostgresSession,
            kwargs={"autocommit": True, **self._defaults()},
            configure=self._configure,
            min_size=1,
            max_size=self._pool_size,
            timeout=self._timeout_s,
            open=True,
        )

    def _configure(self, db: PostgresSession) -> None:
        self._bound(db)
        if self._pooled:
            return
        [db.session] = db.ask(sql.SESSION)
        if self._version < len(MIGRATIONS):
            for view in former_views(db):
                db.execute(view.encode())
        db.limit(self._limit_s)

    def _defaults(self) -> dict[str, Any]:
        said = conninfo_to_dict(self._url)
        defaults = {**_DEFAULTS, "connect_timeout": min(_CONNECT_TIMEOUT_S, max(1, math.ceil(self._timeout_s)))}
        chosen = {name: value for name, value in defaults.items() if name not in said}
        return {**chosen, "prepare_threshold": None} if self._pooled else chosen

    def _raise_unless_passing(self, error: psycopg.Error, deadline: float) -> None:
        if not _passing(error) or time.monotonic() > deadline:
            raise self._failure(error) from error

    def _failure(self, error: psycopg.Error) -> StoreError:
        text = message_without_password(str(error), self._url)
        if text != str(error):
            error.args = (text,)  # chained to the `StoreError` and reported with it
        pooler = _NEEDS_POOLER if isinstance(error, _PREPARED) and not self._pooled else ""
        return StoreError(f"Postgres: {type(error).__name__}: {text.strip()}{pooler}")

    def _transaction_lost(self, error: Exception) -> TransactionLost:
        said = f"{type(error).__name__}: {message_without_password(str(error), self._url).strip()}"
        return TransactionLost(f"Postgres: {said}; nothing was written, it can be done again")

    def _has_committed(self, session: tuple[object, ...], is_there: IsThere, deadline: float) -> bool:
        """Return whether a transaction committed whose connection was lost at its commit."""
        # The server may not have noticed the loss; the transaction could then still go either way.
        end = sql.END_TRANSACTION if self._pooled else sql.END_SESSION
        while self.read(lambda db: db.ask(end, session), deadline=deadline):
            if time.monotonic() > deadline:
                raise StoreError("Postgres: the connection was lost at a commit, and its end cannot be learned")
            time.sleep(_PAUSE_S)
        return self.read(is_there, deadline=deadline)


class _EmptySchema(Exception):
    """There are no tables, and a reader makes none."""


class _NoRows:
    """A connection to a schema without tables, for reads."""

    def ask(self, statement: Any, parameters: Any = None) -> list[Any]:
        """Return no rows."""
        return []


_NO_ROWS: Any = _NoRows()


@attrs.define
class _PostgresWrite(Generic[T]):
    """One write attempt and its progress."""

    do: Callable[[PostgresSession], tuple[T, IsThere]]
    pooled_limit_s: float | None
    """Time limit of the transaction, if a pooler drops session limits."""
    committing: list[tuple[tuple[object, ...], T, IsThere]] = attrs.Factory(list)
    """Session and check of a commit that may be in flight."""

    def run(self, db: PostgresSession) -> T:
        """Execute in two round trips, usually: first query, last rows."""
        return db.in_pipeline(lambda: self._committed(db))

    def _committed(self, db: PostgresSession) -> T:
        db.execute("BEGIN")
        if self.pooled_limit_s is not None:
            db.begin_pooled(self.pooled_limit_s)
        result, is_there = self.do(db)
        self.committing.append((db.session, result, is_there))
        db.execute("COMMIT")
        return result  # answered when the pipeline ends, which is a round trip of its own


_PREPARED = (pg.DuplicatePreparedStatement, pg.InvalidSqlStatementName)

_NEEDS_POOLER = (
    "; a pooler in transaction mode needs PostgresStore(url, pooler='transaction') or ?flujo.pooler=transaction"
)

_MAY_PASS = (pg.DeadlockDetected, pg.SerializationFailure, pg.LockNotAvailable)


def _passing(error: psycopg.Error) -> bool:
    """Return whether the write may succeed on another connection or later."""
    if isinstance(error, pg.IdleInTransactionSessionTimeout | pg.TransactionTimeout):
        return True  # this process was suspended; the next attempt sees its remaining writes
    lost = isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
    if not lost or isinstance(error, pg.PipelineAborted):
        return False
    state = error.sqlstate or "08000"  # a connection that is lost has no state
    return state.startswith(("08", "57P0")) or isinstance(error, _MAY_PASS)


def _is_rolled_back(error: BaseException) -> bool:
    """Return whether a borrower's error means a rolled-back transaction worth repeating."""
    if isinstance(error, _MAY_PASS):
        return True
    state = error.sqlstate if isinstance(error, psycopg.Error) else None
    return state is not None and state.startswith(("08", "57P0"))


_abandoned: list[ConnectionPool[PostgresSession]] = []
"""Pools of a parent process, which must not be closed here."""
