"""A store in a Postgres database, shared by processes of many machines. Needs the extra `postgres`.

Rules:

1. What a method returned for is committed; how a commit ended is found out even if the connection is lost at it.
2. Leases are counted by the server's clock, the same for everybody. It is a wall clock: what it jumps, leases jump.
3. Rows of several runs are locked in one order everywhere, so that batches wait for one another and never deadlock.
4. Text goes into the database escaped (`_rows`), so every name and every body comes back as it was.
"""

from __future__ import annotations

import functools
import hashlib
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias

from ..._core.outcomes import RunId
from ..._core.paths import ROOT, StepPath
from ..._core.records import Admission, Append, CancelRequest, Lease, OpenPause, Record, RunQuery, StoredRun
from ..._core.seconds import checked_seconds
from ...errors import DeclarationError, LeaseLost, RunExists
from .. import _refusals as refusals
from .._clock import LeaseClock
from .._forking import watch_forks
from .._port import Transaction, Verdict
from .._rows import BLOB_THRESHOLD, RecordRow, as_blob, as_records, as_row, cursor_text, read_cursor, restored, storable
from . import _pauses as pauses
from . import _statements as sql
from ._advancing import advancing_together, change_of
from ._beliefs import PostgresBeliefs, learn
from ._budgets import PostgresBudgets, forget_budgets, write_shares
from ._queue import PostgresQueue
from ._scanning import PostgresScanning, hash_of, owner_of
from ._texts import PostgresTexts
from ._writing import insert_blobs, insert_records, numbered

if TYPE_CHECKING:  # they need the driver, and the name of this store must be there without it
    from ._connections import IsThere, PostgresConnections
    from ._session import Connection


class PostgresStore(PostgresQueue, PostgresScanning, PostgresBeliefs, PostgresBudgets, PostgresTexts):
    """Runs in a Postgres database; its tables stand in the first schema of the `search_path`."""

    def __init__(
        self,
        url: str,
        *,
        pool_size: int = 8,
        timeout_s: float = 30.0,
        clock: LeaseClock | None = None,
        wall: Callable[[], float] | None = None,
    ) -> None:
        self._clock, self._wall = clock, wall
        self.url = url
        """Where the database is, password and all: for engines that live in it, never for a log."""
        checked_seconds(timeout_s, what="PostgresStore: timeout_s")
        self._connections = _driver()(url, pool_size=pool_size, timeout_s=timeout_s)
        watch_forks(self._connections)
        weakref.finalize(self, self._connections.dispose)
        self.place: str = f"postgres {hashlib.sha256(url.encode('utf-8', 'surrogatepass')).hexdigest()}"
        """What all stores of the same URL say, without its password."""

    def admit(self, admission: Admission, *, owner: str, lease_s: float) -> Lease:
        [answer] = self.admit_all([admission], owner=owner, lease_s=lease_s)
        if isinstance(answer, RunExists):
            raise answer
        return answer

    def admit_all(
        self, admissions: Sequence[Admission], *, owner: str | None, lease_s: float
    ) -> list[Lease | RunExists]:
        if not admissions:
            return []
        slow = _is_long(admission.body for admission in admissions)
        admit = functools.partial(self._admit, admissions=admissions, owner=owner, lease_s=lease_s)
        return self._connections.write(admit, lease_s=lease_s, slow=slow)

    def admit_told(
        self, admissions: Sequence[Admission], tell: Callable[[Any, list[RunId]], None]
    ) -> list[Lease | RunExists]:
        """As `admit_all` without an owner; `tell` is called with the connection and the new runs before the commit."""
        transaction = _PostgresTransaction(self._append_through)
        with self._connections.lent(transaction.is_there) as db:
            with self._connections.appending(db, slow=_is_long(admission.body for admission in admissions)):
                answers, transaction.last = db.in_pipeline(lambda: self._admit(db, admissions, None, 0.0))
            tell(db, [answer.run_id for answer in answers if isinstance(answer, Lease)])
        return answers

    def claim(self, run_id: RunId, *, owner: str, lease_s: float) -> Lease:
        claim = functools.partial(self._claim, run_id=run_id, dead=None, owner=owner, lease_s=lease_s)
        return self._connections.write(claim, lease_s=lease_s)

    def take_over(self, run_id: RunId, *, dead: str, owner: str, lease_s: float) -> Lease:
        claim = functools.partial(self._claim, run_id=run_id, dead=storable(dead), owner=owner, lease_s=lease_s)
        return self._connections.write(claim, lease_s=lease_s)

    def request_cancel(self, run_id: RunId, *, reason: str) -> None:
        request = {"hash": hash_of(run_id), "reason": storable(reason)}
        if not self._connections.write(lambda db: (db.ask(sql.REQUEST_CANCEL, request), _repeatable)):
            raise refusals.not_found(run_id)

    def cancel_requests(self, run_ids: Sequence[RunId]) -> dict[RunId, CancelRequest]:
        hashes = [hash_of(run_id) for run_id in run_ids]
        rows = self._connections.read(lambda db: db.ask(sql.CANCEL_REQUESTS, (hashes,)))
        return {RunId(restored(run_id)): _cancel_request(reason) for run_id, reason in rows}

    def append(self, batch: Sequence[Append]) -> list[Verdict]:
        return self._connections.write(lambda db: self._append(db, batch), slow=_are_long(batch)) if batch else []

    def renew(self, leases: Sequence[Lease], *, lease_s: float) -> list[LeaseLost | None]:
        if not leases:
            return []
        return self._connections.write(lambda db: self._renew(db, leases, lease_s), lease_s=lease_s)

    def answer(self, run_id: RunId, path: StepPath, *, token: str, record: Record) -> None:
        self._connections.write(lambda db: pauses.answer(db, self._today(), run_id, path, token, [record]))

    def defer(self, run_id: RunId, path: StepPath, *, token: str, records: Sequence[Record], pause: OpenPause) -> None:
        self._connections.write(lambda db: pauses.answer(db, self._today(), run_id, path, token, records, again=pause))

    def expire(self, *, body: str) -> list[RunId]:
        return self._connections.write(lambda db: pauses.expire(db, self._today(), body))

    def next_due_s(self) -> float | None:
        [(due_s,)] = self._connections.read(lambda db: db.ask(sql.NEXT_DUE, self._today()))
        return None if due_s is None else float(due_s)

    def get(self, run_id: RunId) -> StoredRun:
        for run in self._stored("WHERE run_hash = %(hash)s", {"hash": hash_of(run_id)}):
            return run
        raise refusals.not_found(run_id)

    def read(self, run_id: RunId, *, after: int = 0) -> list[Record]:
        rows = self._connections.read(lambda db: db.ask(sql.READ, (hash_of(run_id), after, None)))
        if not rows and self._connections.read(lambda db: owner_of(db, run_id)) is None:
            raise refusals.not_found(run_id)
        return as_records(run_id, rows, after=after)

    def find(self, query: RunQuery) -> list[StoredRun]:
        where, parameters = _conditions(query)
        return self._stored(f"{where} ORDER BY updated_at DESC, id DESC LIMIT %(limit)s", parameters)

    def delete(self, run_ids: Sequence[RunId]) -> int:
        return self._connections.write(lambda db: self._delete(db, run_ids), slow=True) if run_ids else 0

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """A transaction on a connection of the pool; the run's row is locked from its first append to its end."""
        transaction = _PostgresTransaction(self._append_through)
        with self._connections.lent(transaction.is_there) as db:
            transaction.connection = db
            yield transaction

    def close(self) -> None:
        """Close the connections; they open again if the store is used again."""
        self._connections.close()

    def _admit(
        self, db: Connection, admissions: Sequence[Admission], owner: str | None, lease_s: float
    ) -> tuple[list[Lease | RunExists], IsThere]:
        _share_blobs(db, (admission.body for admission in admissions))
        order = _lock_order([admission.run_id for admission in admissions])
        rows = [self._new_row(admissions[index], owner, lease_s) for index in order]
        answers: list[Lease | RunExists] = [refusals.exists(admission.run_id) for admission in admissions]
        records = []
        for index, key in zip(order, _each(db, sql.ADMIT, rows), strict=True):
            if key is not None:
                admission = admissions[index]
                answers[index] = Lease(run_id=admission.run_id, owner=owner or "", epoch=_first_epoch(owner))
                records.append((key[0], 1, Record(kind="admitted", path=ROOT, body=admission.body)))
        insert_records(db, records)
        return answers, _leases_are_there([lease for lease in answers if isinstance(lease, Lease)])

    def _new_row(self, admission: Admission, owner: str | None, lease_s: float) -> dict[str, object]:
        return {
            **self._granted(admission.run_id, owner, lease_s),
            "pipeline": storable(admission.pipeline),
            "epoch": _first_epoch(owner),
            "queue": admission.queue and storable(admission.queue),
            "parent": admission.parent and storable(admission.parent),
        }

    def _claim(
        self, db: Connection, run_id: RunId, dead: str | None, owner: str, lease_s: float
    ) -> tuple[Lease, IsThere]:
        granted = {**self._granted(run_id, owner, lease_s), "dead": dead}
        for (epoch,) in db.ask(sql.CLAIM, granted):
            lease = Lease(run_id=run_id, owner=owner, epoch=epoch)
            return lease, _leases_are_there([lease])
        for holder, left_s in db.ask(sql.HOLDER, granted):
            raise refusals.leased(run_id, holder and restored(holder), left_s)
        raise refusals.not_found(run_id)

    def _append_through(self, db: Connection, batch: Sequence[Append]) -> _Appended:
        with self._connections.appending(db, slow=_are_long(batch)):
            return self._append(db, batch)

    def _append(self, db: Connection, batch: Sequence[Append]) -> _Appended:
        _share_blobs(db, (record.body for append in batch for record in append.records))
        # Before any run is locked: megabytes may take longer to write than its owner's lease lasts without renewal.
        blobs = insert_blobs(db, (record for append in batch for record in append.records))
        groups = advancing_together(batch, _lock_order([append.lease.run_id for append in batch]))
        changes = [{**self._written_under(group[0].lease), **change_of(group)} for _, group in groups]
        verdicts: list[Verdict] = [None] * len(batch)
        records: list[tuple[int, int, Record]] = []
        for (places, group), row in zip(groups, _each(db, sql.ADVANCE, changes), strict=True):
            for place, append in zip(places, group, strict=True):
                if row is None:
                    verdicts[place] = _lost(db, append.lease)
                else:
                    run, first, cancel = row
                    verdicts[place] = cancel and _cancel_request(cancel)
                    records.extend(numbered(run, first, append.records))
                    row = (run, first + len(append.records), cancel)
                    pauses.write(db, self._today(), run, append)
        insert_records(db, records, with_blobs=False)
        if blobs and any(isinstance(verdict, LeaseLost) for verdict in verdicts):
            db.execute(sql.DELETE_UNUSED_BLOBS, (blobs,))
        written = [append for append, lost in zip(batch, verdicts, strict=True) if not isinstance(lost, LeaseLost)]
        told = [each for append in written for each in append.evidence]
        if told:
            learn(db, told, self._today())
        shares = [(append.lease, share) for append in written for share in append.shares]
        if shares:
            write_shares(db, shares)
        return verdicts, _append_is_there(batch, verdicts, records)

    def _renew(self, db: Connection, leases: Sequence[Lease], lease_s: float) -> tuple[list[LeaseLost | None], IsThere]:
        order = _lock_order([lease.run_id for lease in leases])
        granted = [{**self._written_under(leases[index]), "lease_s": lease_s} for index in order]
        verdicts: list[LeaseLost | None] = [None] * len(leases)
        for index, renewed in zip(order, _each(db, sql.RENEW, granted), strict=True):
            if renewed is None:
                verdicts[index] = _lost(db, leases[index])
        return verdicts, _repeatable

    def _delete(self, db: Connection, run_ids: Sequence[RunId]) -> tuple[int, IsThere]:
        db.execute(sql.OWN_BLOBS)
        hashes = [hash_of(run_id) for run_id in run_ids]
        deleted = db.ask(sql.DELETE_RUNS, {**self._time(), "hashes": hashes})
        children = db.ask(sql.DELETE_CHILDREN, ([run_id for _, run_id in deleted],))
        runs = [*(run for run, _ in deleted), *(run for (run,) in children)]
        forget_budgets(db, [run_id for _, run_id in deleted])
        blobs = [blob for (blob,) in db.ask(sql.BLOBS_OF_RUNS, (runs,))]
        db.execute(sql.DELETE_RECORDS, (runs,))
        db.execute(sql.DELETE_PAUSES, (runs,))
        db.execute(sql.DELETE_UNUSED_BLOBS, (blobs,))
        return len(deleted), lambda db: not db.ask(sql.FIND_KEYS, (runs,))

    def _stored(self, where: str, parameters: Mapping[str, object]) -> list[StoredRun]:
        statement = f"{sql.RUNS} {where}".encode()
        rows = self._connections.read(lambda db: db.ask(statement, {**self._time(), **parameters}))
        return [_stored_run(row) for row in rows]

    def _time(self) -> dict[str, object]:
        return {"now": self._clock.now() if self._clock else None}

    def _today(self) -> dict[str, float | None]:
        return {"wall": self._wall() if self._wall else None}

    def _written_under(self, lease: Lease) -> dict[str, object]:
        return {
            **self._time(),
            "hash": hash_of(lease.run_id),
            "owner": storable(lease.owner),
            "epoch": lease.epoch,
        }

    def _granted(self, run_id: RunId, owner: str | None, lease_s: float) -> dict[str, object]:
        return {
            **self._time(),
            "hash": hash_of(run_id),
            "run_id": storable(run_id),
            "owner": owner and storable(owner),
            "lease_s": lease_s,
        }


_Appended: TypeAlias = "tuple[list[Verdict], IsThere]"


def _driver() -> type[PostgresConnections]:
    """What speaks to the database; `DeclarationError` in a program that has not installed it."""
    try:
        from ._connections import PostgresConnections
    except ImportError as error:
        raise DeclarationError(
            f"a Postgres store needs an extra: pip install flujo-actors[postgres] ({error})"
        ) from error
    return PostgresConnections


class _PostgresTransaction:
    """An open transaction of a Postgres store."""

    connection: Connection

    def __init__(self, write: Callable[[Connection, Sequence[Append]], _Appended]) -> None:
        self._write = write
        self.last: IsThere = _repeatable

    def append(self, append: Append) -> None:
        [verdict], self.last = self._write(self.connection, [append])
        if isinstance(verdict, LeaseLost):
            raise verdict

    def is_there(self, db: Connection) -> bool:
        """Whether what was appended is in the database."""
        return self.last(db)


LONG = 1_000_000
"""Bodies of so many characters may take longer to write than a lease allows for a commit."""


def _is_long(bodies: Iterable[str]) -> bool:
    return sum(map(len, bodies)) > LONG


def _are_long(batch: Sequence[Append]) -> bool:
    return _is_long(record.body for append in batch for record in append.records)


def _repeatable(db: Connection) -> bool:
    return False


def _leases_are_there(leases: Sequence[Lease]) -> IsThere:
    return lambda db: all(owner_of(db, lease.run_id) == (lease.owner or None, lease.epoch) for lease in leases[:1])


def _first_epoch(owner: str | None) -> int:
    """A run that nobody owns yet has had no claim."""
    return 0 if owner is None else 1


def _append_is_there(
    batch: Sequence[Append], verdicts: Sequence[Verdict], records: Sequence[tuple[int, int, Record]]
) -> IsThere:
    """By the first record; an append without records can be repeated, unless it gives up its own lease."""
    for run, seq, record in records:
        return lambda db: _record_is_there(db, run, as_row(record, seq, as_blob(record.body)))
    written = [append for append, verdict in zip(batch, verdicts, strict=True) if not isinstance(verdict, LeaseLost)]
    for lease in (append.lease for append in written if append.release):
        return lambda db: owner_of(db, lease.run_id) != (lease.owner, lease.epoch)
    return _repeatable


def _record_is_there(db: Connection, run: int, row: RecordRow) -> bool:
    written = (row.kind, row.path, row.body, row.blob)
    return db.ask(sql.FIND_RECORD, (run, row.seq)) == [written]


def _lock_order(run_ids: Sequence[RunId]) -> list[int]:
    """In which order to touch the runs; what concerns one run stays in the order it came in."""
    return sorted(range(len(run_ids)), key=lambda index: hash_of(run_ids[index]))


def _each(db: Connection, statement: Any, parameters: Sequence[dict[str, object]]) -> list[tuple[Any, ...] | None]:
    """The row, if any, that the statement returns for each set of parameters, in one round trip."""
    cursors = [db.execute(statement, each) for each in parameters]
    db.turn()
    return [cursor.fetchone() for cursor in cursors]


def _cancel_request(reason: str) -> CancelRequest:
    return CancelRequest(reason=restored(reason))


def _share_blobs(db: Connection, bodies: Iterable[str]) -> None:
    if any(len(body) > BLOB_THRESHOLD for body in bodies):
        db.execute(sql.SHARE_BLOBS)


def _lost(db: Connection, lease: Lease) -> LeaseLost:
    return refusals.lost(lease, owner_of(db, lease.run_id))


def _stored_run(row: Sequence[Any]) -> StoredRun:
    key, run_id, pipeline, status, created_at, updated_at, epoch, held, records, owner, left_s, *rest = row
    tokens, cost_usd, asked, queue, parent, expired = rest
    return StoredRun(
        run_id=RunId(restored(run_id)),
        pipeline=restored(pipeline),
        status=status,
        created_at=created_at,
        updated_at=updated_at,
        epoch=epoch,
        leased=held,
        records=records,
        pauses=tuple(pauses.open_pause(*each) for each in asked or ()),
        expired=bool(expired),
        owner=restored(owner) if held else None,
        left_s=left_s if held else None,
        queue=queue and restored(queue),
        parent=parent and RunId(restored(parent)),
        last_owner=owner and restored(owner),
        tokens=tokens,
        cost_usd=cost_usd,
        cursor=cursor_text(updated_at, key),
    )


def _conditions(query: RunQuery) -> tuple[str, Mapping[str, object]]:
    seen_at, seen = (None, None) if query.cursor is None else read_cursor(query.cursor)
    parameters = {
        "seen_at": seen_at,
        "seen": seen,
        "search": query.search and storable(query.search),
        "status": query.status,
        "pipeline": query.pipeline and storable(query.pipeline),
        "updated_before": query.updated_before,
        "updated_after": query.updated_after,
        "limit": query.limit,
    }
    conditions = {
        "status = %(status)s": query.status,
        "pipeline = %(pipeline)s": query.pipeline,
        "updated_at < %(updated_before)s": query.updated_before,
        "updated_at > %(updated_after)s": query.updated_after,
        f"status = 'running' AND epoch > 0 AND NOT {sql.HELD}": query.abandoned or None,
        "(updated_at, id) < (%(seen_at)s, %(seen)s)": query.cursor,
        "starts_with(run_id, %(search)s) OR strpos(lower(pipeline), lower(%(search)s)) > 0": query.search,
    }
    wanted = [f"({condition})" for condition, value in conditions.items() if value is not None]
    return f"WHERE {' AND '.join(['parent IS NULL', *wanted])}", parameters
