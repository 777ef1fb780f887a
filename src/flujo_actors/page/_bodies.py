"""One record as somebody looks at it: its output, what it was given, its error, what it did to the context.

Rules:

1. Everything is plain JSON without the names of classes, freed of secrets.
2. What a step was given is not stored. It is derived: the output of the step before it, the item of the map around it,
   the input of the step or run around it. A step may replace what it is given, so it is said that it is derived.
3. The context before a step is the one that the step before it left, or that it was begun with.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import attrs

from .._core.light_records import LightRecord
from .._core.outcomes import RunId
from .._core.path_names import index_of, step_around
from .._core.paths import ROOT, StepPath, is_tried
from .._core.plain_json import untagged
from .._durable.child_results import read_whole, whole
from .._durable.fingerprint import read_fingerprint
from ..stores._port import Store
from ._differences import context_changes
from ._json import json_text

UNKNOWN: dict[str, object] = {
    "known": False,
    "why": "What a step was given is not stored, and here it cannot be derived.",
}


@attrs.frozen(eq=False)
class Bodies:
    """The bodies of one run, read when somebody looks at them. Blocks."""

    store: Store
    run_id: RunId
    light: tuple[LightRecord, ...]

    @classmethod
    def of(cls, store: Store, run_id: RunId) -> Bodies:
        """The bodies of a run."""
        return cls(store, run_id, tuple(store.scan(run_id)))

    def raw(self, seq: int) -> dict[str, object]:
        """The body of a record, as it is stored."""
        [record] = whole(self.store, [self.store.record(self.run_id, seq)])
        body = json.loads(record.body)
        return body if isinstance(body, dict) else {"body": body}

    def shown(self, seq: int) -> dict[str, Any]:
        """What the page shows of a record."""
        body = self.raw(seq)
        record = self._record(seq)
        shown: dict[str, Any] = {"seq": seq, "body": untagged(body)}
        if record is not None and record.kind == "admitted":
            return {"seq": seq, "input": _known(untagged(body.get("input"))), "body": untagged(_without_facts(body))}
        if record is None or record.kind != "settled":
            return shown
        return {
            **shown,
            **_outcome(body),
            "context": {"changes": self._changes(record, body)},
            "input": self.input_of(record),
        }

    def _record(self, seq: int) -> LightRecord | None:
        return next((each for each in self.light if each.seq == seq), None)

    # --- the step before ---

    def _before(self, record: LightRecord) -> LightRecord | None:
        """The step that settled before this one in the same sequence, if it stands in one and is not the first."""
        if record.of:
            return None
        around = step_around(record.path)
        found = None
        for each in self.light:
            if each.seq >= record.seq:
                break
            if _is_step(each) and not each.of and each.path != record.path and step_around(each.path) == around:
                found = each
        return found

    def _around(self, record: LightRecord) -> LightRecord | None:
        """A record that stands for the step around this one: settled or not, it has its place."""
        around = step_around(record.path)
        if around == ROOT:
            return None
        known = next((each for each in self.light if each.path == around and each.kind in ("settled", "started")), None)
        return known or LightRecord(seq=record.seq, kind="started", path=around)

    # --- what a step was given ---

    def input_of(self, record: LightRecord) -> dict[str, object]:
        """What the step was given, if it can be derived."""
        before = self._before(record)
        if before is not None:
            return _known(_outcome(self.raw(before.seq)).get("output"))
        around = self._around(record)
        if around is None:
            return _known(untagged(self.raw(1).get("input")))
        given = self.input_of(around._replace(seq=min(around.seq, record.seq)))
        if record.of and record.path.rpartition("/")[2].startswith("~i"):
            return _item(given, index_of(record.path))
        return given

    # --- what it did to the context ---

    def _changes(self, record: LightRecord, body: dict[str, object]) -> list[dict[str, object]]:
        if "context" not in body:
            return []
        return context_changes(untagged(self._context_before(record)), untagged(body["context"]))

    def _context_before(self, record: LightRecord) -> object:
        before = self._before(record)
        while before is not None:
            left = self.raw(before.seq)
            if "context" in left:
                return left["context"]
            before = self._before(before)
        around = self._around(record)
        return self.raw(1).get("context") if around is None else self._context_before(around)


def _without_facts(body: dict[str, object]) -> dict[str, object]:
    """An admission without the fingerprint of its pipeline, which is for programs."""
    return {name: part for name, part in body.items() if name != "fingerprint"}


def _is_step(record: LightRecord) -> bool:
    return record.kind == "settled" and not is_tried(record.path)


def _outcome(body: dict[str, object]) -> dict[str, Any]:
    failed = body.get("failure")
    if isinstance(failed, dict):
        result = failed.get("step_result") or {}
        told = {"feedback": failed.get("feedback"), "error": untagged(failed.get("error"))}
        return {**told, "output": untagged(result.get("output")), "metadata": untagged(result.get("metadata"))}
    done = body.get("success")
    result = done if isinstance(done, dict) else {}
    return {"output": untagged(result.get("output")), "metadata": untagged(result.get("metadata")), "error": None}


def _known(value: object) -> dict[str, object]:
    return {"known": True, "value": value}


def _item(given: dict[str, object], index: int | None) -> dict[str, object]:
    items = given.get("value")
    if not given["known"] or index is None or not isinstance(items, list) or index >= len(items):
        return UNKNOWN
    return _known(items[index])


def declared_steps(store: Store, run_id: RunId) -> list[tuple[StepPath, str]]:
    """The steps of a run's pipeline with their kinds, in the order of the declaration; none if that cannot be read."""
    admission = json.loads(store.record(run_id, 1).body)
    try:
        return [(path, str(facts["kind"])) for path, facts in read_fingerprint(admission.get("fingerprint")).items()]
    except ValueError:
        return []


def outputs_of(store: Store, run_id: RunId) -> dict[StepPath, object]:
    """What every step of a run gave, as plain JSON."""
    return {
        record.path: _outcome(json.loads(record.body)).get("output")
        for record in read_whole(store, run_id)
        if record.kind == "settled" and not is_tried(record.path)
    }


def as_lines(store: Store, run_id: RunId, clean: Any) -> Iterable[str]:
    """The records of a run as JSON lines, freed of secrets."""
    for record in read_whole(store, run_id):
        told = {"seq": record.seq, "at": record.at, "kind": record.kind, "path": record.path}
        yield json_text({**told, "body": clean(untagged(json.loads(record.body)))}) + "\n"
