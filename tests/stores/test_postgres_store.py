"""What only a Postgres store has to get right: lost connections, restarts, locks and the database's clock."""

from __future__ import annotations

import logging
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import attrs
import psycopg
import pytest
from cutting_proxy import CuttingProxy

from flujo_actors._core.outcomes import RunId
from flujo_actors._core.records.records import Append, ClaimOrder, RunQuery
from flujo_actors.errors import LeaseLost, RunLeased, StoreError
from flujo_actors.stores.postgres import _claims as claims
from flujo_actors.stores.postgres import _schema as schema
from flujo_actors.stores.postgres._store import PostgresStore
from flujo_actors.testing._store_clauses.persistence_clauses import LONG
from flujo_actors.testing._store_clauses.store_target import (
    LEASE_S,
    admission,
    admit,
    answer,
    bodies,
    claim,
    pause,
    put_to_sleep,
    record,
    write,
)

pytestmark = pytest.mark.slow


@pytest.fixture
def url(postgres_server):
    return postgres_server.fresh_url()


@pytest.fixture
def store(url):
    store = PostgresStore(url)
    yield store
    store.close()


@pytest.fixture
def other(url):
    """A connection of somebody else's."""
    with psycopg.connect(url, autocommit=True) as db:
        yield db


@pytest.fixture
def proxy(url, tmp_path_factory):
    proxy = CuttingProxy(url, tmp_path_factory.mktemp("p"))
    yield proxy
    proxy.close()


@pytest.fixture(autouse=True)
def _quiet_pool():
    """The pool reports every connection that a test takes from it."""
    logging.getLogger("psycopg").setLevel(logging.CRITICAL)
    yield
    logging.getLogger("psycopg").setLevel(logging.NOTSET)


def test_a_write_takes_two_round_trips(store, monkeypatch):
    """The beginning travels with the first question, the commit with the last rows: for a lonely run that is all it
    waits for."""
    synced, sync = [], psycopg.Pipeline._enqueue_sync

    def counted(pipeline):
        synced.append(pipeline)
        sync(pipeline)

    lease = admit(store, "warm")
    monkeypatch.setattr(psycopg.Pipeline, "_enqueue_sync", counted)
    for do in (lambda: admit(store), lambda: write(store, lease, record("a"), status="completed", release=True)):
        do()
        assert len(synced) == 2
        synced.clear()


def test_lost_connections_are_replaced(store, other):
    """A write after the server has ended all sessions succeeds on a new one."""
    lease = admit(store)
    for text in "abc":
        _end_sessions(other)
        assert write(store, lease, record(text)) is None
    assert bodies(store) == [record(text).body for text in "abc"]


def test_a_transaction_is_lent_on_a_living_connection(store, other):
    """A borrower never gets a connection that died while it was idle."""
    lease = admit(store)
    _end_sessions(other)
    with store.transaction() as transaction:
        transaction.append(Append(lease=lease, records=(record("a"),)))
    assert bodies(store) == [record("a").body]


@pytest.mark.parametrize("when", ["before", "unnoticed", "after"])
def test_a_connection_lost_at_the_commit_neither_loses_nor_repeats_the_write(proxy, when):
    """The server is asked how the commit ended: it is repeated only if it did not happen."""
    store = PostgresStore(proxy.url)
    lease = admit(store)
    proxy.cut(when)
    assert write(store, lease, record("once"), status="completed", release=True) is None
    proxy.cut(when)
    store.admit(admission("other"), owner="owner", lease_s=LEASE_S)
    assert proxy.cuts == 2
    assert bodies(store) == [record("once").body]
    assert store.get(RunId("other")).records == 1
    store.close()


@pytest.mark.parametrize("when", ["before", "unnoticed", "after"])
def test_a_borrowed_transaction_lost_at_its_commit_tells_the_truth(proxy, when):
    """The block ends well if the commit happened, and with a StoreError if it did not."""
    store = PostgresStore(proxy.url)
    lease = admit(store)

    def borrow():
        with store.transaction() as transaction:
            transaction.append(Append(lease=lease, records=(record("once"),)))
            proxy.cut(when)

    if when == "after":
        borrow()
    else:
        with pytest.raises(StoreError):
            borrow()
    assert proxy.cuts == 1
    assert bodies(store) == ([record("once").body] if when == "after" else [])
    store.close()


def test_a_server_that_restarts_under_writers_loses_and_repeats_nothing(store, postgres_server):
    """Eight writers live through an immediate restart; each record is there once."""
    lease = admit(store)
    going = threading.Barrier(9)

    def work(number):
        going.wait()
        for index in range(30):
            assert write(store, lease, record(f"{number} {index}")) is None

    with ThreadPoolExecutor(8) as threads:
        working = [threads.submit(work, number) for number in range(8)]
        going.wait()
        postgres_server.restart("immediate")
        for each in working:
            each.result()
    assert sorted(bodies(store)) == sorted(
        record(f"{number} {index}").body for number in range(8) for index in range(30)
    )
    assert [each.seq for each in store.read(lease.run_id)] == list(range(1, 242))


def test_a_server_that_is_not_there_is_an_error_at_once():
    """A wrong address is not waited for, and a password is not repeated."""
    started = time.monotonic()
    with pytest.raises(StoreError) as caught:
        admit(PostgresStore("postgresql://me:hunter2@127.0.0.1:1/db"))
    assert time.monotonic() - started < 25  # less than the timeout of a store
    assert "hunter2" not in str(caught.value)
    assert isinstance(caught.value.__cause__, psycopg.OperationalError)


def test_a_row_locked_for_too_long_is_an_error_and_the_write_can_be_tried_again(url, other):
    """Waiting for a lock ends at the timeout, and nothing was written."""
    patient, store = PostgresStore(url), PostgresStore(url, timeout_s=1)
    lease = admit(patient)
    patient.close()
    with other.transaction():
        other.execute("SELECT * FROM flujo_runs FOR UPDATE")
        with pytest.raises(StoreError, match="lock"):
            write(store, lease, record("a"))
    assert bodies(store) == []
    assert write(store, lease, record("a")) is None
    store.close()


def test_a_write_that_fails_half_way_leaves_nothing(store, other):
    """An error at the last record undoes the others, the status and the numbers."""
    lease = admit(store)
    other.execute("ALTER TABLE flujo_records ADD CONSTRAINT stop CHECK (body NOT LIKE '%boom%')")
    with pytest.raises(StoreError, match="stop"):
        write(store, lease, record("a"), record("boom"), status="completed")
    assert (store.get(lease.run_id).status, bodies(store)) == ("running", [])
    other.execute("ALTER TABLE flujo_records DROP CONSTRAINT stop")
    assert write(store, lease, record("boom")) is None
    assert [each.seq for each in store.read(lease.run_id)] == [1, 2]


def test_what_a_step_writes_commits_with_its_outcome_or_not_at_all(store, other):
    """A table of the application's own and the record are written together, or neither is."""
    other.execute("CREATE TABLE accounts (name text, cents int)")
    lease = admit(store)

    def pay(text):
        with store.transaction() as transaction:
            transaction.connection.execute("INSERT INTO accounts VALUES (%s, 5)", (text,))
            transaction.append(Append(lease=lease, records=(record(text),)))

    pay("a")
    write(store, lease, release=True)
    with pytest.raises(LeaseLost):
        pay("b")
    assert other.execute("SELECT name FROM accounts").fetchall() == [("a",)]
    assert bodies(store) == [record("a").body]


def test_a_borrower_cannot_commit(store):
    """Only the store ends a transaction that it lent."""
    with pytest.raises(psycopg.ProgrammingError, match="commit"), store.transaction() as transaction:
        transaction.connection.commit()


def test_leases_are_counted_by_the_databases_clock(store, other):
    """Without a clock of a test's own, the server decides what has expired."""
    store.admit(admission("run"), owner="owner", lease_s=3600)
    [(left,)] = other.execute(
        "SELECT lease_until - extract(epoch FROM clock_timestamp())::float8 FROM flujo_runs"
    ).fetchall()
    assert 3590 < left <= 3600
    with pytest.raises(RunLeased):
        claim(store)
    other.execute("UPDATE flujo_runs SET lease_until = extract(epoch FROM clock_timestamp()) - 1")
    assert [run.run_id for run in store.find(RunQuery(abandoned=True))] == ["run"]
    assert claim(store).epoch == 2


def test_a_blob_that_is_written_while_it_is_deleted_is_kept(store):
    """Whoever refers to a blob finds it, whatever others delete at the same time."""

    def work(number):
        for index in range(6):
            run_id = f"{number} {index}"
            assert write(store, admit(store, run_id), record(LONG), release=True) is None
            assert bodies(store, run_id) == [record(LONG).body]
            assert store.delete([RunId(run_id)]) == 1

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(work, range(4)))


def test_an_older_schema_is_brought_up_to_date(url, other, monkeypatch):
    """Runs written by an earlier version are there after the migration."""
    old = PostgresStore(url)
    write(old, admit(old), record("a"), release=True)
    old.close()
    newer = (*schema.MIGRATIONS, ("ALTER TABLE flujo_runs ADD COLUMN note text",))
    monkeypatch.setattr(schema, "MIGRATIONS", newer)
    store = PostgresStore(url)
    assert bodies(store) == [record("a").body]
    assert other.execute("SELECT note, version FROM flujo_runs, flujo_schema").fetchall() == [(None, len(newer))]
    store.close()


def test_a_closed_store_leaves_no_session_and_no_thread(store, other):
    """Closing gives everything back."""
    before = threading.active_count()
    admit(store)
    assert threading.active_count() > before
    store.close()
    assert threading.active_count() == before
    deadline = time.monotonic() + 120
    while _sessions(other) and time.monotonic() < deadline:
        pass
    assert _sessions(other) == 0


def _sessions(db):
    [(count, _)] = db.execute(f"SELECT count(*), pg_sleep(0.01) {_OTHERS}").fetchall()
    return count


def _end_sessions(db):
    db.execute(f"SELECT pg_terminate_backend(pid, 5000) {_OTHERS}").fetchall()


_OTHERS = "FROM pg_stat_activity WHERE application_name = 'flujo-actors' AND pid <> pg_backend_pid()"


def test_a_commit_changes_a_run_once_whatever_it_adds(store, monkeypatch):
    """A row that is changed often in one transaction has as many versions, and each change passes all of them."""
    from flujo_actors.stores.postgres import _store as module

    changes, each = [], module._each
    monkeypatch.setattr(module, "_each", lambda db, it, given: (changes.append(len(given)), each(db, it, given))[1])
    first, second = admit(store, "first"), admit(store, "second")
    changes.clear()
    adds = [Append(lease=lease, records=(record(str(number)),)) for number in range(50) for lease in (first, second)]
    ends = Append(lease=first, records=(record("end"),), status="completed", release=True)
    verdicts = store.append([*adds, ends, Append(lease=first, records=(record("late"),))])
    assert changes == [3]
    assert [type(each) for each in verdicts] == [type(None)] * 101 + [LeaseLost]
    assert bodies(store, "first") == [record(text).body for text in (*map(str, range(50)), "end")]
    assert bodies(store, "second") == [record(str(number)).body for number in range(50)]


def test_workers_find_answered_runs_without_reading_all_that_wait(store, other):
    """Ten thousand runs of the same queue with open questions are not read."""
    store.admit_all([waiting("a")], owner=None, lease_s=0.0)
    other.execute(
        """INSERT INTO flujo_runs (run_hash, run_id, pipeline, status, created_at, updated_at, epoch, lease_until,
                                   next_seq, queue)
           SELECT sha256(n::text::bytea), n::text, 'pipeline', 'paused', 0, 0, 1, 0, 2, 'gpu'
           FROM generate_series(1, 10000) n"""
    )
    put_to_sleep(store, claim(store, "a"), pause())
    answer(store, run_id="a")
    other.execute("ANALYZE flujo_runs")
    found = store.wanting(pipeline=waiting("a").pipeline, queues=["gpu"], host="nowhere:", limit=10)
    assert [run.run_id for run in found] == ["a"]
    store.close()  # a session tells what it read when it ends
    used = """SELECT idx_tup_read FROM pg_stat_user_indexes
              WHERE indexrelname = 'flujo_runs_claimable' AND schemaname = current_schema()"""
    deadline = time.monotonic() + 120
    while (count := other.execute(used).fetchall()[-1][0]) == 0 and time.monotonic() < deadline:
        other.execute("SELECT pg_sleep(0.05)")
    assert 0 < count < 10


def waiting(run_id, *, queue="gpu"):
    return attrs.evolve(admission(run_id), queue=queue)


def test_a_new_run_is_claimed_and_read_at_once(store):
    """A claim of a new run returns its records; a run with a cancel request is left to others."""
    order = ClaimOrder(pipeline="pipeline", queues=("gpu",), limit=5)
    store.admit_all([waiting("a")], owner=None, lease_s=0.0)
    [taken] = store.claim_next(order, owner="one", lease_s=LEASE_S)
    assert (taken.lease.owner, taken.lease.epoch, taken.run.queue, taken.run.unclaimed) == ("one", 1, "gpu", True)
    assert taken.records == tuple(store.read(RunId("a")))
    assert store.claim_next(order, owner="two", lease_s=LEASE_S) == []
    write(store, taken.lease, record("x"), status="completed", release=True)
    store.admit_all([waiting("b")], owner=None, lease_s=0.0)
    store.request_cancel(RunId("b"), reason="enough")
    assert store.claim_next(order, owner="two", lease_s=LEASE_S) == []


def test_several_runs_are_read_at_once(store):
    """Each with its own records, long ones included; what is not there is left out."""
    lease = admit(store, run_id="a")
    write(store, lease, record("x"), record(LONG))
    admit(store, run_id="b")
    found = store.read_all([RunId("b"), RunId("nowhere"), RunId("a")])
    assert found == {RunId("a"): store.read(RunId("a")), RunId("b"): store.read(RunId("b"))}


def test_claims_read_no_backlog_of_a_key(store, other):
    """Ten thousand runs of one key are neither sorted nor read, whatever the statistics of the table."""
    store.admit_all([attrs.evolve(waiting("first"), key="b")], owner=None, lease_s=0.0)
    other.execute(
        """INSERT INTO flujo_runs (run_hash, run_id, pipeline, status, created_at, updated_at, epoch, lease_until,
                                   next_seq, queue, key, ready, wake_at)
           SELECT sha256(n::text::bytea), n::text, 'pipeline', 'running', 0, 0, 0, 0, 2, 'gpu', 'a', 1, n
           FROM generate_series(1, 10000) n"""
    )
    wanted = {"pipeline": "pipeline", "fingerprint": None, "without": [], "waiting_s": 0.0, "limit": 8, "wall": None}
    place = {"queue": "gpu", "priority": 0, "keys": ["a", "b"], "each": 8, "after": None, "until": None, "now": None}
    for analyzed in (False, True):
        if analyzed:
            other.execute("ANALYZE flujo_runs")
        with other.transaction():
            other.execute(claims._IN_INDEX_ORDER)
            for statement in (claims._KEYS, claims._OF_KEYS):
                plan = [step for (step,) in other.execute(f"EXPLAIN {statement}".encode(), {**wanted, **place})]
                assert any("flujo_runs_claimable" in step for step in plan)
                assert not any("Sort" in step or "Seq Scan" in step for step in plan)
    taken = store.claim_next(ClaimOrder(pipeline="pipeline", queues=("gpu",), limit=3), owner="me", lease_s=LEASE_S)
    assert [each.lease.run_id for each in taken] == ["1", "first", "2"]
