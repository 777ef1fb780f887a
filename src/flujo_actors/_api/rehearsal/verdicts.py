"""Results of replays and rehearsals, and the sentences of differences."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from typing import Literal, TypeAlias, get_args

import attrs

from ..._core.records.json_codec import untagged
from ..._core.step_paths import ROOT, StepPath
from ...telemetry._redaction.redactor import redacted
from ..evaluation.comparison import Comparison
from ..evaluation.gates import GateResult
from ..evaluation.reports import (
    CASES_SHOWN,
    columns,
    comparison_rows,
    delta_row,
    fitted,
    gate_row,
    junit_gate,
    money,
    only_finite,
    plain_output,
    table,
    visible,
    xml_text,
)
from .recorded_run import stored_form

ReplayVerdict: TypeAlias = Literal["same", "different", "diverged"]
"""Result of a replay; `diverged` needed something that is not recorded."""

DifferenceKind: TypeAlias = Literal["output", "status", "error", "choice", "loops", "tool call", "question", "context"]
"""Kind of a difference between a recorded run and the present code."""

_LONGEST = 200
"""Number of characters of a value in a sentence."""


@attrs.frozen(kw_only=True)
class Difference:
    """First difference between a recorded run and the present code."""

    path: str
    """Path of the step; empty for the run itself."""
    what: DifferenceKind
    """Kind of the difference."""
    recorded: object
    """Recorded value."""
    now: object
    """Value of the present code."""
    seq: int
    """Number of the record that it differs from."""
    sentence: str = attrs.field(default="", repr=False)
    """Text for people, if the values do not say enough."""

    def __str__(self) -> str:
        return self.sentence or f"{self._text()} (record {self.seq})"

    def _text(self) -> str:
        whose, now, recorded = _whose(self.path), shown_value(self.now), shown_value(self.recorded)
        match self.what:
            case "status":
                return f"{whose} is {self.now}, recorded {self.recorded}"
            case "error":
                return f"{whose} failed with {self.now}, recorded {self.recorded}"
            case "choice":
                return f"{whose} chose {self.now!r}, recorded {self.recorded!r}"
            case "loops":
                return f"{whose} ran {self.now} times, recorded {self.recorded}"
            case "context":
                return f"{whose} left the context {now}, recorded {recorded}"
            case _:
                return f"{whose} gave {now}, recorded {recorded}"


def _whose(path: str) -> str:
    return "the run" if path == ROOT else f"step {path!r}"


def shown_value(value: object) -> str:
    """Return a value as short JSON text."""
    text = json.dumps(untagged(stored_form(value)), ensure_ascii=False, default=str)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


@attrs.frozen(kw_only=True)
class Replay:
    """Result of a replay of one stored run on the present code."""

    run_id: str
    """Id of the recorded run."""
    verdict: ReplayVerdict
    """Whether the present code does the same."""
    difference: Difference | None = None
    """First difference in recorded order, if any."""
    changes: tuple[str, ...] = ()
    """Changes of the pipeline since the run, one sentence each."""
    checked: tuple[StepPath, ...] = ()
    """Paths of steps that were executed and compared."""
    taken: tuple[StepPath, ...] = ()
    """Paths of steps that were answered from their record as a whole."""

    def __str__(self) -> str:
        return self.verdict if self.difference is None else f"{self.verdict}: {self.difference}"


RehearsalVerdict: TypeAlias = Literal["same", "different", "diverged", "skipped"]
"""Result of the rehearsal of one run."""


@attrs.frozen(kw_only=True)
class RehearsedRun:
    """One stored run on the changed pipeline."""

    run_id: str
    """Id of the recorded run."""
    verdict: RehearsalVerdict
    """Result of the comparison."""
    reason: str | None = None
    """Reason of a divergence, a skip, or no execution."""
    ran: bool = False
    """Whether anything was executed."""
    fork_seq: int | None = None
    """Last record that was recalled; None if nothing was executed."""
    difference: Difference | None = None
    """First difference, if there is one."""
    cost_before_usd: float = 0.0
    """Cost of the whole recorded run."""
    cost_after_usd: float = 0.0
    """Cost of the whole rehearsed run: its recalled part as recorded."""
    tokens_before: int = 0
    """Tokens of the recorded run."""
    tokens_after: int = 0
    """Tokens of the fork."""
    turns_before: int = 0
    """Model requests of the recorded run."""
    turns_after: int = 0
    """Model requests of the fork."""
    rehearsed_id: str | None = None
    """Id of the fork in the store `into`, if it is kept."""
    same_of: tuple[int, int] = (0, 1)
    """Number of repetitions with the verdict `same`, of all."""


@attrs.frozen(kw_only=True)
class Rehearsal:
    """Result of a rehearsal: its runs, comparison and gates."""

    runs: tuple[RehearsedRun, ...]
    """Result of each rehearsed run."""
    cost_usd: float = 0.0
    """Cost of the live model requests."""
    comparison: Comparison | None = None
    """Change of cost, tokens and turns in compared runs."""
    gates: tuple[GateResult, ...] = ()
    """Result of each condition."""

    @property
    def counts(self) -> dict[str, int]:
        """Return the number of runs by verdict."""
        return {verdict: sum(run.verdict == verdict for run in self.runs) for verdict in get_args(RehearsalVerdict)}

    @property
    def passed(self) -> bool:
        """Return whether all gates hold, or all runs are the same."""
        if self.gates:
            return all(gate.holds for gate in self.gates)
        return all(run.verdict == "same" for run in self.runs)

    def to_text(self, width: int | None = None) -> str:
        """Return the result as plain text.

        Args:
            width: most columns of a line; by default no limit.
        """
        return text_report(self, width)

    def to_json(self) -> str:
        """Return the result as JSON text."""
        return json_report(self)

    def to_junit(self) -> str:
        """Return the result as JUnit XML."""
        return junit_report(self)

    def to_markdown(self) -> str:
        """Return the result as Markdown tables."""
        return markdown_report(self)


# --- Reports of a rehearsal ---------------------------------------------------------------------------------------
# Rules are those of the reports of evaluations: texts pass the redactor, and Markdown lists runs that are not the same.


_DELTAS = ("metric", "n", "recorded", "now", "difference", "95 % interval", "verdict")


def json_report(rehearsal: Rehearsal) -> str:
    """Return the rehearsal as JSON text."""
    comparison = rehearsal.comparison
    data = {
        "passed": rehearsal.passed,
        "counts": rehearsal.counts,
        "cost_usd": rehearsal.cost_usd,
        "runs": [_run_data(run) for run in rehearsal.runs],
        "comparison": None if comparison is None else attrs.asdict(comparison),
        "gates": [attrs.asdict(gate) for gate in rehearsal.gates],
    }
    return json.dumps(only_finite(data), indent=2, ensure_ascii=False).encode("utf-8", "backslashreplace").decode()


def _run_data(run: RehearsedRun) -> dict[str, object]:
    data = attrs.asdict(run, recurse=False)
    return {**data, "same_of": list(run.same_of), "difference": difference_data(run.difference)}


def difference_data(difference: Difference | None) -> dict[str, object] | None:
    """Return a difference as redacted JSON data."""
    if difference is None:
        return None
    data = {name: getattr(difference, name) for name in ("path", "what", "seq")}
    values = {name: plain_output(getattr(difference, name)) for name in ("recorded", "now")}
    return {**data, **values, "sentence": redacted(str(difference))}


def junit_report(rehearsal: Rehearsal) -> str:
    """Return the rehearsal as JUnit XML."""
    suite = ElementTree.Element("testsuite", name="rehearsal", time="0.000")
    for run in rehearsal.runs:
        _junit_run(suite, run)
    for gate in rehearsal.gates:
        junit_gate(suite, gate)
    for kind, tag in (("tests", "testcase"), ("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        suite.set(kind, str(sum(1 for _ in suite.iter(tag))))
    root = ElementTree.Element("testsuites")
    root.append(suite)
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def _junit_run(suite: ElementTree.Element, run: RehearsedRun) -> None:
    found = ElementTree.SubElement(
        suite, "testcase", classname="rehearsal", name=xml_text(visible(run.run_id)), time="0.000"
    )
    tag = {"same": None, "different": "failure", "diverged": "error"}.get(run.verdict, "skipped")
    if tag is not None:
        reason = xml_text(_reason(run))
        ElementTree.SubElement(found, tag, message=reason).text = reason


def markdown_report(rehearsal: Rehearsal) -> str:
    """Return the comparison, and the runs that are not the same."""
    verdict = "passed" if rehearsal.passed else "did not pass"
    lines = [f"## Rehearsal: {verdict}", "", _summary(rehearsal), ""]
    if rehearsal.comparison is not None:
        lines += table(_DELTAS, map(delta_row, rehearsal.comparison.deltas))
    if rehearsal.gates:
        lines += ["", *table(("gate", "holds", "measured"), map(gate_row, rehearsal.gates))]
    return "\n".join([*lines, *_markdown_runs(rehearsal), ""])


def _markdown_runs(rehearsal: Rehearsal) -> Iterator[str]:
    shown = [run for run in rehearsal.runs if run.verdict != "same"]
    if shown:
        rows = ((run.run_id, run.verdict, _reason(run)) for run in shown[:CASES_SHOWN])
        yield from ("", *table(("run", "verdict", "reason"), rows))
    if len(shown) > CASES_SHOWN:
        yield f"\n… and {len(shown) - CASES_SHOWN:,} more runs."


def text_report(rehearsal: Rehearsal, width: int | None = None) -> str:
    """Return the rehearsal as plain text."""
    lines = [f"rehearsal {'passed' if rehearsal.passed else 'did not pass'}", _summary(rehearsal), ""]
    rows = [(run.run_id, run.verdict, money(run.cost_after_usd), _reason(run)) for run in rehearsal.runs]
    lines += columns([("run", "verdict", "cost", ""), *rows])
    if rehearsal.comparison is not None and rehearsal.comparison.deltas:
        lines += ["", "compared with the recorded runs", *columns(comparison_rows(rehearsal.comparison))]
    if rehearsal.gates:
        lines += ["", *(f"{'ok  ' if gate.holds else 'FAIL'} {gate}" for gate in rehearsal.gates)]
    shown = [visible(redacted(line)).rstrip() for line in lines]
    return "\n".join(line if width is None else fitted(line, width) for line in shown) + "\n"


def _summary(rehearsal: Rehearsal) -> str:
    counts = ", ".join(f"{count} {verdict}" for verdict, count in rehearsal.counts.items() if count)
    return f"{counts or 'no runs'}; {money(rehearsal.cost_usd)} spent"


def _reason(run: RehearsedRun) -> str:
    return redacted(run.reason or ("" if run.difference is None else str(run.difference)))
