"""Offices and players: one office for each `Flujo` and trio run, one sender of signals for each database."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import trio

from .._core.quota import Amount
from .._core.settings import FleetSettings, Settings
from .._durable.fingerprint import Fingerprint
from .._durable.runs import Runs
from .._durable.stored_runs import StoredRuns
from .._run.run import Office as AnyOffice
from ..stores._port import Store
from .office import Office
from .playing import MakeRun, RemotePlayer
from .port import Engine
from .signals import Signals
from .submitting import Counter

_offices: trio.lowlevel.RunVar[weakref.WeakKeyDictionary[Any, Office]] = trio.lowlevel.RunVar("flujo_actors offices")

_signals: weakref.WeakValueDictionary[str, Signals] = weakref.WeakValueDictionary()
_lock = threading.Lock()


def office_for(
    flujo: object, runs: Runs, engine: Engine, settings: FleetSettings, carry: tuple[ContextVar[object], ...]
) -> Office:
    """The office of a `Flujo` in the current trio run."""
    try:
        offices = _offices.get()
    except LookupError:
        offices = weakref.WeakKeyDictionary()
        _offices.set(offices)
    office = offices.get(flujo)
    if office is None:
        assert isinstance(runs, StoredRuns)
        office = offices[flujo] = Office(
            runs=runs,
            counter=Counter(runs.store, engine),
            version=Fingerprint.of(runs.pipeline).digest(),
            settings=settings,
            carry=carry,
            signals=_signals_of(runs.store),
        )
    return office


def player_for(
    runs: StoredRuns,
    settings: Settings,
    *,
    make_run: MakeRun,
    office: Callable[[], AnyOffice | None],
    carry: tuple[ContextVar[object], ...],
) -> RemotePlayer:
    """Who plays remote steps for a worker."""
    usage = settings.usage
    return RemotePlayer(
        runs=runs,
        version=Fingerprint.of(runs.pipeline).digest(),
        make_run=make_run,
        office=office,
        settings=settings.fleet,
        signals=_signals_of(runs.store),
        carry=carry,
        guess=Amount(tokens=usage.first_call_tokens, cost_usd=usage.first_call_usd),
    )


def _signals_of(store: Store) -> Signals | None:
    url = getattr(store, "url", None)
    if url is None:
        return None
    with _lock:
        signals = _signals.get(url)
        if signals is None:
            signals = _signals[url] = Signals(url)
        return signals
