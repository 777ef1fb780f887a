"""How sure an answer must be: through the front door."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flujo_actors import (
    DeclarationError,
    Flujo,
    LowConfidence,
    Pipeline,
    Step,
    StepResult,
    Usage,
    Votes,
    make_agent_async,
)
from flujo_actors.testing import MemorySink, scripted_model


def sure(*numbers: Any) -> Any:
    """An agent that is so sure, one attempt after the other."""
    left: Iterator[Any] = iter(numbers)

    async def answer(data: Any) -> dict[str, Any]:
        return {"text": f"tea for {data}", "confidence": next(left)}

    return answer


async def finish(data: Any) -> Any:
    return {"finished": data}


class Reviews:
    """A review that counts what it was shown."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    async def __call__(self, data: Any, *, confidence: float | None) -> Any:
        self.seen.append((data["text"], confidence))
        return "reviewed"


def step(agent: Any, **options: Any) -> Any:
    return Step("answer", agent, **{"min_confidence": 0.85, **options})


def of(result: Any, name: str = "answer") -> Any:
    return next(each for each in result.step_history if each.name == name)


def test_an_answer_that_is_sure_enough_passes() -> None:
    """C1: exactly at the limit, too."""
    review = Reviews()
    for number in (0.9, 0.85):
        result = Flujo(step(sure(number), on_low_confidence=review) >> Step("finish", finish)).run("two")
        assert result.output["finished"]["confidence"] == number
        assert (of(result).metadata["confidence"], of(result).metadata["routed"]) == (number, False)
    assert review.seen == []


@pytest.mark.parametrize("as_list", [True, False])
def test_an_answer_that_is_not_is_reviewed(as_list: bool) -> None:
    """C2: the two steps of the review, then the pipeline goes on with what they made."""

    async def first(data: Any) -> str:
        return f"A({data['text']})"

    async def second(data: Any) -> str:
        return f"B({data})"

    review: Any = [first, second] if as_list else Step("a", first) >> Step("b", second)
    result = Flujo(step(sure(0.5), on_low_confidence=review) >> Step("finish", finish)).run("two")
    assert result.output == {"finished": "B(A(tea for two))"}
    assert of(result).metadata["routed"] is True
    assert (of(result).metadata["confidence"], of(result).metadata["min_confidence"]) == (0.5, 0.85)


def test_a_review_is_told_how_sure_the_answer_was() -> None:
    """5.2: by name."""
    review = Reviews()
    assert Flujo(step(sure(0.5), on_low_confidence=review)).run("two").output == "reviewed"
    assert review.seen == [("tea for two", 0.5)]


def test_without_a_review_the_step_fails() -> None:
    """C3: and says both numbers."""
    result = Flujo(step(sure(0.5))).run("two")
    assert result.status == "failed"
    assert isinstance(result.error, LowConfidence)
    assert (result.error.confidence, result.error.min_confidence) == (0.5, 0.85)
    assert "0.5" in (result.feedback or "")
    assert "0.85" in (result.feedback or "")


def test_a_fallback_acts_on_a_low_answer() -> None:
    """C4: and on a review that fails."""

    async def spare(data: Any) -> str:
        return "spare"

    async def broken(data: Any) -> str:
        raise ValueError("no")

    assert Flujo(step(sure(0.5), fallback=spare)).run("two").output == "spare"
    assert Flujo(step(sure(0.5), fallback=spare, on_low_confidence=broken)).run("two").output == "spare"


def test_a_function_can_say_how_sure_an_answer_is() -> None:
    """C5: sync, async or an agent."""

    async def tea(data: Any) -> str:
        return "tea"

    async def slowly(text: str) -> float:
        return len(text) / 10

    judge = make_agent_async(scripted_model(0.3), output_type=float)
    for source in (lambda text: len(text) / 10, slowly, judge):
        result = Flujo(Step("answer", tea, confidence=source)).run("two")
        assert (result.output, of(result).metadata["confidence"]) == ("tea", pytest.approx(0.3))
    assert result.total_tokens > 0


def test_a_branch_is_reviewed_before_it_is_joined() -> None:
    """C6."""
    branches = {"a": step(sure(0.5), on_low_confidence=Reviews()), "b": Step("b", finish)}
    result = Flujo(Step.parallel("both", branches)).run("two")
    assert result.output == {"a": "reviewed", "b": {"finished": "two"}}


def test_a_person_can_review(tmp_path: Path) -> None:
    """C8: paused, and the answer is the output; also in another process."""
    review = Step.human_in_the_loop("look", "Is this right?")
    for store in (None, f"sqlite:///{tmp_path / 'runs.db'}"):
        flujo = Flujo(step(sure(0.5), on_low_confidence=review) >> Step("finish", finish), store=store)
        paused = flujo.run("two")
        assert (paused.status, paused.feedback) == ("paused", "Is this right?")
        again = flujo if store is None else Flujo(
            step(sure(), on_low_confidence=review) >> Step("finish", finish), store=store
        )  # fmt: skip
        result = again.resume(paused.state_token, "it is")
        assert result.output == {"finished": "it is"}
        assert of(result).metadata["confidence"] == 0.5


def test_a_low_answer_is_told() -> None:
    """C9: which step, how sure it was, and how sure it should have been."""
    sink = MemorySink()
    Flujo(step(sure(0.5)), settings={"telemetry": {"sinks": [sink]}}).run("two")
    [low] = sink.of("confidence.low")
    assert (low.step_name, low.confidence, low.min_confidence) == ("answer", 0.5, 0.85)


def test_without_a_limit_it_is_only_noted() -> None:
    """C10."""
    result = Flujo(Step("answer", sure(0.5), confidence="confidence")).run("two")
    assert result.success
    assert of(result).metadata["confidence"] == 0.5


def test_a_low_answer_is_tried_again_first() -> None:
    """5.3: with feedback, and the review only sees what is left."""
    review, told = Reviews(), []
    numbers = iter([0.2, 0.9])

    async def answer(data: Any, *, feedback: str | None) -> dict[str, Any]:
        told.append(feedback)
        return {"text": "x", "confidence": next(numbers)}

    result = Flujo(step(answer, max_retries=1, on_low_confidence=review)).run("two")
    assert (result.success, review.seen, of(result).attempts) == (True, [], 2)
    assert told[0] is None
    assert "confidence is 0.2" in told[1]


@pytest.mark.parametrize("number", [None, float("nan"), 1.5, -1, "high", True])
def test_what_is_no_number_is_low(number: Any) -> None:
    """5.4: and the feedback says so."""
    result = Flujo(step(sure(number))).run("two")
    assert isinstance(result.error, LowConfidence)
    assert result.error.confidence is None
    assert "confidence" in (result.feedback or "")


def test_a_judge_that_fails_is_no_judge() -> None:
    """An answer of which nobody knows how sure it is, is not sure enough."""
    result = Flujo(step(sure(1.0), confidence=lambda output: 1 / 0)).run("two")
    assert "not known: ZeroDivisionError" in (result.feedback or "")


def test_the_most_frequent_answer_wins() -> None:
    """5.5: its share is the confidence, and every vote is paid for."""
    answers = iter(["tea", "coffee", "tea", "milk", "tea"])

    async def vote(data: Any) -> StepResult:
        return StepResult(name="vote", output=next(answers), usage=Usage(input_tokens=10))

    result = Flujo(Step("answer", vote, confidence=Votes(5), min_confidence=0.6)).run("?")
    assert (result.output, of(result).metadata["confidence"], result.total_tokens) == ("tea", 0.6, 50)


def test_votes_that_fail_count_for_nothing() -> None:
    """Two of four failed: the others are one half."""
    answers = iter([ValueError("no"), "TEA", ValueError("no"), "tea"])

    async def vote(data: Any) -> str:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    result = Flujo(Step("answer", vote, confidence=Votes(4, key=str.lower))).run("?")
    assert (result.output.lower(), of(result).metadata["confidence"]) == ("tea", 0.5)


def test_a_loop_is_reviewed_before_its_condition() -> None:
    """5.6."""
    body = step(sure(0.5), on_low_confidence=Reviews())
    loop = Step.loop_until("loop", body, lambda output, context: output == "reviewed", max_loops=1)
    assert Flujo(loop).run("two").output == "reviewed"


def test_what_a_review_returns_is_judged_like_any_output() -> None:
    """5.2: by the step's own validators."""
    checked = step(sure(0.5), on_low_confidence=Reviews(), validators=[lambda output: output != "reviewed"])
    assert "Validation failed" in (Flujo(checked).run("two").feedback or "")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"min_confidence": 1.2}, "min_confidence"),
        ({"min_confidence": True}, "min_confidence"),
        ({"min_confidence": "high"}, "min_confidence"),
        ({"confidence": 3}, "cannot call"),
        ({"on_low_confidence": 3, "min_confidence": 0.5}, "on_low_confidence"),
        ({"on_low_confidence": finish}, "needs a min_confidence"),
    ],
)
def test_a_confidence_that_makes_no_sense_is_refused(options: dict[str, Any], said: str) -> None:
    """C7, and what else can be written wrongly."""
    with pytest.raises(DeclarationError, match=said):
        Step("answer", finish, **options)


def test_a_pipeline_can_stand_anywhere() -> None:
    """The whole of a pipeline may be reviewed as a step of a composite."""
    inner = Pipeline([step(sure(0.1), on_low_confidence=Reviews())], name="inner")
    assert Flujo(Pipeline([inner, Step("finish", finish)])).run("x").output == {"finished": "reviewed"}
