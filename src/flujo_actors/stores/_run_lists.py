"""Listings of runs: orders, cursors and indexed queries.

Rules:

1. `order="created"` is the order of the keys, newest first. No run moves between its pages.
2. `order="updated"` merges two parts: open runs by their last change, and ended runs by their end. No index has the
   last change of a run: on Postgres such an index would prevent HOT updates.
3. A cursor is valid for the order that it was made in.
4. `search` lists the runs whose id begins with the text. Parts of pipeline names count only if there is no such run.
   Of many such runs a page is read newest first, if they are frequent among the next runs. Otherwise they are sorted.
5. Creation times become ranges of keys, found by bisection: keys and times grow together.
6. A listing by labels reads the keys of its rarest label, if they are few. Otherwise the keys of a label are joined
   with their runs, newest first, unless the runs of a status, pipeline or queue are few.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, get_args

import attrs

from .._core.labels import MOST_LABELS, NO_LABELS, Labels, has_labels
from .._core.outcomes import RunId
from .._core.records.records import (
    ListOrder,
    OpenFact,
    OpenPause,
    RunCounts,
    RunFigures,
    RunQuery,
    StateGroup,
    StoredRun,
    StoredStatus,
    has_ended,
)
from .._core.step_paths import ROOT
from ..errors import DeclarationError
from ._record_rows import restored, shown, storable

INDEXED_CHARACTERS = 200
"""Indexed length of a text; index entries of Postgres are short."""

MOST_BY_PREFIX = 1000
"""Maximum number of runs that a prefix search selects by key."""

NEXT_RUNS, FREQUENT = 2000, 40
"""Number of runs in which a searched prefix is counted, and the least frequent number."""

MOST_BY_LABEL = 1000
"""Maximum number of runs that a label selects by key."""

SLACK_S = 600.0
"""Tolerated difference between the order of keys and that of creation times."""

_CREATED = "created/"


@attrs.frozen(kw_only=True)
class Dialect:
    """Expressions that differ between databases."""

    parameter: Callable[[str], str]
    """Placeholder of a named parameter."""
    held: str
    """Condition of a run with a live lease."""
    prefix: str
    """Condition of a run id that begins with `search`, by range."""
    in_prefix: str
    """The same, without an index."""
    in_pipeline: str
    """Condition of a pipeline name that contains `search`, ignoring case."""
    by_key: Callable[[str], str]
    """Condition of a run whose key is in a named list."""
    pipeline: str
    """Condition of the pipeline, by an index."""
    unindexed: Callable[[str], str]
    """Column as an expression without an index."""
    order_unindexed: str
    """Descending order of keys as an expression without an index."""


@attrs.frozen(kw_only=True)
class ListingPart:
    """One statement of a listing."""

    where: str
    order: str


@attrs.frozen(kw_only=True)
class Labelled:
    """Access path of a listing by labels (rule 6)."""

    keys: Sequence[int] | None = None
    """Keys of runs with the rarest labels; `None` if many."""
    first: int | None = None
    """Label that is read first; `None` if the runs are."""
    column: str | None = None
    """Column with few runs of the filter's value."""


@attrs.frozen(kw_only=True)
class KeyRange:
    """Range of keys that contains all runs created in a period."""

    first: int | None = None
    end: int | None = None


def cursor_text(order: ListOrder, changed_at: float, key: int) -> str:
    """Return the cursor after a run in a listing."""
    return f"{_CREATED}{key}" if order == "created" else f"{changed_at!r}/{key}"


def read_cursor(cursor: str, order: ListOrder) -> tuple[float, int]:
    """Return the sort key of a cursor; refuse another order or text."""
    found: ListOrder = "created" if cursor.startswith(_CREATED) else "updated"
    changed_at, _, key = cursor.partition("/")
    try:
        position = (0.0 if found == "created" else float(changed_at)), int(key)
    except ValueError:
        raise DeclarationError(
            f"{shown(cursor)} is no cursor of a listing; pass the `cursor` of the last run you were given"
        ) from None
    if found != order:
        raise DeclarationError(f"this cursor belongs to order='{found}'")
    return position


def counts_of(rows: Iterable[tuple[Any, int]]) -> RunCounts:
    """Return the counts of a grouped query."""
    found = dict(rows)
    abandoned, questions = found.pop("abandoned", 0), found.pop("questions", 0)
    return RunCounts(by_status=found, abandoned=abandoned, questions=questions)


def in_order(runs: Iterable[StoredRun], order: ListOrder, limit: int | None) -> list[StoredRun]:
    """Return the runs of all parts in the order of the listing."""
    return sorted(runs, key=lambda run: read_cursor(run.cursor, order), reverse=True)[:limit]


def searched(sql: Dialect, found: Sequence[int], count: Callable[[str], int]) -> str:
    """Return the condition of a search, given its count (rule 4)."""
    if not found:
        return sql.in_pipeline
    if len(found) <= MOST_BY_PREFIX:
        return sql.by_key("keys")
    return sql.in_prefix if count(_next_with_prefix(sql)) >= FREQUENT else sql.prefix


def _next_with_prefix(sql: Dialect) -> str:
    """Return the query that counts runs with the prefix."""
    seen = sql.parameter("after_key")
    runs = f"SELECT run_id FROM flujo_runs WHERE parent IS NULL AND id < {seen} ORDER BY id DESC LIMIT {NEXT_RUNS}"
    return f"SELECT count(*) FROM ({runs}) AS next WHERE {sql.in_prefix}"


def parts(query: RunQuery, sql: Dialect, *, search: str | None, labelled: Labelled) -> list[ListingPart]:
    """Return the statements of a query (rules 1, 2 and 6)."""
    common = _conditions(query, sql, search)
    if labelled.keys is not None:
        return [_part_by_keys(query, sql, common)]
    times = query.updated_before is not None or query.updated_after is not None
    if query.order == "created" and not times:
        if labelled.first is not None:
            return [_part_by_label(query, sql, common, labelled.first)]
        return [_created_part(query, sql, common, labelled.column)]
    found = []
    if not has_ended(query.status):
        found.append(_open_part(query, sql, common))
    if query.status in (None, "completed", "failed", "aborted") and not (query.abandoned or query.answered):
        found.append(_ended_part(query, sql, common))
    return found


def parameters(query: RunQuery, keys: KeyRange, found: Sequence[int]) -> dict[str, object]:
    """Return the values of all named parameters of a query's parts."""
    seen_at, seen = (None, None) if query.cursor is None else read_cursor(query.cursor, query.order)
    return {
        "status": query.status,
        "pipeline": query.pipeline and storable(query.pipeline),
        "queue": query.queue and storable(query.queue),
        "created_after": query.created_after,
        "created_before": query.created_before,
        "first": keys.first,
        "end": keys.end,
        "updated_before": query.updated_before,
        "updated_after": query.updated_after,
        "ended_before": query.ended_before,
        "limit": query.limit,
        "seen_at": seen_at,
        "seen": seen,
        "after_key": 1 << 60 if seen is None else seen,
        "keys": list(found),
        **{f"label_{number}": name for number, (name, _) in enumerate(query.labels)},
        **{f"value_{number}": value and storable(value) for number, (_, value) in enumerate(query.labels)},
        **prefix_range(query.search or ""),
    }


def prefix_range(search: str) -> dict[str, object]:
    """Return the range of texts that begin with a text, as parameters."""
    text = storable(search)
    return {"search": text, "search_end": _following(text[:INDEXED_CHARACTERS])}


def key_range(query: RunQuery, newest: int, look: Callable[[int], tuple[int, float] | None]) -> KeyRange:
    """Return the keys of a query's creation times (rule 5).

    `look` returns the first run at or after a key, with its creation time.
    """
    after, before = query.created_after, query.created_before
    return KeyRange(
        first=None if after is None else _first_created_after(after - SLACK_S, newest, look),
        end=None if before is None else _first_created_after(before + SLACK_S, newest, look),
    )


def _first_created_after(moment: float, newest: int, look: Callable[[int], tuple[int, float] | None]) -> int:
    low, high = 0, newest + 1
    while low < high:
        middle = (low + high) // 2
        found = look(middle)
        if found is None or found[1] > moment:
            high = middle
        else:
            low = found[0] + 1
    return low


def _following(text: str) -> str:
    """Return the least text after all that begin with a text."""
    kept = text.rstrip("\U0010ffff")
    if not kept:
        return "\U0010ffff" * (len(text) + 8)
    last = ord(kept[-1]) + 1
    return kept[:-1] + chr(0xE000 if last == 0xD800 else last)


def _conditions(query: RunQuery, sql: Dialect, search: str | None) -> list[str]:
    named = sql.parameter
    conditions = {
        f"created_at > {named('created_after')} AND id >= {named('first')}": query.created_after,
        f"created_at < {named('created_before')} AND id < {named('end')}": query.created_before,
        f"status = 'running' AND epoch > 0 AND NOT {sql.held}": query.abandoned or None,
        "ready = 1 AND status <> 'running'": query.answered or None,
        f"{sql.unindexed('ended_at')} < {named('ended_before')}": query.ended_before,
        "ended_at IS NULL": query.is_open or None,
        search or "": search,
        _has_fact(query, sql): query.facts or None,
    }
    others = [_has_label(number, query, sql) for number in range(len(query.labels))]
    return ["parent IS NULL", *(each for each, value in conditions.items() if value is not None), *others]


def _has_fact(query: RunQuery, sql: Dialect) -> str:
    """Return the condition of open runs with one of the query's facts."""
    status, free = sql.unindexed("status"), f"cancel IS NULL AND NOT {sql.held}"
    conditions: dict[OpenFact, str] = {
        "cancelling": "cancel IS NOT NULL",
        "leased": f"cancel IS NULL AND {sql.held}",
        "asking": f"{free} AND {status} = 'paused' AND ready IS NULL",
        "asleep": f"{free} AND {status} = 'sleeping' AND ready IS NULL",
        "unreleased": f"{free} AND owner IS NOT NULL",
        "unowned": f"{free} AND ({status} = 'running' AND owner IS NULL OR {status} <> 'running' AND ready = 1)",
    }
    return f"ended_at IS NULL AND ({' OR '.join(f'({conditions[fact]})' for fact in query.facts)})"


def group_of(row: Sequence[Any]) -> StateGroup:
    """Return the group of a row of the grouped query."""
    status, held, cancelled, owned, waits, queue, pipeline, fingerprint, since, count = row
    asked = OpenPause(path=ROOT, token="", message="", body="")
    run = StoredRun(
        run_id=RunId(""),
        pipeline=restored(pipeline or ""),
        status=status,
        created_at=since or 0.0,
        updated_at=since or 0.0,
        epoch=1,
        leased=bool(held),
        records=0,
        pauses=(asked,) if waits and status == "paused" else (),
        ready=not waits,
        last_owner="" if owned else None,
        queue=queue and restored(queue),
        cancel="" if cancelled else None,
        fingerprint=fingerprint,
    )
    return StateGroup(run=run, count=count)


def groups_in(runs: Iterable[StoredRun]) -> list[StateGroup]:
    """Return the groups of runs in memory."""
    found: dict[tuple[object, ...], tuple[float, int]] = {}
    for run in runs:
        key = _group_key(run)
        since = run.created_at if run.unclaimed else run.updated_at
        oldest, count = found.get(key, (since, 0))
        found[key] = min(oldest, since), count + 1
    return [group_of((*key, *rest)) for key, rest in found.items()]


def _group_key(run: StoredRun) -> tuple[object, ...]:
    if has_ended(run.status):
        return (run.status, False, False, False, False, None, None, None)
    waits = run.is_asleep or (bool(run.pauses) and not run.expired)
    facts = (run.leased, run.cancel is not None, run.last_owner is not None, waits)
    return (run.status, *facts, run.queue and storable(run.queue), storable(run.pipeline), run.fingerprint)


def _has_label(number: int, query: RunQuery, sql: Dialect) -> str:
    return (
        f"EXISTS (SELECT 1 FROM flujo_labels AS other WHERE other.run = id AND {_label('other', number, query, sql)})"
    )


def _label(table: str, number: int, query: RunQuery, sql: Dialect) -> str:
    """Return the condition of one label of the query."""
    name = f"{table}.name = {sql.parameter(f'label_{number}')}"
    return name if query.labels[number][1] is None else f"{name} AND {table}.value = {sql.parameter(f'value_{number}')}"


def label_keys(number: int, query: RunQuery, sql: Dialect) -> str:
    """Return the query of a label's keys, one beyond the limit."""
    return f"SELECT run FROM flujo_labels AS l WHERE {_label('l', number, query, sql)} LIMIT {MOST_BY_LABEL + 1}"


def labelled(query: RunQuery, sql: Dialect, keys: Callable[[str], Sequence[int]]) -> Labelled:
    """Return the access path of labels; `keys` executes a query."""
    found = [keys(label_keys(number, query, sql)) for number in range(len(query.labels))]
    few = [set(each) for each in found if len(each) <= MOST_BY_LABEL]
    if few:
        return Labelled(keys=sorted(set.intersection(*few)))
    if query.abandoned or query.answered or query.search is not None or not found:
        return Labelled()
    columns = {"status": query.status, "pipeline": query.pipeline, "queue": query.queue}
    for column in [name for name, value in columns.items() if value is not None]:
        if len(keys(_column_keys(column, sql))) <= MOST_BY_LABEL:
            return Labelled(column=column)
    exact = [number for number, (_, value) in enumerate(query.labels) if value is not None]
    return Labelled(first=exact[0] if exact else None)


def _column_keys(column: str, sql: Dialect) -> str:
    condition = sql.pipeline if column == "pipeline" else f"{column} = {sql.parameter(column)}"
    indexed = f"parent IS NULL AND {condition}" + (" AND queue IS NOT NULL" if column == "queue" else "")
    return f"SELECT id FROM flujo_runs WHERE {indexed} LIMIT {MOST_BY_LABEL + 1}"


def changed_labels(before: Mapping[str, str], labels: Mapping[str, str], remove: Sequence[str]) -> Labels:
    """Return labels after a change; `DeclarationError` if there are too many."""
    kept = {name: value for name, value in before.items() if name not in remove}
    changed = Labels({**kept, **labels})
    if len(changed) > MOST_LABELS:
        raise DeclarationError(f"labels: {len(changed)} given, at most {MOST_LABELS}")
    return changed


def labels_in(stored: str | Mapping[str, str] | None) -> Labels:
    """Return the labels of a JSON object in a row."""
    if stored is None or stored == "{}":
        return NO_LABELS
    found = json.loads(stored) if isinstance(stored, str) else stored
    return Labels({name: restored(value) for name, value in found.items()})


def _status(query: RunQuery, sql: Dialect) -> list[str]:
    return [] if query.status is None else [f"status = {sql.parameter('status')}"]


def _part_by_keys(query: RunQuery, sql: Dialect, common: Sequence[str]) -> ListingPart:
    changed = "coalesce(ended_at, updated_at)"
    chosen = [sql.by_key("labelled"), *common, *_unindexed("status", query.status, sql), *_unfavored(query, sql)]
    chosen += [*_changed(changed, query, sql), *_cursor_condition(changed, query, sql)]
    return _part(chosen, f"{changed} DESC, id DESC" if query.order == "updated" else "id DESC")


def _part_by_label(query: RunQuery, sql: Dialect, common: Sequence[str], number: int) -> ListingPart:
    """Return a label's runs, newest first, by the index of labels."""
    chosen = [_label("l", number, query, sql), "id = l.run", *common, *_unindexed("status", query.status, sql)]
    chosen += [*_unfavored(query, sql), *_cursor_condition("l.run", query, sql)]
    chosen += [] if query.created_after is None else [f"l.run >= {sql.parameter('first')}"]
    chosen += [] if query.created_before is None else [f"l.run < {sql.parameter('end')}"]
    tables, limit = "flujo_labels AS l CROSS JOIN flujo_runs", sql.parameter("limit")
    newest = f"SELECT l.run FROM {tables} {_part(chosen, '').where} ORDER BY l.run DESC LIMIT {limit}"
    return _part([f"id IN ({newest})"], "id DESC")


def _created_part(query: RunQuery, sql: Dialect, common: Sequence[str], column: str | None = None) -> ListingPart:
    """Return a listing in created order, by the index of `column`."""
    queue = None if query.queue is None else f"queue = {sql.parameter('queue')} AND queue IS NOT NULL"
    pipeline = None if query.pipeline is None else sql.pipeline
    chosen = [*common, *_cursor_condition("id", query, sql)]
    indexed = {
        "status": _status(query, sql),
        "queue": [queue] if queue else [],
        "pipeline": [pipeline] if pipeline else [],
    }
    for name, conditions in indexed.items():
        chosen += conditions if column in (None, name) else _unindexed(name, getattr(query, name), sql)
    flags = query.abandoned or query.answered or query.is_open or query.limit is None
    if flags or any((query.status, query.pipeline, query.queue, query.search)):
        return _sorted_part(chosen, sql) if sql.prefix in common and query.limit else _part(chosen, "id DESC")
    return _part([f"id IN ({_newest(chosen, sql)})"], "id DESC")


def _sorted_part(conditions: Sequence[str], sql: Dialect) -> ListingPart:
    """Return the newest runs of a condition, sorted by key."""
    where, limit = _part(conditions, "").where, sql.parameter("limit")
    return _part([f"id IN (SELECT id FROM flujo_runs {where} ORDER BY {sql.order_unindexed} LIMIT {limit})"], "id DESC")


def _newest(conditions: Sequence[str], sql: Dialect) -> str:
    """Return a query of the newest runs by the index of statuses."""
    where, limit = _part(conditions, "").where, sql.parameter("limit")
    tables = "SELECT id FROM ({}) AS newest_{}"
    inner = "SELECT id FROM flujo_runs {} AND status = '{}' ORDER BY id DESC LIMIT {}"
    statuses = get_args(StoredStatus)
    return " UNION ALL ".join(tables.format(inner.format(where, name, limit), name) for name in statuses)


def _open_part(query: RunQuery, sql: Dialect, common: Sequence[str]) -> ListingPart:
    status = _unindexed("status", query.status, sql) if query.answered else _status(query, sql)
    chosen = ["ended_at IS NULL", *_unfavored(query, sql), *status]
    chosen += _changed("updated_at", query, sql)
    order = "updated_at DESC, id DESC" if query.order == "updated" else sql.order_unindexed
    return _part([*common, *chosen, *_cursor_condition("updated_at", query, sql)], order)


def _ended_part(query: RunQuery, sql: Dialect, common: Sequence[str]) -> ListingPart:
    # Most ended runs are completed, and of few pipelines: their indexes would make the database sort all of them.
    often = _unindexed("status", query.status, sql) if query.status == "completed" else _status(query, sql)
    chosen = ["ended_at IS NOT NULL", *_unfavored(query, sql), *often]
    chosen += _changed("ended_at", query, sql)
    order = "ended_at DESC, id DESC" if query.order == "updated" else sql.order_unindexed
    return _part([*common, *chosen, *_cursor_condition("ended_at", query, sql)], order)


def _unfavored(query: RunQuery, sql: Dialect) -> list[str]:
    return [*_unindexed("pipeline", query.pipeline, sql), *_unindexed("queue", query.queue, sql)]


def _unindexed(column: str, value: str | None, sql: Dialect) -> list[str]:
    return [] if value is None else [f"{sql.unindexed(column)} = {sql.parameter(column)}"]


def _changed(column: str, query: RunQuery, sql: Dialect) -> list[str]:
    before = [] if query.updated_before is None else [f"{column} < {sql.parameter('updated_before')}"]
    return before if query.updated_after is None else [*before, f"{column} > {sql.parameter('updated_after')}"]


def _cursor_condition(column: str, query: RunQuery, sql: Dialect) -> list[str]:
    if query.cursor is None:
        return []
    if query.order == "created":
        return [f"{'l.run' if column == 'l.run' else 'id'} < {sql.parameter('seen')}"]
    return [f"({column}, id) < ({sql.parameter('seen_at')}, {sql.parameter('seen')})"]


def _part(conditions: Sequence[str], order: str) -> ListingPart:
    where = " AND ".join(f"({condition})" for condition in conditions)
    return ListingPart(where=f"WHERE {where}", order=order)


def changed_at(updated_at: float, ended_at: float | None) -> float:
    """Return the time of a run's end, or of its last change."""
    return updated_at if ended_at is None else ended_at


_FIGURES = "id, created_at, started_at, ended_at, worked_s, status, pipeline, queue, tokens, cost_usd"


def figures_statement(
    query: RunQuery, sql: Dialect, *, search: str | None, labelled: Labelled, labels: int, ended: bool, after: bool
) -> str:
    """Return the query of a page of runs' numbers."""
    named = sql.parameter
    values = [
        f", (SELECT value FROM flujo_labels AS l WHERE l.run = id AND l.name = {named(f'by_{number}')})"
        for number in range(labels)
    ]
    chosen = _conditions(query, sql, search) + _unindexed("status", query.status, sql) + _unfavored(query, sql)
    chosen += [] if labelled.keys is None else [sql.by_key("labelled")]
    column = "ended_at" if ended else "created_at"
    chosen += [f"ended_at IS {'NOT ' if ended else ''}NULL", f"{column} >= {named('since')}"]
    chosen += [f"{column} < {named('until')}"]
    place = f"(ended_at, id) > ({named('after_at')}, {named('after')})" if ended else f"id > {named('after')}"
    chosen += [place] if after else []
    order = "ended_at, id" if ended else "id"
    columns = f"{_FIGURES}{''.join(values)}"
    return f"SELECT {columns} FROM flujo_runs {_part(chosen, '').where} ORDER BY {order} LIMIT {named('page')}"


def figures_parameters(
    labels: Sequence[str], period: tuple[float, float], after: RunFigures | None, limit: int
) -> dict[str, object]:
    """Return the parameters of a page of runs' numbers."""
    return {
        **{f"by_{number}": name for number, name in enumerate(labels)},
        "since": period[0],
        "until": period[1],
        "after_at": None if after is None else after.ended_at,
        "after": None if after is None else after.key,
        "page": limit,
    }


def figures_of(rows: Iterable[Sequence[Any]]) -> list[RunFigures]:
    """Return the numbers in rows; each text is restored once."""
    texts: dict[str | None, str | None] = {None: None}

    def text(stored: str | None) -> Any:
        if stored not in texts:
            texts[stored] = restored(stored or "")
        return texts[stored]

    return [
        RunFigures._make((*row[:6], text(row[6]), text(row[7]), *row[8:10], tuple([text(each) for each in row[10:]])))
        for row in rows
    ]


def figures_page(
    runs: Iterable[StoredRun],
    labels: Sequence[str],
    period: tuple[float, float],
    after: RunFigures | None,
    limit: int,
) -> list[RunFigures]:
    """Return a page of runs' numbers, for a store in memory."""
    found = sorted((_figures_in(run, labels) for run in runs), key=_figures_order)
    left = (each for each in found if after is None or _figures_order(each) > _figures_order(after))
    within = (each for each in left if period[0] <= _counted_at(each) < period[1])
    return list(within)[:limit]


def _counted_at(run: RunFigures) -> float:
    return run.created_at if run.ended_at is None else run.ended_at


def _figures_order(run: RunFigures) -> tuple[float, int]:
    return (0.0 if run.ended_at is None else run.ended_at), run.key


def _figures_in(run: StoredRun, labels: Sequence[str]) -> RunFigures:
    return RunFigures(
        key=read_cursor(run.cursor, "created")[1],
        created_at=run.created_at,
        started_at=run.started_at,
        ended_at=run.ended_at,
        worked_s=run.worked_s,
        status=run.status,
        pipeline=run.pipeline,
        queue=run.queue,
        tokens=run.tokens,
        cost_usd=run.cost_usd,
        labels=tuple(run.labels.get(name) for name in labels),
    )


def fits(run: StoredRun, query: RunQuery, *, by_id: bool) -> bool:
    """Return whether a query of a store in memory selects a run."""
    return (
        query.status in (None, run.status)
        and query.pipeline in (None, run.pipeline)
        and query.queue in (None, run.queue)
        and _within(run.created_at, query.created_after, query.created_before)
        and _within(changed_at(run.updated_at, run.ended_at), query.updated_after, query.updated_before)
        and (not query.abandoned or (run.status == "running" and not run.leased and not run.unclaimed))
        and (not query.answered or (run.status != "running" and run.ready))
        and (query.cursor is None or _position(run, query) < read_cursor(query.cursor, query.order))
        and (query.search is None or _matches(run, query.search, by_id))
        and (not query.labels or has_labels(run.labels, query.labels))
        and (not query.facts or _fact_of(run) in query.facts)
        and (query.ended_before is None or (run.ended_at is not None and run.ended_at < query.ended_before))
        and not (query.is_open and has_ended(run.status))
    )


def _fact_of(run: StoredRun) -> OpenFact | None:
    if has_ended(run.status):
        return None
    if run.cancel is not None:
        return "cancelling"
    if run.leased:
        return "leased"
    if run.pauses and not run.expired:
        return "asking"
    if run.is_asleep:
        return "asleep"
    return "unreleased" if run.is_unreleased else "unowned"


def _position(run: StoredRun, query: RunQuery) -> tuple[float, int]:
    return read_cursor(run.cursor, query.order)


def _within(moment: float, after: float | None, before: float | None) -> bool:
    return (after is None or moment > after) and (before is None or moment < before)


def _matches(run: StoredRun, search: str, by_id: bool) -> bool:
    return run.run_id.startswith(search) if by_id else search.lower() in run.pipeline.lower()
