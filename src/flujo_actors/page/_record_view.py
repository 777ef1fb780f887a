"""Details of one record: output, input, error, context changes.

Rules:

1. Everything is plain JSON without class names, redacted.
2. The input of a step is not stored. It is derived: the output of the previous step, the item of the enclosing map,
   the input of the enclosing step or run. A step may replace its input, so it is marked as derived.
3. The context before a step is that after the previous step, or the initial one.

Sections:

- Differences between two contexts. Pure.
- Comparison of two runs.
- Evaluations and rehearsals: cases, pairs and metrics.
- Rows and run states for the page. Pure.
"""

from __future__ import annotations

import difflib
import itertools
import json
import linecache
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import attrs

from .._api.client import RunClient
from .._api.evaluation.evaluation_results import CaseResult, Evaluation
from .._core.error_info import is_user_file
from .._core.outcomes import RunId
from .._core.records.json_codec import untagged
from .._core.records.records import StoredRun
from .._core.step_paths import ROOT, StepPath, index_of, is_tried, last_name, step_around
from .._core.views.record_summaries import RecordSummary
from .._dsl.pipeline import Pipeline
from .._durable.fingerprint import read_fingerprint, system_texts
from .._durable.forks import RECORDED, REHEARSED
from .._durable.pipeline_diff import declared_at
from .._durable.remote_result_refs import read_resolved
from .._durable.run_admission import step_at, whole_record
from .._durable.run_states import StateInfo
from ..errors import RunNotFound
from ..stores._store_port import Store
from ._browser_json import count_text, cut, dollars_text, json_text, seconds_text
from ._conversation import turns_of

# --- Differences between two contexts -----------------------------------------------------------------------------


def context_changes(before: object, after: object) -> list[dict[str, object]]:
    """Return each added, changed or removed key with both values."""
    old, new = _as_fields(before), _as_fields(after)
    changes = [_change(key, old, new) for key in (*old, *(key for key in new if key not in old))]
    return [each for each in changes if each is not None]


def _change(key: str, old: Mapping[str, object], new: Mapping[str, object]) -> dict[str, object] | None:
    if key not in old:
        return {"key": key, "kind": "added", "after": new[key]}
    if key not in new:
        return {"key": key, "kind": "removed", "before": old[key]}
    if old[key] == new[key] and type(old[key]) is type(new[key]):
        return None
    return {"key": key, "kind": "changed", "before": old[key], "after": new[key]}


def _as_fields(context: object) -> Mapping[str, object]:
    """Return the fields of a stored context, without its class name."""
    inner = context.get("value") if isinstance(context, Mapping) and "$" in context else context
    return inner if isinstance(inner, Mapping) else ({} if inner is None else {"(context)": inner})


# --- Details of one record ----------------------------------------------------------------------------------------


Clean: TypeAlias = Callable[[object], Any]
"""Redaction of plain JSON."""

_LONGEST_LINE = 300

UNKNOWN: dict[str, object] = {
    "known": False,
    "why": "The input of a step is not stored, and here it cannot be derived.",
}


@attrs.frozen(eq=False)
class Bodies:
    """Record bodies of one run, read on demand. Blocks."""

    store: Store
    run_id: RunId
    light: tuple[RecordSummary, ...]

    @classmethod
    def of(cls, store: Store, run_id: RunId) -> Bodies:
        """Return the bodies of a run."""
        return cls(store, run_id, tuple(store.scan(run_id)))

    def raw(self, seq: int) -> dict[str, object]:
        """Return the body of a record, as it is stored."""
        body = json.loads(whole_record(self.store, self.run_id, seq).body)
        return body if isinstance(body, dict) else {"body": body}

    def shown(self, seq: int) -> dict[str, Any]:
        """Return the details of a record."""
        body = self.raw(seq)
        record = self._record(seq)
        shown: dict[str, Any] = {"seq": seq, "body": untagged(body)}
        if record is not None and record.kind == "admitted":
            return {"seq": seq, "input": _known(untagged(body.get("input"))), "body": untagged(_without_facts(body))}
        if record is None or record.kind != "settled":
            return shown
        return {
            **shown,
            **outcome_of(body),
            "context": {"changes": self._changes(record, body)},
            "input": self.input_of(record),
        }

    def _record(self, seq: int) -> RecordSummary | None:
        return next((each for each in self.light if each.seq == seq), None)

    # --- the step before ---

    def _before(self, record: RecordSummary) -> RecordSummary | None:
        """Return the previous settled step of the same sequence, or None."""
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

    def _enclosing(self, record: RecordSummary) -> RecordSummary | None:
        """Return a record of the enclosing step, settled or not."""
        around = step_around(record.path)
        if around == ROOT:
            return None
        known = next((each for each in self.light if each.path == around and each.kind in ("settled", "started")), None)
        return known or RecordSummary(seq=record.seq, kind="started", path=around)

    # --- input of a step ---

    def input_of(self, record: RecordSummary) -> dict[str, object]:
        """Return the derived input of the step, if possible."""
        before = self._before(record)
        if before is not None:
            return _known(outcome_of(self.raw(before.seq)).get("output"))
        around = self._enclosing(record)
        if around is None:
            return _known(untagged(self.raw(1).get("input")))
        given = self.input_of(around._replace(seq=min(around.seq, record.seq)))
        if record.of and record.path.rpartition("/")[2].startswith("~i"):
            return _item(given, index_of(record.path))
        return given

    # --- context changes ---

    def _changes(self, record: RecordSummary, body: dict[str, object]) -> list[dict[str, object]]:
        if "context" not in body:
            return []
        return context_changes(untagged(self._context_before(record)), untagged(body["context"]))

    def context_at(self, seq: int) -> dict[str, object]:
        """Return the context after a record, and its changes since the start."""
        first = untagged(self.raw(1).get("context"))
        settled = [each for each in self.light if _is_step(each) and each.seq <= seq and step_around(each.path) == ROOT]
        bodies = (self.raw(each.seq) for each in reversed(settled))
        last = next((untagged(each["context"]) for each in bodies if "context" in each), first)
        return {"values": dict(_as_fields(last)), "changes": context_changes(first, last)}

    def _context_before(self, record: RecordSummary) -> object:
        before = self._before(record)
        while before is not None:
            left = self.raw(before.seq)
            if "context" in left:
                return left["context"]
            before = self._before(before)
        around = self._enclosing(record)
        return self.raw(1).get("context") if around is None else self._context_before(around)


def _without_facts(body: dict[str, object]) -> dict[str, object]:
    """Return an admission without its pipeline's fingerprint."""
    return {name: part for name, part in body.items() if name != "fingerprint"}


def _is_step(record: RecordSummary) -> bool:
    return record.kind == "settled" and not is_tried(record.path)


def outcome_of(body: dict[str, object]) -> dict[str, Any]:
    """Return output, metadata and error of a settled record."""
    failed = body.get("failure")
    if isinstance(failed, dict):
        result = failed.get("step_result") or {}
        facts = {"feedback": failed.get("feedback"), "error": _with_places(untagged(failed.get("error")))}
        return {**facts, "output": untagged(result.get("output")), "metadata": untagged(result.get("metadata"))}
    done = body.get("success")
    result = done if isinstance(done, dict) else {}
    return {"output": untagged(result.get("output")), "metadata": untagged(result.get("metadata")), "error": None}


def _with_places(error: Any) -> Any:
    """Return an error with the owners and short paths of frames."""
    if not isinstance(error, dict):
        return error
    frames = [_frame(each) for each in error.get("frames") or ()]
    return {**error, "frames": frames, "causes": [_with_places(each) for each in error.get("causes") or ()]}


def _frame(frame: dict[str, Any]) -> dict[str, Any]:
    file, line = str(frame.get("file", "")), frame.get("line")
    own = is_user_file(file)
    short = "/".join(Path(file).parts[-2:])
    return {**frame, "short": short, "own": own, "source": _source(file, line) if own else []}


def _source(file: str, line: object) -> list[tuple[int, str]]:
    """Return the source lines around a frame, if the file exists."""
    if not isinstance(line, int) or not file.endswith(".py"):
        return []
    found = [(each, linecache.getline(file, each).rstrip("\n")) for each in (line - 1, line, line + 1)]
    return [(number, text[:_LONGEST_LINE]) for number, text in found if number > 0 and text.strip()]


def _known(value: object) -> dict[str, object]:
    return {"known": True, "value": value}


def _item(given: dict[str, object], index: int | None) -> dict[str, object]:
    items = given.get("value")
    if not given["known"] or index is None or not isinstance(items, list) or index >= len(items):
        return UNKNOWN
    return _known(items[index])


def declared_steps(store: Store, run_id: RunId) -> list[tuple[StepPath, str, str, str]]:
    """Return a run's declared steps; empty if unreadable."""
    admission = json.loads(store.record(run_id, 1).body)
    try:
        steps = read_fingerprint(admission.get("fingerprint"))
    except ValueError:
        return []
    return [(path, str(facts["kind"]), _declared_name(path, facts), _condition(facts)) for path, facts in steps.items()]


def prompts_at(store: Store, run_id: RunId, pipeline: Pipeline, path: StepPath) -> list[str]:
    """Return a step's system prompts in the known pipeline. Blocks."""
    step = step_at(pipeline, path)
    try:
        stored = read_fingerprint(json.loads(store.record(run_id, 1).body).get("fingerprint"))
    except ValueError:
        return []
    declared = declared_at(path, stored)
    return [] if step is None or declared is None else system_texts(step, stored[declared])


def _declared_name(path: StepPath, facts: Mapping[str, object]) -> str:
    """Return the agent's name for a step without a named segment."""
    if not path.rpartition("/")[2].startswith("~"):
        return ""
    return str(facts.get("agent") or "").removeprefix("agent ").rpartition(".")[2]


def _condition(facts: Mapping[str, object]) -> str:
    """Return the function that ends a loop or chooses a branch."""
    text = str(facts.get("until") or facts.get("select") or "").partition(" ")[0]
    name = text.rpartition(".")[2]
    return "" if name == "<lambda>" else name


def as_lines(store: Store, run_id: RunId, clean: Any) -> Iterable[str]:
    """Yield the records of a run as JSON lines, freed of secrets."""
    for record in read_resolved(store, run_id):
        facts = {"seq": record.seq, "at": record.at, "kind": record.kind, "path": record.path}
        yield json_text({**facts, "body": clean(untagged(json.loads(record.body)))}) + "\n"


# --- Comparison of two runs ---------------------------------------------------------------------------------------
# Steps are aligned by path. A difference of time or cost below 5 % counts as none; less is good.


_SMALL = 0.05

Outputs: TypeAlias = Mapping[StepPath, object]
Step: TypeAlias = dict[str, Any]


def compared(sides: Sequence[Iterable[RecordSummary]], outputs: Sequence[Outputs]) -> list[Step]:
    """Return the steps of two runs with equality of output and differences."""
    left, right = (_settled(each) for each in sides)
    paths = [*left, *(path for path in right if path not in left)]
    return [_step(path, left.get(path), right.get(path), outputs) for path in paths]


def _settled(records: Iterable[RecordSummary]) -> dict[StepPath, RecordSummary]:
    return {
        each.path: each for each in records if each.kind == "settled" and each.path != ROOT and not is_tried(each.path)
    }


def _step(path: StepPath, one: RecordSummary | None, other: RecordSummary | None, outputs: Sequence[Outputs]) -> Step:
    both = one is not None and other is not None
    same = outputs[0].get(path) == outputs[1].get(path) if both else None
    a, b = _side(one), _side(other)
    by = [_difference(a, b, "latency_ms", _milliseconds), _difference(a, b, "cost_usd", dollars_text)]
    return {
        "path": path,
        "a": a,
        "b": b,
        "same": same,
        "by": by,
        "view": (*_mark(a, same), "\u2003" * min(4, path.count("/")), _time(a), _time(b)),
    }


def _mark(a: object, same: bool | None) -> tuple[str, str, str]:
    """Return color, icon and word of a compared step."""
    if same is None:
        return "waiting", "minus", "only in B" if a is None else "only in A"
    return ("queued", "check", "equal") if same else ("running", "compare", "different")


def _time(side: Mapping[str, Any] | None) -> str:
    return "–" if side is None else seconds_text(side["latency_ms"] / 1000)


def compared_text(steps: Sequence[Step]) -> str:
    """Return the number of different steps in a sentence."""
    different = sum(each["same"] is False for each in steps)
    one = sum(each["same"] is None for each in steps)
    if not different and not one:
        return "All outputs are the same."
    return f"{different:,} of {len(steps):,} steps have another output{f', {one:,} ran in one only' if one else ''}"


def _side(record: RecordSummary | None) -> dict[str, Any] | None:
    if record is None:
        return None
    return {
        "seq": record.seq,
        "status": record.status,
        "latency_ms": round(record.latency_s * 1000, 3),
        "tokens": record.tokens,
        "cost_usd": record.cost_usd,
        "attempts": record.attempts,
    }


def _milliseconds(value: float) -> str:
    return seconds_text(value / 1000)


def _difference(a: Any, b: Any, name: str, text: Callable[[float], str]) -> tuple[str, str]:
    """Return the kind and the text of a difference (rule 2)."""
    if a is None or b is None or abs(b[name] - a[name]) <= max(a[name], b[name]) * _SMALL:
        return "dim", "0"
    less = b[name] < a[name]
    return "good" if less else "more-of", f"{'–' if less else '+'}{text(abs(b[name] - a[name]))}"


def cards_of(steps: Sequence[Step]) -> list[dict[str, str]]:
    """Return differences of cost, time, tokens and outputs."""
    top = [each for each in steps if "/" not in each["path"]]
    kinds = (
        ("Cost", "cost_usd", dollars_text),
        ("Worked", "latency_ms", _milliseconds),
        ("Tokens", "tokens", count_text),
    )
    different = [each for each in steps if each["same"] is False]
    first = f"first: {last_name(different[0]['path'])}" if different else "all equal"
    cards = [_card(title, _sum(top, "a", name), _sum(top, "b", name), text) for title, name, text in kinds]
    return [*cards, _as_card("Steps different", f"{len(different)} of {len(steps)}", first)]


def _sum(steps: Sequence[Step], side: str, name: str) -> float:
    return float(sum(each[side][name] for each in steps if each[side] is not None))


def _card(title: str, one: float, other: float, text: Callable[[float], str]) -> dict[str, str]:
    by = (other - one) / one if one else 0.0
    more = f"{text(one)} → {text(other)}"
    if abs(by) < _SMALL:
        return _as_card(title, "0 %", more)
    kind = "good" if by < 0 else "more-of"
    return _as_card(title, f"{'–' if by < 0 else '+'}{abs(by) * 100:.0f} %", more, kind)


def _as_card(title: str, big: str, more: str, kind: str = "") -> dict[str, str]:
    return {"title": title, "big": big, "more": more, "kind": kind}


_MOST_LINES = 400
_MOST_WORDS = 300

Side: TypeAlias = list[tuple[str, bool]] | None
"""Parts of a line, with whether both sides have them."""


def text_of(value: object) -> str:
    """Return a value as a reader compares it."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=2)


def difference(one: str, other: str) -> list[tuple[Side, Side, bool]]:
    """Return the lines of two texts, side by side."""
    a, b = (each.split("\n")[:_MOST_LINES] for each in (one, other))
    rows: list[tuple[Side, Side, bool]] = []
    for kind, i, end_i, j, end_j in difflib.SequenceMatcher(None, a, b, autojunk=False).get_opcodes():
        pairs = itertools.zip_longest(a[i:end_i], b[j:end_j])
        rows += [_row(left, right, same=kind == "equal") for left, right in pairs]
    return rows


def _row(left: str | None, right: str | None, *, same: bool) -> tuple[Side, Side, bool]:
    if left is None or right is None or same:
        sides = [None if each is None else [(each, True)] for each in (left, right)]
        return sides[0], sides[1], same
    a, b = (re.split(r"(\s+)", each)[:_MOST_WORDS] for each in (left, right))
    matches = difflib.SequenceMatcher(None, a, b, autojunk=False).get_opcodes()
    one = [("".join(a[i:end]), kind == "equal") for kind, i, end, _, _ in matches if end > i]
    other = [("".join(b[j:end]), kind == "equal") for kind, _, _, j, end in matches if end > j]
    return one, other, False


def part_of(store: Store, run_id: RunId, seq: int, part: str, clean: Clean) -> str:
    """Return the output or input of a settled step as text. Blocks."""
    shown = clean(Bodies.of(store, run_id).shown(seq))
    if part == "output":
        return text_of(cut(shown.get("output")))
    given = shown.get("input") or UNKNOWN
    return text_of(cut(given["value"])) if given["known"] else ""


def two_texts(store: Store, asked: Mapping[str, str], clean: Clean) -> list[str]:
    """Return the two texts that a request compares. Blocks."""
    runs = [RunId(asked.get(name, "")) for name in ("a", "b")]
    numbers = [_seq_in(asked.get(name, "0")) for name in ("one", "other")]
    if "step" in asked:
        turns = turns_of(Bodies.of(store, runs[0]), StepPath(asked["step"]))
        return [str(clean(turns[each])) if each < len(turns) else "" for each in numbers]
    part = "input" if asked.get("part") == "input" else "output"
    return [part_of(store, run, seq, part, clean) if seq else "" for run, seq in zip(runs, numbers, strict=True)]


def _seq_in(text: str) -> int:
    return int(text) if text.isdecimal() and len(text) < 16 else 0


def outputs_of(store: Store, run_id: RunId) -> dict[StepPath, object]:
    """Return the output of every step as plain JSON. Blocks."""
    return {
        record.path: outcome_of(json.loads(record.body)).get("output")
        for record in read_resolved(store, run_id)
        if record.kind == "settled" and not is_tried(record.path)
    }


# --- Evaluations and rehearsals: cases, pairs and metrics ---------------------------------------------------------


EVALUATED = "evaluation of "
"""Beginning of the pipeline name of an evaluation."""
_CASE_STATES = {"passed": "completed", "error": "failed", "paused": "waiting", "stopped": "aborted"}


def evaluation_tables(store: Store, run_id: str, *, changed: bool, by: str, content: bool) -> dict[str, object]:
    """Return cases of an evaluation, or pairs of a rehearsal. Blocks."""
    client = RunClient(store, allow_blocking=True)
    if client.get(run_id).pipeline.startswith(REHEARSED):
        return {"metrics": [], "changed": False, "tables": [_rehearsal_table(store, run_id, content)]}
    found = client.evaluation(run_id)
    before = _baseline_cases(client, found)
    cases = [
        each for each in found.cases if not changed or (found.comparison and each.name in found.comparison.changed)
    ]
    metrics = _metrics_of(found)
    names = list(metrics)
    if by in metrics:
        cases.sort(key=lambda case: _sort_key(metrics[by].value(case)))
    repeated = any(each.repeat > 1 for each in found.cases)
    rows = [
        _case_row(each, before.get((each.name, each.repeat)), metrics.values(), repeated=repeated) for each in cases
    ]
    columns = [("Case",), ("Status", ""), *((name, "num") for name in (*names, ""))]
    cases_table = {"title": "Cases", "note": evaluation_text(found), "columns": columns, "rows": rows}
    return {"metrics": names, "changed": found.comparison is not None, "tables": [cases_table, *_judged_tables(found)]}


def evaluation_text(found: Evaluation) -> str:
    """Return passed cases, cost and baseline of an evaluation in one line."""
    passed = sum(each.status == "passed" for each in found.cases)
    baseline = "" if found.comparison is None else f"baseline {found.comparison.baseline}"
    cost = dollars_text(found.total_cost_usd) if found.total_cost_usd else ""
    return " · ".join(filter(None, [f"{passed:,}/{len(found.cases):,} passed", cost, baseline]))


def _baseline_cases(client: RunClient, found: Evaluation) -> dict[tuple[str, int], CaseResult]:
    if found.comparison is None:
        return {}
    try:
        cases = client.evaluation(found.comparison.baseline).cases
    except RunNotFound:
        return {}
    return {(each.name, each.repeat): each for each in cases}


@attrs.frozen
class _Metric:
    """A column of an evaluation's cases."""

    value: Callable[[CaseResult], float | None]
    text: Callable[[float], str]


def _metrics_of(found: Evaluation) -> dict[str, _Metric]:
    """Return the judged metrics, then those of the runs."""
    names = dict.fromkeys(name for each in found.cases for name in (*each.assertions, *each.scores))
    of_runs = {
        "Tokens": _Metric(lambda case: case.tokens, count_text),
        "Cost": _Metric(lambda case: case.cost_usd, dollars_text),
        "Time": _Metric(lambda case: case.duration_s, seconds_text),
    }
    judged = {name: _Metric(partial(_score, name), _judged_text) for name in names}
    return {**judged, **{name: metric for name, metric in of_runs.items() if name not in judged}}


def _score(name: str, case: CaseResult) -> float | None:
    return case.assertions.get(name, case.scores.get(name))


def _judged_text(value: float) -> str:
    return ("yes" if value else "no") if isinstance(value, bool) else f"{value:g}"


def _sort_key(value: float | None) -> tuple[bool, float]:
    """Return the order of numbers; cases without one are last."""
    return value is None, value or 0.0


def _case_row(
    case: CaseResult, before: CaseResult | None, metrics: Iterable[_Metric], *, repeated: bool
) -> list[object]:
    name = f"{case.name} #{case.repeat}" if repeated else case.name
    pair = None if before is None else {"text": "compare", "link": {"run": before.run_id, "other": case.run_id}}
    state = {"state": _CASE_STATES.get(case.status, "failed" if case.status == "failed" else "pending")}
    values = [_with_difference(case, before, each) for each in metrics]
    return [{"text": name, "link": {"run": case.run_id}}, {**state, "text": case.status}, *values, pair]


def _with_difference(case: CaseResult, before: CaseResult | None, metric: _Metric) -> str:
    """Return a value, and its difference to the baseline's."""
    value, old = metric.value(case), None if before is None else metric.value(before)
    if value is None:
        return "–"
    text = metric.text(value)
    if old is None or old == value:
        return text
    change = float(value) - float(old)
    return f"{text} ({'+' if change > 0 else '-'}{metric.text(abs(change))})"


def _rehearsal_table(store: Store, fork: str, content: bool) -> dict[str, object]:
    """Return counts and pairs of a fork's rehearsal; reasons are content."""
    found = json.loads(whole_record(store, RunId(fork.rpartition("/")[0]), 1).body)["input"]
    counts = " · ".join(f"{count:,} {verdict}" for verdict, count in found["counts"].items() if count)
    columns = [("Run",), ("Verdict", ""), ("Reason", ""), ("Cost", "num"), ("", "num")]
    rows = [_pair_row(run, content) for run in found["runs"]]
    return {"title": "Rehearsal", "note": counts, "columns": columns, "rows": rows}


def _pair_row(run: dict[str, Any], content: bool) -> list[object]:
    fork, step = run["rehearsed_id"], (run["difference"] or {}).get("path") or ""
    pair = {"text": "compare", "link": {"run": f"{fork}{RECORDED}", "other": fork, "step": step}} if fork else None
    state = {"state": {"same": "completed", "skipped": "pending"}.get(run["verdict"], "failed"), "text": run["verdict"]}
    cost = f"{dollars_text(run['cost_before_usd'])} → {dollars_text(run['cost_after_usd'])}"
    name = {"text": run["run_id"], "link": {"run": fork}} if fork else run["run_id"]
    return [name, state, (run["reason"] if content else None) or "", cost, pair]


def _judged_tables(found: Evaluation) -> list[dict[str, object]]:
    deltas = () if found.comparison is None else found.comparison.deltas
    compared = [[d.metric, f"{d.before:.4g}", f"{d.after:.4g}", f"{d.difference:+.3g}", d.verdict] for d in deltas]
    gates = [
        [
            each.text,
            {"state": "completed" if each.holds else "failed", "text": "holds" if each.holds else "fails"},
            str(each.measured),
        ]
        for each in found.gates
    ]
    columns = [("Metric",), ("Baseline", "num"), ("Now", "num"), ("Difference", "num"), ("Verdict", "")]
    metrics: dict[str, object] = {"title": "Metrics", "columns": columns, "rows": compared}
    held_columns = [("Gate",), ("Result", ""), ("Measured", "num")]
    held: dict[str, object] = {"title": "Gates", "columns": held_columns, "rows": gates}
    return [each for each in (metrics, held) if each["rows"]]


# --- Rows and run states for the page -----------------------------------------------------------------------------
# A row is `[seq, at_ms, kind, path, status, latency_ms, tokens, cost, attempts, note, name, of]`; the note of an
# admission is its fork origin.


Row: TypeAlias = list[object]
Hide: TypeAlias = Callable[[str], str]
"""Redaction of untrusted text."""


def row_of(record: RecordSummary, hide: Hide) -> Row:
    """One record, as the page folds it."""
    return [
        record.seq,
        None if record.at is None else round(record.at * 1000),
        record.kind,
        record.path,
        record.status,
        round(record.latency_s * 1000, 3),
        record.tokens,
        record.cost_usd,
        record.attempts,
        record.origin if record.kind == "admitted" else hide(record.note) if record.note else "",
        record.name,
        record.of,
    ]


def rows_of(records: Iterable[RecordSummary], hide: Hide) -> list[Row]:
    """Several records."""
    return [row_of(record, hide) for record in records]


def listed(run: StoredRun, now: StateInfo, hide: Hide) -> dict[str, object]:
    """Return a run in its state, as the list shows it."""
    return {
        "run_id": run.run_id,
        "pipeline": run.pipeline,
        "status": run.status,
        "state": now.state,
        "reason": hide(now.reason) if now.reason else None,
        "wakes_ms": round(run.wake_at * 1000) if now.state == "sleeping" and run.wake_at is not None else None,
        "can_wake": now.state == "sleeping" and not (run.waits and all(each.wait == "event" for each in run.waits)),
        "created_ms": round(run.created_at * 1000),
        "ended_ms": round(run.updated_at * 1000) if run.status in ("completed", "failed", "aborted") else None,
        "tokens": run.tokens,
        "cost_usd": run.cost_usd,
        "message": hide(run.pauses[0].message) if run.pauses else None,
        "worked_ms": round(run.worked_s * 1000) or None,
        "worker": None if run.last_owner is None else ":".join(run.last_owner.split(":")[:2]),
        "version": None if run.fingerprint is None else run.fingerprint[:6],
        "queue": run.queue,
        "retries": run.retries,
    }


def run_state(run: StoredRun, now: StateInfo, hide: Hide, *, can_resume: bool) -> dict[str, object]:
    """Return a run with its open pauses for its own page."""
    return {
        **listed(run, now, hide),
        "records": run.records,
        "can_resume": can_resume,
    }
