"""Deletion of many runs: short transactions, free locks in between, and disk space that is returned."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner

from flujo_actors import Flujo, RunClient, Step
from flujo_actors._api.cli.store_commands import store as store_command
from flujo_actors._core.outcomes import RunId
from flujo_actors._durable.retention import BATCH_S, MOST_IN_BATCH, delete_in_batches
from flujo_actors.stores import Admission, Append, Lease, MemoryStore, Record, SqliteStore, Store
from kit.durable_places import Place

MANY = 1200
BODY = '{"v": 1, "text": "' + 2000 * "x" + '"}'


def with_ended_runs(store: Store, count: int = MANY) -> None:
    """Admit and end runs, each with a record of two kilobytes."""
    admissions = [Admission(run_id=RunId(f"run {n}"), pipeline="p", body='{"v": 1}') for n in range(count)]
    leases = [lease for lease in store.admit_all(admissions, owner="me", lease_s=60.0) if isinstance(lease, Lease)]
    last = Record(kind="unit", path="", body=BODY)  # type: ignore[arg-type]
    store.append([Append(lease=lease, records=(last,), status="completed", release=True) for lease in leases])


@pytest.mark.slow
def test_all_pages_of_old_runs_are_forgotten(place: Place) -> None:
    """More than one page, counted beforehand; a run of another status is kept."""
    store = place.open()
    client = RunClient(store, allow_blocking=True)
    with_ended_runs(store)
    Flujo(Step.human_in_the_loop("ask", "May I?"), store=store).run(0, run_id="paused")
    assert client.forget(older_than_s=0.0, dry_run=True) == MANY
    assert client.forget(older_than_s=3600.0) == 0
    assert client.forget(older_than_s=0.0) == MANY
    assert [run.run_id for run in client.list()] == ["paused"]


class Slow(MemoryStore):
    """Store whose deletions take a millisecond for each run, by its own clock."""

    now = 0.0

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[float] = []

    def delete(self, run_ids: Sequence[RunId]) -> int:
        self.batches.append(len(run_ids) * 0.001)
        self.now += self.batches[-1]
        return len(run_ids)


def test_a_batch_is_as_large_as_its_time_permits() -> None:
    """The store is free after each batch for as long as the batch took."""
    store, pauses = Slow(), list[float]()
    pages = [[RunId(str(n)) for n in range(MOST_IN_BATCH)]] * 2
    assert delete_in_batches(store, pages, clock=lambda: store.now, sleep=pauses.append) == 2 * MOST_IN_BATCH
    assert max(store.batches) <= BATCH_S + 1e-9
    assert pauses == pytest.approx(store.batches)


def test_a_run_whose_owner_lives_does_not_stop_the_deletion() -> None:
    """It is skipped, and the others are deleted."""
    store = MemoryStore()
    with_ended_runs(store)
    store.claim(RunId("run 7"), owner="other", lease_s=60.0)
    assert RunClient(store).forget(older_than_s=0.0) == MANY - 1
    assert [run.run_id for run in RunClient(store).list()] == ["run 7"]


def test_the_log_of_a_file_is_truncated_after_a_deletion(tmp_path: Path) -> None:
    """Although connections to it are open."""
    store = SqliteStore(tmp_path / "runs.db", synchronous="OFF")
    with_ended_runs(store, 300)
    client = RunClient(store, allow_blocking=True)
    assert client.forget(older_than_s=0.0) == 300
    assert client.list() == []
    assert (tmp_path / "runs.db-wal").stat().st_size == 0
    store.close()


def test_the_space_of_deleted_runs_is_returned_by_a_command(tmp_path: Path) -> None:
    """The file is as small as one without these runs."""
    path = tmp_path / "runs.db"
    store = SqliteStore(path, synchronous="OFF")
    with_ended_runs(store, 300)
    RunClient(store, allow_blocking=True).forget(older_than_s=0.0)
    store.close()
    before = path.stat().st_size
    found = CliRunner().invoke(store_command, ["vacuum", "--store", f"sqlite:///{path}"], standalone_mode=False)
    assert found.exception is None
    assert before > 600_000
    assert path.stat().st_size < before / 4
