"""Resolution of a store argument (URL or object) to a store.

One file, and one Postgres URL, is one store object per process, so concurrent writes share commits. Drivers are
imported only when a URL needs them.
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable
from pathlib import Path

from .. import stores
from ..errors import DeclarationError
from ._dsn_redaction import sqlite_options, url_options, without_password
from ._fork_safety import watch_forks
from ._memory_store import MemoryStore
from ._record_rows import shown
from ._store_port import Migrate, Store, migrates

_SQLITE = "sqlite://"
_POSTGRES = ("postgresql://", "postgres://")


class _OpenStores:
    """Stores in use in this process, by address."""

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


def open_store(store: str | Store | None, *, reader: bool = False, migrate: Migrate = "auto") -> Store:
    """Return the store of a URL, or a new one in memory.

    Args:
        store: `sqlite:///runs.db`, `sqlite:////var/runs.db`, `sqlite://` for memory, `postgresql://…`, a store, or
            `None` for a new one in memory.
        reader: whether the database is not migrated, unless a `Flujo` of this process opened the same URL.
        migrate: `"auto"` or `"never"`; an option of the URL, such as `?flujo.migrate=never`, wins.

    Raises:
        DeclarationError: the URL is not valid, or its extra is not installed.

    Example:
        ```python
        store = open_store("sqlite:///runs.db")
        assert Flujo(Step("greet", str.upper), store=store).run("ada").output == "ADA"
        ```
    """
    if store is None:
        return MemoryStore()
    if not isinstance(store, str):
        return _checked(store)
    if store == ":memory:" or store.startswith(_SQLITE):
        return _open_sqlite(store, reader, migrate)
    if store.startswith(_POSTGRES):
        return _open_postgres(store, reader, migrate)
    raise _unknown(store, "it begins with no known scheme")


def _checked(store: Store) -> Store:
    """Return a valid store, or raise before the first run."""
    if not isinstance(store, type) and any(callable(getattr(store, name, None)) for name in ("admit", "admit_all")):
        return store
    given = f"the class {store.__name__}" if isinstance(store, type) else f"a {type(store).__name__}"
    raise DeclarationError(
        "a store must be a URL ('sqlite:///runs.db', 'postgresql://…'), an object with the methods of a Store, or "
        f"None, not {given}"
    )


def _open_sqlite(url: str, reader: bool, migrate: Migrate) -> Store:
    path = _sqlite_path(url)
    if path is None:
        return stores.SqliteStore(":memory:")
    allowed = migrates(sqlite_options(url.partition("?")[2]).get("migrate", migrate))
    opened = _open_stores.get(f"sqlite {path}", lambda: stores.SqliteStore(path, migrate="never"))
    return _creating(opened) if reader else _migrating(opened) if allowed else opened


def _sqlite_path(url: str) -> Path | None:
    """Return a SQLite URL's file, `None` for a database in memory."""
    rest = url.removeprefix(_SQLITE)
    if rest in ("", "/", ":memory:", "/:memory:"):
        return None
    if not rest.startswith("/"):
        raise _unknown(url, f"a relative path takes three slashes: sqlite:///{without_password(rest)}")
    if "\0" in rest:
        raise _unknown(url, "no file name has a NUL character")
    path = Path(rest[1:].partition("?")[0])
    return _resolved(path) if path.is_absolute() else path.resolve()


@functools.lru_cache(maxsize=1_000)
def _resolved(path: Path) -> Path:
    """Return the file behind links, resolved once to avoid blocking."""
    return path.resolve()


def _creating(store: Store) -> Store:
    """Return a store, opened to read, whose writes create missing tables."""
    getattr(store, "may_create")()  # noqa: B009 (the port does not ask for it)
    return store


def _migrating(store: Store) -> Store:
    """Return a store, opened to read, that migrates from now on."""
    getattr(store, "may_migrate")()  # noqa: B009 (the port does not ask for it)
    return store


def _open_postgres(url: str, reader: bool, migrate: Migrate) -> Store:
    allowed = migrates(url_options(url)[1].get("migrate", migrate))
    opened = _open_stores.get(url, lambda: stores.PostgresStore(url, migrate="never"))
    return _creating(opened) if reader else _migrating(opened) if allowed else opened


def _unknown(url: str, why: str) -> DeclarationError:
    return DeclarationError(
        f"{shown(without_password(url))} is not a store: {why}; use 'sqlite:///runs.db' (relative), "
        "'sqlite:////abs/path.db', 'sqlite://' (memory), 'postgresql://…', or a Store"
    )
