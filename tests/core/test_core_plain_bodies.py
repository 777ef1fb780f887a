"""Records that are written by hand are letter for letter those that the codec writes."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from flujo_actors import Failure, PipelineResult, StepResult, Success
from flujo_actors._core.records import record_bodies
from flujo_actors._core.records.record_bodies import plain_body, plain_end, plain_text
from flujo_actors._core.usage import Usage

texts = st.text(st.characters())
plain = st.none() | st.booleans() | st.integers() | texts
other = st.floats() | st.binary() | st.lists(plain) | st.dictionaries(texts, plain) | st.tuples(plain)
results = st.builds(
    StepResult,
    name=texts,
    output=plain | other,
    latency_s=st.floats(0, 1e9) | st.just(0.0),
    attempts=st.sampled_from([1, 1, 1, 2]),
    metadata=st.sampled_from([{}, {}, {"branch": "one"}]),
    feedback=st.sampled_from([None, None, "so"]),
    usage=st.sampled_from([StepResult(name="").usage, Usage(requests=1)]),
)


def by_the_codec(outcome: Success | Failure) -> str:
    return record_bodies.make_body(**record_bodies.settled_data(outcome, lambda text: text, lambda result: None))


@given(results)
def test_a_body_by_hand_is_the_one_that_the_codec_writes(result: StepResult) -> None:
    """Whatever the hand does not know how to write is left to the codec."""
    body = plain_body(Success(step_result=result))
    assert body is None or body == by_the_codec(Success(step_result=result))


@given(texts, plain)
def test_most_steps_are_written_by_hand(name: str, output: object) -> None:
    """A plain value at the first attempt is, unless it is longer or larger than what can be looked over."""
    body = plain_body(Success(step_result=StepResult(name=name, output=output, latency_s=0.25)))
    assert (body is None) == (type(output) is int and abs(output) >= 1 << 53)


def test_what_has_to_be_looked_at_is_left_to_the_codec() -> None:
    """Other types, long texts, and times that are none."""
    outputs = [1.5, math.nan, [1], {"a": 1}, b"x", (1,), "x" * 100_000, True + 10**20]
    assert [plain_text(output) for output in outputs] == [None] * len(outputs)
    assert plain_body(Success(step_result=StepResult(name="s", latency_s=math.inf))) is None
    assert plain_body(Failure(feedback="no")) is None


@given(
    st.sampled_from(["completed", "failed", "paused", "aborted"]),
    st.sampled_from([0, 3]),
    st.sampled_from([0.0, 0.5]),
    st.sampled_from([None, "why"]),
)
def test_the_end_of_a_run_by_hand_is_the_one_that_the_codec_writes(
    status: str, tokens: int, cost_usd: float, feedback: str | None
) -> None:
    """That is so for a run that completed and used nothing."""
    result = PipelineResult(
        run_id="r",
        status=status,
        total_tokens=tokens,
        total_cost_usd=cost_usd,
        feedback=feedback,  # type: ignore[arg-type]
    )
    body = plain_end(result)
    assert body is None or body == record_bodies.make_body(**record_bodies.result_data(result))
    assert (body is None) == (status != "completed" or bool(tokens or cost_usd or feedback))
