"""Request of a remote step: the first record of its own run.

Rules:

1. Everything is JSON that a fresh process of the same program can read; no named module is imported.
2. Idempotency keys and paths are those of the root run: `run` and each item's `path`.
3. The id of a remote step is made of both: a repeated request finds the earlier work.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import Any

import attrs

from .._core.labels import NO_LABELS, TRACED_LABELS, Labels
from .._core.outcomes import RunId
from .._core.policies.shared_budgets import WindowQuota
from .._core.quota import Amount, Quota
from .._core.records import record_bodies
from .._core.step_paths import StepPath
from .._core.type_registry import read_by
from .._core.usage import UsageLimits
from .._dsl.chunk_filter import ShownChunks
from .._dsl.pipeline import Pipeline
from .._runtime.run.messages import EventStream, StepRequest
from .._runtime.run.step_results import Scope
from ..errors import CorruptRecord, DeclarationError

OUTCOME_BUFFER = 64
"""Number of buffered outcomes between a remote step and its sender."""


@attrs.frozen(kw_only=True)
class RemoteItem:
    """One step to perform."""

    path: StepPath
    name: str
    data: object
    scope: Scope | None = None
    limits: tuple[Mapping[str, object], ...] = ()
    """The budgets that it draws on."""


@attrs.frozen(kw_only=True)
class RemoteRequest:
    """Remote step request as read by a worker."""

    run: RunId
    version: str
    """Fingerprint of the caller's pipeline."""
    items: tuple[RemoteItem, ...]
    context: object
    reply: str | None = None
    """Signal channel of the caller."""
    streams: Mapping[str, object] | None = None
    """Stream options of the run's reader, if there is one."""
    carried: Mapping[str, object] = attrs.field(factory=dict)
    trace: Mapping[str, str] = attrs.field(factory=dict)
    labels: Labels = NO_LABELS
    """Labels of the root run."""


def request_body(
    root: RunId,
    requests: Sequence[StepRequest],
    *,
    version: str,
    reply: str | None,
    carried: Mapping[str, object],
    trace: Mapping[str, str],
    event_stream: EventStream | None,
    labels: Labels = NO_LABELS,
) -> str:
    """Return the first record of one or more remote steps; raise `NotSerializable`."""
    first = requests[0]
    return record_bodies.make_body(
        asked={
            "run": root,
            "version": version,
            "reply": reply,
            "streams": None if event_stream is None else _streams_data(event_stream, first.path),
            "items": [_item_data(request) for request in requests],
            "carried": dict(carried),
            "trace": dict(trace),
            **({"labels": dict(labels)} if labels else {}),
        },
        context=record_bodies.stored_value(first.context),
    )


def _streams_data(event_stream: EventStream, path: StepPath) -> dict[str, object]:
    data: dict[str, object] = {"started": event_stream.started, "tools": event_stream.tools}
    return data if event_stream.chunks is None else {**data, "chunks": event_stream.chunks.inside(path)}


def event_stream_of(streams: Mapping[str, Any], pipeline: Pipeline) -> EventStream:
    """Return the event stream of a remote step to the run's reader."""
    options, places = {**streams}, streams.get("chunks")
    options["chunks"] = None if places is None else ShownChunks(frozenset(places), pipeline)
    return EventStream(OUTCOME_BUFFER, **options)


def _item_data(request: StepRequest) -> dict[str, object]:
    item = {"path": request.path, "name": request.name, "input": record_bodies.stored_value(request.data)}
    if request.quotas:
        item["limits"] = [_limit_data(quota) for quota in request.quotas]
    return item if request.scope is None else {**item, "scope": _scope_data(request.scope)}


def _scope_data(scope: Scope) -> dict[str, object]:
    return {
        "input": record_bodies.stored_value(scope.run_input),
        "item": record_bodies.stored_value(scope.item),
        "outputs": {name: record_bodies.stored_value(scope.output(name)) for name in scope.names()},
    }


def _limit_data(quota: Quota) -> dict[str, object]:
    if isinstance(quota, WindowQuota):
        return {"limits": quota.declared.data(), "window": {"name": quota.name, "value": quota.value}}
    return {"limits": quota.limits.data(), "owner": quota.owner, "path": quota.path}


def quota_of(data: Mapping[str, Any], *, guess: Amount, known: dict[str, Amount], now: float) -> Quota:
    """Return a caller's budget: stored spending, local call sizes."""
    limits, window = UsageLimits(**data["limits"]), data.get("window")
    if window is not None:
        return WindowQuota(limits, name=window["name"], value=window["value"], guess=guess, known=known, now=now)
    return Quota(limits, owner=data["owner"], guess=guess, path=StepPath(data["path"]), known=known)


@read_by("a fresh process")
def read_request(body: Mapping[str, object], *, where: str) -> RemoteRequest:
    """Return the request of a remote step; raise `CorruptRecord` if unreadable."""
    asked = body.get("asked")
    if not isinstance(asked, dict):
        raise CorruptRecord(f"{where}: it has no request of a remote step")
    with record_bodies.reading(where):
        return RemoteRequest(
            run=RunId(asked["run"]),
            version=asked["version"],
            items=tuple(_read_item(item, where) for item in asked["items"]),
            context=record_bodies.read_value(body.get("context"), where=where),
            reply=asked["reply"],
            streams=asked["streams"],
            carried=asked["carried"],
            trace=asked["trace"],
            labels=Labels(asked.get("labels", {})),
        )


def _read_item(item: Mapping[str, Any], where: str) -> RemoteItem:
    scope = item.get("scope")
    return RemoteItem(
        path=StepPath(item["path"]),
        name=item["name"],
        data=record_bodies.read_value(item["input"], where=where),
        scope=None if scope is None else _read_scope(scope, where),
        limits=tuple(item.get("limits", ())),
    )


def _read_scope(scope: Mapping[str, Any], where: str) -> Scope:
    outputs = {name: record_bodies.read_value(value, where=where) for name, value in scope["outputs"].items()}
    return Scope(
        run_input=record_bodies.read_value(scope["input"], where=where),
        item=record_bodies.read_value(scope["item"], where=where),
        outputs=outputs,
    )


def checked_carry(carry: Iterable[Any]) -> tuple[ContextVar[object], ...]:
    """Return the carried variables; refuse other values and duplicate names."""
    variables = tuple(carry)
    for each in variables:
        if not isinstance(each, ContextVar):
            raise DeclarationError(f"carry must be a list of ContextVar(…), not {each!r}")
    names = [each.name for each in variables]
    if len(set(names)) < len(names):
        raise DeclarationError(f"carry: two variables share a name, their key on other machines: {names}")
    return variables


def carried_now(carry: Iterable[ContextVar[object]]) -> dict[str, object]:
    """Return the values of the variables as JSON data, without unset ones."""
    return {each.name: _as_json(each, value) for each in carry if (value := each.get(_NOTHING)) is not _NOTHING}


_NOTHING: object = object()


def _as_json(variable: ContextVar[object], value: object) -> object:
    try:
        return json.loads(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise DeclarationError(f"carry: the value of {variable.name!r} is no JSON data ({error})") from error


def set_carried(carry: Iterable[ContextVar[object]], carried: Mapping[str, object]) -> None:
    """Set the variables named by both sides in the current task."""
    for each in carry:
        if each.name in carried:
            each.set(carried[each.name])


def trace_headers() -> dict[str, str]:
    """Return the W3C headers of the current trace, if any."""
    headers: dict[str, str] = {}
    if "opentelemetry.trace" in sys.modules:  # there is no trace without it
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        TraceContextTextMapPropagator().inject(headers)
    return {name: value for name, value in headers.items() if len(value) <= 200}


@contextlib.contextmanager
def in_trace(headers: Mapping[str, str], labels: Labels = NO_LABELS) -> Iterator[None]:
    """Run the block with the caller's trace and metric labels."""
    if not (headers or labels) or "opentelemetry.trace" not in sys.modules:
        yield
        return
    from opentelemetry import context
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    caller = TraceContextTextMapPropagator().extract(dict(headers))
    token = context.attach(context.set_value(TRACED_LABELS, labels, caller))
    try:
        yield
    finally:
        context.detach(token)
