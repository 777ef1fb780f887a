"""Postgres store, shared by processes of many machines. Needs the extra `postgres`.

Rules:

1. A method returns after its commit; the result of a commit is determined even if its connection is lost.
2. Leases use the server's clock, shared by all clients. It is a wall clock: its jumps are jumps of leases.
3. Rows of several runs are locked in one order, so that batches wait for one another and never deadlock.
4. Text is escaped in the database (`_rows`), so every name and every body is returned unchanged.

Sections:

- Run changes of a batch of appends in Postgres, one update per run where possible.
- Selection statistics in Postgres: one statement adds each outcome.
"""

from __future__ import annotations

import functools
import hashlib
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, LiteralString, TypeAlias

import attrs

from ..._core.attempt_results import CancelPending, ConversationMoved
from ..._core.outcomes import RunId
from ..._core.policies.selection import Belief, Evidence
from ..._core.records.records import (
    Admission,
    Append,
    CancelRequest,
    Lease,
    ListOrder,
    OpenPause,
    OwnerNotice,
    Record,
    StoredRun,
    has_ended,
)
from ..._core.step_paths import ROOT, StepPath
from ..._core.validators import checked_seconds
from ...errors import DeclarationError, FlujoError, LeaseLost, RunExists, SingletonBusy
from .. import _record_rows as record_rows
from .._dsn_redaction import Pooler, checked_pool_size, checked_pooler, checked_schema, in_schema, url_options
from .._fork_safety import watch_forks
from .._lease_clock import LeaseClock
from .._record_rows import (
    BLOB_THRESHOLD,
    RecordRow,
    as_blob,
    as_records,
    as_row,
    restored,
    storable,
)
from .._store_port import Migrate, Transaction, Verdict, migrates
from . import _pauses as pauses
from . import _statements as sql
from ._budgets import PostgresBudgets, PostgresQueue, write_shares
from ._claims import PostgresClaims, mark_ordered
from ._maintenance import PostgresMaintenance, refuse_moved
from ._run_queries import (
    FORKED,
    PostgresLabels,
    PostgresRunQueries,
    PostgresTexts,
    blobs_of_old_turns,
    compact,
    hash_of,
    insert_blobs,
    insert_labels,
    insert_records,
    numbered,
    owner_of,
    reserve_keys,
    stored_run,
    take_keys,
)
from ._schedules import PostgresCache, PostgresRates, PostgresSchedules, write_cached
from ._transfer import PostgresTransfer

if TYPE_CHECKING:
    from ._connections import IsThere, PostgresConnections
    from ._session import PostgresSession, Signals


# --- Run changes of a batch of appends in Postgres ----------------------------------------------------------------


def advancing_together(batch: Sequence[Append], order: Sequence[int]) -> list[tuple[list[int], list[Append]]]:
    """Return consecutive appends of one run grouped, with their batch positions.

    A row changed many times in one transaction has as many versions, and each change scans all of them.
    """
    groups: list[tuple[list[int], list[Append]]] = []
    for place in order:
        append = batch[place]
        joins = groups and groups[-1][1][-1].lease == append.lease and not append.unless_cancelled
        if joins and _only_adds(groups[-1][1][-1]):
            groups[-1][0].append(place)
            groups[-1][1].append(append)
        else:
            groups.append(([place], [append]))
    return groups


def _only_adds(append: Append) -> bool:
    return append.status is None and not append.release and append.tokens is None and append.cost_usd is None


def change_of(group: Sequence[Append]) -> dict[str, object]:
    """Return the appends' run change; only the last has one."""
    last = group[-1]
    return {
        "count": sum(len(append.records) for append in group),
        "status": last.status,
        "release": last.release,
        "ends": has_ended(last.status),
        "unless_cancelled": last.unless_cancelled,
        "tokens": last.tokens,
        "cost_usd": last.cost_usd,
    }


# --- Selection statistics in Postgres -----------------------------------------------------------------------------
# Rows of several statistics are locked in one order, and after those of runs, so batches never deadlock.


_LEARN: LiteralString = f"""
    INSERT INTO flujo_beliefs AS b (scope, arm, alpha, beta, observations, mean_cost_usd, updated_at)
    VALUES (%(scope)s, %(arm)s, %(reward)s::float8, 1.0 - %(reward)s::float8, 1, %(cost_usd)s::float8, {sql.TODAY})
    ON CONFLICT (scope, arm) DO UPDATE SET
        alpha = b.alpha * %(keep)s::float8 + %(reward)s::float8,
        beta = b.beta * %(keep)s::float8 + 1.0 - %(reward)s::float8, observations = b.observations + 1,
        mean_cost_usd = b.mean_cost_usd
            + (%(cost_usd)s::float8 - b.mean_cost_usd) / least(b.observations + 1, %(span)s::float8),
        updated_at = excluded.updated_at"""

_BELIEFS: LiteralString = f"""
    SELECT arm, alpha, beta, observations, mean_cost_usd, {sql.TODAY} - updated_at FROM flujo_beliefs
    WHERE scope = %(scope)s"""

_REWARDED: LiteralString = """
    SELECT 1 FROM flujo_records WHERE run = %(run)s AND kind = 'rewarded' AND path = %(path)s"""

_FOR_EVER = 1e18
"""Over how many outcomes costs are averaged if nothing is forgotten."""


class PostgresBeliefs:
    """Selection statistics of a Postgres store."""

    _connections: PostgresConnections
    _wall: Callable[[], float] | None

    def beliefs(self, name: str, category: str) -> dict[str, Belief]:
        wanted = {"scope": _scope(name, category), "wall": self._wall() if self._wall else None}
        rows = self._connections.read(lambda db: db.ask(_BELIEFS, wanted))
        return {restored(arm): _belief(*facts) for arm, *facts in rows}

    def reward(self, run_id: RunId, path: StepPath, *, record: Record, evidence: Evidence) -> None:
        today = {"wall": self._wall() if self._wall else None}
        self._connections.write(lambda db: _reward(db, today, run_id, path, record, evidence))

    def steer(self, run_id: RunId, *, record: Record, after: int) -> int | None:
        return self._connections.write(lambda db: pauses.steer(db, run_id, record, after))


def _reward(
    db: PostgresSession,
    today: dict[str, float | None],
    run_id: RunId,
    path: StepPath,
    record: Record,
    evidence: Evidence,
) -> tuple[None, IsThere]:
    places = db.ask(sql.ADVANCE_BY_ANSWER, {"hash": hash_of(run_id), "count": 1})
    if not places:
        raise record_rows.not_found(run_id)
    [(run, seq)] = places
    where = {"run": run, "path": storable(path)}
    if db.ask(_REWARDED, where):
        raise record_rows.rewarded(run_id, path)
    insert_records(db, [(run, seq, record)])
    learn(db, [evidence], today)
    return None, lambda db: bool(db.ask(_REWARDED, where))


def learn(db: PostgresSession, evidence: Iterable[Evidence], today: dict[str, float | None]) -> None:
    """Add outcomes to the statistics of their arms."""
    for each in sorted(evidence, key=lambda each: (each.name, each.category, each.arm)):
        said: dict[str, object] = {
            "scope": _scope(each.name, each.category),
            "arm": storable(each.arm),
            "reward": each.reward,
            "cost_usd": each.cost_usd,
            "keep": each.keep,
            "span": min(each.span, _FOR_EVER),
            **today,
        }
        db.execute(_LEARN, said)


def _scope(name: str, category: str) -> bytes:
    return hashlib.sha256(f"{len(name)}:{name}{category}".encode("utf-8", "surrogatepass")).digest()


def _belief(alpha: float, beta: float, observations: int, mean_cost_usd: float, idle_s: float) -> Belief:
    return Belief(
        alpha=alpha, beta=beta, observations=observations, mean_cost_usd=mean_cost_usd, idle_s=max(0.0, idle_s)
    )


# --- Postgres store -----------------------------------------------------------------------------------------------


class PostgresStore(
    pauses.PostgresWaits,
    pauses.PostgresEvents,
    PostgresQueue,
    PostgresClaims,
    PostgresRunQueries,
    PostgresLabels,
    PostgresBeliefs,
    PostgresBudgets,
    PostgresSchedules,
    PostgresRates,
    PostgresCache,
    PostgresTexts,
    PostgresTransfer,
    PostgresMaintenance,
):
    """Runs in a Postgres database, in `schema` or by `search_path`.

    Args:
        url: URL of the database.
        pool_size: most connections of the process.
        timeout_s: longest wait for a connection.
        clock: clock of leases, for tests.
        wall: wall clock of deadlines, for tests.
        migrate: `"auto"`, or `"never"`.
        pooler: mode of a pooler in front of the database.
        schema: schema of the tables; by default that of `search_path`.

    Example:
        ```python
        store = PostgresStore("postgresql://app@db.example/flujo", pool_size=4, migrate="never")
        flujo = Flujo(Step("greet", str.upper), store=store)  # connects at the first run
        ```
    """

    def __init__(
        self,
        url: str,
        *,
        pool_size: int = 8,
        timeout_s: float = 30.0,
        clock: LeaseClock | None = None,
        wall: Callable[[], float] | None = None,
        migrate: Migrate = "auto",
        pooler: Pooler | None = None,
        schema: str | None = None,
    ) -> None:
        self._clock, self._wall = clock, wall
        url, options = url_options(url)
        migrate = options.get("migrate", migrate)
        pool_size = options.get("pool_size") or checked_pool_size(pool_size, subject="PostgresStore: pool_size")
        self.pooler = checked_pooler(options.get("pooler", pooler))
        """Mode of the pooler; LISTEN and engines need a direct connection."""
        schema = checked_schema(options.get("schema", schema))
        url = url if self.pooler else in_schema(url, schema)  # a pooler refuses options of a session
        self.url: str = url
        """Database URL with its password: for engines, never for logs."""
        checked_seconds(timeout_s, subject="PostgresStore: timeout_s")
        self._connections = _driver()(
            url,
            pool_size=pool_size,
            timeout_s=timeout_s,
            migrates=migrates(migrate),
            pooled=self.pooler is not None,
            schema=schema,
        )
        watch_forks(self._connections)
        weakref.finalize(self, self._connections.dispose)
        self._listeners = self._connections.listeners
        self.signals: Signals = self._connections.signals
        self.place: str = f"postgres {hashlib.sha256(url.encode('utf-8', 'surrogatepass')).hexdigest()}"
        """Identity of all stores of the same URL, without its password."""

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

    def admit_and_notify(
        self, admissions: Sequence[Admission], tell: Callable[[Any, list[RunId]], None]
    ) -> list[Lease | RunExists]:
        """Create unowned runs; call `tell` with the connection before commit."""
        transaction = _PostgresTransaction(self._append_through)
        slow = _is_long(admission.body for admission in admissions)
        with self._connections.lent_connection(transaction.is_there, slow=slow) as db:
            with self._connections.appending(db, slow=None):
                answers, transaction.last = db.in_pipeline(lambda: self._admit(db, admissions, None, 0.0))
            tell(db, [answer.run_id for answer in answers if isinstance(answer, Lease)])
        return answers

    def claim(self, run_id: RunId, *, owner: str, lease_s: float, per_key: int | None = None) -> Lease:
        claim = functools.partial(self._claim, run_id=run_id, dead=None, owner=owner, lease_s=lease_s, per_key=per_key)
        return self._connections.write(claim, lease_s=lease_s)

    def take_over(self, run_id: RunId, *, dead: str, owner: str, lease_s: float, per_key: int | None = None) -> Lease:
        of_dead = functools.partial(self._claim, run_id=run_id, dead=storable(dead))
        claim = functools.partial(of_dead, owner=owner, lease_s=lease_s, per_key=per_key)
        return self._connections.write(claim, lease_s=lease_s)

    def request_cancel(self, run_id: RunId, *, reason: str) -> None:
        request = {"hash": hash_of(run_id), "reason": storable(reason)}
        if not self._connections.write(lambda db: (db.ask(sql.REQUEST_CANCEL, request), _repeatable)):
            raise record_rows.not_found(run_id)

    def cancel_requests(self, run_ids: Sequence[RunId]) -> dict[RunId, OwnerNotice]:
        hashes = [hash_of(run_id) for run_id in run_ids]
        rows = self._connections.read(lambda db: db.ask(sql.OWNER_NOTICES, {"runs": hashes}))
        return {RunId(restored(run_id)): record_rows.owner_notice(*news) for run_id, *news in rows}

    def append(self, batch: Sequence[Append]) -> list[Verdict]:
        if not batch:
            return []
        verdicts = self._connections.write(lambda db: self._append(db, batch), slow=_are_long(batch))
        self.signals.announce(append.lease.run_id for append in batch)
        return verdicts

    def renew(self, leases: Sequence[Lease], *, lease_s: float) -> list[LeaseLost | None]:
        if not leases:
            return []
        return self._connections.write(lambda db: self._renew(db, leases, lease_s), lease_s=lease_s)

    def answer(self, run_id: RunId, path: StepPath, *, token: str, record: Record) -> None:
        self._connections.write(lambda db: self._answer(db, run_id, path, token, [record]))
        self.signals.announce([run_id])

    def defer(self, run_id: RunId, path: StepPath, *, token: str, records: Sequence[Record], pause: OpenPause) -> None:
        self._connections.write(lambda db: self._answer(db, run_id, path, token, records, pause))
        self.signals.announce([run_id])

    def _answer(
        self,
        db: PostgresSession,
        run_id: RunId,
        path: StepPath,
        token: str,
        records: Sequence[Record],
        again: OpenPause | None = None,
    ) -> tuple[None, IsThere]:
        marks = self._connections.is_current  # a former schema, which a reader leaves, has no index of answered runs
        return pauses.answer(db, self._today(), run_id, path, token, records, again, marks=marks)

    def get(self, run_id: RunId) -> StoredRun:
        for run in self._stored("WHERE run_hash = %(hash)s", {"hash": hash_of(run_id)}):
            return run
        raise record_rows.not_found(run_id)

    def read(self, run_id: RunId, *, after: int = 0) -> list[Record]:
        rows = self._connections.read(lambda db: db.ask(sql.READ, (hash_of(run_id), after, None)))
        if not rows and self._connections.read(lambda db: owner_of(db, run_id)) is None:
            raise record_rows.not_found(run_id)
        return as_records(run_id, rows, after=after)

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """Yield a transaction on a pooled connection.

        The run's row is locked from its first append to its end.
        """
        transaction = _PostgresTransaction(self._append_through)
        with self._connections.lent_connection(transaction.is_there) as db:
            transaction.connection = db
            yield transaction
        self.signals.announce(transaction.changed)

    @property
    def record_format(self) -> int:
        """Return the format of the records that writers of the store write."""
        return self._connections.record_format

    def may_create(self) -> None:
        """Let a write create missing tables."""
        self._connections.creates = True

    def may_migrate(self) -> None:
        """Let the next use of a reading store migrate the schema."""
        self._connections.may_migrate()

    def identity(self) -> object:
        """Return the tables behind all URLs and users, or None. Blocks."""
        rows = self._connections.read(lambda db: db.ask(sql.IDENTITY))
        return tuple(rows[0]) if rows else None

    def close(self) -> None:
        """Close the connections; they open again if the store is used again."""
        self._connections.close()

    def _admit(
        self, db: PostgresSession, admissions: Sequence[Admission], owner: str | None, lease_s: float
    ) -> tuple[list[Lease | RunExists], IsThere]:
        self._connections.refuse_former()
        _share_blobs(db, (admission.body for admission in admissions))
        found = reserve_keys(db, admissions)
        busy = {index: each for index, each in found.items() if isinstance(each, SingletonBusy)}
        replaced = {index: each for index, each in found.items() if not isinstance(each, SingletonBusy)}
        order = [index for index in _lock_order([each.run_id for each in admissions]) if index not in busy]
        rows = [self._new_row(admissions[index], owner, lease_s) for index in order]
        answers: list[Lease | RunExists] = [record_rows.exists(admission.run_id) for admission in admissions]
        for index, error in busy.items():
            answers[index] = error
        records, labels, ordered, keys = [], {}, set(), {}
        for index, row in zip(order, _each(db, sql.ADMIT, rows), strict=True):
            if row is not None:
                admission = admissions[index]
                lease = Lease(run_id=admission.run_id, owner=owner or "", epoch=_first_epoch(owner))
                answers[index] = attrs.evolve(lease, replaced=replaced[index]) if index in replaced else lease
                keys.update({} if admission.singleton is None else {row[0]: admission.singleton})
                records.append((row[0], 1, Record(kind="admitted", path=ROOT, body=admission.body)))
                labels[row[0]] = admission.labels
                ordered.update([admission.queue] if row[1] and admission.queue else [])
        insert_records(db, records)
        insert_labels(db, labels)
        take_keys(db, keys)
        mark_ordered(db, ordered)
        return answers, _leases_are_there([lease for lease in answers if isinstance(lease, Lease)])

    def _new_row(self, admission: Admission, owner: str | None, lease_s: float) -> dict[str, object]:
        return {
            **self._granted(admission.run_id, owner, lease_s),
            "pipeline": storable(admission.pipeline),
            "epoch": _first_epoch(owner),
            "queue": admission.queue and storable(admission.queue),
            "parent": admission.parent and storable(admission.parent),
            "above": admission.parent and hash_of(admission.parent),
            "key": storable(admission.key),
            "priority": admission.priority,
            "fingerprint": admission.fingerprint,
            "start_at": admission.start_at,
            "delay_s": admission.delay_s,
            **self._today(),
            "started": owner not in (None, FORKED),
        }

    def _claim(
        self, db: PostgresSession, run_id: RunId, dead: str | None, owner: str, lease_s: float, per_key: int | None
    ) -> tuple[Lease, IsThere]:
        self._connections.refuse_former()
        granted = {**self._granted(run_id, owner, lease_s), "dead": dead}
        if per_key is not None:
            self._refuse_if_full(db, run_id, per_key)
        for epoch, watched, run in db.ask(sql.CLAIM, granted):
            if epoch > 1:  # a new run waits for nothing
                pauses.expire_run(db, self._today(), run)
            lease = Lease(run_id=run_id, owner=owner, epoch=epoch, watched=watched)
            return lease, _leases_are_there([lease])
        for holder, left_s in db.ask(sql.HOLDER, granted):
            raise record_rows.leased(run_id, holder and restored(holder), left_s)
        raise record_rows.not_found(run_id)

    def _append_through(self, db: PostgresSession, batch: Sequence[Append]) -> _Appended:
        with self._connections.appending(db, slow=_are_long(batch)):
            return self._append(db, batch)

    def _append(self, db: PostgresSession, batch: Sequence[Append]) -> _Appended:
        doomed = blobs_of_old_turns(db, batch)
        if doomed:
            db.execute(sql.OWN_BLOBS)
        else:
            _share_blobs(db, (record.body for append in batch for record in append.records))
        if any(append.pauses for append in batch):
            pauses.lock_waits(db, batch)
        moved: dict[int, ConversationMoved] = {}
        if any(append.conversation is not None for append in batch):
            moved = refuse_moved(db, batch, [self._written_under(append.lease) for append in batch])
            batch = [Append(lease=each.lease, records=()) if at in moved else each for at, each in enumerate(batch)]
        # Before any run is locked: writing megabytes may exceed the owner's lease.
        blobs = insert_blobs(db, (record for append in batch for record in append.records))
        groups = advancing_together(batch, _lock_order([append.lease.run_id for append in batch]))
        changes = [{**self._written_under(group[0].lease), **change_of(group)} for _, group in groups]
        verdicts: list[Verdict] = [None] * len(batch)
        records: list[tuple[int, int, Record]] = []
        ended: list[int] = []
        for (places, group), row in zip(groups, _each(db, sql.ADVANCE, changes), strict=True):
            for place, append in zip(places, group, strict=True):
                if row is None:
                    verdicts[place] = self._refusal(db, append)
                else:
                    run, first, *news = row
                    verdicts[place] = record_rows.owner_notice(*news) if any(news) else None
                    records.extend(numbered(run, first, append.records))
                    row = (run, first + len(append.records), *news)
                    pauses.write(db, self._today(), run, append)
                    ended += [run] if has_ended(append.status) else []
        for place, refused in moved.items():
            verdicts[place] = refused
        pauses.close(db, ended)
        insert_records(db, records, with_blobs=False)
        if blobs and any(isinstance(verdict, FlujoError) for verdict in verdicts):
            db.execute(sql.DELETE_UNUSED_BLOBS, (blobs,))
        written = _written(batch, verdicts)
        evidence = [each for append in written for each in append.evidence]
        if evidence:
            learn(db, evidence, self._today())
        cached = [each for append in written for each in append.cached]
        if cached:
            write_cached(db, cached, self._today())
        shares = [(append.lease, share) for append in written for share in append.shares]
        if shares:
            write_shares(db, shares)
        compact(db, written)
        if doomed:
            db.execute(sql.DELETE_UNUSED_BLOBS, (doomed,))
        return verdicts, _append_is_there(batch, verdicts, records)

    def _refusal(self, db: PostgresSession, append: Append) -> LeaseLost | CancelPending:
        """Return the reason for which the run was not changed."""
        pending = db.ask(sql.PENDING_CANCEL, self._written_under(append.lease)) if append.unless_cancelled else ()
        for (reason,) in pending:
            return CancelPending(CancelRequest(reason=restored(reason)))
        return _lost(db, append.lease)

    def _renew(
        self, db: PostgresSession, leases: Sequence[Lease], lease_s: float
    ) -> tuple[list[LeaseLost | None], IsThere]:
        order = _lock_order([lease.run_id for lease in leases])
        granted = [{**self._written_under(leases[index]), "lease_s": lease_s} for index in order]
        verdicts: list[LeaseLost | None] = [None] * len(leases)
        for index, renewed in zip(order, _each(db, sql.RENEW, granted), strict=True):
            if renewed is None:
                verdicts[index] = _lost(db, leases[index])
        return verdicts, _repeatable

    def _stored(self, where: str, parameters: Mapping[str, object], order: ListOrder = "updated") -> list[StoredRun]:
        statement = f"{sql.RUNS} {where}".encode()
        rows = self._connections.read(lambda db: db.ask(statement, {**self._time(), **parameters}))
        return [stored_run(row, order) for row in rows]

    def _time(self) -> dict[str, object]:
        return {"now": self._clock.now() if self._clock else None}

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
    """Return the connection class; `DeclarationError` if the driver is missing."""
    try:
        from ._connections import PostgresConnections
    except ImportError as error:
        raise DeclarationError(
            f"a Postgres store needs an extra: pip install 'flujo-actors[postgres]' ({error})"
        ) from error
    return PostgresConnections


class _PostgresTransaction:
    """An open transaction of a Postgres store."""

    connection: PostgresSession

    def __init__(self, write: Callable[[PostgresSession, Sequence[Append]], _Appended]) -> None:
        self._write = write
        self.last: IsThere = _repeatable
        self.changed: set[RunId] = set()
        """Runs with an append."""

    def append(self, append: Append) -> None:
        self.changed.add(append.lease.run_id)
        [verdict], self.last = self._write(self.connection, [append])
        if isinstance(verdict, LeaseLost):
            raise verdict

    def is_there(self, db: PostgresSession) -> bool:
        """Return whether the appended records are in the database."""
        return self.last(db)


LONG = 1_000_000
"""Body length beyond which a write may exceed the lease."""


def _is_long(bodies: Iterable[str]) -> bool:
    return sum(map(len, bodies)) > LONG


def _are_long(batch: Sequence[Append]) -> bool:
    return _is_long(record.body for append in batch for record in append.records)


def _repeatable(db: PostgresSession) -> bool:
    return False


def _leases_are_there(leases: Sequence[Lease]) -> IsThere:
    return lambda db: all(owner_of(db, lease.run_id) == (lease.owner or None, lease.epoch) for lease in leases[:1])


def _first_epoch(owner: str | None) -> int:
    """Return the epoch of a new run: 0 without an owner."""
    return 0 if owner is None else 1


def _append_is_there(
    batch: Sequence[Append], verdicts: Sequence[Verdict], records: Sequence[tuple[int, int, Record]]
) -> IsThere:
    """Return a check by the first record of a batch.

    An append without records can be repeated, unless it releases its own lease.
    """
    for run, seq, record in records:
        return lambda db: _record_is_there(db, run, as_row(record, seq, as_blob(record.body)))
    for lease in (append.lease for append in _written(batch, verdicts) if append.release):
        return lambda db: owner_of(db, lease.run_id) != (lease.owner, lease.epoch)
    return _repeatable


def _written(batch: Sequence[Append], verdicts: Sequence[Verdict]) -> list[Append]:
    return [append for append, verdict in zip(batch, verdicts, strict=True) if not isinstance(verdict, FlujoError)]


def _record_is_there(db: PostgresSession, run: int, row: RecordRow) -> bool:
    written = (row.kind, row.path, row.body, row.blob)
    return db.ask(sql.FIND_RECORD, (run, row.seq)) == [written]


def _lock_order(run_ids: Sequence[RunId]) -> list[int]:
    """Return the lock order of runs; operations keep their order."""
    return sorted(range(len(run_ids)), key=lambda index: hash_of(run_ids[index]))


def _each(db: PostgresSession, statement: Any, parameters: Sequence[dict[str, object]]) -> list[tuple[Any, ...] | None]:
    """Return a row per parameter set, in one round trip."""
    cursors = [db.execute(statement, each) for each in parameters]
    db.turn()
    return [cursor.fetchone() for cursor in cursors]


def _share_blobs(db: PostgresSession, bodies: Iterable[str]) -> None:
    if any(len(body) > BLOB_THRESHOLD for body in bodies):
        db.execute(sql.SHARE_BLOBS)


def _lost(db: PostgresSession, lease: Lease) -> LeaseLost:
    return record_rows.lost(lease, owner_of(db, lease.run_id))
