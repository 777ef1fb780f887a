"""Connections of a SQLite store: one writer, several readers.

Rules:

1. Writes of one store use one connection, under one lock, each in a transaction that takes the file's write
   lock at once: two threads of a process queue fairly in the process instead of polling the file.
2. Waiting for the lock or the file takes at most `busy_timeout_s`; then it is a `StoreError`.
3. A database in memory exists once per connection, so there readers and transactions use the writer.
4. Connections open on demand, and again after `close()` or a fork.
5. A reported write is in the file that others find. A file that was deleted or replaced under its connections is
   a `StoreError`, detected after each commit and before each read; the next use opens the present file.
   A file that this process cannot write is opened for each read.
6. A fork waits until no connection is in use and closes them all: SQLite keeps its locks in the process's memory, and a
   child that inherits them believes that it holds them. A child that inherited one all the same refuses to use it.

Sections:

- Files of a SQLite database, to detect deletion and replacement.
- Notices of commits by any process, for workers.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sqlite3
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Literal, TypeAlias
from urllib.parse import quote

from ..._core.records.records import RECORD_VERSION
from ...errors import StoreError, TransactionLost, TransactionRefused
from .._fork_safety import ForkGate
from .._record_rows import other_schema
from ._schema import FORMER, MIGRATIONS, migrate, readable, record_format, version

# --- Files of a SQLite database -----------------------------------------------------------------------------------


Files: TypeAlias = tuple[tuple[int, int], ...]
"""Device and inode of database and log, stable while open."""


def why_not_opened(path: str) -> str:
    """Return why a database cannot be opened, and the remedy."""
    folder = os.path.dirname(path)
    if not os.path.isdir(folder):
        return f"there is no folder {folder}; create it first"
    if os.path.isdir(path):
        return "this is a folder; name a file in it"
    return "this process may not read or write there; check the permissions of the file and of its folder"


def files_at(path: str) -> Files | None:
    """Return the files at a path now; `None` if one is missing."""
    try:
        found = [os.stat(file) for file in (path, f"{path}-wal")]
    except OSError:
        return None
    return tuple((file.st_dev, file.st_ino) for file in found)


# --- Notices of commits -------------------------------------------------------------------------------------------


_MODIFIED = 2
"""The kernel's `IN_MODIFY`."""


class CommitNotices:
    """Descriptor that becomes readable after writes to a database's log, on Linux."""

    def __init__(self, file: str) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        self._fd: int = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), "inotify_init1")
        if libc.inotify_add_watch(self._fd, os.fsencode(f"{file}-wal"), _MODIFIED) < 0:
            self.close()
            raise OSError(ctypes.get_errno(), "inotify_add_watch")

    def fileno(self) -> int:
        """Return the descriptor."""
        return self._fd

    def drain(self) -> None:
        """Forget the notices so far."""
        with contextlib.suppress(BlockingIOError):
            os.read(self._fd, 65_536)

    def close(self) -> None:
        """Close the descriptor."""
        os.close(self._fd)


# --- Connections of a SQLite store --------------------------------------------------------------------------------


_FORK_PATIENCE_S = 5.0
_PAUSE_S = 0.01


class StoreConnection(sqlite3.Connection):
    """Connection whose transactions only its store may end.

    A borrower cannot commit half of one.
    """

    files: Files | None = None
    """Identity of its files; `None` for a database in memory."""
    reads_only: bool = False
    """Whether the file cannot be written by this process."""

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

    def __del__(self) -> None:
        """Close without a resource warning when the store is collected."""
        with contextlib.suppress(sqlite3.Error):
            self.close()


def _refuse_to_end(action: int, operation: str | None, *rest: object) -> int:
    ends = action == sqlite3.SQLITE_TRANSACTION and operation != "BEGIN"
    return sqlite3.SQLITE_DENY if ends else sqlite3.SQLITE_OK


def _read_only_address(file: str) -> str | None:
    """Return the URI of a file without write access, else `None`.

    Without write access to the folder, SQLite opens a file in WAL mode only if it is immutable. There is no log then.
    """
    if not os.path.exists(file):
        return None
    alone = not os.access(os.path.dirname(file), os.W_OK) and not os.path.exists(f"{file}-wal")
    if os.access(file, os.W_OK) and not alone:
        return None
    return f"file:{quote(file)}?mode=ro" + ("&immutable=1" if alone else "")


class SqliteConnections:
    """Opens, lends and closes connections to one file."""

    def __init__(self, path: str, *, synchronous: str, busy_timeout_s: float, migrates: bool = True) -> None:
        self.path = path
        self._file = os.path.abspath(path)  # now: the process may change its directory
        self.in_memory = path == ":memory:"
        self._synchronous = synchronous
        self._timeout_s = busy_timeout_s
        self._writer: StoreConnection | None = None
        self._idle_readers: list[StoreConnection] = []
        self._checker: StoreConnection | None = None
        """Connection that only checks for writes of other processes."""
        self._gate = ForkGate()
        """Readers and borrowers pass it."""
        self._writing = threading.Lock()
        self._looking = threading.RLock()
        self._lookers = 0
        """Number of such connections so far: each counts by itself."""
        self._forking = False
        self._inherited = False
        self._migrates, self._version = migrates, 0
        self.creates = migrates
        """Whether a write creates missing tables."""
        self.record_format = RECORD_VERSION
        """Format of the records that writers of the store write."""

    def may_migrate(self) -> None:
        """Let the next use of reading connections migrate the schema."""
        if not self._migrates:
            self._migrates = True
            self.close()

    @property
    def is_current(self) -> bool:
        """Return whether the file in use has the schema of this version."""
        return self._version == len(MIGRATIONS)

    def refuse_former(self) -> None:
        """Raise `StoreVersionError` unless the schema is that of this version."""
        if not self.is_current:
            raise other_schema(self._version, len(MIGRATIONS))

    @property
    def file(self) -> str:
        """Return the file, wherever the process is."""
        return self._file

    def writing(self) -> AbstractContextManager[StoreConnection]:
        """Return the writer in a transaction that commits finally."""
        return _SqliteWrite(self)

    @contextlib.contextmanager
    def reading(self) -> Iterator[StoreConnection]:
        """Yield a connection for reads from one snapshot."""
        if self.in_memory:
            with self.writing() as db:
                yield db
            return
        if self._is_empty():
            with contextlib.closing(_without_runs()) as db:
                yield db
            return
        with self.errors(), self._gate.passing():
            db = self._take_reader()
            try:
                db.execute("BEGIN")
                yield db
            finally:
                self._give_back(db)

    @contextlib.contextmanager
    def inspecting(self) -> Iterator[sqlite3.Connection]:
        """Yield a connection of any schema, which is neither created nor migrated."""
        if self.in_memory:
            with self.writing() as db:
                yield db
        elif not os.path.exists(self._file):
            with contextlib.closing(sqlite3.connect(":memory:")) as nothing:
                yield nothing
        else:
            with self.errors(), self._gate.passing(), contextlib.closing(self._connect(None)) as db:
                db.execute("PRAGMA query_only = ON")
                yield db

    def maintain(self, *statements: str, wait_s: float | None = None) -> None:
        """Execute statements that permit no transaction, on a connection of their own."""
        if self.in_memory or self._is_empty():
            return
        with self.errors(), self._gate.passing():
            self._ensure_schema()
            with contextlib.closing(self._connect_extra()) as db:
                if wait_s is not None:
                    db.execute(f"PRAGMA busy_timeout = {wait_s * 1000:.0f}")
                for statement in statements:
                    db.execute(statement).fetchall()

    def version(self) -> tuple[int, int] | None:
        """Return a value that changes with every commit; `None` in memory."""
        if self.in_memory or self._is_empty():
            return None
        with self.errors(), self._gate.passing():
            self._ensure_schema()
            with self._looking:
                looker = self._open_checker()
                [(version,)] = looker.execute("PRAGMA data_version").fetchall()
                if self._writer is None:  # the store was closed
                    self._close_checker()
                return self._lookers, version

    def notices(self) -> CommitNotices | None:
        """Return notices of later commits; `None` where there are none."""
        if self.in_memory or not sys.platform.startswith("linux"):
            return None
        with contextlib.suppress(OSError, AttributeError):  # too many of them, or no such call
            return CommitNotices(self._file)
        return None

    def _open_checker(self) -> StoreConnection:
        if self._checker is not None and self._checker.files != files_at(self._file):
            self._close_checker()
        if self._checker is None:
            self._checker = self._connect_extra()
            self._lookers += 1
        return self._checker

    def _close_checker(self) -> None:
        """Close the checking connection, or leave that to its user."""
        if self._looking.acquire(blocking=False):
            looker, self._checker = self._checker, None
            if looker is not None:
                looker.close()
            self._looking.release()

    @contextlib.contextmanager
    def lent_connection(self) -> Iterator[StoreConnection]:
        """Yield a dedicated connection for one transaction, begun at its first write."""
        if self.in_memory:
            with _SqliteWrite(self, errors_are_ours=False) as db, _lending(db):
                yield db
            return
        with self._gate.passing():
            with self.errors():
                self._ensure_schema()
                db = self._connect_extra("IMMEDIATE")
            try:
                with self.errors():
                    _wait_for_lock(db)
                with self._reporting_loss(), _lending(db):
                    yield db  # an error here is the borrower's own, unless it is about locks
                with self.errors(), self._attributing_violations():
                    _commit(db)
                    self._refuse_if_moved(db)
            finally:
                db.close()  # rolls back uncommitted writes

    @contextlib.contextmanager
    def _attributing_violations(self) -> Iterator[None]:
        """Attribute a violated constraint at commit to the borrower."""
        try:
            yield
        except sqlite3.IntegrityError as error:
            raise TransactionRefused(f"{self.path}: {error}; nothing was written") from error

    @contextlib.contextmanager
    def _reporting_loss(self) -> Iterator[None]:
        """Report a missed file lock as a lost, repeatable transaction."""
        try:
            yield
        except sqlite3.OperationalError as error:
            if not _is_about_locks(error):
                raise
            raise TransactionLost(f"{self.path}: {error}; nothing was written, it can be done again") from error

    def close(self) -> None:
        """Close unused connections that can be reopened; a database in memory stays."""
        if not self.in_memory:
            with self._locked():
                self._close_idle()

    def dispose(self) -> None:
        """Close everything without waiting when the store is garbage collected."""
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
            _abandoned.extend([*self._idle_readers, self._checker])
            self._writer, self._idle_readers, self._checker = None, [], None
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
        """Commit or roll back, and release the write lock."""
        try:
            if commit:
                _commit(db)
                self._refuse_if_moved(db)
        except StoreError:
            self._close_idle()  # the next use opens the present file
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
        """Return an SQLite error as a `StoreError`."""
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
                f"{self.path}: the file was deleted or replaced while this process used it, and everything written "
                "meanwhile is gone with it; the present file is opened at the next use"
            )

    def _ensure_schema(self) -> None:
        if self._writer is None:
            with self._locked():
                self._open_writer()

    def _prepare(self, db: StoreConnection) -> None:
        migrates = self._migrates and not db.reads_only
        found = version(db) if migrates else readable(db)  # before the header of a file changes
        if not self.in_memory and not db.reads_only:
            self._enter_wal(db)
        if found == 0 and not (self.creates or migrates):
            raise other_schema(found, len(MIGRATIONS))
        if migrates or found == 0:
            migrate(db)
            found = len(MIGRATIONS)
        self._version, self.record_format = found, record_format(db, found)
        db.execute("PRAGMA schema_version").fetchall()  # opens the log, which a restored file does not have yet
        db.files = files_at(self._file)

    def _is_empty(self) -> bool:
        """Return whether reading connections have nothing to read."""
        if self._migrates or self._writer is not None or self.in_memory:
            return False
        if not os.path.exists(self._file):
            return True
        with self.errors(), self._gate.passing(), contextlib.closing(self._connect(None)) as db:
            return version(db) == 0

    def _enter_wal(self, db: StoreConnection) -> None:
        """Switch the file to write-ahead logging, where SQLite has no busy wait."""
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
        address = None if self.in_memory else _read_only_address(self._file)
        db = sqlite3.connect(
            address or (self.path if self.in_memory else self._file),
            timeout=self._timeout_s,
            isolation_level=isolation_level,  # type: ignore[arg-type]
            check_same_thread=False,
            factory=StoreConnection,
            uri=address is not None,
        )
        db.reads_only = address is not None
        db.execute(f"PRAGMA synchronous = {self._synchronous}")
        return db

    def _take_reader(self) -> StoreConnection:
        self._ensure_schema()
        try:
            db = self._idle_readers.pop()
        except IndexError:
            return self._connect_extra()
        with self._closed_if_moved(db):
            self._refuse_if_moved(db)
        return db

    def _connect_extra(self, isolation_level: str | None = None) -> StoreConnection:
        """Open another connection to the writer's file."""
        with self._closed_if_moved():
            self._refuse_if_moved(self._writer)
        db = self._connect(isolation_level)
        with self._closed_if_moved(db):
            db.execute("PRAGMA schema_version").fetchall()  # opens the log
            if self._version < len(MIGRATIONS):
                for view in FORMER:
                    db.execute(view)
            db.files = files_at(self._file)
            self._refuse_if_moved(self._writer)
        return db

    @contextlib.contextmanager
    def _closed_if_moved(self, *connections: StoreConnection) -> Iterator[None]:
        """Close unused connections if the block finds a moved file."""
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
        elif db.reads_only:  # it does not see later writes of other users
            db.close()
            self.close()
        else:
            self._idle_readers.append(db)

    def _close_idle(self) -> None:
        while self._idle_readers:
            self._idle_readers.pop().close()
        self._close_checker()
        if self._writer is not None:
            self._writer.close()
            self._writer = None


class _SqliteWrite:
    """Transaction of the writing connection, returned by `writing`.

    Every commit uses it, and generators for the lock, the transaction and its errors cost as much as the commit itself
    does without its fsync; so this is a class.
    """

    __slots__ = ("_connections", "_db", "_errors_are_ours")

    def __init__(self, connections: SqliteConnections, *, errors_are_ours: bool = True) -> None:
        self._connections = connections
        self._errors_are_ours = errors_are_ours
        """Whether SQLite errors become `StoreError` or belong to the borrower."""

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
    """Wait for the file's lock in this thread, for any borrower.

    It is released before returning, since a borrower may take long until its first write.
    """
    db.execute("BEGIN IMMEDIATE")
    db.execute("ROLLBACK")


def _is_about_locks(error: sqlite3.OperationalError) -> bool:
    return error.sqlite_errorcode & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def _commit(db: StoreConnection) -> None:
    if db.in_transaction:
        db.execute("COMMIT")


_abandoned: list[StoreConnection | None] = []
"""Connections of a parent process at its fork; never closed here."""


def _without_runs() -> StoreConnection:
    """Return a database of the present schema without a run."""
    db = sqlite3.connect(":memory:", isolation_level=None, factory=StoreConnection)
    migrate(db)
    return db
