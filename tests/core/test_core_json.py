"""`to_json` and `from_json`: what is written can be read, and equals what was written."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import math
import pathlib
from collections import OrderedDict, defaultdict
from types import MappingProxyType
from typing import Any

import pydantic
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sample_models import Color, Counter, Document, Dog, Leaf, Note, Point, texts, values

from flujo_actors import (
    Aborted,
    Chunk,
    Context,
    ErrorInfo,
    Failure,
    Paused,
    PipelineResult,
    StepOutcome,
    StepResult,
    Success,
    from_json,
    to_json,
)
from flujo_actors._core.outcomes import TerminalOutcome
from flujo_actors._core.usage import Usage
from flujo_actors.errors import NotSerializable


def examples(count: int) -> settings:
    """So many examples, on a machine that may be busy."""
    return settings(max_examples=count, deadline=None, suppress_health_check=[HealthCheck.too_slow])


amounts = st.floats(min_value=0, max_value=1e9)
counts = st.integers(0, 10**12)
usages = st.builds(Usage, input_tokens=counts, output_tokens=counts, requests=counts, cost_usd=amounts)
infos = st.recursive(
    st.builds(ErrorInfo, type_name=texts, message=texts, notes=st.lists(texts, max_size=2).map(tuple)),
    lambda inner: st.builds(ErrorInfo, type_name=texts, message=texts, causes=st.lists(inner, max_size=2).map(tuple)),
    max_leaves=3,
)


def _step_results(history: st.SearchStrategy[Any]) -> st.SearchStrategy[StepResult]:
    return st.builds(
        StepResult,
        name=texts,
        output=values,
        success=st.booleans(),
        attempts=counts,
        latency_s=amounts,
        token_counts=counts,
        cost_usd=amounts,
        feedback=st.none() | texts,
        metadata=st.dictionaries(texts, values, max_size=2),
        step_history=history,
        usage=usages,
    )


step_results = _step_results(st.lists(_step_results(st.just(())), max_size=2))
outcomes = st.one_of(
    st.builds(Success, step_result=step_results),
    st.builds(Failure, error=st.none() | infos, feedback=st.none() | texts, step_result=st.none() | step_results),
    st.builds(Paused, message=texts, state_token=st.none() | texts),
    st.builds(Aborted, reason=texts),
    st.builds(Chunk, data=values, step_name=texts, attempt=counts, seq=counts, partial_value=values),
)
results = st.builds(
    PipelineResult,
    run_id=texts,
    status=st.sampled_from(["completed", "failed", "paused", "aborted"]),
    output=values,
    step_history=st.lists(step_results, max_size=2),
    total_cost_usd=amounts,
    total_tokens=counts,
    final_context=values,
    feedback=st.none() | texts,
    state_token=st.none() | texts,
)


def round_trip(value: Any, expected: Any = Any) -> Any:
    return from_json(to_json(value), expected)


# --- what comes back ----------------------------------------------------------------------------------------


@examples(150)
@given(values)
def test_a_value_equals_itself_after_the_round_trip(value: Any) -> None:
    """Whatever a step may return and the library can keep comes back equal and of the same type."""
    back = round_trip(value)
    assert back == value
    assert type(back) is type(value)


@examples(60)
@given(outcomes)
def test_an_outcome_equals_itself_after_the_round_trip(outcome: Any) -> None:
    """Each outcome can be read by its own type and by the union."""
    assert round_trip(outcome, type(outcome)) == outcome
    assert round_trip(outcome, StepOutcome) == outcome


@examples(40)
@given(step_results)
def test_a_step_result_equals_itself_after_the_round_trip(result: StepResult) -> None:
    """A step's result comes back with everything nested in it."""
    assert round_trip(result, StepResult) == result


@examples(40)
@given(results)
def test_a_pipeline_result_equals_itself_after_the_round_trip(result: PipelineResult) -> None:
    """A run's result comes back with its history and its context."""
    assert round_trip(result, PipelineResult) == result


@given(outcomes)
@examples(20)
def test_outcomes_may_be_outputs_themselves(outcome: Any) -> None:
    """A message inside a message is a value like any other."""
    result = StepResult(name="outer", output=[outcome])
    assert round_trip(result, StepResult) == result


def test_a_union_of_some_outcomes_can_be_asked_for() -> None:
    """`from_json` takes any union of message types, and refuses what is not in it."""
    assert round_trip(Aborted(reason="late"), TerminalOutcome) == Aborted(reason="late")
    with pytest.raises(NotSerializable, match="expected a stored success or failure, found kind 'aborted'"):
        from_json(to_json(Aborted(reason="late")), Success | Failure)


def test_infinities_survive() -> None:
    """JSON has no infinity; outputs may."""
    assert round_trip([math.inf, -math.inf, 1.5]) == [math.inf, -math.inf, 1.5]
    assert math.isnan(round_trip(math.nan))


def test_equal_sets_make_equal_texts() -> None:
    """The text of a set does not depend on the order in which this process happens to keep it."""
    many = [f"item {number}" for number in range(50)]
    backwards = many[::-1]
    assert to_json(set(many)) == to_json(set(backwards))
    assert json.loads(to_json(frozenset(many)))["value"] == sorted(many)


def test_subclasses_of_builtins_become_the_builtin() -> None:
    """Dict and list subclasses, read-only mappings and paths come back as equal plain values."""
    assert round_trip(defaultdict(int, a=1)) == {"a": 1}
    assert round_trip(OrderedDict(b=1, a=2)) == {"b": 1, "a": 2}
    assert round_trip(MappingProxyType({1: 2})) == {1: 2}
    assert round_trip(pathlib.PurePosixPath("/a/b")) == pathlib.PurePosixPath("/a/b")


def test_a_path_of_the_file_system_can_be_opened_after_the_round_trip(tmp_path: pathlib.Path) -> None:
    """The next step opens it, in whichever process it runs; a pure path stays pure."""
    (tmp_path / "notes").write_text("tea")
    assert round_trip(tmp_path / "notes").read_text() == "tea"
    assert type(round_trip(pathlib.PurePosixPath("/a"))) is pathlib.PurePosixPath


def test_a_dict_that_looks_like_a_tag_stays_a_dict() -> None:
    """The key `$` in user data is data."""
    tricky = {"$": "model", "type": "builtins.eval", "value": {"$": "tuple", "value": [1]}}
    assert round_trip(tricky) == tricky
    assert round_trip(Context(**{"$": "tuple", "value": [1]})) == Context(**{"$": "tuple", "value": [1]})


def test_keys_that_json_would_confuse_stay_apart() -> None:
    """`1`, `"1"` and `(1,)` are three keys."""
    assert round_trip({1: "int", "1": "str", (1,): "tuple"}) == {1: "int", "1": "str", (1,): "tuple"}


def test_a_pydantic_field_keeps_the_type_of_its_value() -> None:
    """A subclass in a field, an alias, raw bytes and an URL all come back, which a JSON dump would not give."""
    document = Document(
        Title="t", anything={1: dt.date(2024, 2, 29)}, animal=Dog(tricks=["sit"]), home="http://a.example/", raw=b"\xff"
    )
    document.__pydantic_extra__["$"] = {2, 3}  # type: ignore[index]
    assert round_trip(document) == document
    assert type(round_trip(document).animal) is Dog


def test_fields_outside_the_constructor_come_back_if_they_can() -> None:
    """State in `init=False` fields is kept; what cannot be written there is made anew by the class."""
    counter, note = Counter("clicks"), Note("text")
    counter.count, note.length = 7, 4
    assert round_trip(counter) == counter
    assert round_trip(note) == note


def test_an_attrs_value_with_a_private_field_comes_back() -> None:
    """The constructor's name of a private attribute differs from the attribute's."""
    assert round_trip(Leaf(1, hidden=5)) == Leaf(1, hidden=5)


# --- what is refused ----------------------------------------------------------------------------------------


class Secretive(pydantic.BaseModel):
    password: pydantic.SecretStr = pydantic.SecretStr("hush")


@pytest.mark.parametrize(
    "value",
    [object(), {"a": [open]}, Leaf(iter(())), Document(anything=object()), Secretive(), range(3)],
    ids=["object", "function", "iterator", "in pydantic", "secret", "range"],
)
def test_what_has_no_json_form_is_refused_by_type(value: object) -> None:
    """A value that cannot be kept is a typed error, and a secret is not written."""
    with pytest.raises(NotSerializable) as caught:
        to_json(value)
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize(
    "result",
    [
        StepResult(name="a", cost_usd=math.inf),
        StepResult(name="a", token_counts=10**5000),
        StepResult(name="a", feedback=object()),  # type: ignore[arg-type]
    ],
    ids=["infinite cost", "huge count", "feedback of a wrong type"],
)
def test_a_message_with_an_impossible_field_is_refused_by_type(result: StepResult) -> None:
    """Fields of messages are plain numbers and texts; others are a typed error."""
    with pytest.raises(NotSerializable, match="StepResult"):
        to_json(result)


def _circular_list() -> object:
    value: list[Any] = []
    value.append(value)
    return value


def _circular_model() -> object:
    document = Document()
    document.anything = {"me": document}
    return document


def _deep() -> object:
    value: object = 0
    for _ in range(100_000):
        value = [value]
    return value


@pytest.mark.parametrize("make", [_circular_list, _circular_model, _deep])
def test_circular_and_deep_values_are_refused(make: Any) -> None:
    """Nesting without end is a typed error, not a crash."""
    with pytest.raises(NotSerializable, match="nested too deeply to be written, or contains itself"):
        to_json(make())


def test_deep_text_is_refused() -> None:
    """Text that no stack can hold is a typed error."""
    with pytest.raises(NotSerializable, match="nested too deeply to be read"):
        from_json("[" * 100_000, list)
    with pytest.raises(NotSerializable, match="nested too deeply to be read"):
        from_json("[" * 900 + "]" * 900, list)


@pytest.mark.parametrize(
    "make",
    [
        lambda inner: [inner],
        lambda inner: Point(inner),
        lambda inner: {1: inner},
        Leaf,
        lambda inner: Document(anything=inner),
    ],
    ids=["list", "named tuple", "dict", "attrs", "pydantic"],
)
def test_what_can_be_written_can_be_read_from_a_fuller_stack(make: Any) -> None:
    """Nothing is accepted for writing at a depth at which a reader could not take it in."""
    value, text = 0, ""
    for _ in range(400):
        value = make(value)
        try:
            text = to_json(value)
        except NotSerializable:
            break
    assert 0 < len(text) < 30_000, "there is a limit"
    assert _after(100, lambda: to_json(from_json(text, Any))) == text


def _after(frames: int, call: Any) -> Any:
    return _after(frames - 1, call) if frames else call()


def test_a_hundred_nested_results_can_be_kept() -> None:
    """Results nest as deeply as pipelines do."""
    result = StepResult(name="innermost")
    for level in range(100):
        result = StepResult(name=str(level), step_history=(result,))
    assert _after(100, lambda: round_trip(result, StepResult)) == result


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("nonsense", "not JSON"),
        ("1" * 5000, "not JSON"),
        ('{"$":"nope"}', "unknown type tag 'nope'"),
        ('{"$":["list"]}', "unknown type tag"),
        ('{"$":"uuid","value":"x"}', "stored uuid cannot be read"),
        ('{"$":"dict"}', "stored dict cannot be read"),
        ('{"$":"set","value":[[]]}', "stored set cannot be read"),
        ('{"$":"decimal","value":"x"}', "stored decimal cannot be read"),
        ('{"$":"bytes","value":"x"}', "stored bytes cannot be read"),
        ('{"$":"timedelta","value":["a"]}', "stored timedelta cannot be read"),
        ('{"$":"model","type":"no.Such","value":{}}', "'no.Such', which this process does not know"),
        ('{"$":"model","type":[],"value":{}}', "does not know"),
        ('{"$":"model","type":"sample_models.Leaf","value":{"nonsense":1}}', "does not fit the class"),
        ('{"$":"model","type":"sample_models.Leaf","value":[]}', "is list, not an object"),
        ('{"$":"model","type":"sample_models.Color","value":"green"}', "does not fit the class"),
        ('{"$":"model","type":"sample_models.Document","value":{"titled":[]}}', "does not fit the class"),
    ],
)
def test_damaged_data_is_a_typed_error_that_says_why(text: str, reason: str) -> None:
    """Alone or inside a message, what cannot be read is named."""
    round_trip([Leaf(1), Document(), Note(""), Color.RED])  # a class is known once a value of it was written
    with pytest.raises(NotSerializable, match=reason.replace("(", r"\(")):
        from_json(text, Leaf if "sample" in text else Any)
    if text.startswith("{"):
        with pytest.raises(NotSerializable, match=reason) as caught:
            from_json(f'{{"kind":"chunk","data":{text}}}', Chunk)
        assert "$.data" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "expected", "reason"),
    [
        ('{"kind":"chunk"}', Chunk, "required field missing"),
        ('{"kind":"step_result","name":"a","attempts":"many"}', StepResult, "attempts"),
        ('{"kind":"pipeline_result","run_id":"1","status":"lost"}', PipelineResult, "status"),
        ('{"kind":"step_result","name":"a"}', StepOutcome, "expected a stored success or failure or paused"),
        ("[]", Success, "expected a stored success, found kind None"),
        ('{"kind":["success"]}', Success, "found kind"),
        ('{"a":1}', Leaf, "expected a stored sample_models.Leaf, found dict"),
    ],
)
def test_what_was_not_asked_for_is_refused(text: str, expected: Any, reason: str) -> None:
    """The type given to `from_json` is what comes back, or an error."""
    with pytest.raises(NotSerializable, match=reason):
        from_json(text, expected)


@examples(60)
@given(
    st.recursive(
        st.none() | st.text("$abc") | st.integers(),
        lambda i: st.lists(i) | st.dictionaries(st.sampled_from(["$", "value", "type", "kind"]), i),
    )
)
def test_no_json_crashes_the_reader(data: Any) -> None:
    """Any JSON at all is read as a value or refused by type."""
    for expected in (Any, StepOutcome, PipelineResult):
        with contextlib.suppress(NotSerializable):
            from_json(json.dumps(data), expected)


def test_a_context_is_stored_under_its_public_name_and_read_by_its_former_one() -> None:
    """Where the class is defined is nobody's business, also not a store's."""
    stored = to_json(Context(a=1))
    assert '"flujo_actors.Context"' in stored
    before = stored.replace("flujo_actors.Context", "flujo_actors.context.freeform.Context")
    assert from_json(before, Context) == Context(a=1)


@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a":', "}")])
def test_the_same_depth_is_read_and_written_by_every_interpreter(opening: str, closing: str) -> None:
    """249 levels, whatever the recursion limit is."""
    middle = "1" if closing == "}" else ""
    text = opening * 249 + middle + closing * 249
    assert to_json(from_json(text, list if closing == "]" else dict)) == text
    for levels in (250, 500, 5_000, 50_000):
        with pytest.raises(NotSerializable, match="nested too deeply to be read"):
            from_json(opening * levels + middle + closing * levels, list)
