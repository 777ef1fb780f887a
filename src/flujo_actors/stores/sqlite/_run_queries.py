"""Run queries in a SQLite file: summaries, states, records and forks.

Sections:

- Cached positions of a store's runs in its file, as of its last commit.
"""

from __future__ import annotations

import json
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import attrs

from ..._core.labels import Labels
from ..._core.outcomes import RunId
from ..._core.records.records import (
    Admission,
    Append,
    AskedPause,
    ItemRow,
    Lease,
    ListOrder,
    OpenPause,
    QuestionQuery,
    Record,
    RunCounts,
    RunFigures,
    RunQuery,
    StateGroup,
    StoredRun,
    StoredStatus,
)
from ..._core.step_paths import StepPath
from ..._core.views.record_summaries import RecordSummary
from ...errors import RunExists, SingletonBusy
from .. import _question_lists as question_lists
from .. import _record_rows as refusals
from .. import _run_lists as run_lists
from .._lease_clock import LeaseClock
from .._record_rows import as_item_rows, as_light, as_page, as_records, corrupt, restored, storable
from .._run_lists import changed_labels, labels_in
from .._store_port import Verdict
from . import _statements as sql
from ._connections import SqliteConnections

# --- Cached positions of a store's runs in its file ---------------------------------------------------------------
# A record's key is its run's and its number, and finding the last number is expensive: the statement reads the table
# that
# it writes to, so SQLite materializes its rows first. The last writer knows the next key. Rules:
#
# 1. The cache is never trusted alone: every write still has the lease, owner and epoch, in its predicate, and a
#    key used by another process meanwhile is not reused. Then the statement writes nothing, and the store reads.
# 2. An entry is valid for one lease, until that is released or lost. A rollback clears the cache.
# 3. It is used in the transactions of the writing connection only, one at a time.


MOST = 100_000
"""Maximum number of cached runs, for processes that never release their leases."""


class RunRow(NamedTuple):
    """Position of a run."""

    lease: Lease
    under: tuple[int, str, str, int]
    """Key and lease, as used in predicates."""
    last: int
    """The key of its last record."""
    created_at: float


class RunPositions:
    """Cache of run positions; see the module's rules."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[RunId, RunRow] = {}

    def of(self, lease: Lease) -> RunRow | None:
        """Return the run's position, if this lease wrote last."""
        place = self._known.get(lease.run_id)
        return place if place is not None and place.lease == lease else None

    def update(self, place: RunRow) -> None:
        """Something was written there."""
        if len(self._known) >= MOST:
            self._known.clear()
        self._known[place.lease.run_id] = place

    def forget(self, lease: Lease) -> None:
        """The lease was released, or lost."""
        self._known.pop(lease.run_id, None)

    def __enter__(self) -> None:
        """Around a transaction."""

    def __exit__(self, kind: type[BaseException] | None, error: object, traceback: object) -> None:
        if kind is not None:
            self._known.clear()


# --- Run queries in a SQLite file ---------------------------------------------------------------------------------


FORKED = "fork"
"""Owner of a fork while it is created."""

_GOOD_FOR_S = 1.0
"""Cache time of a query result without writes: leases expire by themselves."""


@attrs.frozen(kw_only=True)
class _Seen:
    """Cached query result."""

    asked: tuple[RunId, ...]
    version: tuple[int, int] | None
    """Version of the file; `None` if unknown."""
    at: float
    runs: dict[RunId, StoredRun]

    def fits(self, asked: tuple[RunId, ...], version: tuple[int, int] | None, now: float) -> bool:
        same = version is not None and (asked, version) == (self.asked, self.version)
        return same and now < self.at + _GOOD_FOR_S


NOTHING = "nothing"
"""Search that no run matches."""


class SqliteRunQueries(ABC):
    """Run queries of a SQLite store."""

    _connections: SqliteConnections
    _places: RunPositions
    _clock: LeaseClock
    _seen: _Seen | None = None
    """Last result of `look`."""

    def find(self, query: RunQuery) -> list[StoredRun]:
        with self._connections.reading() as db:
            search, labelled, wanted = self._prepared(db, query)
            if search == NOTHING:
                return []
            runs = [
                run
                for part in run_lists.parts(query, DIALECT, search=search, labelled=labelled)
                for run in self._stored(db, f"{part.where} ORDER BY {part.order} LIMIT :limit", wanted, query.order)
            ]
        return run_lists.in_order(runs, query.order, query.limit)

    def figures(
        self,
        query: RunQuery,
        *,
        labels: Sequence[str],
        period: tuple[float, float],
        ended: bool,
        after: RunFigures | None,
        limit: int,
    ) -> list[RunFigures]:
        with self._connections.reading() as db:
            search, labelled, wanted = self._prepared(db, query)
            if search == NOTHING:
                return []
            wanted |= {**self._time(), **run_lists.figures_parameters(labels, period, after, limit)}
            more: Any = {"labels": len(labels), "ended": ended, "after": after is not None}
            statement = run_lists.figures_statement(query, DIALECT, search=search, labelled=labelled, **more)
            return run_lists.figures_of(db.execute(statement, wanted))

    def _prepared(
        self, db: sqlite3.Connection, query: RunQuery
    ) -> tuple[str | None, run_lists.Labelled, dict[str, Any]]:
        """Return the search, the labels and the parameters of a query."""
        found = _keys_with_prefix(db, query)
        if query.search and not found and not _is_in_pipeline(db, query.search):
            return NOTHING, run_lists.Labelled(), {}
        keys = run_lists.key_range(query, *_key_lookup(db))
        limit = -1 if query.limit is None else query.limit
        wanted = {**run_lists.parameters(query, keys, found), "keys": json.dumps(found), "limit": limit}
        count = lambda sql: int(db.execute(sql, wanted).fetchone()[0])  # noqa: E731
        search = None if query.search is None else run_lists.searched(DIALECT, found, count)
        labelled = run_lists.labelled(query, DIALECT, lambda sql: [key for (key,) in db.execute(sql, wanted)])
        return search, labelled, {**wanted, "labelled": json.dumps(labelled.keys)}

    def counts(self) -> RunCounts:
        with self._connections.reading() as db:
            return run_lists.counts_of(db.execute(sql.COUNTS, self._time()).fetchall())

    def groups(self, *, ended: bool = True) -> list[StateGroup]:
        statement = sql.GROUPS if ended else sql.OPEN_GROUPS
        with self._connections.reading() as db:
            return [run_lists.group_of(row) for row in db.execute(statement, self._time()) if row[-1]]

    def asked(self, query: QuestionQuery) -> list[AskedPause]:
        run_id = None if query.run_id is None else storable(query.run_id)
        wanted = {**question_lists.parameters(query), "run_id": run_id}
        found: list[AskedPause] = []
        with self._connections.reading() as db:
            for part in question_lists.parts(query, ":{}".format, run=sql.RUN_KEY, to="p.addressee = :to"):
                limit = -1 if query.limit is None else query.limit - len(found)
                statement = sql.ASKED.format(columns=question_lists.COLUMNS, part=part)
                rows = db.execute(statement, {**wanted, "limit": limit})
                found += [question_lists.asked_pause(query.order, *row) for row in rows]
        return found

    def scan(self, run_id: RunId, after: int = 0, limit: int | None = None) -> list[RecordSummary]:
        wanted = {"run_id": storable(run_id), "after": max(after, 0), "limit": -1 if limit is None else limit}
        with self._connections.reading() as db:
            rows = db.execute(sql.SCAN, wanted).fetchall()
            if not rows and owner_of(db, run_id) is None:
                raise refusals.not_found(run_id)
        return as_light(rows)

    def read_outside(self, run_id: RunId) -> list[Record]:
        with self._connections.reading() as db:
            rows = db.execute(sql.READ_OUTSIDE, {"run_id": storable(run_id), "after": 0}).fetchall()
        if not rows:
            raise refusals.not_found(run_id)
        return as_page(run_id, rows)

    def repeated(self, run_id: RunId) -> list[StepPath]:
        with self._connections.reading() as db:
            rows = db.execute(sql.REPEATED, {"run_id": storable(run_id), "after": 0}).fetchall()
        return [StepPath(restored(path)) for (path,) in rows]

    def read_inside(self, run_id: RunId, *, before: int, limit: int) -> list[ItemRow]:
        wanted = {"run_id": storable(run_id), "before": before, "limit": limit}
        with self._connections.reading() as db:
            rows = db.execute(sql.READ_INSIDE, wanted).fetchall()
        return as_item_rows(rows, lambda seq: self.record(run_id, seq))

    def record(self, run_id: RunId, seq: int) -> Record:
        with self._connections.reading() as db:
            rows = record_rows(db, run_id, seq - 1, limit=1) if seq > 0 else []
        if not rows or rows[0][0] != seq:
            raise refusals.no_record(run_id, seq)
        return as_records(run_id, rows, after=seq - 1)[0]

    def compacted(self, run_id: RunId) -> int | None:
        with self._connections.reading() as db:
            found = db.execute("SELECT id FROM flujo_runs WHERE run_id = ?", (storable(run_id),)).fetchall()
            if not found:
                raise refusals.not_found(run_id)
            [(oldest,)] = db.execute(sql.COMPACTED, {"run": found[0][0]}).fetchall()
        return None if oldest is None else int(oldest)

    def look(self, run_ids: Sequence[RunId]) -> dict[RunId, StoredRun]:
        """Return the existing runs; cached while the file's version is unchanged."""
        asked, version, now = tuple(run_ids), self._connections.version(), self._clock.now()
        if self._seen is None or not self._seen.fits(asked, version, now):
            self._seen = _Seen(asked=asked, version=version, at=now, runs=self._query_many(asked))
        return self._seen.runs

    def _query_many(self, run_ids: Sequence[RunId]) -> dict[RunId, StoredRun]:
        ids = json.dumps([storable(run_id) for run_id in run_ids])
        with self._connections.reading() as db:
            found = self._stored(db, "WHERE run_id IN (SELECT value FROM json_each(:ids))", {"ids": ids})
        return {run.run_id: run for run in found}

    def admit_fork(
        self,
        admission: Admission,
        records: Sequence[Record],
        *,
        pauses: Sequence[OpenPause] = (),
        status: StoredStatus = "running",
    ) -> None:
        with self._places, self._connections.writing() as db:
            lease = self._admit(db, admission, FORKED, 0.0)
            if isinstance(lease, RunExists):
                raise lease
            begun = Append(lease=lease, records=tuple(records), pauses=tuple(pauses), status=status, release=True)
            self._append(db, [begun])

    @abstractmethod
    def _time(self) -> dict[str, Any]: ...

    @abstractmethod
    def _stored(
        self, db: sqlite3.Connection, where: str, parameters: Mapping[str, object], order: ListOrder = "updated"
    ) -> list[StoredRun]: ...

    @abstractmethod
    def _admit(self, db: sqlite3.Connection, admission: Admission, owner: str, lease_s: float) -> Lease | RunExists: ...

    @abstractmethod
    def _append(self, db: sqlite3.Connection, batch: Sequence[Append]) -> list[Verdict]: ...


DIALECT = run_lists.Dialect(
    parameter=":{}".format,
    held=f"({sql.HELD})",
    prefix="run_id >= :search AND run_id < :search_end AND substr(run_id, 1, length(:search)) = :search",
    in_prefix="substr(run_id, 1, length(:search)) = :search",
    in_pipeline="instr(lower(pipeline), lower(:search)) > 0",
    by_key="id IN (SELECT value FROM json_each(:{}))".format,
    pipeline="pipeline = :pipeline",
    unindexed="+{}".format,
    order_unindexed="+id DESC",
)
"""SQLite has no statistics; a unary plus disables an index."""


def _keys_with_prefix(db: sqlite3.Connection, query: RunQuery) -> list[int]:
    """Return runs by id prefix, up to a limit."""
    if query.search is None:
        return []
    wanted = {**run_lists.prefix_range(query.search), "most": run_lists.MOST_BY_PREFIX + 1}
    return [key for (key,) in db.execute(sql.FIND_PREFIX.format(DIALECT.prefix), wanted)]


def _is_in_pipeline(db: sqlite3.Connection, search: str) -> bool:
    """Return whether the name of a pipeline contains a text."""
    return bool(db.execute(sql.PIPELINES, {"search": storable(search)}).fetchall())


def _key_lookup(db: sqlite3.Connection) -> tuple[int, Callable[[int], tuple[int, float] | None]]:
    [(newest,)] = db.execute(sql.NEWEST).fetchall()
    return newest, lambda key: db.execute(sql.CREATED, (key,)).fetchone()


def owner_of(db: sqlite3.Connection, run_id: RunId) -> tuple[str | None, int] | None:
    """Return a run's owner and epoch, or None without one."""
    for owner, epoch in db.execute(sql.OWNER, (storable(run_id),)).fetchall():
        return (owner if owner is None else restored(owner)), epoch
    return None


def record_rows(db: sqlite3.Connection, run_id: RunId, after: int, *, limit: int = -1) -> list[Any]:
    """Return a run's record rows; `CorruptRecord` names a non-text one."""
    wanted = {"run_id": storable(run_id), "after": max(after, 0), "limit": limit}
    try:
        return db.execute(sql.READ, wanted).fetchall()
    except sqlite3.OperationalError as error:
        for seq, *texts in db.execute(sql.READ_RAW, wanted):
            if not all(map(_is_utf8, texts)):
                raise corrupt(run_id, seq, "it holds text that is not UTF-8") from error
        raise


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


_INSERT = "INSERT INTO flujo_labels (name, value, run) VALUES (?, ?, ?)"

_FIND = """
    SELECT id, (SELECT json_group_object(name, value) FROM flujo_labels WHERE run = flujo_runs.id)
    FROM flujo_runs WHERE run_id = ?"""

_OF_RUNS = """
    SELECT run_id, json_group_object(name, value) FROM flujo_runs CROSS JOIN flujo_labels ON run = id
    WHERE run_id IN (SELECT value FROM json_each(?)) GROUP BY run_id"""

_DELETE = "DELETE FROM flujo_labels WHERE run = ?"


_EXISTS = "SELECT 1 FROM flujo_runs WHERE run_id = ?"

_HOLDER = "SELECT run_id FROM flujo_runs WHERE singleton = ? AND ended_at IS NULL"

_REPLACE = "UPDATE flujo_runs SET singleton = NULL, cancel = ? WHERE run_id = ?"

_TAKE_KEY = "UPDATE flujo_runs SET singleton = ? WHERE id = ?"

_KEY = "SELECT singleton FROM flujo_runs WHERE run_id = ? AND singleton IS NOT NULL"


class SqliteLabels:
    """Labels of a SQLite store."""

    _connections: SqliteConnections

    def set_labels(self, run_id: RunId, labels: Mapping[str, str], *, remove: Sequence[str] = ()) -> Labels:
        with self._connections.writing() as db:
            for run, text in db.execute(_FIND, (storable(run_id),)).fetchall():
                changed = changed_labels(labels_in(text), labels, remove)
                delete_labels(db, run)
                insert_labels(db, run, changed)
                return changed
        raise refusals.not_found(run_id)

    def holder_of(self, singleton: str) -> RunId | None:
        with self._connections.reading() as db:
            return _holder(db, singleton)

    def labels_of(self, run_ids: Sequence[RunId]) -> dict[RunId, Labels]:
        ids = json.dumps([storable(run_id) for run_id in run_ids])
        with self._connections.reading() as db:
            rows = db.execute(_OF_RUNS, (ids,)).fetchall()
        return {RunId(restored(run_id)): labels_in(text) for run_id, text in rows}


def insert_labels(db: sqlite3.Connection, run: int, labels: Mapping[str, str]) -> None:
    """Write the labels of a run."""
    if labels:
        db.executemany(_INSERT, [(name, storable(value), run) for name, value in labels.items()])


def delete_labels(db: sqlite3.Connection, run: int) -> None:
    """Delete the labels of a run."""
    db.execute(_DELETE, (run,))


def reserve_key(db: sqlite3.Connection, admission: Admission) -> SingletonBusy | RunId | None:
    """Free an admission's key; return an error or the replaced run."""
    if admission.singleton is None or db.execute(_EXISTS, (storable(admission.run_id),)).fetchall():
        return None
    holder = _holder(db, admission.singleton)
    if holder is None:
        return None
    if not admission.replaces:
        return refusals.busy(admission.singleton, holder)
    db.execute(_REPLACE, (storable(refusals.replaced_by(admission.run_id)), storable(holder)))
    return holder


def take_key(db: sqlite3.Connection, run: int, admission: Admission) -> None:
    """Give a new run its key."""
    if admission.singleton is not None:
        db.execute(_TAKE_KEY, (storable(admission.singleton), run))


def refuse_taken_key(db: sqlite3.Connection, run_id: RunId) -> None:
    """Raise `SingletonBusy` if another open run has the key of a run."""
    for (key,) in db.execute(_KEY, (storable(run_id),)).fetchall():
        holder = _holder(db, restored(key))
        if holder not in (None, run_id):
            raise refusals.busy(restored(key), RunId(str(holder)))


def _holder(db: sqlite3.Connection, singleton: str) -> RunId | None:
    rows = db.execute(_HOLDER, (storable(singleton),)).fetchall()
    return next((RunId(restored(run_id)) for (run_id,) in rows), None)
