"""What a SQLite store writes for a record: statements, pages, and the tables of an earlier version."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import attrs
import pytest

from flujo_actors._core.outcomes import RunId
from flujo_actors._core.records.records import Append, RunQuery
from flujo_actors.errors import CorruptRecord
from flujo_actors.stores.sqlite import _schema as schema
from flujo_actors.stores.sqlite._store import SqliteStore
from flujo_actors.testing._store_clauses.store_target import admit, bodies, claim, record, write

FRAME = 4096 + 24
"""A page in the log, with its header."""


@pytest.fixture
def path(tmp_path):
    return tmp_path / "runs.db"


@pytest.fixture
def store(path):
    store = SqliteStore(path)
    yield store
    store.close()


def statements_of(store, work):
    """What SQLite is told while some work is done."""
    seen = []
    with store._connections.writing() as db:
        db.set_trace_callback(seen.append)
    work()
    with store._connections.writing() as db:
        db.set_trace_callback(None)
    return [statement.split(maxsplit=1)[0] for statement in seen[1:-1]]  # without the end and beginning of the blocks


def test_a_record_is_one_statement_and_one_commit(store):
    """The lease is checked, the number given and the record written by a single INSERT.

    Who wants any run to end is asked once for each commit, however many records it has.
    """
    lease, other = admit(store), admit(store, "other")
    expected = ["BEGIN", "SELECT", "INSERT", "COMMIT"]
    assert statements_of(store, lambda: write(store, lease, record("a"))) == expected
    both = [Append(lease=each, records=(record("b"),)) for each in (lease, other)]
    assert statements_of(store, lambda: store.append(both)) == [*expected[:-1], "INSERT", "COMMIT"]


def test_many_records_of_a_run_are_few_statements(store):
    """Of one append, or of many that wait together: after each statement a busy loop lets the thread wait."""
    lease, other = admit(store), admit(store, "other")
    many = Append(lease=lease, records=tuple(record(f"a{number}") for number in range(250)))
    assert statements_of(store, lambda: store.append([many])) == ["BEGIN", "SELECT", *["INSERT"] * 3, "COMMIT"]
    single = [Append(lease=lease, records=(record(f"b{number}"),)) for number in range(250)]
    batch = [*single, Append(lease=other, records=(record("c"),)), single[0]]
    assert statements_of(store, lambda: store.append(batch)).count("INSERT") == 3 + 2
    written = [f"a{number}" for number in range(250)] + [f"b{number}" for number in range(250)] + ["b0"]
    assert bodies(store, lease.run_id) == [record(name).body for name in written]
    assert [each.seq for each in store.read(lease.run_id)] == list(range(1, 503))
    assert bodies(store, other.run_id) == [record("c").body]


def test_single_records_of_many_runs_take_one_statement_for_a_hundred(store, path):
    """An outdated lease, an old position and a long body are left to statements of their own."""
    leases = [admit(store, f"r{number}") for number in range(150)]
    every = [Append(lease=lease, records=(record(f"a {lease.run_id}"),)) for lease in leases]
    assert statements_of(store, lambda: store.append(every)) == ["BEGIN", "SELECT", "INSERT", "INSERT", "COMMIT"]
    with closing(SqliteStore(path)) as second:
        write(second, leases[1], record("between"))
    names = {lease.run_id: ("x" * 100_000 if lease is leases[2] else "") + f"b {lease.run_id}" for lease in leases}
    batch = [Append(lease=lease, records=(record(names[lease.run_id]),)) for lease in leases]
    batch[0] = attrs.evolve(batch[0], lease=attrs.evolve(leases[0], epoch=7))
    verdicts = store.append([*batch, Append(lease=leases[3], records=(record("c"),))])
    assert [type(verdict).__name__ for verdict in verdicts] == ["LeaseLost"] + ["NoneType"] * 150
    for lease in leases:
        between = ["between"] if lease is leases[1] else []
        last = {"r0": [], "r3": [names["r3"], "c"]}.get(lease.run_id, [names[lease.run_id]])
        written = [f"a {lease.run_id}", *between, *last]
        assert bodies(store, lease.run_id) == [record(name).body for name in written]
        assert [each.seq for each in store.read(lease.run_id)] == list(range(1, len(written) + 2))


def test_of_many_appends_together_each_is_told_that_its_lease_is_lost(store):
    """None of them writes anything; those of another run beside them do."""
    lease, other = admit(store), admit(store, "other")
    stale = attrs.evolve(lease, epoch=7)
    lost = [Append(lease=stale, records=(record(f"x{number}"),)) for number in range(20)]
    verdicts = store.append([*lost, Append(lease=other, records=(record("y"),))])
    assert [type(verdict).__name__ for verdict in verdicts] == ["LeaseLost"] * 20 + ["NoneType"]
    assert len({id(verdict) for verdict in verdicts}) == 21, "each raises its own"
    assert (bodies(store, lease.run_id), bodies(store, other.run_id)) == ([], [record("y").body])


def test_many_records_go_where_another_store_on_the_file_has_left_off(store, path):
    """What is known of a run may be old: then no key is used twice, and nothing is lost."""
    lease = admit(store)
    write(store, lease, record("first"))
    with closing(SqliteStore(path)) as second:
        write(second, lease, record("second"))
    many = Append(lease=lease, records=tuple(record(f"m{number}") for number in range(30)))
    assert store.append([many]) == [None]
    names = ["first", "second", *(f"m{number}" for number in range(30))]
    assert bodies(store, lease.run_id) == [record(name).body for name in names]


def test_long_bodies_among_many_records_are_kept(store):
    """They go to the place of long bodies, one by one."""
    lease = admit(store)
    names = [("x" * 100_000 if number % 7 == 0 else "short") + str(number) for number in range(40)]
    assert store.append([Append(lease=lease, records=tuple(map(record, names)))]) == [None]
    assert bodies(store, lease.run_id) == [record(name).body for name in names]


def test_a_commit_of_one_record_writes_one_page(store, path):
    """Nothing but the page at whose end the record stands goes to the disk, while a run goes on."""
    lease = admit(store)
    log = path.with_name("runs.db-wal")
    before = log.stat().st_size
    for number in range(20):
        write(store, lease, record(str(number)))
    assert log.stat().st_size - before == 20 * FRAME


def test_a_refused_append_leaves_no_blob(store, path):
    """A long body that may not be written is not kept under its hash either."""
    stale = attrs.evolve(admit(store), epoch=7)
    assert write(store, stale, record("x" * 100_000)) is not None
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("SELECT count(*) FROM flujo_blobs").fetchall() == [(0,)]


def test_runs_of_two_leases_are_numbered_by_themselves(store):
    """Records stand beside those of other runs without getting in their way."""
    first, second = admit(store, "first"), admit(store, "second")
    for lease in (second, first, first, second):
        write(store, lease, record(lease.run_id))
    for name in ("first", "second"):
        assert [each.seq for each in store.read(RunId(name))] == [1, 2, 3]
        assert store.get(RunId(name)).records == 3


def test_a_run_whose_records_are_gone_takes_no_number_of_another(store, path):
    """Damage to one run does not spread to the one before it."""
    other = admit(store, "other")
    write(store, other, record("theirs"))
    lease = admit(store)
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("DELETE FROM flujo_records WHERE run = 2")
    write(store, lease, record("mine"))
    assert bodies(store, "other") == [record("theirs").body]
    assert bodies(store) == [record("mine").body]
    with pytest.raises(CorruptRecord, match=r"record 1 .* is missing"):
        store.read(RunId("run"))


def test_a_file_of_the_first_version_is_read_and_continued(path):
    """Its runs, records, numbers and times are there after the migration, and new records follow."""
    with closing(sqlite3.connect(path)) as db, db:
        for statement in schema.MIGRATIONS[0]:
            db.execute(statement)
        db.execute("CREATE TABLE flujo_schema (version INTEGER NOT NULL)")
        db.execute("INSERT INTO flujo_schema VALUES (1)")
        for key, name in enumerate(("first", "second"), 1):
            db.execute(
                "INSERT INTO flujo_runs VALUES (?, ?, 'p', 'paused', 10.0, ?, NULL, 1, 'boot', 0.0, 0.0, 4)",
                (key, name, 20.0 + key),
            )
        for place in range(6):  # interleaved, as runs at the same time wrote them
            run, seq = place % 2 + 1, place // 2 + 1
            row = (run, seq, "started" if seq > 1 else "admitted", f"{run}-{seq}", f'{{"v":1,"n":{seq}}}')
            db.execute("INSERT INTO flujo_records (run, seq, kind, path, body) VALUES (?, ?, ?, ?, ?)", row)
    store = SqliteStore(path)
    assert [(run.run_id, run.records, run.updated_at) for run in store.find(RunQuery())] == [
        ("second", 3, 22.0),
        ("first", 3, 21.0),
    ]
    assert [each.path for each in store.read(RunId("second"))] == ["2-1", "2-2", "2-3"]
    lease = claim(store, "first")
    assert write(store, lease, record("new")) is None
    assert [each.seq for each in store.read(RunId("first"))] == [1, 2, 3, 4]
    store.close()
