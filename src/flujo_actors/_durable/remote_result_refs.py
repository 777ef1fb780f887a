"""References from a parent's record to a remote step's run.

Rules:

1. Only long results are referenced, with their contexts: a short one is copied, so that reading a
   run does not mean reading all its remote steps.
2. A record that refers to another run begins with its id. A reader of the result reads `whole` records; names, usage
   and times are in the record itself.
3. Both are deleted together. A fork of a run with references holds copies.
4. The id of a remote step is that of its root run and its path. Its first record names the root run.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import attrs

from .._core.outcomes import RunId, Success, TerminalOutcome
from .._core.records import record_bodies
from .._core.records.context_patches import StoredContexts, has_context
from .._core.records.records import PLAIN_VERSION, Record, StoredRun
from .._core.step_paths import StepPath, inside
from ..errors import CorruptRecord, RunNotFound
from ..stores._store_port import Store

_READABLE = 200
"""Maximum length of readable names in an id; longer ones are hashed."""

LONG = 4_000
"""Body length in characters beyond which the result is referenced."""

_LEFT = "child_context"
"""Body key of a referenced context."""

_PREFIX = f'{{"v":{PLAIN_VERSION},"child":'


def child_id(root: RunId, path: StepPath) -> RunId:
    """Return the id of the remote step at a path."""
    return RunId(f"{_short(root)}@{_short(path)}")


def _short(name: str) -> str:
    if len(name) <= _READABLE and name.isprintable():
        return name
    return hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:40]


def remote_steps_of(store: Store, root: RunId) -> list[StoredRun]:
    """Return the runs of a run's stored remote steps."""
    found = store.children(root) if hasattr(store, "children") else ()
    return store.standing([child for child in found if child.startswith(f"{_short(root)}@")])


def renamed_ids(run_ids: Sequence[RunId], new_id: RunId) -> dict[RunId, RunId]:
    """Return ids of a run and its remote steps, by the former.

    Raise `CorruptRecord` for a remote step with the id of another root.
    """
    root, *children = run_ids
    before, after = f"{_short(root)}@", f"{_short(new_id)}@"
    if foreign := next((child for child in children if not child.startswith(before)), None):
        raise CorruptRecord(f"run {foreign!r} has no id of a remote step of {root!r}")
    return {root: new_id, **{child: RunId(after + child.removeprefix(before)) for child in children}}


def renamed_record(record: Record, renamed: Mapping[RunId, RunId]) -> Record:
    """Return a record that names runs by other ids."""
    if not _refers(record) and record.kind != "admitted":
        return record
    body = json.loads(record.body)
    for parts, name in ((body, "child"), (body.get("asked"), "run")):
        if isinstance(parts, dict) and parts.get(name) in renamed:
            parts[name] = renamed[parts[name]]
    return attrs.evolve(record, body=record_bodies.as_text(body))


class RemoteResultRef(NamedTuple):
    """Remote run of a step, and its result."""

    run_id: RunId
    outcome: TerminalOutcome
    context: object = None
    """Context after the step; `None` if unchanged."""


def referring(parts: dict[str, Any], child: RemoteResultRef, outcome: TerminalOutcome, context: object) -> str:
    """Return the record body of a remotely executed step, with its context."""
    body = record_bodies.make_body(**parts)
    if len(body) <= LONG or not _is_same_outcome(outcome, child.outcome):
        return body
    own = {name: part for name, part in parts.items() if name != "history"}
    own["success"] = {name: part for name, part in parts["success"].items() if name != "output"}
    if "context" in own and child.context is context:
        del own["context"]
        own[_LEFT] = True
    return record_bodies.make_body(child=child.run_id, **own)


def _is_same_outcome(outcome: TerminalOutcome, of_child: TerminalOutcome) -> bool:
    """Return whether the remote outcome is unchanged."""
    if not isinstance(outcome, Success) or not isinstance(of_child, Success):
        return False
    mine, other = outcome.step_result, of_child.step_result
    history = len(mine.step_history) == len(other.step_history)
    return mine.output is other.output and history and all(map(_is, mine.step_history, other.step_history))


def _is(one: object, other: object) -> bool:
    return one is other


def read_resolved(store: Store, run_id: RunId, *, after: int = 0) -> list[Record]:
    """Return the records of a run with referenced results resolved; blocks."""
    return resolved(store, store.read(run_id, after=after))


def resolved(store: Store, records: Sequence[Record]) -> list[Record]:
    """Return the same of records that were read."""
    if not refers_to_runs(records):
        return list(records)
    known: dict[RunId, dict[StepPath, dict[str, Any]]] = {}
    return [_followed(store, record, known) if _refers(record) else record for record in records]


def refers_to_runs(records: Iterable[Record]) -> bool:
    """Return whether a result is in the records of another run."""
    return any(map(_refers, records))


def _refers(record: Record) -> bool:
    return record.kind == "settled" and record.body.startswith(_PREFIX)


def _followed(store: Store, record: Record, known: dict[RunId, dict[StepPath, dict[str, Any]]]) -> Record:
    body = json.loads(record.body)
    child = RunId(body.pop("child"))
    if child not in known:
        known[child] = _settled_in(store, child, of=record)
    found = known[child].get(record.path)
    if found is None or "success" not in found:
        raise CorruptRecord(
            f"record {record.seq} refers to the result of {record.path!r} in {child!r}: it is not there"
        )
    if "output" in found["success"]:
        body["success"]["output"] = found["success"]["output"]
    if body.pop(_LEFT, False) and "context" in found:
        body["context"] = found["context"]
    history = _history(known[child], record.path)
    if history:
        body["history"] = [{"kind": "step_result", **part} for part in history]
    body.pop("v", None)
    return attrs.evolve(record, body=record_bodies.make_body(**body))


def _settled_in(store: Store, child: RunId, *, of: Record) -> dict[StepPath, dict[str, Any]]:
    try:
        records = read_resolved(store, child)
    except RunNotFound as error:
        raise CorruptRecord(f"record {of.seq} refers to the remote step {child!r}, which is not there") from error
    contexts = StoredContexts(records)
    return {record.path: _with_context(record, contexts) for record in records if record.kind == "settled"}


def _with_context(record: Record, contexts: StoredContexts) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(record.body)
    return {**body, "context": contexts.data(body)} if has_context(body) else body


def _history(settled: dict[StepPath, dict[str, Any]], path: StepPath) -> list[dict[str, Any]]:
    """Return the nested results of a step as a tree."""
    parts: Iterable[Any] = settled.get(path, {}).get("history") or ()
    found = (_result_at(settled, inside(path, part)) if isinstance(part, str) else part for part in parts)
    return [{name: value for name, value in part.items() if name != "kind"} for part in found]


def _result_at(settled: dict[StepPath, dict[str, Any]], path: StepPath) -> dict[str, Any]:
    body = settled.get(path, {})
    result: Any = body["success"] if "success" in body else body.get("failure", {}).get("step_result")
    if not isinstance(result, dict):
        raise CorruptRecord(f"a remote step refers to the result of {path!r}, which is not there")
    history = _history(settled, path)
    return {**result, "step_history": history} if history else result
