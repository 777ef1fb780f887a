"""Gates: grammar, checks and messages."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from flujo_actors import GateError, GateResult
from flujo_actors._api.evaluation.comparison import Metrics, compared
from flujo_actors._api.evaluation.gates import Measured, Vocabulary, parse_gates

WORDS = Vocabulary(
    plain=("pass", "cost", "tokens", "duration", "errors"), families={"assert": "assertion", "score": "score"}
)
VALUES: Metrics = {
    "pass": {f"c{i}": float(i != 0) for i in range(20)},
    "cost": {f"c{i}": 0.01 * (i + 1) for i in range(20)},
    "errors": {"c0": 1.0, "c1": 1.0, "c2": 0.0},
    "score.accuracy": {"c0": 0.8, "c1": 0.8, "c2": 0.8},
    "score.tone of voice": {"c0": 1.0},
    "score.total": {"c0": 2.0, "c1": 3.0},
    "assert.is-polite": {"c0": 1.0, "c1": 0.0},
}


def check(text: str, values: Metrics = VALUES, before: Metrics | None = None) -> GateResult:
    (gate,) = parse_gates([text], WORDS, baseline=before is not None)
    comparison = None if before is None else compared("v1", before, values)
    measured = Measured(subject="evaluation 'v2'", values=values, before=before, after=values, comparison=comparison)
    return gate.check(measured)


@pytest.mark.parametrize(
    ("text", "measured", "holds"),
    [
        ("pass>=0.95", 0.95, True),
        ("pass > 0.95", 0.95, False),
        ("pass==.95", 0.95, True),
        ("pass<1e0", 0.95, True),
        ("cost.total<=2.1", 2.1, True),
        ("cost.max<0.2", 0.2, False),
        ("cost.min>=0.01", 0.01, True),
        ("cost.p95<=0.19", 0.19, True),
        ("errors<=2", 2.0, True),
        ("errors == 0", 2.0, False),
        ("score.accuracy>=0.8", 0.8, True),
        ('score."tone of voice" > -1', 1.0, True),
        ("score.total>=2.5", 2.5, True),
        ("score.total.total==5", 5.0, True),
        ("assert.is-polite>=0.5", 0.5, True),
        ('assert."is-polite".max == 1', 1.0, True),
    ],
)
def test_a_gate_compares_a_metric_with_a_number(text: str, measured: float, holds: bool) -> None:
    """The mean by default, or the named aggregate; rounding errors of means do not decide."""
    result = check(text)
    assert (result.text, result.holds) == (text, holds)
    assert result.measured == pytest.approx(measured)


def test_all_terms_must_hold() -> None:
    """The result has the values of every term."""
    result = check("pass>=0.9 and cost.max<0.1")
    assert result.holds is False
    assert result.measured == "pass 0.95, cost.max 0.2"
    assert result.wanted == "pass >= 0.9 and cost.max < 0.1"


def test_a_multiple_is_taken_over_the_pairs() -> None:
    """A case that the baseline does not have changes neither side."""
    before, now = {"cost": {"a": 1.0, "b": 3.0}}, {"cost": {"a": 2.0, "b": 2.2, "new": 100.0}}
    result = check("cost<=1.1x", now, before)
    assert (result.holds, result.measured, result.wanted) == (True, 2.1, 2.2)
    assert check("cost.total<=1x", now, before).holds is False


@pytest.mark.parametrize(("change", "holds"), [(0.0, True), (1.0, True), (-1.0, False)])
def test_not_worse_follows_the_verdict(change: float, holds: bool) -> None:
    """`same` and `better` hold."""
    before = {"pass": {f"c{i}": 1.0 for i in range(12)}}
    now = {"pass": {name: value + change for name, value in before["pass"].items()}}
    assert check("pass not worse", now, before).holds is holds


def test_not_worse_needs_enough_cases() -> None:
    """Six pairs have no interval, so the gate does not hold."""
    few = {"pass": {f"c{i}": 1.0 for i in range(6)}}
    result = check("pass not worse", few, few)
    assert result.holds is False
    assert result.measured == "too few cases (6) for an interval: at least 10"
    assert "too few cases (6)" in str(result)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("pass>0.9 or x", "gate \"pass>0.9 or x\": 'or' is not known here; give several gates or use 'and'"),
        ("cost<=1.1x", 'gate "cost<=1.1x" needs a baseline'),
        ("pass not worse", 'gate "pass not worse" needs a baseline'),
        ("speed>1", "gate \"speed>1\": 'speed' is not known here; metrics are pass, cost, tokens, duration, errors"),
        ("pass>=", "gate \"pass>=\": a number is expected after '>=', not the end"),
        ("pass>=\u0661", "gate \"pass>=\u0661\": a number is expected after '>=', not '\u0661'"),
        ("pass>=many", "gate \"pass>=many\": a number is expected after '>=', not 'many'"),
        ("pass", "gate \"pass\": the end is not known here; use >=, <=, >, <, == or 'not worse'"),
        ("pass.median>1", "gate \"pass.median>1\": 'median' is not known here; use .total, .p95, .min or .max"),
        ("score>=1", "gate \"score>=1\": a name is expected after 'score': 'score.NAME'"),
        ("pass>=0.9 and", 'gate "pass>=0.9 and": a metric is expected, not the end'),
        ("", 'gate "": a metric is expected, not the end'),
        ("pass>=1e999", 'gate "pass>=1e999": 1e999 is too large'),
        ("cost.max not worse", "gate \"cost.max not worse\": 'not worse' compares means; leave out '.max'"),
        ("pass>=0.9; import os", "gate \"pass>=0.9; import os\": ';' is not known here"),
        ("pass>=0.9%", "gate \"pass>=0.9%\": '%' is not known here"),
        ("cost<=1.1xx", "gate \"cost<=1.1xx\": 'xx' is not known here"),
    ],
)
def test_a_wrong_gate_is_refused_with_a_reason(text: str, message: str) -> None:
    """Before anything runs."""
    with pytest.raises(GateError) as refused:
        parse_gates([text], WORDS, baseline=False)
    assert str(refused.value).startswith(message)
    assert isinstance(refused.value, ValueError)


@pytest.mark.parametrize("wrong", [3, None, b"pass>1", ["pass>1"]], ids=repr)
def test_a_gate_is_a_text(wrong: object) -> None:
    """A list in a list is a mistake."""
    with pytest.raises(GateError, match="a gate is a text"):
        parse_gates([wrong], WORDS, baseline=False)  # type: ignore[list-item]


def test_one_gate_needs_no_list() -> None:
    """A text is one gate, and not a list of letters."""
    (gate,) = parse_gates("pass>=0.9", WORDS, baseline=False)
    assert gate.text == "pass>=0.9"


def test_gates_must_be_listed() -> None:
    """A number is no list of gates."""
    with pytest.raises(GateError, match="gates must be a list of texts, not 3"):
        parse_gates(3, WORDS, baseline=False)  # type: ignore[arg-type]


def test_a_very_long_gate_is_refused_by_its_length() -> None:
    """The message is short."""
    with pytest.raises(GateError, match="is too long: 5,000 characters") as refused:
        parse_gates(["a" * 5_000], WORDS, baseline=False)
    assert len(str(refused.value)) < 300


def test_an_unknown_score_is_refused_after_the_run() -> None:
    """The message names the scores that there are."""
    with pytest.raises(GateError) as refused:
        check("score.tone>=0.8", {"score.accuracy": {"a": 1.0}})
    assert str(refused.value) == (
        "gate \"score.tone>=0.8\": there is no score 'tone' in evaluation 'v2'; it has 'accuracy'"
    )
    with pytest.raises(GateError, match="there is no assertion 'x' in evaluation 'v2'; it has none"):
        check("assert.x>=1", {})


def test_a_metric_that_no_case_has_does_not_hold() -> None:
    """No case completed, so nothing was measured."""
    result = check("cost<=1", {"pass": {"a": 0.0}})
    assert (result.holds, result.measured) == (False, "no case has a value")


def test_a_score_that_is_no_number_does_not_hold() -> None:
    """NaN satisfies no bound."""
    for text in ("score.a>=0", "score.a<=0", "score.a==0"):
        assert check(text, {"score.a": {"a": math.nan}}).holds is False


@given(st.text(min_size=1, max_size=80))
@example("\N{GRINNING FACE}" * 80)
def test_any_name_can_be_quoted(name: str) -> None:
    """With the escapes of JSON, of which 80 characters have at most 960: a gate may have 1,000."""
    result = check(f"score.{json.dumps(name)}>=1", {f"score.{name}": {"a": 1.0}})
    assert result.holds is True


@given(st.text(alphabet="pascotre.\"' \\<>=!0123456789xandorw-()[]{};\n", max_size=60))
def test_any_text_is_a_gate_or_an_error_with_the_text(text: str) -> None:
    """No other exception leaves the parser."""
    assert refusal(text) is None or str(refusal(text)).startswith(f'gate "{text}"')


def refusal(text: str) -> GateError | None:
    try:
        parse_gates([text], WORDS, baseline=True)
    except GateError as error:
        return error
    return None


def test_metrics_of_other_results_are_words_of_their_own() -> None:
    """A rehearsal has fractions of runs, and multiples of recorded values."""
    words = Vocabulary(plain=("same", "different", "diverged", "skipped", "cost", "tokens", "turns"))
    gates = parse_gates(["same>=0.5 and diverged==0", "turns<=1x"], words, baseline=True)
    values = {"same": {"a": 1.0, "b": 0.0}, "diverged": {"a": 0.0, "b": 0.0}, "turns": {"a": 2.0}}
    measured = Measured(subject="the rehearsal", values=values, before={"turns": {"a": 2.0}}, after=values)
    assert [gate.check(measured).holds for gate in gates] == [True, True]
    with pytest.raises(GateError, match="'score' is not known here; metrics are same, different"):
        parse_gates(["score.x>1"], words, baseline=True)
