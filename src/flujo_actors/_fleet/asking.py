"""What a remote step is asked to do: the first record of its own run, and all that crosses the border to it.

Rules:

1. Everything is JSON that a fresh process of the same program can read; nothing is imported because it is named here.
2. Idempotency keys and paths are those of the root run: `run` and each item's `path`.
3. A remote step is found again by its id, which is made of both: whoever asks twice finds what was done.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from .._core import record_bodies
from .._core.outcomes import RunId
from .._core.paths import StepPath
from .._core.quota import Amount, Quota
from .._core.usage import UsageLimits
from .._dsl.pipeline import Pipeline
from .._dsl.shown_chunks import ShownChunks
from .._run.messages import Request
from .._run.outlet import Outlet
from .._run.scope import Scope
from .._type_registry import read_by
from ..errors import CorruptRecord

OUTCOME_BUFFER = 64
"""How many outcomes a remote step may be ahead of what is sent."""

_READABLE = 200
"""How long the names in an id may be before they are hashed."""


@attrs.frozen(kw_only=True)
class AskedItem:
    """One step to perform."""

    path: StepPath
    name: str
    data: object
    scope: Scope | None = None
    limits: tuple[Mapping[str, object], ...] = ()
    """The budgets that it draws on."""


@attrs.frozen(kw_only=True)
class Asked:
    """What a worker reads of a remote step."""

    run: RunId
    version: str
    """The pipeline of whoever asks, by its fingerprint."""
    items: tuple[AskedItem, ...]
    context: object
    reply: str | None = None
    """The channel on which whoever asks listens."""
    streams: Mapping[str, object] | None = None
    """What whoever iterates the run wants to be told, if somebody does."""
    carried: Mapping[str, object] = attrs.field(factory=dict)
    trace: Mapping[str, str] = attrs.field(factory=dict)


def child_id(root: RunId, path: StepPath) -> RunId:
    """What the remote step at a path of a run is called."""
    return RunId(f"{_short(root)}@{_short(path)}")


def _short(name: str) -> str:
    if len(name) <= _READABLE and name.isprintable():
        return name
    return hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:40]


def asked_body(
    root: RunId,
    requests: Sequence[Request],
    *,
    version: str,
    reply: str | None,
    carried: Mapping[str, object],
    trace: Mapping[str, str],
    outlet: Outlet | None,
) -> str:
    """The first record of a remote step, or of several that go together; `NotSerializable` if it cannot be made."""
    first = requests[0]
    return record_bodies.make_body(
        asked={
            "run": root,
            "version": version,
            "reply": reply,
            "streams": None if outlet is None else _streams_data(outlet, first.path),
            "items": [_item_data(request) for request in requests],
            "carried": dict(carried),
            "trace": dict(trace),
        },
        context=record_bodies.stored_value(first.context),
    )


def _streams_data(outlet: Outlet, path: StepPath) -> dict[str, object]:
    told: dict[str, object] = {"started": outlet.started, "tools": outlet.tools}
    return told if outlet.chunks is None else {**told, "chunks": outlet.chunks.inside(path)}


def outlet_of(streams: Mapping[str, Any], pipeline: Pipeline) -> Outlet:
    """Where a remote step tells whoever iterates the run what that one wants to be told."""
    told, places = {**streams}, streams.get("chunks")
    told["chunks"] = None if places is None else ShownChunks(frozenset(places), pipeline)
    return Outlet(OUTCOME_BUFFER, **told)


def _item_data(request: Request) -> dict[str, object]:
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
    return {
        "limits": attrs.asdict(quota.limits),
        "owner": quota.owner,
        "path": quota.path,
    }


def quota_of(data: Mapping[str, Any], *, guess: Amount, known: dict[str, Amount]) -> Quota:
    """A budget of whoever asks; what was spent of it is known to the store, how large calls are to this worker."""
    limits = UsageLimits(**data["limits"])
    return Quota(limits, owner=data["owner"], guess=guess, path=StepPath(data["path"]), known=known)


@read_by("a fresh process")
def read_asked(body: Mapping[str, object], *, where: str) -> Asked:
    """What a remote step is asked to do; `CorruptRecord` if that cannot be read."""
    asked = body.get("asked")
    if not isinstance(asked, dict):
        raise CorruptRecord(f"{where}: it does not say what the remote step is to do")
    with record_bodies.reading(where):
        return Asked(
            run=RunId(asked["run"]),
            version=asked["version"],
            items=tuple(_read_item(item, where) for item in asked["items"]),
            context=record_bodies.read_value(body.get("context"), where=where),
            reply=asked["reply"],
            streams=asked["streams"],
            carried=asked["carried"],
            trace=asked["trace"],
        )


def _read_item(item: Mapping[str, Any], where: str) -> AskedItem:
    scope = item.get("scope")
    return AskedItem(
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
