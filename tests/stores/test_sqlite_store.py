"""What only a SQLite store has to get right: files, locks, boots and lent connections."""

from __future__ import annotations

import gc
import os
import resource
import sqlite3
import sys
import threading
import warnings
from contextlib import closing

import pytest

from flujo_actors._core.outcomes import RunId
from flujo_actors._core.records.records import Append, RunQuery
from flujo_actors.errors import CorruptRecord, LeaseLost, RunLeased, StoreError
from flujo_actors.stores._lease_clock import ManualClock, SystemClock
from flujo_actors.stores.sqlite import _claims as claims
from flujo_actors.stores.sqlite import _connections as connections
from flujo_actors.stores.sqlite import _schema as schema
from flujo_actors.stores.sqlite._store import SqliteStore
from flujo_actors.testing._store_clauses.store_target import LEASE_S, admit, all_at_once, bodies, claim, record, write


@pytest.fixture
def path(tmp_path):
    return tmp_path / "runs.db"


@pytest.fixture
def store(path):
    store = SqliteStore(path, busy_timeout_s=60)
    yield store
    store.close()


@pytest.fixture
def impatient(path):
    store = SqliteStore(path, busy_timeout_s=0.05)
    yield store
    store.close()


@pytest.fixture
def other(path):
    """A connection of somebody else's."""
    with closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as db:
        yield db


@pytest.mark.parametrize(("setting", "number"), [("FULL", 2), ("NORMAL", 1)])
def test_commits_reach_the_disk_unless_told_otherwise(path, setting, number):
    """The file is in WAL mode, and every connection syncs as the constructor says."""
    store = SqliteStore(path, synchronous=setting)
    with store.transaction() as transaction:
        assert transaction.connection.execute("PRAGMA synchronous").fetchall() == [(number,)]
        assert transaction.connection.execute("PRAGMA journal_mode").fetchall() == [("wal",)]
    store.close()


def test_a_locked_file_is_waited_for(store, other):
    """A write that finds the file locked succeeds when the lock goes away."""
    lease = admit(store)
    other.execute("BEGIN IMMEDIATE")
    threading.Timer(0.3, lambda: other.execute("ROLLBACK")).start()
    assert write(store, lease, record("a")) is None


def test_a_file_locked_for_too_long_is_an_error_and_the_write_can_be_tried_again(impatient, other):
    """Busy is a StoreError with SQLite's own error as its cause, and nothing was written."""
    lease = admit(impatient)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreError, match="locked") as caught:
        write(impatient, lease, record("a"))
    assert isinstance(caught.value.__cause__, sqlite3.OperationalError)
    assert bodies(impatient) == []
    other.execute("ROLLBACK")
    assert write(impatient, lease, record("a")) is None
    assert bodies(impatient) == [record("a").body]


def test_a_new_file_locked_by_somebody_else_is_waited_for(path, other):
    """Entering WAL mode, for which SQLite itself does not wait, is waited for too."""
    other.execute("CREATE TABLE t (x)")
    other.execute("BEGIN IMMEDIATE")
    threading.Timer(0.2, lambda: other.execute("COMMIT")).start()
    store = SqliteStore(path, busy_timeout_s=60)
    admit(store)
    store.close()


def test_a_write_that_fails_half_way_leaves_nothing(store, other):
    """An error at the third record undoes the first two, the status and the numbers."""
    lease = admit(store)
    other.execute(
        "CREATE TRIGGER stop BEFORE INSERT ON flujo_records WHEN NEW.body LIKE '%boom%' "
        "BEGIN SELECT RAISE(ABORT, 'boom'); END"
    )
    with pytest.raises(StoreError, match="boom"):
        write(store, lease, record("a"), record("b"), record("boom"), status="completed")
    assert (store.get(lease.run_id).status, bodies(store)) == ("running", [])
    other.execute("DROP TRIGGER stop")
    assert write(store, lease, record("boom")) is None
    assert [each.seq for each in store.read(lease.run_id)] == [1, 2]


def test_a_full_disk_is_an_error_and_the_write_can_be_tried_again(path):
    """A file that may not grow refuses the append as a whole; with room again it is written."""

    def work(number):
        store = SqliteStore(path)
        lease = admit(store)
        large = [record(f"{index} " + "x" * 60_000) for index in range(8)]
        _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, hard))
        with pytest.raises(StoreError):
            write(store, lease, *large)
        assert bodies(store) == []
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
        assert write(store, lease, *large) is None
        return 0

    assert all_at_once(1, work) == [0]
    assert len(bodies(SqliteStore(path))) == 8


def test_what_a_step_writes_commits_with_its_outcome(store, other):
    """A table of the application's own and the record are written together."""
    other.execute("CREATE TABLE accounts (name TEXT, cents INTEGER)")
    lease = admit(store)
    with store.transaction() as transaction:
        transaction.connection.execute("INSERT INTO accounts VALUES ('a', 5)")
        transaction.append(Append(lease=lease, records=(record("paid"),)))
    assert other.execute("SELECT * FROM accounts").fetchall() == [("a", 5)]
    assert bodies(store) == [record("paid").body]


def test_what_a_step_writes_is_undone_with_a_lost_lease(store, other):
    """An owner that is too late leaves no trace in the application's tables either."""
    other.execute("CREATE TABLE accounts (name TEXT, cents INTEGER)")
    lease = admit(store)
    write(store, lease, release=True)

    def pay():
        with store.transaction() as transaction:
            transaction.connection.execute("INSERT INTO accounts VALUES ('a', 5)")
            transaction.append(Append(lease=lease, records=(record("paid"),)))

    with pytest.raises(LeaseLost):
        pay()
    assert other.execute("SELECT * FROM accounts").fetchall() == []
    assert bodies(store) == []


@pytest.mark.parametrize("where", ["file", ":memory:"])
@pytest.mark.parametrize(
    "end",
    [
        lambda db: db.commit(),
        lambda db: db.rollback(),
        lambda db: db.execute("COMMIT"),
        lambda db: db.execute("ROLLBACK"),
        lambda db: db.executescript("SELECT 1"),
    ],
    ids=["commit()", "rollback()", "COMMIT", "ROLLBACK", "executescript"],
)
def test_a_borrower_cannot_end_the_transaction(path, where, end):
    """Only the store commits, so half of a transaction cannot become durable."""
    store = SqliteStore(path if where == "file" else where)
    lease = admit(store)

    def misuse():
        with store.transaction() as transaction:
            transaction.append(Append(lease=lease, records=(record("a"),)))
            end(transaction.connection)

    with pytest.raises((StoreError, sqlite3.DatabaseError)):
        misuse()
    assert bodies(store) == []
    assert write(store, lease, record("b")) is None
    store.close()


def test_a_borrower_may_use_savepoints_and_with_blocks(store, other):
    """Habits that end nothing go on working."""
    other.execute("CREATE TABLE t (x)")
    with store.transaction() as transaction:
        db = transaction.connection
        with db:
            db.execute("INSERT INTO t VALUES (1)")
        db.execute("SAVEPOINT s")
        db.execute("INSERT INTO t VALUES (2)")
        db.execute("ROLLBACK TO s")
    assert other.execute("SELECT x FROM t").fetchall() == [(1,)]


def test_the_borrowers_own_errors_stay_its_own(store):
    """A wrong statement of the step is not a failure of the store."""
    with pytest.raises(sqlite3.OperationalError, match="no such table"), store.transaction() as transaction:
        transaction.connection.execute("INSERT INTO nowhere VALUES (1)")


def test_writing_beside_an_open_transaction_of_the_same_thread_ends_in_an_error():
    """What would wait for itself for ever is told so after the busy timeout."""
    store = SqliteStore(":memory:", busy_timeout_s=0.05)
    lease = admit(store)
    with store.transaction() as transaction:
        transaction.append(Append(lease=lease, records=(record("a"),)))
        with pytest.raises(StoreError, match="another transaction"):
            write(store, lease, record("b"))
    assert bodies(store) == [record("a").body]


def test_a_lease_of_another_boot_has_expired(path):
    """Monotonic seconds mean nothing after a reboot, so leases of an earlier boot hold nobody up."""
    clock = ManualClock()
    store = SqliteStore(path, clock=clock)
    admit(store)
    clock.boot_name = "after the reboot"
    assert not store.get(RunId("run")).leased
    assert claim(store).epoch == 2
    store.close()


def test_a_lease_from_the_future_has_expired(path):
    """Where boots have no names, a clock that starts again at zero gives old leases away."""
    clock = ManualClock(seconds=5000)
    store = SqliteStore(path, clock=clock)
    admit(store)
    clock.seconds = 10
    assert claim(store).epoch == 2
    store.close()


@pytest.mark.parametrize("jump", [3600, -3600])
def test_the_wall_clock_may_jump(path, jump):
    """An hour forth or back neither ends a lease nor prolongs it."""
    now = [1_000_000.0]
    clock = ManualClock()
    store = SqliteStore(path, clock=clock, wall=lambda: now[0])
    lease = admit(store)
    now[0] += jump
    assert write(store, lease, record("a")) is None
    with pytest.raises(RunLeased):
        claim(store)
    clock.advance(LEASE_S + 1)
    assert claim(store).epoch == 2
    store.close()


def test_the_system_clock_is_the_same_in_every_process():
    """Two processes of one boot agree on the boot and on the seconds."""
    boot, now = SystemClock().boot(), SystemClock().now()
    codes = all_at_once(
        1, lambda number: int(SystemClock().boot() != boot or not now <= SystemClock().now() < now + 60)
    )
    assert codes == [0]


def test_text_that_is_not_utf8_is_a_corrupt_record(store, other):
    """Damage below the level of characters is named like any other."""
    write(store, admit(store), record("a"), record("b"))
    other.execute("UPDATE flujo_records SET body = CAST(x'ff7b7d' AS TEXT) WHERE seq = 2")
    with pytest.raises(CorruptRecord, match="record 2 of run 'run'"):
        store.read(RunId("run"))
    assert [each.seq for each in store.read(RunId("run"), after=2)] == [3]


def test_a_missing_record_is_a_corrupt_run(store, other):
    """Records have no gaps, so a gap is damage."""
    write(store, admit(store), record("a"), record("b"))
    other.execute("DELETE FROM flujo_records WHERE seq = 2")
    with pytest.raises(CorruptRecord, match="record 2 of run 'run'"):
        store.read(RunId("run"))


def test_a_file_that_is_no_database_is_refused_and_left_alone(path):
    """Somebody else's file is not overwritten."""
    path.write_bytes(b"my diary\n" * 1000)
    with pytest.raises(StoreError, match="not a database"):
        admit(SqliteStore(path))
    assert path.read_bytes() == b"my diary\n" * 1000


def test_a_directory_that_is_not_there_is_an_error_that_names_the_file(tmp_path):
    """The message says which path could not be opened."""
    with pytest.raises(StoreError, match="nowhere"):
        admit(SqliteStore(tmp_path / "nowhere" / "runs.db"))


def test_a_store_shares_its_file_with_an_application(store, other):
    """Tables and the user version of an application's own database are left alone."""
    other.execute("CREATE TABLE runs (x)")
    other.execute("PRAGMA user_version = 41")
    admit(store)
    assert other.execute("PRAGMA user_version").fetchall() == [(41,)]
    assert other.execute("SELECT count(*) FROM runs").fetchall() == [(0,)]


def test_an_older_schema_is_brought_up_to_date(path, monkeypatch):
    """Runs written by an earlier version are there after the migration."""
    old = SqliteStore(path)
    write(old, admit(old), record("a"), release=True)
    old.close()
    newer = (*schema.MIGRATIONS, ("ALTER TABLE flujo_runs ADD COLUMN note TEXT",))
    monkeypatch.setattr(schema, "MIGRATIONS", newer)
    store = SqliteStore(path)
    assert bodies(store) == [record("a").body]
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("SELECT note, version FROM flujo_runs, flujo_schema").fetchall() == [(None, len(newer))]
    store.close()


def test_a_migration_that_fails_leaves_the_older_schema(path, monkeypatch):
    """A migration happens as a whole or not at all."""
    old = SqliteStore(path)
    admit(old)
    old.close()
    broken = (*schema.MIGRATIONS, ("ALTER TABLE flujo_runs ADD COLUMN note TEXT", "NONSENSE"))
    monkeypatch.setattr(schema, "MIGRATIONS", broken)
    with pytest.raises(StoreError):
        SqliteStore(path).find(RunQuery())
    monkeypatch.undo()
    store = SqliteStore(path)
    assert store.get(RunId("run")).records == 1
    store.close()


def test_a_database_in_memory_is_copied_by_a_fork():
    """A child goes on with what its parent had, on its own."""
    store = SqliteStore(":memory:")
    lease = admit(store)
    assert all_at_once(1, lambda number: 0 if write(store, lease, record("child")) is None else 1) == [0]
    assert bodies(store) == []


def test_a_forked_child_leaves_the_parents_file_alone(store, path):
    """A child that never touches the store, and one that does, both end without harm to an open write-ahead log."""
    lease = admit(store)
    for index in range(3):
        assert all_at_once(2, lambda number: 0 if number else len(store.read(lease.run_id)) - 1 - index) == [0, 0]  # noqa: B023
        write(store, lease, record(str(index)))
    assert len(bodies(store)) == 3
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def test_a_child_forked_beside_an_open_transaction_is_refused(store, monkeypatch):
    """It would believe that it holds its parent's locks; the parent goes on."""
    monkeypatch.setattr(connections, "_FORK_PATIENCE_S", 0.05)
    lease = admit(store)

    def work(number):
        with pytest.raises(StoreError, match="forked"):
            store.read(lease.run_id)
        return 0

    with store.transaction() as transaction:
        transaction.append(Append(lease=lease, records=(record("a"),)))
        assert all_at_once(1, work) == [0]
    assert bodies(store) == [record("a").body]


def test_a_collected_store_closes_its_files(path):
    """Nothing stays open when nobody refers to a store any more."""
    store = SqliteStore(path)
    store.read(admit(store).run_id)
    assert _open_files(path)
    del store
    assert not _open_files(path)


def test_a_collected_store_warns_of_nothing(path, monkeypatch):
    """Python 3.13 warns of connections that nobody closed; those of a store are closed with it."""
    ignored = []
    monkeypatch.setattr(sys, "unraisablehook", lambda it: ignored.append(it.exc_value))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        store = SqliteStore(path)
        store.read(admit(store).run_id)
        del store
        gc.collect()
    assert ignored == []


def _open_files(path):
    links = [f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd")]
    return [link for link in links if os.path.exists(link) and os.readlink(link).startswith(str(path))]


@pytest.mark.parametrize("name", ["_ANY", "_OLDEST", "_NEXT_PRIORITY", "_FIRST_KEY", "_NEXT_KEY", "_OF_KEY"])
def test_claims_read_a_queue_in_the_order_of_its_index(store, path, name):
    """One probe for each key, and no sort of a backlog."""
    store.find(RunQuery(limit=1))
    order = {"queue": "q", "pipeline": "p", "fingerprint": None, "without": "[]", "waiting_s": 0.0, "limit": 8}
    place = {"priority": 0, "key": "a", "after": "", "below": 100, "wall": 0.0}
    with closing(sqlite3.connect(path)) as db:
        plan = [step for *_, step in db.execute(f"EXPLAIN QUERY PLAN {getattr(claims, name)}", {**order, **place})]
    assert "flujo_runs_claimable" in plan[0]
    assert not any("TEMP B-TREE" in step for step in plan)
