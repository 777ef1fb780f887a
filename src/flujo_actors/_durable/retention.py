"""Retention: deletion of many runs while other processes write to the store.

Rules of a deletion on request (`forget`):

1. A batch is one transaction of at most `MOST_IN_BATCH` runs, sized by the last one to take `BATCH_S`.
2. After a batch the store is free for as long as the batch took. A writer of another process polls the lock of a
   SQLite file, so it needs a long enough gap to find it free.
3. At the end the store truncates its log, if it has one.

Rules of the retention settings, which workers apply:

1. One process of the store at a time has the duty. Its lease ends soon if it dies; after a pass it lasts for `every_s`.
2. A batch is one transaction of `batch` runs, and takes at most a fifth of the time.
3. A worker that stops ends after the present batch, and releases the duty.
"""

from __future__ import annotations

import functools
import logging
import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence

import attrs
import trio
from outcome import Error

from .._bridge.user_code_guard import guarded
from .._core.error_info import message_of
from .._core.labels import checked_filter
from .._core.outcomes import RunId
from .._core.records.records import ENDED, RunQuery, StoredRun, StoredStatus, has_ended
from .._core.settings_model import RetentionRule, RetentionSettings
from .._core.validators import span_seconds
from ..stores._store_port import Store
from .store_executor import call_store
from .watch_poller import required

AnyRule = RetentionRule | RetentionSettings
"""A rule, or the settings that decide without one."""


def rules_of(settings: RetentionSettings) -> Sequence[AnyRule]:
    """Return the rules in order of decision; the settings are the last."""
    return (*settings.rules, settings)


def deletes_anything(settings: RetentionSettings) -> bool:
    """Return whether any rule has a span."""
    return any(_spans(rule) for rule in rules_of(settings))


def deciding_rule(rules: Sequence[AnyRule], run: StoredRun) -> AnyRule:
    """Return the first rule that matches a run."""
    return next(rule for rule in rules if _matches(rule, run))


def _matches(rule: AnyRule, run: StoredRun) -> bool:
    if isinstance(rule, RetentionSettings):
        return True
    named = rule.pipeline is None or rule.pipeline == run.pipeline
    return named and all(run.labels.get(name) == value for name, value in rule.labels.items())


def candidates(rule: AnyRule, *, now: float) -> list[RunQuery]:
    """Return queries of the runs that a rule may delete."""
    return [_query(rule, status=status, updated_before=now - span_s) for status, span_s in _spans(rule).items()]


def latest(rule: AnyRule, pipeline: str) -> RunQuery:
    """Return the query of a pipeline's runs under a rule, newest first."""
    return _query(rule, pipeline=pipeline, order="created")


def _query(rule: AnyRule, **facts: object) -> RunQuery:
    if isinstance(rule, RetentionSettings):
        return RunQuery(**facts)  # type: ignore[arg-type]
    named = {"pipeline": rule.pipeline, **facts}
    return RunQuery(labels=checked_filter(rule.labels), **named)  # type: ignore[arg-type]


def _spans(rule: AnyRule) -> dict[StoredStatus, float]:
    """Return the age in seconds of deleted runs of a status."""
    texts: dict[StoredStatus, str | None] = {status: getattr(rule, status) for status in ENDED}
    return {status: span_seconds(text) for status, text in texts.items() if text is not None}


def is_doomed(rules: Sequence[AnyRule], rule: AnyRule, run: StoredRun, *, now: float) -> bool:
    """Return whether `rule` decides about a run and deletes it."""
    span_s = _spans(rule).get(run.status)
    if span_s is None or run.ended_at is None or not has_ended(run.status):
        return False
    return now - run.ended_at >= span_s and deciding_rule(rules, run) is rule


logger = logging.getLogger("flujo_actors")

MOST_IN_BATCH = 500
"""Maximum number of runs deleted in one transaction."""

BATCH_S = 0.02
"""Intended seconds of one transaction, less than half of the 50 ms that it may take."""

_FIRST_BATCH = 20


def delete_in_batches(
    store: Store,
    pages: Iterable[Sequence[RunId]],
    *,
    clock: Callable[[], float] = time.perf_counter,
    sleep: Callable[[float], None] = time.sleep,
) -> int:
    """Delete unleased runs in short transactions; return their number. Blocks."""
    deleted, size = 0, _FIRST_BATCH
    for page in pages:
        rest = list(page)
        while rest:
            batch, rest = rest[:size], rest[size:]
            began = clock()
            deleted += store.delete(batch)
            took_s = clock() - began
            size = next_size(len(batch), took_s)
            sleep(took_s)
    if deleted and hasattr(store, "trim"):
        store.trim()
    return deleted


def next_size(size: int, took_s: float) -> int:
    """Return the next batch's size, at most twice the last one."""
    fitting = size * BATCH_S / took_s if took_s > 0 else MOST_IN_BATCH
    return int(max(1, min(fitting, 2 * size, MOST_IN_BATCH)))


def pages_of(store: Store, query: RunQuery, limit: int = MOST_IN_BATCH) -> Iterator[list[StoredRun]]:
    """Yield all matching runs in stable pages. Blocks."""
    most = limit if hasattr(store, "scan") else None  # a store without it has no cursors
    found = store.find(attrs.evolve(query, limit=most))
    while found:
        yield found
        cursor = found[-1].cursor
        found = store.find(attrs.evolve(query, limit=most, cursor=cursor)) if len(found) == most else []


# --- Retention settings -------------------------------------------------------------------------------------------


DUTY = "retention"
"""Name of the duty in the store."""

DUTY_S = 60.0
"""Lease of the duty during a pass, extended by each batch."""

TRY_S = 60.0
"""Longest interval at which workers try to take the duty."""

_SHARE = 5
"""A batch takes one part of so many of the time."""

_RELEASE_S = 5.0
"""Timeout of a stopping worker for the release of the duty."""


@attrs.frozen(kw_only=True)
class DeletedBatch:
    """Runs that one transaction deleted."""

    runs: int
    bytes: int
    took_s: float


def doomed_runs(store: Store, settings: RetentionSettings, *, now: float) -> Iterator[list[RunId]]:
    """Yield the runs to delete, in pages of a batch. Blocks."""
    rules = rules_of(settings)
    for rule in rules:
        kept: dict[str, frozenset[RunId]] = {}
        for query in candidates(rule, now=now):
            for page in pages_of(store, query, settings.batch):
                runs = [run for run in page if is_doomed(rules, rule, run, now=now)]
                for pipeline in {run.pipeline for run in runs} - set(kept):
                    kept[pipeline] = _latest(store, rules, rule, pipeline)
                yield [run.run_id for run in runs if run.run_id not in kept[run.pipeline]]


def _latest(store: Store, rules: Sequence[AnyRule], rule: AnyRule, pipeline: str) -> frozenset[RunId]:
    """Return the ended runs of a pipeline kept at any age."""
    kept: set[RunId] = set()
    if not rule.keep_last:
        return frozenset()
    for page in pages_of(store, latest(rule, pipeline)):
        for run in page:
            if has_ended(run.status) and deciding_rule(rules, run) is rule:
                kept.add(run.run_id)
            if len(kept) == rule.keep_last:
                return frozenset(kept)
    return frozenset(kept)


def delete_batch(store: Store, run_ids: Sequence[RunId]) -> DeletedBatch:
    """Delete runs in one transaction. Blocks."""
    began = time.perf_counter()
    runs, size = store.delete_sized(run_ids) if hasattr(store, "delete_sized") else (store.delete(run_ids), 0)
    return DeletedBatch(runs=runs, bytes=size, took_s=time.perf_counter() - began)


@attrs.frozen(kw_only=True)
class PruneReport:
    """Result of a deletion by retention settings."""

    runs: int
    """Number of deleted runs."""
    bytes: int
    """Bytes of record bodies and blobs; 0 if nothing was deleted."""
    dry_run: bool = False
    """Whether nothing was deleted."""


def prune(
    store: Store, settings: RetentionSettings, *, dry_run: bool = False, sleep: Callable[[float], None] = time.sleep
) -> PruneReport:
    """Delete the runs that the settings delete, in batches. Blocks."""
    runs = size = 0
    for page in doomed_runs(store, settings, now=time.time()):
        if dry_run or not page:
            runs += len(page)
            continue
        batch = delete_batch(store, page)
        runs, size = runs + batch.runs, size + batch.bytes
        sleep(batch.took_s)
    if runs and not dry_run and hasattr(store, "trim"):
        store.trim()
    return PruneReport(runs=runs, bytes=size, dry_run=dry_run)


@attrs.frozen(kw_only=True, eq=False)
class RetentionWorker:
    """Applies the settings of a store, one process at a time."""

    store: Store
    settings: RetentionSettings
    owner: str
    report: Callable[[DeletedBatch], None]
    redact: Callable[[str], str]
    wall: Callable[[], float] = time.time

    async def run(self, stop: Callable[[], bool]) -> None:
        """Apply the settings at their interval until cancelled."""
        required(self.store, "take_duty", subject="the setting retention")
        while not stop():
            got = await guarded(self.apply, stop)
            if isinstance(got, Error):
                logger.warning("retention fails (%s); it is tried again", self.redact(message_of(got.error)))
            await trio.sleep(min(self.settings.every_s, TRY_S) * random.uniform(0.9, 1.1))

    async def apply(self, stop: Callable[[], bool]) -> bool:
        """Apply the settings once; False if another process has the duty."""
        if not await self._take(DUTY_S):
            return False
        rest_s = 0.0
        try:
            if await self._delete_all(stop):
                rest_s = self.settings.every_s
        finally:
            with trio.move_on_after(_RELEASE_S, shield=True):
                await guarded(self._take, rest_s)
        return True

    async def _delete_all(self, stop: Callable[[], bool]) -> bool:
        """Delete page by page; return whether the pass is complete."""
        pages = doomed_runs(self.store, self.settings, now=self.wall())
        while (page := await call_store(lambda: next(pages, None))) is not None:
            if stop():
                return False
            if page:
                batch = await call_store(functools.partial(delete_batch, self.store, page))
                self.report(batch)
                await trio.sleep((_SHARE - 1) * batch.took_s)
                await self._take(DUTY_S)
        return True

    async def _take(self, for_s: float) -> bool:
        return await call_store(lambda: self.store.take_duty(DUTY, owner=self.owner, for_s=for_s))
