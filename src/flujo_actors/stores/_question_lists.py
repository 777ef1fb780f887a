"""Pages of open questions: filters, orders and cursors.

Rules:

1. Questions are read by the index of open pauses, or by that of their addressee or run. Runs and labels follow.
2. `newest` and `oldest` are orders of the keys. `due` lists deadlines first, then questions without one by key.
3. A cursor is valid for the order that it was made in.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, get_args

import attrs

from .._core.labels import has_labels
from .._core.outcomes import RunId
from .._core.policies.approval_policy import QuestionKind
from .._core.records.records import AskedPause, OpenPause, QuestionOrder, QuestionQuery, WaitKind
from .._core.step_paths import StepPath
from ..errors import DeclarationError
from ._record_rows import restored, shown, storable
from ._run_lists import labels_in

COLUMNS = "p.id, run_id, r.pipeline, p.path, p.token, p.message, p.body, p.due_at, p.asked_at, p.addressee, p.kind"
"""Columns of a question, without its labels."""


@attrs.frozen(kw_only=True)
class Position:
    """Place of a question in an order."""

    due_at: float
    """Deadline; infinite without one."""
    key: int


@attrs.frozen(kw_only=True)
class QuestionPart:
    """One statement of a page of questions."""

    where: str
    order: str


def cursor_of(order: QuestionOrder, due_at: float | None, key: int) -> str:
    """Return the cursor after a question."""
    return f"{order}/{math.inf if due_at is None else due_at!r}/{key}" if order == "due" else f"{order}/{key}"


def read_position(query: QuestionQuery) -> Position | None:
    """Return the place of a cursor; refuse another order or text."""
    if query.cursor is None:
        return None
    order, _, rest = query.cursor.partition("/")
    due_at, _, key = rest.rpartition("/")
    try:
        position = Position(due_at=float(due_at or "inf"), key=int(key))
    except ValueError:
        position = None
    if position is None or order not in get_args(QuestionOrder):
        raise DeclarationError(
            f"{shown(query.cursor)} is no cursor of questions; pass the `cursor` of the last question"
        )
    if order != query.order:
        raise DeclarationError(f"this cursor belongs to order='{order}'")
    return position


def parts(query: QuestionQuery, named: Callable[[str], str], *, run: str, to: str) -> list[QuestionPart]:
    """Return the statements of a page, in order.

    `named` is the placeholder of a parameter, `run` selects a run by id, and `to` is the condition of the addressee.
    """
    seen = read_position(query)
    common = [*_conditions(query, named, run, to), *_labels(query, named)]
    if query.order != "due":
        way, sign = ("DESC", "<") if query.order == "newest" else ("ASC", ">")
        after = [] if seen is None else [f"p.id {sign} {named('seen')}"]
        return [QuestionPart(where=_all(common + after), order=f"p.id {way}")]
    found = [] if seen is not None and math.isinf(seen.due_at) else [_due_part(common, seen, named)]
    return found if query.due_before is not None else [*found, _undue_part(common, seen, named)]


def _due_part(common: list[str], seen: Position | None, named: Callable[[str], str]) -> QuestionPart:
    after = [] if seen is None else [f"(p.due_at, p.id) > ({named('seen_due')}, {named('seen')})"]
    return QuestionPart(where=_all([*common, "p.due_at IS NOT NULL", *after]), order="p.due_at, p.id")


def _undue_part(common: list[str], seen: Position | None, named: Callable[[str], str]) -> QuestionPart:
    after = [f"p.id > {named('seen')}"] if seen is not None and math.isinf(seen.due_at) else []
    return QuestionPart(where=_all([*common, "p.due_at IS NULL", *after]), order="p.id")


def _conditions(query: QuestionQuery, named: Callable[[str], str], run: str, to: str) -> list[str]:
    wanted = {
        to: query.to,
        f"p.kind = {named('kind')}": query.kind,
        f"p.due_at IS NOT NULL AND p.due_at < {named('due_before')}": query.due_before,
        f"r.pipeline = {named('pipeline')}": query.pipeline,
        f"p.run = ({run})": query.run_id,
    }
    chosen = [each for each, value in wanted.items() if value is not None]
    return ["p.answered IS NULL AND p.wait IS NULL", "r.parent IS NULL", *chosen]


def _labels(query: QuestionQuery, named: Callable[[str], str]) -> list[str]:
    found = []
    for number, (_, value) in enumerate(query.labels):
        fits = "" if value is None else f" AND l.value = {named(f'value_{number}')}"
        label = f"l.run = p.run AND l.name = {named(f'label_{number}')}{fits}"
        found.append(f"EXISTS (SELECT 1 FROM flujo_labels AS l WHERE {label})")
    return found


def _all(conditions: Iterable[str]) -> str:
    return " AND ".join(f"({each})" for each in conditions)


def parameters(query: QuestionQuery) -> dict[str, object]:
    """Return the parameters of all parts but run and limit."""
    seen = read_position(query)
    labels = {
        name: storable(text)
        for number, (label, value) in enumerate(query.labels)
        for name, text in ((f"label_{number}", label), (f"value_{number}", value))
        if text is not None
    }
    return {
        **labels,
        "to": None if query.to is None else storable(query.to),
        "kind": query.kind,
        "due_before": query.due_before,
        "pipeline": None if query.pipeline is None else storable(query.pipeline),
        "seen": None if seen is None else seen.key,
        "seen_due": None if seen is None else seen.due_at,
    }


def asked_pause(order: QuestionOrder, key: int, run_id: str, pipeline: str, *pause: Any) -> AskedPause:
    """Return a question from its row."""
    *columns, labels = pause
    opened = open_pause(*columns)
    return AskedPause(
        run_id=RunId(restored(run_id)),
        pause=opened,
        pipeline=restored(pipeline),
        labels=labels_in(labels),
        cursor=cursor_of(order, opened.due_at, key),
    )


def open_pause(
    path: str,
    token: str,
    message: str,
    body: str,
    due_at: float | None,
    asked_at: float | None,
    addressee: str | None,
    kind: QuestionKind | None,
    wait: WaitKind | None = None,
    event: str | None = None,
    key: str | None = None,
) -> OpenPause:
    """Return an open pause from its columns."""
    return OpenPause(
        path=StepPath(restored(path)),
        token=restored(token),
        message=restored(message),
        body=restored(body),
        due_at=due_at,
        asked_at=asked_at,
        to=None if addressee is None else restored(addressee),
        kind=kind,
        wait=wait,
        event=None if event is None else restored(event),
        key=None if key is None else restored(key),
    )


def page_of(asked: Iterable[AskedPause], query: QuestionQuery) -> list[AskedPause]:
    """Return the page of a query from a list of questions."""
    found = [each for each in asked if _fits(each, query)]
    page = sorted(found, key=lambda each: _sort_key(each.cursor, query))
    if query.cursor is not None:
        page = [each for each in page if _sort_key(each.cursor, query) > _sort_key(query.cursor, query)]
    return page[: query.limit]


def _sort_key(cursor: str, query: QuestionQuery) -> tuple[float, int]:
    position = read_position(attrs.evolve(query, cursor=cursor))
    assert position is not None
    return (position.due_at, position.key if query.order != "newest" else -position.key)


def _fits(asked: AskedPause, query: QuestionQuery) -> bool:
    pause = asked.pause
    return (
        query.to in (None, pause.to)
        and query.kind in (None, pause.kind)
        and query.run_id in (None, asked.run_id)
        and query.pipeline in (None, asked.pipeline)
        and (query.due_before is None or (pause.due_at is not None and pause.due_at < query.due_before))
        and has_labels(asked.labels, query.labels)
    )
