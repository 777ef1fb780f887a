"""From what a user names as a store to the store itself.

One file, and one Postgres URL, is one store object in a process, so that everything that is written to it at the
same time shares its commits. Drivers are imported only when a URL asks for them.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from pathlib import Path

from ..errors import DeclarationError
from ._forking import watch_forks
from ._memory import MemoryStore
from ._passwords import without_password
from ._port import Store
from ._rows import shown

_SQLITE = "sqlite://"
_POSTGRES = ("postgresql://", "postgres://")


class _OpenStores:
    """The stores that are in use in this process, by what they stand for."""

    def __init__(self) -> None:
        self._stores: weakref.WeakValueDictionary[str, Store] = weakref.WeakValueDictionary()
        self._lock = threading.Lock()
        watch_forks(self)

    def get(self, key: str, make: Callable[[], Store]) -> Store:
        with self._lock:
            store = self._stores.get(key)
            if store is None:
                store = self._stores[key] = make()
            return store

    def before_fork(self) -> None:
        pass

    def after_fork_in_parent(self) -> None:
        pass

    def after_fork_in_child(self) -> None:
        self._stores, self._lock = weakref.WeakValueDictionary(), threading.Lock()


_open_stores = _OpenStores()


def open_store(store: str | Store | None) -> Store:
    """The store behind a URL (`sqlite:///runs.db`, `sqlite:////var/runs.db`, `sqlite://` for memory,
    `postgresql://…`), a store as it is, or a new one in memory for `None`."""
    if store is None:
        return MemoryStore()
    if not isinstance(store, str):
        return _checked(store)
    if store == ":memory:" or store.startswith(_SQLITE):
        return _open_sqlite(store)
    if store.startswith(_POSTGRES):
        return _open_postgres(store)
    raise _unknown(store, "it begins with no known scheme")


def _checked(store: Store) -> Store:
    """A store of any class; what is none is told here, not by the first run."""
    if not isinstance(store, type) and any(callable(getattr(store, name, None)) for name in ("admit", "admit_all")):
        return store
    given = f"the class {store.__name__}" if isinstance(store, type) else f"a {type(store).__name__}"
    raise DeclarationError(
        "a store must be a URL ('sqlite:///runs.db', 'postgresql://…'), an object with the methods of a Store, or "
        f"None, not {given}"
    )


def _open_sqlite(url: str) -> Store:
    from .sqlite._store import SqliteStore

    path = _sqlite_path(url)
    if path is None:
        return SqliteStore(":memory:")
    return _open_stores.get(f"sqlite {path}", lambda: SqliteStore(path))


def _sqlite_path(url: str) -> Path | None:
    """The file of a SQLite URL, `None` for a database in memory."""
    rest = url.removeprefix(_SQLITE)
    if rest in ("", "/", ":memory:", "/:memory:"):
        return None
    if not rest.startswith("/"):
        raise _unknown(url, f"a relative path takes three slashes: sqlite:///{without_password(rest)}")
    if "\0" in rest:
        raise _unknown(url, "no file name has a NUL character")
    if "?" in rest:
        raise _unknown(url, "a SQLite URL takes no options; pass SqliteStore(path, …) instead")
    return Path(rest[1:]).resolve()


def _open_postgres(url: str) -> Store:
    from .postgres._store import PostgresStore

    return _open_stores.get(url, lambda: PostgresStore(url))


def _unknown(url: str, why: str) -> DeclarationError:
    return DeclarationError(
        f"{shown(without_password(url))} is not a store: {why}; use 'sqlite:///runs.db' (relative), "
        "'sqlite:////abs/path.db', 'sqlite://' (memory), 'postgresql://…', or a Store"
    )
