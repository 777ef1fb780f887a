"""The connections of a SQLite store: one that writes, as many that read as there are readers at a time.

Rules:

1. Writes of one store go through one connection, under one lock, each in a transaction that takes the file's write
   lock at once: two threads of a process queue fairly in the process instead of polling the file.
2. Whoever waits, for the lock or for the file, waits at most `busy_timeout_s`; then it is a `StoreError`.
3. A database in memory exists once per connection, so there readers and transactions use the one that writes.
4. Connections open when they are first needed, and again after `close()` or a fork.
5. What is told as written is in the file that others find. A file that was deleted or replaced under its connections is
   a `StoreError`, found after each commit and before each reading; the next use opens what is there then.
6. A fork waits until no connection is in use and closes them all: SQLite keeps its locks in the process's memory, and a
   child that inherits them believes that it holds them. A child that inherited one all the same refuses to go on.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Literal

from ...errors import StoreError, TransactionLost, TransactionRefused
from .._forking import ForkGate
from ._files import Files, files_at, why_not_opened
from ._schema import migrate, version

_FORK_PATIENCE_S = 5.0
_PAUSE_S = 0.01


class StoreConnection(sqlite3.Connection):
    """A connection whose transactions only its store may end, so that a borrower cannot commit half of one."""

    files: Files | None = None
    """What it reads and writes; `None` for a database in memory."""

    def commit(self) -> None:
        raise StoreError("this transaction is committed by its store, at the end of the block that it was opened for")

    def rollback(self) -> None:
        raise StoreError("this transaction is rolled back by its store; leave its block by an exception")

    def __exit__(self, *error: object) -> Literal[False]:
        return False

    def lend(self) -> None:
        """Refuse `COMMIT` and `ROLLBACK` as statements too."""
        self.set_authorizer(_refuse_to_end)

    def take_back(self) -> None:
        self.set_authorizer(None)


def _refuse_to_end(action: int, operation: str | None, *rest: object) -> int:
    ends = action == sqlite3.SQLITE_TRANSACTION and operation != "BEGIN"
    return sqlite3.SQLITE_DENY if ends else sqlite3.SQLITE_OK


class SqliteConnections:
    """Opens, lends and closes connections to one file."""

    def __init__(self, path: str, *, synchronous: str, busy_timeout_s: float) -> None:
        self.path = path
        self._file = os.path.abspath(path)  # now: the process may change its directory
        self.in_memory = path == ":memory:"
        self._synchronous = synchronous
        self._timeout_s = busy_timeout_s
        self._writer: StoreConnection | None = None
        self._idle_readers: list[StoreConnection] = []
        self._looker: StoreConnection | None = None
        """Only looks whether others have written."""
        self._gate = ForkGate()
        """Readers and borrowers pass it."""
        self._writing = threading.Lock()
        self._looking = threading.RLock()
        self._lookers = 0
        """How many there have been: each counts by itself."""
        self._forking = False
        self._inherited = False

    @property
    def file(self) -> str:
        """The file, wherever the process is."""
        return self._file

    def writing(self) -> AbstractContextManager[StoreConnection]:
        """The writing connection, in a transaction that commits at the end of the block."""
        return _Write(self)

    @contextlib.contextmanager
    def reading(self) -> Iterator[StoreConnection]:
        """A connection to read from, all of the block seeing the same state."""
        if self.in_memory:
            with self.writing() as db:
                yield db
            return
        with self.errors(), self._gate.passing():
            db = self._take_reader()
            try:
                db.execute("BEGIN")
                yield db
            finally:
                self._give_back(db)

    def version(self) -> tuple[int, int] | None:
        """What changes whenever anybody commits; `None` for a database in memory. It costs no reading."""
        if self.in_memory:
            return None
        with self.errors(), self._gate.passing():
            self._ensure_schema()
            with self._looking:
                looker = self._open_looker()
                [(version,)] = looker.execute("PRAGMA data_version").fetchall()
                if self._writer is None:  # the store was closed
                    self._close_looker()
                return self._lookers, version

    def _open_looker(self) -> StoreConnection:
        if self._looker is not None and self._looker.files != files_at(self._file):
            self._close_looker()
        if self._looker is None:
            self._looker = self._connect_beside()
            self._lookers += 1
        return self._looker

    def _close_looker(self) -> None:
        """Unless it is in use: then whoever uses it closes it."""
        if self._looking.acquire(blocking=False):
            looker, self._looker = self._looker, None
            if looker is not None:
                looker.close()
            self._looking.release()

    @contextlib.contextmanager
    def lent(self) -> Iterator[StoreConnection]:
        """A connection of its own for one transaction, which begins at its first write."""
        if self.in_memory:
            with _Write(self, errors_are_ours=False) as db, _lending(db):
                yield db
            return
        with self._gate.passing():
            with self.errors():
                self._ensure_schema()
                db = self._connect_beside("IMMEDIATE")
            try:
                with self.errors():
                    _wait_for_lock(db)
                with self._losing(), _lending(db):
                    yield db  # what goes wrong here is the borrower's own error, unless it is about locks
                with self.errors(), self._judging():
                    _commit(db)
                    self._refuse_if_moved(db)
            finally:
                db.close()  # rolls back what was not committed

    @contextlib.contextmanager
    def _judging(self) -> Iterator[None]:
        """What breaks a constraint at the commit was written by the borrower."""
        try:
            yield
        except sqlite3.IntegrityError as error:
            raise TransactionRefused(f"{self.path}: {error}; nothing was written") from error

    @contextlib.contextmanager
    def _losing(self) -> Iterator[None]:
        """A borrower that could not get the file's lock has written nothing, and may try again."""
        try:
            yield
        except sqlite3.OperationalError as error:
            if not _is_about_locks(error):
                raise
            raise TransactionLost(f"{self.path}: {error}; nothing was written, it can be done again") from error

    def close(self) -> None:
        """Close what is not in use, and can be opened again: a database in memory stays."""
        if not self.in_memory:
            with self._locked():
                self._close_idle()

    def dispose(self) -> None:
        """Close everything for good, when nobody refers to the store any more; never waits."""
        # The collector may call this anywhere, also between the two sides of a fork, where the lock is taken.
        if self._writing.acquire(blocking=False):
            self._close_idle()
            self._writing.release()

    def before_fork(self) -> None:
        self._forking = self._gate.shut(timeout_s=_FORK_PATIENCE_S) and self._stop_writing()
        if self._forking and not self.in_memory:
            self._close_idle()

    def after_fork_in_parent(self) -> None:
        if self._forking:
            self._forking = False
            self._writing.release()
            self._gate.open()

    def after_fork_in_child(self) -> None:
        self._inherited = not self._forking
        if self._inherited:
            _abandoned.append(self._writer)
            _abandoned.extend([*self._idle_readers, self._looker])
            self._writer, self._idle_readers, self._looker = None, [], None
        self._forking = False
        self._writing, self._gate, self._looking = threading.Lock(), ForkGate(), threading.RLock()

    def _stop_writing(self) -> bool:
        stopped = self._writing.acquire(timeout=_FORK_PATIENCE_S)
        if not stopped:
            self._gate.open()
        return stopped

    def begin(self) -> StoreConnection:
        """Wait for the turn to write, and begin."""
        self._lock()
        try:
            db = self._open_writer()
            db.execute("BEGIN IMMEDIATE")
        except BaseException:
            self._writing.release()
            raise
        return db

    def end(self, db: StoreConnection, *, commit: bool) -> None:
        """Commit, or undo what was begun, and let the next one write."""
        try:
            if commit:
                _commit(db)
                self._refuse_if_moved(db)
        except StoreError:
            self._close_idle()  # the next use opens what is there then
            raise
        finally:
            if self._writer is not None and db.in_transaction:
                db.execute("ROLLBACK")
            self._writing.release()

    def _lock(self) -> None:
        if not self._writing.acquire(timeout=self._timeout_s):
            raise StoreError(f"{self.path}: another transaction of this process took more than {self._timeout_s:g} s")

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        self._lock()
        try:
            yield
        finally:
            self._writing.release()

    @contextlib.contextmanager
    def errors(self) -> Iterator[None]:
        """Whatever SQLite complains about in the block is a `StoreError`."""
        try:
            yield
        except sqlite3.Error as error:
            raise self.failure(error) from error

    def failure(self, error: sqlite3.Error) -> StoreError:
        """What SQLite complains about, as a store says it."""
        unopened = getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_CANTOPEN
        why = f" ({why_not_opened(self._file)})" if unopened and not self.in_memory else ""
        return StoreError(f"{self.path}: {error}{why}")

    def _open_writer(self) -> StoreConnection:
        if self._writer is None:
            db = self._connect(None)
            try:
                self._prepare(db)
            except BaseException:
                db.close()
                raise
            self._writer = db
        return self._writer

    def _refuse_if_moved(self, db: StoreConnection | None) -> None:
        if db is not None and not self.in_memory and db.files != files_at(self._file):
            raise StoreError(
                f"{self.path}: the file was deleted or replaced while this process used it, and what was written "
                "meanwhile is gone with it; what is there now is opened at the next use"
            )

    def _ensure_schema(self) -> None:
        if self._writer is None:
            with self._locked():
                self._open_writer()

    def _prepare(self, db: StoreConnection) -> None:
        version(db)  # a file that is not ours to write is refused before its header changes
        if not self.in_memory:
            self._enter_wal(db)
        migrate(db)
        db.files = files_at(self._file)

    def _enter_wal(self, db: StoreConnection) -> None:
        """Switch the file to write-ahead logging, where SQLite does not wait for others by itself."""
        deadline = time.monotonic() + self._timeout_s
        while db.execute("PRAGMA journal_mode").fetchall() != [("wal",)]:
            try:
                db.execute("PRAGMA journal_mode = WAL").fetchall()
            except sqlite3.OperationalError as error:
                if not _is_about_locks(error) or time.monotonic() > deadline:
                    raise
                time.sleep(_PAUSE_S)

    def _connect(self, isolation_level: str | None) -> StoreConnection:
        if self._inherited:
            raise StoreError(
                f"{self.path} was in use when this process was forked, and SQLite's locks do not survive that; "
                "open it in a process of its own"
            )
        db = sqlite3.connect(
            self.path if self.in_memory else self._file,
            timeout=self._timeout_s,
            isolation_level=isolation_level,  # type: ignore[arg-type]
            check_same_thread=False,
            factory=StoreConnection,
        )
        db.execute(f"PRAGMA synchronous = {self._synchronous}")
        return db

    def _take_reader(self) -> StoreConnection:
        self._ensure_schema()
        try:
            db = self._idle_readers.pop()
        except IndexError:
            return self._connect_beside()
        with self._closed_if_moved(db):
            self._refuse_if_moved(db)
        return db

    def _connect_beside(self, isolation_level: str | None = None) -> StoreConnection:
        """Another connection to the file that the one which writes has open."""
        with self._closed_if_moved():
            self._refuse_if_moved(self._writer)
        db = self._connect(isolation_level)
        with self._closed_if_moved(db):
            db.execute("PRAGMA schema_version").fetchall()  # opens the log
            db.files = files_at(self._file)
            self._refuse_if_moved(self._writer)
        return db

    @contextlib.contextmanager
    def _closed_if_moved(self, *connections: StoreConnection) -> Iterator[None]:
        """If the block finds that the file was moved, these are closed, and all that are not in use."""
        try:
            yield
        except (StoreError, sqlite3.Error):
            for db in connections:
                db.close()
            self.close()
            raise

    def _give_back(self, db: StoreConnection) -> None:
        if db.in_transaction:
            db.execute("ROLLBACK")
        if self._writer is None:  # the store was closed
            db.close()
        else:
            self._idle_readers.append(db)

    def _close_idle(self) -> None:
        while self._idle_readers:
            self._idle_readers.pop().close()
        self._close_looker()
        if self._writer is not None:
            self._writer.close()
            self._writer = None


class _Write:
    """A transaction of the writing connection: what `writing` gives.

    Every commit passes here, and generators for the lock, the transaction and its errors cost as much as the commit
    itself does without its fsync; so this is a class.
    """

    __slots__ = ("_connections", "_db", "_errors_are_ours")

    def __init__(self, connections: SqliteConnections, *, errors_are_ours: bool = True) -> None:
        self._connections = connections
        self._errors_are_ours = errors_are_ours
        """Whether what SQLite complains about in the block is a `StoreError`, or the borrower's own error."""

    def __enter__(self) -> StoreConnection:
        try:
            self._db = self._connections.begin()
        except sqlite3.Error as error:
            raise self._connections.failure(error) from error
        return self._db

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        try:
            self._connections.end(self._db, commit=error is None)
        except sqlite3.Error as broken:
            raise self._connections.failure(broken) from broken
        if self._errors_are_ours and isinstance(error, sqlite3.Error):
            raise self._connections.failure(error) from error


@contextlib.contextmanager
def _lending(db: StoreConnection) -> Iterator[None]:
    db.lend()
    try:
        yield
    finally:
        db.take_back()


def _wait_for_lock(db: StoreConnection) -> None:
    """Wait for the file's lock here, in a thread: whoever borrows the connection may use it in that of an event loop.

    It is free again when this returns, since a borrower may take long to come to its first write.
    """
    db.execute("BEGIN IMMEDIATE")
    db.execute("ROLLBACK")


def _is_about_locks(error: sqlite3.OperationalError) -> bool:
    return error.sqlite_errorcode & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def _commit(db: StoreConnection) -> None:
    if db.in_transaction:
        db.execute("COMMIT")


_abandoned: list[StoreConnection | None] = []
"""Connections that a parent process was using when it forked: closing them here would touch the parent's locks."""
