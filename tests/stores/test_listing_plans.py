"""Plans of listings in stores with many runs: every query uses an index."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator, Sequence

import attrs
import psycopg
import pytest

from flujo_actors._core.outcomes import RunId
from flujo_actors._core.records.records import QuestionQuery
from flujo_actors.stores import Admission, PostgresStore, RunQuery, SqliteStore, Store
from flujo_actors.stores import _question_lists as question_lists
from flujo_actors.stores.postgres import _statements as postgres_sql
from flujo_actors.stores.postgres._run_queries import hash_of
from flujo_actors.stores.sqlite import _claims as sqlite_claims
from flujo_actors.stores.sqlite import _statements as sqlite_sql

pytestmark = pytest.mark.slow

RUNS = 100_000
EPOCH = 1_700_000_000.0
"""Creation of the first run; each further run is created a second later."""

COLUMNS = "run_id, pipeline, status, created_at, updated_at, epoch, lease_until, queue, ended_at"
ROW = f"""
    'run-' || i, 'p' || (i % 20),
    CASE WHEN i % 100 = 0 THEN 'failed' WHEN i % 2 = 1 THEN 'paused' ELSE 'completed' END,
    {EPOCH} + i, {EPOCH} + i + 5, 1, 0, CASE WHEN i % 10 = 1 THEN 'gpu' END,
    CASE WHEN i % 2 = 0 THEN {EPOCH} + i + 5 END"""
"""Half of the runs are paused, each with an open question."""

PAUSES = """
    INSERT INTO flujo_pauses (run, path, token, message, body, kind, addressee, due_at)
    SELECT id, 'ask', 'token', 'May I?', '{}', 'approval', CASE WHEN id % 1000 = 1 THEN 'ada' ELSE 'bob' END,
           CASE WHEN id % 100 = 1 THEN 4e9 + id END
    FROM flujo_runs WHERE status = 'paused'"""

LABELS = """
    INSERT INTO flujo_labels (name, value, run)
    SELECT 'tenant', CASE WHEN id % 2 = 0 THEN 'big' ELSE 't' || (id % 1000) END, id FROM flujo_runs
    UNION ALL SELECT 'env', 'prod', id FROM flujo_runs WHERE id % 5 > 0
    UNION ALL SELECT 'canary', 'yes', id FROM flujo_runs WHERE id % 10000 = 0"""
"""Half of the runs belong to one tenant, and a hundred to each of the others."""

LISTINGS = {
    "all": RunQuery(limit=50),
    "status": RunQuery(limit=50, status="failed"),
    "no such status": RunQuery(limit=50, status="aborted"),
    "paused": RunQuery(limit=50, status="paused"),
    "pipeline": RunQuery(limit=50, pipeline="p2"),
    "no such pipeline": RunQuery(limit=50, pipeline="p99"),
    "pipeline and status": RunQuery(limit=50, pipeline="p0", status="failed"),
    "queue": RunQuery(limit=50, queue="gpu"),
    "prefix": RunQuery(limit=50, search="run-123"),
    "prefix of many old runs": RunQuery(limit=50, search="run-1"),
    "abandoned": RunQuery(limit=50, abandoned=True),
    "open runs with a question": RunQuery(limit=50, status="paused", facts=("asking",)),
    "open runs with a lease": RunQuery(limit=50, status="running", facts=("leased",)),
    "created after": RunQuery(limit=50, created_after=EPOCH + RUNS - 20),
    "created before": RunQuery(limit=50, created_before=EPOCH + 1000),
    "label of half the runs": RunQuery(limit=50, labels=(("tenant", "big"),)),
    "label of 100 runs": RunQuery(limit=50, labels=(("tenant", "t7"),)),
    "label of no run": RunQuery(limit=50, labels=(("tenant", "nobody"),)),
    "label and few runs of a status": RunQuery(limit=50, labels=(("tenant", "big"),), status="failed"),
    "label and status": RunQuery(limit=50, labels=(("tenant", "big"),), status="completed"),
    "label, status, pipeline": RunQuery(limit=50, labels=(("tenant", "big"),), status="completed", pipeline="p2"),
    "two labels": RunQuery(limit=50, labels=(("tenant", "big"), ("env", "prod"))),
    "any value": RunQuery(limit=50, labels=(("env", None),)),
    "any value of a rare label": RunQuery(limit=10, labels=(("canary", None),)),
    "label and time": RunQuery(limit=50, labels=(("tenant", "big"),), created_before=EPOCH + 1000),
}


FOUND = {
    "open runs with a lease": 0,
    "no such status": 0,
    "no such pipeline": 0,
    "abandoned": 0,
    "created after": 20,
    "label of no run": 0,
    "any value of a rare label": 10,
}
"""Numbers of found runs that are not 50."""


class ExplainedSqlite(SqliteStore):
    """Store that collects the plans of its listings."""

    plans: list[str]

    def _stored(self, db, where, parameters, order="updated"):
        steps = db.execute(f"EXPLAIN QUERY PLAN {sqlite_sql.RUNS} {where}", {**self._time(), **parameters})
        self.plans += [step for *_, step in steps]
        return super()._stored(db, where, parameters, order)


class ExplainedPostgres(PostgresStore):
    """Store that collects the plans of its listings."""

    plans: list[str]

    def _stored(self, where, parameters, order="updated"):
        statement = f"EXPLAIN {postgres_sql.RUNS} {where}".encode()
        steps = self._connections.read(lambda db: db.ask(statement, {**self._time(), **parameters}))
        self.plans += [step for (step,) in steps]
        return super()._stored(where, parameters, order)


@pytest.fixture(scope="module")
def full_sqlite(tmp_path_factory) -> str:
    path = str(tmp_path_factory.mktemp("listing") / "runs.db")
    SqliteStore(path).find(RunQuery(limit=1))
    db = sqlite3.connect(path)
    db.execute(
        f"""WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {RUNS})
            INSERT INTO flujo_runs ({COLUMNS}, lease_boot, lease_from, records) SELECT {ROW}, '', 0, 1 FROM n"""
    )
    db.execute(PAUSES)
    db.execute(LABELS)
    db.commit()
    db.close()
    return path


@pytest.fixture(scope="module")
def full_postgres(postgres_server) -> str:
    url = postgres_server.fresh_url()
    PostgresStore(url).find(RunQuery(limit=1))
    with psycopg.connect(url, autocommit=True) as db:
        db.execute(
            f"""INSERT INTO flujo_runs ({COLUMNS}, run_hash, next_seq)
                SELECT {ROW}, sha256(i::text::bytea), 2 FROM generate_series(1, {RUNS}) i"""
        )
        db.execute(PAUSES)
        db.execute(LABELS)
        db.execute("ANALYZE")
    return url


@pytest.fixture(params=["sqlite", "postgres"])
def store(request: pytest.FixtureRequest) -> Iterator[Store]:
    """A store of 100,000 runs, 50,000 of them paused."""
    place = request.getfixturevalue(f"full_{request.param}")
    store = ExplainedSqlite(place) if request.param == "sqlite" else ExplainedPostgres(place)
    store.plans = []
    yield store
    store.close()


def unindexed(plans: Sequence[str]) -> list[str]:
    scans = [step for step in plans if step.startswith("SCAN ") and "INDEX" not in step and "json_each" not in step]
    scans = [step for step in scans if "flujo_" in step or step == "SCAN l"]
    tables = ("flujo_runs", "flujo_labels", "flujo_pauses")
    return [*scans, *(step for step in plans if any(f"Seq Scan on {table}" in step for table in tables))]


@pytest.mark.parametrize("name", LISTINGS)
def test_every_listing_in_created_order_uses_an_index(store, name):
    """Whatever it filters by, and however many runs there are."""
    found = store.find(attrs.evolve(LISTINGS[name], order="created"))
    assert len(found) == FOUND.get(name, 50)
    assert store.plans
    assert unindexed(store.plans) == []
    if found and name != "created after":
        store.find(attrs.evolve(LISTINGS[name], order="created", cursor=found[-1].cursor))
        assert unindexed(store.plans) == []


@pytest.mark.parametrize(
    ("search", "newest"), [("run-1", [100_000, *range(19_999, 19_984, -1)]), ("run-9", range(99_999, 99_983, -1))]
)
def test_pages_of_a_frequent_prefix_are_in_created_order(store, search, newest):
    """Whether they are read newest first, or sorted."""
    first = store.find(RunQuery(limit=8, search=search, order="created"))
    second = store.find(RunQuery(limit=8, search=search, order="created", cursor=first[-1].cursor))
    assert [run.run_id for run in (*first, *second)] == [f"run-{number}" for number in newest]


def test_a_page_of_questions_reads_no_more_than_the_page(store):
    """With fifty thousand open questions, each page in turn."""
    first = store.asked(QuestionQuery(limit=50))
    second = store.asked(QuestionQuery(limit=50, cursor=first[-1].cursor))
    assert len({each.run_id for each in (*first, *second)}) == 100
    assert store.counts().questions == RUNS / 2


@pytest.mark.parametrize("name", [name for name in LISTINGS if "label" in name])
def test_pages_of_labelled_runs_are_those_of_all_runs(store, name):
    """By whatever index they are read, in both orders."""
    for order in ("created", "updated"):
        query = attrs.evolve(LISTINGS[name], order=order, limit=7)
        pages = [store.find(query)]
        while pages[-1] and len(pages) < 3:
            pages.append(store.find(attrs.evolve(query, cursor=pages[-1][-1].cursor)))
        found = [run for page in pages for run in page]
        whole = store.find(attrs.evolve(query, limit=21))
        assert [run.run_id for run in found] == [run.run_id for run in whole][: len(found)]
        for run in whole:
            assert all(run.labels[each] == value or value is None for each, value in query.labels)
            assert query.status in (None, run.status)
    assert unindexed(store.plans) == []


QUESTIONS = {
    "addressee": (QuestionQuery(limit=20, to="ada"), 20),
    "no such addressee": (QuestionQuery(limit=20, to="eve"), 0),
    "no such run": (QuestionQuery(limit=20, run_id=RunId("gone")), 0),
    "deadline": (QuestionQuery(limit=20, order="due"), 20),
    "deadline soon": (QuestionQuery(limit=20, order="due", due_before=4e9), 0),
    "label": (QuestionQuery(limit=20, order="oldest", labels=(("env", "prod"),)), 20),
}


@pytest.mark.parametrize("name", QUESTIONS)
def test_questions_are_filtered_by_indexes(store, name):
    """Each filter reads by the index of open questions, or by one of its own."""
    query, count = QUESTIONS[name]
    assert len(store.asked(query)) == count
    plan = plan_of(store, query)
    assert plan
    assert [step for step in plan if "Seq Scan on flujo_pauses" in step] == []
    assert [step for step in plan if "SCAN p" in step and "INDEX" not in step] == []
    assert unindexed(plan) == []


def plan_of(store: Store, query: QuestionQuery) -> list[str]:
    """The plan of the first statement of a page of questions."""
    wanted = {**question_lists.parameters(query), "limit": query.limit}
    if isinstance(store, SqliteStore):
        [part, *_] = question_lists.parts(query, ":{}".format, run=sqlite_sql.RUN_KEY, to="p.addressee = :to")
        statement = sqlite_sql.ASKED.format(columns=question_lists.COLUMNS, part=part)
        with store._connections.reading() as db:
            rows = db.execute(f"EXPLAIN QUERY PLAN {statement}", {**wanted, "run_id": query.run_id})
            return [row[3] for row in rows]
    [part, *_] = question_lists.parts(query, "%({})s".format, run=postgres_sql.RUN_KEY, to=postgres_sql.ADDRESSEE)
    statement = f"EXPLAIN {postgres_sql.ASKED.format(columns=question_lists.COLUMNS, part=part)}"
    asked = {**wanted, "hash": None if query.run_id is None else hash_of(query.run_id)}
    return [line for (line,) in store._connections.read(lambda db: db.ask(statement.encode(), asked))]


def test_queues_are_counted_by_indexes_of_open_runs(tmp_path):
    """Ended runs are not read, however many there are."""
    path = str(tmp_path / "runs.db")
    store = SqliteStore(path)
    store.find(RunQuery(limit=1))
    with sqlite3.connect(path) as db:
        steps = [step for *_, step in db.execute(f"EXPLAIN QUERY PLAN {sqlite_sql.OPEN_GROUPS}", store._time())]
        steps += [step for *_, step in db.execute(f"EXPLAIN QUERY PLAN {sqlite_claims._READY_KEYS}")]
    db.close()
    assert [step for step in steps if "SCAN flujo_runs" in step and "flujo_runs_claimable" not in step] == []
    assert any("flujo_runs_claimable" in step for step in steps)


def test_the_latest_changes_are_listed_by_indexes(store):
    """Open runs by an index of open runs, ended ones by their end."""
    found = store.find(RunQuery(limit=50))
    assert [run.updated_at for run in found] == sorted((run.updated_at for run in found), reverse=True)
    store.find(RunQuery(limit=500, status="completed", updated_before=EPOCH + RUNS / 2))
    assert unindexed(store.plans) == []


def test_paused_runs_are_not_read_by_workers_and_recovery(store):
    """Only runs that can be claimed are in the index that they use."""
    assert store.wanting(pipeline="p1", queues=["gpu"], host="nowhere:", limit=10) == []
    assert store.orphans(pipeline="p1", host="nowhere:", updated_before=time.time(), limit=10) == []
    assert store.find(RunQuery(pipeline="p1", status="paused", answered=True)) == []
    plans = [step for step in store.plans if "flujo_runs" in step]
    assert unindexed(plans) == []
    assert any("flujo_runs_claimable" in step for step in plans)
    assert not any("status = 'paused'" in step and "by_status" in step for step in plans)


SLEEPERS = 100_000
SLEEPING = f"""
    'sleeper-' || i, 'p1', 'sleeping', {EPOCH}, {EPOCH}, 1, 0, 'gpu', NULL, {EPOCH} + 1e9 + i"""
"""Sleepers of one queue, none of which is due."""


SLEEPS = """
    INSERT INTO flujo_pauses (run, path, token, message, body, due_at, wait)
    SELECT id, 'nap', 'token', 'sleeps', '{}', wake_at, 'sleep' FROM flujo_runs"""


@pytest.fixture(scope="module")
def sleeping_sqlite(tmp_path_factory) -> str:
    path = str(tmp_path_factory.mktemp("sleeping") / "runs.db")
    SqliteStore(path).find(RunQuery(limit=1))
    db = sqlite3.connect(path)
    db.execute(
        f"""WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {SLEEPERS})
            INSERT INTO flujo_runs ({COLUMNS}, wake_at, lease_boot, lease_from, records)
            SELECT {SLEEPING}, '', 0, 1 FROM n"""
    )
    db.execute(SLEEPS)
    db.commit()
    db.close()
    return path


@pytest.fixture(scope="module")
def sleeping_postgres(postgres_server) -> str:
    url = postgres_server.fresh_url()
    PostgresStore(url).find(RunQuery(limit=1))
    with psycopg.connect(url, autocommit=True) as db:
        db.execute(
            f"""INSERT INTO flujo_runs ({COLUMNS}, wake_at, run_hash, next_seq)
                SELECT {SLEEPING}, sha256(i::text::bytea), 2 FROM generate_series(1, {SLEEPERS}) i"""
        )
        db.execute(SLEEPS)
        db.execute("ANALYZE")
    return url


def test_a_poll_reads_no_sleeper_that_is_not_due_on_sqlite(sleeping_sqlite: str) -> None:
    """Promotion, the next wake and claims each use an index of their own."""
    with sqlite3.connect(sleeping_sqlite) as db:
        explained = {
            "promote": db.execute(f"EXPLAIN QUERY PLAN {sqlite_sql.PROMOTE}", (EPOCH,)).fetchall(),
            "next": db.execute(f"EXPLAIN QUERY PLAN {sqlite_sql.NEXT_WAKE}").fetchall(),
        }
    for name, plan in explained.items():
        assert any("flujo_runs_asleep" in step for *_, step in plan), (name, plan)
    store = SqliteStore(sleeping_sqlite)
    assert (store.due(), store.wanting(pipeline="p1", queues=["gpu"], host="nowhere:", limit=10)) == (0, [])
    store.close()


def test_a_poll_reads_no_sleeper_that_is_not_due_on_postgres(sleeping_postgres: str) -> None:
    """The time of the predicates is stable: a volatile one would read all of them."""
    with psycopg.connect(sleeping_postgres) as db:
        for statement in (postgres_sql.PROMOTE, postgres_sql.NEXT_WAKE, postgres_sql.NEXT_DUE, postgres_sql.DUE_RUNS):
            rows = db.execute(f"EXPLAIN {statement}".encode(), {"wall": None, "most": 100}).fetchall()
            plan = [step for (step,) in rows]
            assert unindexed(plan) == [], plan
            assert not any("Seq Scan on flujo_pauses" in step for step in plan), plan
    store = PostgresStore(sleeping_postgres)
    assert (store.due(), store.wanting(pipeline="p1", queues=["gpu"], host="nowhere:", limit=10)) == (0, [])
    store.close()


def test_due_sleepers_are_promoted_a_hundred_at_a_time(tmp_path) -> None:
    """However many are due at once, no transaction is long."""
    wall = [EPOCH]
    store = SqliteStore(tmp_path / "runs.db", wall=lambda: wall[0], synchronous="OFF")
    admissions = [Admission(run_id=RunId(str(n)), pipeline="p", body="{}", queue="q", delay_s=1.0) for n in range(250)]
    store.admit_all(admissions, owner=None, lease_s=0.0)
    wall[0] += 2
    assert [store.due() for _ in range(4)] == [100, 100, 50, 0]
    store.close()
