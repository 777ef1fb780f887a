"""Run queries in Postgres: record summaries, run states, single records and forks.

Sections:

- Record writes in Postgres.
- Live text of steps in unlogged tables: not in the log, lost in a crash.
- Compaction of loops with `keep_history`.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, LiteralString

from ..._core.labels import Labels
from ..._core.outcomes import RunId
from ..._core.records.records import (
    SESSION_KINDS,
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
from .. import _record_rows as record_rows
from .. import _run_lists as run_lists
from .._question_lists import open_pause
from .._record_rows import (
    as_blob,
    as_item_rows,
    as_light,
    as_page,
    as_records,
    as_row,
    questions_and_waits,
    restored,
    storable,
)
from .._run_lists import changed_labels, labels_in
from .._store_port import Verdict
from . import _statements as sql

if TYPE_CHECKING:
    from ._connections import IsThere, PostgresConnections
    from ._session import PostgresSession, RunListener, RunListeners

FORKED = "fork"
"""Owner of a fork while it is created."""


NOTHING = "nothing"
"""Search that no run matches."""


class PostgresRunQueries(ABC):
    """Run queries of a Postgres store."""

    _connections: PostgresConnections
    _listeners: RunListeners

    def listen(self) -> RunListener | None:
        return self._listeners.listen()

    def find(self, query: RunQuery) -> list[StoredRun]:
        search, labelled, wanted = self._prepared(query)
        if search == NOTHING:
            return []
        runs = [
            run
            for part in run_lists.parts(query, DIALECT, search=search, labelled=labelled)
            for run in self._stored(f"{part.where} ORDER BY {part.order} LIMIT %(limit)s", wanted, query.order)
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
        search, labelled, wanted = self._prepared(query)
        if search == NOTHING:
            return []
        wanted |= {**self._time(), **run_lists.figures_parameters(labels, period, after, limit)}
        more: Any = {"labels": len(labels), "ended": ended, "after": after is not None}
        statement = run_lists.figures_statement(query, DIALECT, search=search, labelled=labelled, **more).encode()
        return run_lists.figures_of(self._connections.read(lambda db: db.ask(statement, wanted)))

    def _prepared(self, query: RunQuery) -> tuple[str | None, run_lists.Labelled, dict[str, Any]]:
        """Return the search, the labels and the parameters of a query."""
        found = self._keys_with_prefix(query)
        if query.search and not found and not self._is_in_pipeline(query.search):
            return NOTHING, run_lists.Labelled(), {}
        wanted = run_lists.parameters(query, self._key_range(query), found)
        count = lambda sql: self._keys(sql, wanted)[0]  # noqa: E731
        search = None if query.search is None else run_lists.searched(DIALECT, found, count)
        labelled = run_lists.labelled(query, DIALECT, lambda sql: self._keys(sql, wanted))
        return search, labelled, {**wanted, "labelled": labelled.keys}

    def counts(self) -> RunCounts:
        return run_lists.counts_of(self._connections.read(lambda db: db.ask(sql.COUNTS, self._time())))

    def groups(self, *, ended: bool = True) -> list[StateGroup]:
        statement = sql.GROUPS if ended else sql.OPEN_GROUPS
        rows = self._connections.read(lambda db: db.ask(statement, self._time()))
        return [run_lists.group_of(row) for row in rows if row[-1]]

    def asked(self, query: QuestionQuery) -> list[AskedPause]:
        wanted = {**question_lists.parameters(query), "hash": None if query.run_id is None else hash_of(query.run_id)}
        parts = question_lists.parts(query, "%({})s".format, run=sql.RUN_KEY, to=sql.ADDRESSEE)

        def look(db: PostgresSession) -> list[AskedPause]:
            found: list[AskedPause] = []
            for part in parts:
                limit = None if query.limit is None else query.limit - len(found)
                statement = sql.ASKED.format(columns=question_lists.COLUMNS, part=part).encode()
                rows = db.ask(statement, {**wanted, "limit": limit})
                found += [question_lists.asked_pause(query.order, *row) for row in rows]
            return found

        return self._connections.read(look)

    @abstractmethod
    def _time(self) -> dict[str, object]: ...

    def _keys_with_prefix(self, query: RunQuery) -> list[int]:
        """Return the runs whose id has the prefix, up to a limit."""
        if query.search is None:
            return []
        statement = sql.FIND_PREFIX.format(DIALECT.prefix).encode()
        wanted = {**run_lists.prefix_range(query.search), "most": run_lists.MOST_BY_PREFIX + 1}
        return [key for (key,) in self._connections.read(lambda db: db.ask(statement, wanted))]

    def _keys(self, statement: str, wanted: Mapping[str, object]) -> list[int]:
        return [key for (key,) in self._connections.read(lambda db: db.ask(statement.encode(), wanted))]

    def _is_in_pipeline(self, search: str) -> bool:
        """Return whether the name of a pipeline may contain a text."""
        return bool(self._connections.read(lambda db: db.ask(sql.PIPELINES, {"search": storable(search)})))

    def _key_range(self, query: RunQuery) -> run_lists.KeyRange:
        if query.created_after is None and query.created_before is None:
            return run_lists.KeyRange()

        def look(db: PostgresSession) -> run_lists.KeyRange:
            newest = next((int(key) for (key,) in db.ask(sql.NEWEST)), 0)
            return run_lists.key_range(query, newest, lambda key: next(iter(db.ask(sql.CREATED, (key,))), None))

        return self._connections.read(look)

    def scan(self, run_id: RunId, after: int = 0, limit: int | None = None) -> list[RecordSummary]:
        rows = self._connections.read(lambda db: db.ask(sql.SCAN, (hash_of(run_id), max(after, 0), limit)))
        if not rows and self._connections.read(lambda db: owner_of(db, run_id)) is None:
            raise record_rows.not_found(run_id)
        return as_light(rows)

    def read_outside(self, run_id: RunId) -> list[Record]:
        rows = self._connections.read(lambda db: db.ask(sql.READ_OUTSIDE, (hash_of(run_id),)))
        if not rows:
            raise record_rows.not_found(run_id)
        return as_page(run_id, rows)

    def repeated(self, run_id: RunId) -> list[StepPath]:
        rows = self._connections.read(lambda db: db.ask(sql.REPEATED, (hash_of(run_id),)))
        return [StepPath(restored(path)) for (path,) in rows]

    def read_inside(self, run_id: RunId, *, before: int, limit: int) -> list[ItemRow]:
        wanted = (hash_of(run_id), before, limit)
        rows = self._connections.read(lambda db: db.ask(sql.READ_INSIDE, wanted))
        return as_item_rows(rows, lambda seq: self.record(run_id, seq))

    def record(self, run_id: RunId, seq: int) -> Record:
        rows = self._connections.read(lambda db: db.ask(sql.READ, (hash_of(run_id), seq - 1, 1)))
        if not rows or rows[0][0] != seq:
            raise record_rows.no_record(run_id, seq)
        return as_records(run_id, rows, after=seq - 1)[0]

    def compacted(self, run_id: RunId) -> int | None:
        found = self._connections.read(lambda db: db.ask(sql.COMPACTED, (hash_of(run_id),)))
        if not found:
            raise record_rows.not_found(run_id)
        [(oldest,)] = found
        return None if oldest is None else int(oldest)

    def look(self, run_ids: Sequence[RunId]) -> dict[RunId, StoredRun]:
        hashes = [hash_of(run_id) for run_id in run_ids]
        return {run.run_id: run for run in self._stored("WHERE run_hash = ANY(%(hashes)s)", {"hashes": hashes})}

    def admit_fork(
        self,
        admission: Admission,
        records: Sequence[Record],
        *,
        pauses: Sequence[OpenPause] = (),
        status: StoredStatus = "running",
    ) -> None:
        def write(db: PostgresSession) -> tuple[None, IsThere]:
            [lease], _ = self._admit(db, [admission], FORKED, 0.0)
            if isinstance(lease, RunExists):
                raise lease
            begun = Append(lease=lease, records=tuple(records), pauses=tuple(pauses), status=status, release=True)
            self._append(db, [begun])
            return None, lambda db: owner_of(db, admission.run_id) is not None

        self._connections.write(write, slow=True)

    @abstractmethod
    def _stored(
        self, where: str, parameters: Mapping[str, object], order: ListOrder = "updated"
    ) -> list[StoredRun]: ...

    @abstractmethod
    def _admit(
        self, db: PostgresSession, admissions: Sequence[Admission], owner: str, lease_s: float
    ) -> tuple[list[Lease | RunExists], IsThere]: ...

    @abstractmethod
    def _append(self, db: PostgresSession, batch: Sequence[Append]) -> tuple[list[Verdict], IsThere]: ...


DIALECT = run_lists.Dialect(
    parameter="%({})s".format,
    held=sql.HELD,
    prefix="left(run_id, 200) ~>=~ left(%(search)s::text, 200) AND left(run_id, 200) ~<~ %(search_end)s::text "
    "AND starts_with(run_id, %(search)s)",
    in_prefix="starts_with(run_id, %(search)s)",
    in_pipeline="strpos(lower(pipeline), lower(%(search)s)) > 0",
    by_key="id = ANY(%({})s)".format,
    pipeline="left(pipeline, 200) = left(%(pipeline)s::text, 200) AND pipeline = %(pipeline)s",
    unindexed=str,
    order_unindexed="id + 0 DESC",
)
"""Postgres chooses indexes by its statistics."""


def stored_run(row: Sequence[Any], order: ListOrder) -> StoredRun:
    """Return the run of a row."""
    key, run_id, pipeline, status, created_at, updated_at, epoch, held, records, owner, left_s, *rest = row
    tokens, cost_usd, asked, queue, parent, expired, cancel, fingerprint, *times = rest
    started_at, ended_at, worked_s, retries, queue_key, priority, labels, wake_at, ready = times
    return StoredRun(
        run_id=RunId(restored(run_id)),
        pipeline=restored(pipeline),
        status=status,
        created_at=created_at,
        updated_at=updated_at,
        epoch=epoch,
        leased=held,
        records=records,
        **questions_and_waits(open_pause(*each) for each in asked or ()),
        wake_at=wake_at,
        ready=bool(ready),
        expired=bool(expired),
        owner=restored(owner) if held else None,
        left_s=left_s if held else None,
        queue=queue and restored(queue),
        parent=parent and RunId(restored(parent)),
        last_owner=owner and restored(owner),
        tokens=tokens,
        cost_usd=cost_usd,
        cancel=cancel and restored(cancel),
        fingerprint=fingerprint,
        started_at=started_at,
        ended_at=ended_at,
        worked_s=worked_s,
        retries=retries,
        labels=run_lists.labels_in(labels),
        key=restored(queue_key),
        priority=priority,
        cursor=run_lists.cursor_text(order, run_lists.changed_at(updated_at, ended_at), key),
    )


def hash_of(run_id: RunId) -> bytes:
    """Return the lookup key of a run."""
    return hashlib.sha256(run_id.encode("utf-8", "surrogatepass")).digest()


def owner_of(db: PostgresSession, run_id: RunId) -> tuple[str | None, int] | None:
    """Return a run's owner and epoch, or None without one."""
    for owner, epoch in db.ask(sql.OWNER, (hash_of(run_id),)):
        return (owner if owner is None else restored(owner)), epoch
    return None


# --- Record writes in Postgres ------------------------------------------------------------------------------------


def numbered(run: int, first: int, records: Iterable[Record]) -> Iterator[tuple[int, int, Record]]:
    """Return each record with its run and its number."""
    return ((run, first + index, record) for index, record in enumerate(records))


def insert_blobs(db: PostgresSession, records: Iterable[Record]) -> list[bytes]:
    """Write long bodies by themselves; their hashes."""
    blobs = [blob for record in records if (blob := as_blob(record.body)) is not None]
    for blob in blobs:
        db.execute(sql.INSERT_BLOB, blob)
    return [each.hash for each in blobs]


def insert_records(db: PostgresSession, records: Iterable[tuple[int, int, Record]], *, with_blobs: bool = True) -> None:
    """Write records, and long bodies by themselves, unless that was done."""
    placed = list(records)
    if with_blobs:
        insert_blobs(db, (record for _, _, record in placed))
    rows = []
    for run, seq, record in placed:
        row = as_row(record, seq, as_blob(record.body))
        rows.append((run, *row[:5], row.gist))
    if rows:
        db.execute(sql.INSERT_RECORDS, [list(column) for column in zip(*rows, strict=True)])


# --- Live text of steps in unlogged tables ------------------------------------------------------------------------


class PostgresTexts:
    """Live text of a Postgres store."""

    _connections: PostgresConnections

    def swap_texts(self, said: Mapping[RunId, Mapping[StepPath, str]]) -> set[RunId]:
        hashes = {hash_of(run_id): run_id for run_id in said}
        asked = self._connections.read(lambda db: db.ask(sql.WANTED_TEXTS, (list(hashes),)))
        wanted = {hashes[bytes(run)] for (run,) in asked}
        if wanted:
            self._connections.write(lambda db: _replaced(db, {run_id: said[run_id] for run_id in wanted}))
        return wanted

    def watch_texts(self, run_ids: Sequence[RunId], *, for_s: float) -> dict[RunId, dict[StepPath, str]]:
        hashes = {hash_of(run_id): run_id for run_id in run_ids}
        self._connections.write(lambda db: _wanted(db, sorted(hashes), for_s))
        texts: dict[RunId, dict[StepPath, str]] = {run_id: {} for run_id in run_ids}
        for run, path, text in self._connections.read(lambda db: db.ask(sql.TEXTS, (list(hashes),))):
            texts[hashes[bytes(run)]][StepPath(restored(path))] = restored(text)
        return texts


def _replaced(db: PostgresSession, texts: Mapping[RunId, Mapping[StepPath, str]]) -> tuple[None, IsThere]:
    db.execute(sql.DROP_TEXTS, ([hash_of(run_id) for run_id in texts],))
    for run_id, said in texts.items():
        for path, text in said.items():
            db.execute(sql.LEAVE_TEXT, (hash_of(run_id), storable(path), storable(text)))
    return None, lambda db: False


def _wanted(db: PostgresSession, hashes: Sequence[bytes], for_s: float) -> tuple[None, IsThere]:
    db.execute(sql.DROP_STALE_TEXTS)
    for run in hashes:
        db.execute(sql.WANT_TEXTS, {"run": run, "for_s": for_s})
    return None, lambda db: False


# --- Compaction of loops with `keep_history` ----------------------------------------------------------------------


def blobs_of_old_turns(db: PostgresSession, batch: Iterable[Append]) -> list[bytes]:
    """Return the blobs of the records that these appends will delete."""
    return [blob for each in _compactions(batch) for (blob,) in db.ask(sql.BLOBS_OF_OLD_TURNS, each)]


def compact(db: PostgresSession, batch: Iterable[Append]) -> None:
    """Delete the old turns of the appends' loops, with their pauses."""
    for each in _compactions(batch):
        db.execute(sql.COMPACT, each)


def _compactions(batch: Iterable[Append]) -> Iterator[dict[str, object]]:
    for append in batch:
        if append.compaction is not None:
            turns, pauses = map(storable, append.compaction.prefixes)
            yield {
                "hash": hash_of(append.lease.run_id),
                "base": storable(append.compaction.base),
                "turns": turns,
                "pauses": pauses,
                "kinds": list(SESSION_KINDS),
                "around": [storable(path) for path in append.compaction.around],
            }


_INSERT: LiteralString = """
    INSERT INTO flujo_labels (name, value, run) SELECT * FROM unnest(%s::text[], %s::text[], %s::bigint[])"""

_FIND: LiteralString = """
    SELECT id, (SELECT json_object_agg(name, value) FROM flujo_labels WHERE run = r.id)
    FROM flujo_runs r WHERE run_hash = %s FOR UPDATE"""

_OF_RUNS: LiteralString = """
    SELECT run_id, json_object_agg(name, value) FROM flujo_runs r JOIN flujo_labels ON run = r.id
    WHERE run_hash = ANY(%s) GROUP BY r.id"""

_DELETE: LiteralString = "DELETE FROM flujo_labels WHERE run = ANY(%s)"


_LOCK: LiteralString = "SELECT pg_advisory_xact_lock(hashtextextended(%s, 4935112608003))"

_EXISTS: LiteralString = "SELECT 1 FROM flujo_runs WHERE run_hash = %s"

_HOLDER: LiteralString = "SELECT run_id FROM flujo_runs WHERE singleton = %s AND ended_at IS NULL"

_REPLACE: LiteralString = """
    UPDATE flujo_runs SET singleton = NULL, cancel = %s WHERE run_hash = %s AND ended_at IS NULL RETURNING id"""

_TAKE_KEY: LiteralString = "UPDATE flujo_runs SET singleton = %s WHERE id = %s"

_KEY: LiteralString = "SELECT singleton FROM flujo_runs WHERE run_hash = %s AND singleton IS NOT NULL"


class PostgresLabels:
    """Labels of a Postgres store."""

    _connections: PostgresConnections

    def set_labels(self, run_id: RunId, labels: Mapping[str, str], *, remove: Sequence[str] = ()) -> Labels:
        return self._connections.write(lambda db: _set(db, run_id, labels, remove))

    def holder_of(self, singleton: str) -> RunId | None:
        return self._connections.read(lambda db: _holder(db, singleton))

    def labels_of(self, run_ids: Sequence[RunId]) -> dict[RunId, Labels]:
        hashes = [hash_of(run_id) for run_id in run_ids]
        rows = self._connections.read(lambda db: db.ask(_OF_RUNS, (hashes,)))
        return {RunId(restored(run_id)): labels_in(found) for run_id, found in rows}


def _set(
    db: PostgresSession, run_id: RunId, labels: Mapping[str, str], remove: Sequence[str]
) -> tuple[Labels, IsThere]:
    for run, found in db.ask(_FIND, (hash_of(run_id),)):
        changed = changed_labels(labels_in(found), labels, remove)
        delete_labels(db, [run])
        insert_labels(db, {run: changed})
        return changed, lambda db: False
    raise record_rows.not_found(run_id)


def insert_labels(db: PostgresSession, labels: Mapping[int, Mapping[str, str]]) -> None:
    """Write the labels of runs by key."""
    rows = [(name, storable(value), run) for run, named in labels.items() for name, value in named.items()]
    if rows:
        db.execute(_INSERT, [list(column) for column in zip(*rows, strict=True)])


def delete_labels(db: PostgresSession, runs: Sequence[int]) -> None:
    """Delete the labels of runs."""
    db.execute(_DELETE, (list(runs),))


def reserve_keys(db: PostgresSession, admissions: Sequence[Admission]) -> dict[int, SingletonBusy | RunId]:
    """Free the keys of admissions; return errors and replaced runs."""
    keyed = [index for index, admission in enumerate(admissions) if admission.singleton is not None]
    found: dict[int, SingletonBusy | RunId] = {}
    taken: dict[str, RunId] = {}
    for index in sorted(keyed, key=lambda index: (admissions[index].singleton or "", index)):
        admission, key = admissions[index], admissions[index].singleton or ""
        db.execute(_LOCK, (storable(key),))
        if db.ask(_EXISTS, (hash_of(admission.run_id),)):
            continue
        holder = taken.setdefault(key, admission.run_id)
        if holder != admission.run_id:
            found[index] = record_rows.busy(key, holder)
        elif (before := _freed(db, admission)) is not None:
            found[index] = before
    return found


def _freed(db: PostgresSession, admission: Admission) -> SingletonBusy | RunId | None:
    holder = _holder(db, admission.singleton or "")
    if holder is None or not admission.replaces:
        return None if holder is None else record_rows.busy(admission.singleton or "", holder)
    reason = storable(record_rows.replaced_by(admission.run_id))
    return holder if db.ask(_REPLACE, (reason, hash_of(holder))) else None


def take_keys(db: PostgresSession, keys: Mapping[int, str]) -> None:
    """Give new runs their keys."""
    for run, key in keys.items():
        db.execute(_TAKE_KEY, (storable(key), run))


def refuse_taken_key(db: PostgresSession, run_id: RunId) -> None:
    """Raise `SingletonBusy` if another open run has the key of a run."""
    for (key,) in db.ask(_KEY, (hash_of(run_id),)):
        db.execute(_LOCK, (key,))
        holder = _holder(db, restored(key))
        if holder not in (None, run_id):
            raise record_rows.busy(restored(key), RunId(str(holder)))


def _holder(db: PostgresSession, singleton: str) -> RunId | None:
    rows = db.ask(_HOLDER, (storable(singleton),))
    return next((RunId(restored(run_id)) for (run_id,) in rows), None)
