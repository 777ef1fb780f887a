"""Calls in a store of many runs cost the same as in a store of few, and loops and recovery do not grow."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks import stored
from flujo_actors.stores import Store
from kit.postgres_server import SessionServer

pytestmark = pytest.mark.slow

SIZES = (1_000, 20_000)
FLAT = 0.7
"""Highest exponent of a flat call, with the noise of a busy machine: a call that reads all runs has 0.9 and more."""


def filled(database: str, size: int, path: Path, request: pytest.FixtureRequest) -> tuple[Store, Callable[[], float]]:
    """A store of that many runs, and a clock of the CPU time that it takes."""
    if database == "sqlite":
        return stored.fill_sqlite(path / f"{size}.db", size), time.process_time
    server: SessionServer = request.getfixturevalue("postgres_server")
    return stored.fill_postgres(server.fresh_url(), size), lambda: time.process_time() + server.cpu_s()


@pytest.mark.parametrize("database", ["sqlite", "postgres"])
def test_calls_do_not_grow_with_the_number_of_stored_runs(
    database: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """From 1,000 to 20,000 runs, half of them paused; the exponent decides, not the time."""
    found = {}
    for size in SIZES:
        store, clock = filled(database, size, tmp_path, request)
        found[size] = stored.measured(store, clock=clock)
        store.close()
    grown = {name: stored.exponent([(size, found[size][name] + 0.1) for size in SIZES]) for name in found[SIZES[0]]}
    assert {name: power for name, power in grown.items() if name in stored.CALLS and power > FLAT} == {}
    assert {name: power for name, power in grown.items() if power > 1.6} == {}


def test_turns_and_orphans_do_not_grow(tmp_path: Path) -> None:
    """A late turn of a loop with `keep_history` costs as much as an early one; so does the hundredth orphan."""
    early, late = stored.turn_ms(stored.fill_sqlite(tmp_path / "loop.db", 1), 600)
    assert late <= 4 * early + 1
    few, many = (stored.recovery_ms(stored.fill_sqlite(tmp_path / f"{n}.db", 1), n) for n in (50, 400))
    assert stored.exponent([(50, 50 * few), (400, 400 * many)]) <= 1.6


def test_a_report_has_a_row_for_each_call(tmp_path: Path) -> None:
    """With the figures of all sizes, and the exponent of the last two."""
    text = stored.report("memory", {10: {"call": 1.0}, 100: {"call": 10.0}})
    assert text.splitlines()[-1] == "| call | 1 | 10 | 1.00 |"
    stored.draw("memory", {10: {"call": 1.0}, 100: {"call": 10.0}}, tmp_path)
    assert "many runs (memory)" in (tmp_path / "growth-store-memory.svg").read_text()
