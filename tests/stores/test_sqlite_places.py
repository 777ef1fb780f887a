"""A SQLite store that knows where a run stands writes nothing over another record, in another run, or after a gap."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flujo_actors._core.outcomes import RunId
from flujo_actors._core.records.records import Append, CancelRequest
from flujo_actors.errors import LeaseLost
from flujo_actors.stores._lease_clock import ManualClock
from flujo_actors.stores.sqlite import _run_queries as run_queries
from flujo_actors.stores.sqlite._store import SqliteStore
from flujo_actors.testing._store_clauses.store_target import (
    LEASE_S,
    admit,
    answer,
    claim,
    give_up,
    pause,
    record,
    write,
)

RUN = RunId("run")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(params=["a file", "memory"])
def store(request: Any, tmp_path: Path, clock: ManualClock) -> Iterator[SqliteStore]:
    store = SqliteStore(tmp_path / "runs.db" if request.param == "a file" else ":memory:", clock=clock)
    yield store
    store.close()


@pytest.fixture
def file(tmp_path: Path, clock: ManualClock) -> Iterator[tuple[SqliteStore, SqliteStore]]:
    """Two processes' stores on one file."""
    here, there = (SqliteStore(tmp_path / "runs.db", clock=clock) for _ in range(2))
    yield here, there
    here.close()
    there.close()


def kinds(store: SqliteStore, run_id: str = "run") -> list[str]:
    """The kinds of a run's records, whose numbers have no gaps: reading checks that."""
    return [each.kind for each in store.read(RunId(run_id))]


def texts(store: SqliteStore, run_id: str = "run") -> list[str]:
    return [each.body.split('"')[-2] for each in store.read(RunId(run_id), after=1)]


def test_what_somebody_else_wrote_meanwhile_stays(file: tuple[SqliteStore, SqliteStore]) -> None:
    """An answer is written by another process while the run is at work: both records are there, in order."""
    here, there = file
    lease = admit(here)
    write(here, lease, record("asked", kind="paused"), pauses=(pause(),))
    answer(there, "yes")
    assert write(here, lease, record("a"), record("b"), status="completed", release=True) is None
    assert texts(here) == ["asked", "yes", "a", "b"]
    assert here.get(RUN).records == there.get(RUN).records == 5


def test_a_run_that_was_taken_over_is_not_written_to(file: tuple[SqliteStore, SqliteStore], clock: ManualClock) -> None:
    """Whatever was known of it; and when it comes back, what the others wrote is still there."""
    here, there = file
    lease = admit(here)
    write(here, lease, record("mine"))
    clock.advance(LEASE_S + 1)
    taken = claim(there)
    write(there, taken, record("theirs"))
    for changes in ({}, {"status": "completed", "release": True}):
        assert isinstance(write(here, lease, record("too late"), **changes), LeaseLost)
    write(there, taken, record("the last"), release=True)
    again = claim(here, owner="owner")
    assert write(here, again, record("mine again"), record("and again")) is None
    assert texts(there) == ["mine", "theirs", "the last", "mine again", "and again"]


def test_a_run_in_the_place_of_another_one_is_not_written_to(
    file: tuple[SqliteStore, SqliteStore], clock: ManualClock
) -> None:
    """SQLite gives the key of a deleted run out again; here even its owner and its epoch are the same."""
    here, there = file
    lease = admit(here)
    write(here, lease, record("mine"))
    clock.advance(LEASE_S + 1)
    assert there.delete([RUN]) == 1
    admit(there, "other")
    assert isinstance(write(here, lease, record("too late")), LeaseLost)
    assert isinstance(write(here, lease, status="completed", release=True), LeaseLost)
    assert kinds(there, "other") == ["admitted"]


def test_what_was_undone_leaves_no_gap(store: SqliteStore) -> None:
    """A transaction that failed after its first record, and one that its borrower left."""
    lease, other = admit(store), admit(store, "other")
    broken: Any = object()
    with pytest.raises(AttributeError):
        store.append(
            [Append(lease=lease, records=(record("a"),)), Append(lease=other, records=(record(),), evidence=(broken,))]
        )
    assert write(store, lease, record("b")) is None
    with pytest.raises(ZeroDivisionError):
        give_up(store, Append(lease=lease, records=(record("c"),)))
    assert write(store, lease, record("d")) is None
    with store.transaction() as transaction:
        transaction.append(Append(lease=lease, records=(record("e"),)))
    assert write(store, lease, record("f"), release=True) is None
    assert texts(store) == ["b", "d", "e", "f"]
    assert store.get(RUN).records == 5


def test_a_run_that_was_claimed_is_known_after_its_first_write(store: SqliteStore) -> None:
    """And one that was given up without a word counts its records anew."""
    write(store, admit(store), record("a"), release=True)
    lease = claim(store)
    for text in "bcd":
        assert write(store, lease, record(text)) is None
    write(store, lease, release=True)
    assert texts(store) == ["a", "b", "c", "d"]
    assert store.get(RUN).records == 5


def test_every_append_of_a_commit_hears_of_its_own_request_to_cancel(store: SqliteStore) -> None:
    """They are read once for all of them, after they were written."""
    leases = [admit(store, name) for name in ("one", "two", "three")]
    store.request_cancel(RunId("two"), reason="enough")
    store.request_cancel(RunId("three"), reason="over")
    ends = [{}, {}, {"status": "completed", "release": True}]
    told = store.append(
        [Append(lease=each, records=(record(),), **end) for each, end in zip(leases, ends, strict=True)]  # type: ignore[arg-type]
    )
    assert told == [None, CancelRequest(reason="enough"), None]


def test_runs_that_nobody_gave_up_are_forgotten_in_the_end(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is known has a bound; what is not known is looked up."""
    monkeypatch.setattr(run_queries, "MOST", 3)
    leases = [admit(store, f"run {number}") for number in range(10)]
    for lease in leases:
        assert write(store, lease, record("a")) is None
    assert [texts(store, lease.run_id) for lease in leases] == [["a"]] * 10
    assert len(store._places._known) <= 3


def test_a_record_is_one_statement_that_reads_no_other_record(tmp_path: Path) -> None:
    """A run of three steps: two statements to begin it, one for each record, and two to end it."""
    store, said = SqliteStore(tmp_path / "runs.db"), Counter[str]()
    lease = admit(store, "warm")
    db = store._connections._open_writer()
    db.set_trace_callback(lambda text: said.update([" ".join(text.split()[:3])]))
    lease = admit(store)
    for _ in range(2):
        write(store, lease, record())
    write(store, lease, record(), record(kind="ended"), status="completed", release=True)
    db.set_trace_callback(None)
    assert said == {
        "BEGIN IMMEDIATE": 4,
        "COMMIT": 4,
        "INSERT INTO flujo_runs": 1,
        "INSERT INTO flujo_records": 5,
        "UPDATE flujo_runs SET": 1,
        "DELETE FROM flujo_pauses": 1,
        "SELECT run_id, cancel": 3,
    }
    plan = db.execute(f"EXPLAIN {_insert_at()}", (0,) * 11).fetchall()
    assert not [step for step in plan if step[1] == "OpenEphemeral"]
    store.close()


def _insert_at() -> str:
    from flujo_actors.stores.sqlite import _statements as sql

    assert sqlite3.sqlite_version_info >= (3, 35)
    return sql.INSERT_AT
