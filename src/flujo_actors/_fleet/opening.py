"""From what a user names as an engine to the engine itself. Engines are imported only when somebody asks for them."""

from __future__ import annotations

import importlib
from typing import Any, cast

from ..errors import DeclarationError
from ..stores._port import Store
from .port import Engine

_METHODS = ("prepare", "submit", "again", "serve", "withdraw")

_KNOWN = (
    "'postgres' (a job queue in the store's own Postgres), 'temporal://host:7233', 'ray://host:6379' or 'ray' (the Ray "
    "cluster of this machine), 'dbos' (DBOS queues in the store's own Postgres), or an Engine"
)


def open_engine(given: object, store: Store | None) -> Engine | None:
    """The engine that was given or named, for runs of that store."""
    if given is None:
        return None
    if store is None:
        raise DeclarationError(
            "engine: runs that workers play are kept in a store, and there is none: pass `store` to Flujo, as in "
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
        return cast(Engine, _load("ray_engine", "RayEngine", extra="ray").at(name))
    if name == "postgres":
        return cast(Engine, _load("procrastinate_engine", "ProcrastinateEngine", extra="fleet")(_url_of(store, name)))
    if name == "dbos":
        return cast(Engine, _load("dbos_engine", "DbosEngine", extra="dbos")(_url_of(store, name)))
    raise DeclarationError(f"there is no engine {name!r:.100}: use {_KNOWN}")


def _url_of(store: Store, engine: str) -> str:
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
        raise DeclarationError(f"this engine needs an extra: pip install flujo-actors[{extra}] ({error})") from error
