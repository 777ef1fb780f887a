"""From what a user names as an engine to the engine itself. Engines are imported only when somebody asks for them."""

from __future__ import annotations

import importlib
from typing import Any, cast

from ..errors import DeclarationError
from ..stores._port import Store
from .port import Engine

_METHODS = ("prepare", "submit", "again", "serve", "withdraw")

_KNOWN = "'postgres' (a job queue in the store's own Postgres), 'temporal://host:7233', or an Engine"


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
    if name.startswith("temporal://"):
        return cast(Engine, _load("temporal_engine", "TemporalEngine", extra="temporal").at(name))
    if name != "postgres":
        raise DeclarationError(f"there is no engine {name!r:.100}: use {_KNOWN}")
    url = getattr(store, "url", None)
    if not isinstance(url, str):
        raise DeclarationError(
            f"engine='postgres' keeps its tickets in the store's own Postgres, and the store is a "
            f"{type(store).__name__}: pass store='postgresql://…', or leave `engine` out, for workers on one machine"
        )
    return cast(Engine, _load("procrastinate_engine", "ProcrastinateEngine", extra="fleet")(url))


def _load(module: str, name: str, *, extra: str) -> Any:
    try:
        return getattr(importlib.import_module(f".{module}", __package__), name)
    except ImportError as error:
        raise DeclarationError(f"this engine needs an extra: pip install flujo-actors[{extra}] ({error})") from error
