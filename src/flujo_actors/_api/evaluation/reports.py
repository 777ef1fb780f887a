"""Reports of an evaluation: plain text, JSON, JUnit XML and Markdown.

Rules:

1. All texts pass the redactor. JSON keeps ids and the names of cases and metrics: they pair results.
2. Characters that XML 1.0 forbids are written as `\\x..`.
3. Markdown lists only cases that changed or did not pass, at most fifty.
"""

from __future__ import annotations

import json
import math
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable, Iterator, Mapping, Sequence

import attrs

from ..._core.error_info import message_of
from ..._runtime.run.json_text import to_json
from ...errors import FlujoError
from ...telemetry._redaction.redactor import redacted, redacted_value
from .comparison import Comparison, Delta, mean
from .evaluation_results import FORMAT, MARK, CaseResult, Evaluation, metrics_of
from .gates import GateResult

CASES_SHOWN = 50
"""Number of cases in a Markdown report."""

_LONGEST_TEXT = 300
"""Number of characters of one error or reason in a table."""

_FORBIDDEN = re.compile("[^\\t\\n\\r\\x20-\\ud7ff\\ue000-\\ufffd\\U00010000-\\U0010ffff]")


# --- JSON ---------------------------------------------------------------------------------------------------


def json_report(evaluation: Evaluation) -> str:
    """Return the evaluation as JSON that can be read as a baseline."""
    facts = {name: getattr(evaluation, name) for name in _FACTS}
    comparison = evaluation.comparison
    data = {
        MARK: FORMAT,
        **facts,
        "name": redacted(evaluation.name),
        "pass_rate": _finite(evaluation.pass_rate()),
        "cases": [_case_data(case) for case in evaluation.cases],
        "comparison": None if comparison is None else attrs.asdict(comparison),
        "gates": [redacted_value(attrs.asdict(gate)) for gate in evaluation.gates],
    }
    return json.dumps(only_finite(data), indent=2, ensure_ascii=False).encode("utf-8", "backslashreplace").decode()


_FACTS = ("run_id", "name", "status", "passed", "total_cost_usd", "judge_cost_usd", "total_tokens", "duration_s")


def _case_data(case: CaseResult) -> dict[str, object]:
    data = attrs.asdict(case, recurse=False)
    texts = {name: _texts(data[name]) for name in ("labels", "reasons", "evaluator_failures")}
    error = None if case.error is None else redacted(case.error)
    copied = {name: dict(data[name]) for name in ("assertions", "scores")}
    return {**data, **copied, **texts, "error": error, "output": plain_output(case.output)}


def plain_output(value: object) -> object:
    """Return an output as plain data, or its type."""
    try:
        return redacted_value(json.loads(to_json(value, plain=True)))
    except FlujoError as error:
        return f"<{type(value).__name__}: {redacted(message_of(error))}>"


def _texts(named: Mapping[str, str]) -> dict[str, str]:
    return {name: redacted(text) for name, text in named.items()}


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def only_finite(value: object) -> object:
    """Return the data with `null` for NaN and infinity."""
    match value:
        case float():
            return _finite(value)
        case dict():
            return {str(key): only_finite(each) for key, each in value.items()}
        case list() | tuple():
            return [only_finite(each) for each in value]
        case _:
            return value


# --- JUnit --------------------------------------------------------------------------------------------------


def junit_report(evaluation: Evaluation) -> str:
    """Return the evaluation as JUnit XML."""
    suite = ElementTree.Element("testsuite", name=xml_text(evaluation.name), time=f"{evaluation.duration_s:.3f}")
    for case in evaluation.cases:
        _junit_case(suite, case, repeated=_is_repeated(evaluation))
    for gate in evaluation.gates:
        junit_gate(suite, gate)
    for kind, tag in (("tests", "testcase"), ("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        suite.set(kind, str(sum(1 for _ in suite.iter(tag))))
    root = ElementTree.Element("testsuites")
    root.append(suite)
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def _junit_case(suite: ElementTree.Element, case: CaseResult, *, repeated: bool) -> None:
    attributes = {"classname": suite.get("name", ""), "name": xml_text(_shown_name(case, repeated=repeated))}
    found = ElementTree.SubElement(suite, "testcase", attributes, time=f"{case.duration_s:.3f}")
    tag = {"passed": None, "failed": "failure", "error": "error"}.get(case.status, "skipped")
    if tag is not None:
        message = xml_text(reason_of(case))
        ElementTree.SubElement(found, tag, message=message).text = message


def junit_gate(suite: ElementTree.Element, gate: GateResult) -> None:
    """Add the test case of a gate."""
    found = ElementTree.SubElement(suite, "testcase", classname="gates", name=xml_text(gate.text), time="0.000")
    if not gate.holds:
        message = xml_text(str(gate))
        ElementTree.SubElement(found, "failure", message=message).text = message


def xml_text(text: str) -> str:
    """Return a redacted text with forbidden characters escaped (rule 2)."""
    return _FORBIDDEN.sub(lambda found: f"\\x{ord(found.group()):02x}", redacted(text))


# --- Markdown -----------------------------------------------------------------------------------------------


def markdown_report(evaluation: Evaluation) -> str:
    """Return the metrics, and the cases that changed or did not pass."""
    verdict = "passed" if evaluation.passed else "did not pass"
    lines = [
        f"## Evaluation {_cell(evaluation.run_id)} of {_cell(evaluation.name)}: {verdict}",
        "",
        _summary(evaluation),
        "",
    ]
    lines += _markdown_metrics(evaluation)
    if evaluation.gates:
        lines += ["", *table(("gate", "holds", "measured"), map(gate_row, evaluation.gates))]
    return "\n".join([*lines, *_markdown_cases(evaluation), ""])


def _markdown_metrics(evaluation: Evaluation) -> Iterator[str]:
    comparison = evaluation.comparison
    if comparison is None:
        values = metrics_of(evaluation.cases)
        return table(
            ("metric", "n", "mean"), ((name, len(each), _number(mean(each.values()))) for name, each in values.items())
        )
    heading = ("metric", "n", f"before ({comparison.baseline})", "after", "difference", "95 % interval", "verdict")
    return table(heading, map(delta_row, comparison.deltas))


def delta_row(delta: Delta) -> tuple[object, ...]:
    """Return the cells of one metric in a comparison."""
    difference = f"{delta.difference:+.4g}"
    return (
        delta.metric, delta.n, _number(delta.before), _number(delta.after), difference, _interval(delta), delta.verdict,
    )  # fmt: skip


def _markdown_cases(evaluation: Evaluation) -> Iterator[str]:
    comparison, repeated = evaluation.comparison, _is_repeated(evaluation)
    changed = set() if comparison is None else {*comparison.changed, *comparison.added}
    shown = [case for case in evaluation.cases if case.status != "passed" or case.name in changed]
    if shown:
        rows = ((_shown_name(case, repeated=repeated), case.status, reason_of(case)) for case in shown[:CASES_SHOWN])
        yield from ("", *table(("case", "status", "reason"), rows))
    if len(shown) > CASES_SHOWN:
        yield f"\n… and {len(shown) - CASES_SHOWN:,} more cases."
    for title, names in _unpaired(comparison):
        yield f"\n{title}: {', '.join(map(_cell, names[:CASES_SHOWN]))}"


def table(heading: Sequence[object], rows: Iterable[Sequence[object]]) -> Iterator[str]:
    """Return the lines of a Markdown table."""
    yield "| " + " | ".join(map(_cell, heading)) + " |"
    yield "|" + "---|" * len(heading)
    for row in rows:
        yield "| " + " | ".join(map(_cell, row)) + " |"


def _cell(value: object) -> str:
    """Return a value as one line that cannot end its cell."""
    text = " ".join(_cut(redacted(str(value))).split())
    return xml_text(re.sub(r"([\\|`<>*_\[\]])", r"\\\1", text)) if isinstance(value, str) else text


def gate_row(gate: GateResult) -> tuple[str, str, str]:
    """Return the cells of a gate: text, whether it holds, measured value."""
    measured = gate.measured if isinstance(gate.measured, str) else _number(gate.measured)
    return gate.text, "yes" if gate.holds else "no", measured


# --- text ---------------------------------------------------------------------------------------------------


def text_report(evaluation: Evaluation, width: int | None = None) -> str:
    """Return the evaluation as plain text."""
    repeated = _is_repeated(evaluation)
    verdict = "passed" if evaluation.passed else "did not pass"
    lines = [f"evaluation {evaluation.run_id} of {evaluation.name}: {verdict}", _summary(evaluation), ""]
    rows = [
        (_shown_name(case, repeated=repeated), case.status, money(case.cost_usd), _reason_or_scores(case))
        for case in evaluation.cases
    ]
    lines += columns([("case", "status", "cost", ""), *rows])
    if evaluation.comparison is not None:
        lines += [
            "",
            f"compared with {evaluation.comparison.baseline}",
            *columns(comparison_rows(evaluation.comparison)),
        ]
        lines += [f"{title}: {', '.join(names)}" for title, names in _unpaired(evaluation.comparison)]
    if evaluation.gates:
        lines += ["", *(f"{'ok  ' if gate.holds else 'FAIL'} {gate}" for gate in evaluation.gates)]
    shown = [visible(redacted(line)).rstrip() for line in lines]
    return "\n".join(line if width is None else fitted(line, width) for line in shown) + "\n"


def comparison_rows(comparison: Comparison) -> list[tuple[str, ...]]:
    """Return heading and rows of a comparison, as text."""
    heading = ("metric", "n", "before", "after", "difference", "95 % interval", "verdict")
    return [heading, *(tuple(map(str, delta_row(delta))) for delta in comparison.deltas)]


def columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return rows as lines with aligned columns."""
    shown = [[" ".join(visible(redacted(cell)).split()) for cell in row] for row in rows]
    widths = [max(len(row[column]) for row in shown) for column in range(len(shown[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in shown]


def visible(text: str) -> str:
    """Return a text whose control characters cannot change a terminal."""
    return "".join(char if char.isprintable() else f"\\x{ord(char):02x}" for char in text)


def fitted(line: str, width: int) -> str:
    """Return a line of at most `width` characters."""
    return line if len(line) <= width else line[: max(0, width - 1)] + "…"


# --- both ---------------------------------------------------------------------------------------------------


def _summary(evaluation: Evaluation) -> str:
    passed = sum(case.status == "passed" for case in evaluation.cases)
    judged = f", {money(evaluation.judge_cost_usd)} of it for judges" if evaluation.judge_cost_usd else ""
    cost = f"{money(evaluation.total_cost_usd)}{judged}, {evaluation.total_tokens:,} tokens"
    state = "" if evaluation.status == "completed" else f"{evaluation.status}: "
    return f"{state}{passed} of {len(evaluation.cases)} passed, {cost}, {evaluation.duration_s:.1f} s"


def reason_of(case: CaseResult) -> str:
    """Return why a case did not pass, in one redacted line."""
    false = [name for name, value in case.assertions.items() if not value]
    parts = [_with_reason(name, case.reasons) for name in false]
    parts += [f"evaluator {name} failed: {text}" for name, text in case.evaluator_failures.items()]
    if case.error is not None:
        parts.insert(0, case.error)
    return redacted("; ".join(parts) or ("" if case.status == "passed" else case.status))


def _with_reason(name: str, reasons: Mapping[str, str]) -> str:
    return f"{name}: {reasons[name]}" if name in reasons else name


def _reason_or_scores(case: CaseResult) -> str:
    scores = ", ".join(f"{name} {_number(value)}" for name, value in case.scores.items())
    return _cut("; ".join(part for part in (reason_of(case), scores) if part))


def _shown_name(case: CaseResult, *, repeated: bool) -> str:
    name = redacted(case.name)
    return f"{name} #{case.repeat}" if repeated else name


def _is_repeated(evaluation: Evaluation) -> bool:
    return any(case.repeat > 1 for case in evaluation.cases)


def _unpaired(comparison: Comparison | None) -> list[tuple[str, tuple[str, ...]]]:
    if comparison is None:
        return []
    listed = [("Added cases", comparison.added), ("Removed cases", comparison.removed)]
    return [(title, names) for title, names in listed if names]


def _interval(delta: Delta) -> str:
    return "" if delta.low is None or delta.high is None else f"{delta.low:+.4g} to {delta.high:+.4g}"


def _number(value: float) -> str:
    return f"{value:.4g}"


def money(value: float) -> str:
    """Return dollars, with four decimals below one dollar."""
    return f"${value:.4f}" if value < 1 else f"${value:,.2f}"


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST_TEXT else text[: _LONGEST_TEXT - 1] + "…"
