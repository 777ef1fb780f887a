"""Questions and answers across processes: consumed once, stored before they are acted on, bound to what was asked."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import attrs
import pydantic
import pytest

from flujo_actors import (
    AlreadyAnswered,
    Backoff,
    FingerprintMismatch,
    Flujo,
    InvalidAnswer,
    NotPaused,
    Pipeline,
    RunClient,
    Step,
)
from kit.durable_places import AN_HOUR_LATER, Place
from kit.effects import Effects
from kit.other_processes import KILLED, PointedStore, Points, all_at_once, in_another_process

pytestmark = pytest.mark.slow

ANSWERED, REFUSED = 0, 3


class Approval(pydantic.BaseModel):
    """What an approver says."""

    yes: bool
    reason: str = pydantic.Field(default="", max_length=10)

    @pydantic.field_validator("reason")
    @classmethod
    def _polite(cls, reason: str) -> str:
        if "damn" in reason:
            raise ValueError("be polite")
        return reason


@attrs.frozen
class Amount:
    """How much."""

    euros: int


def asking(effects: Effects, schema: Any = None, message: Any = "May I?") -> Pipeline:
    """Work, a question, and what is done with its answer."""

    async def use(data: Any) -> str:
        effects.add("use")
        return repr(data)

    return Step("work", lambda data: data) >> Step.human_in_the_loop("ask", message, schema) >> Step("use", use)


def paused(place: Place, pipeline: Pipeline, run_id: str = "run") -> str:
    """Run in another process until it asks; the token."""
    assert in_another_process(lambda: Flujo(pipeline, store=place.open()).run("data", run_id=run_id)) == 0
    token = RunClient(place.open(), allow_blocking=True).get(run_id).state_token
    assert token is not None
    return token


@pytest.mark.parametrize("by", ["resume", "client"])
def test_of_eight_processes_that_answer_one_wins(place: Place, effects: Effects, by: str) -> None:
    """The seven others are told that it is answered, also if the run has ended by then; the answer is used once."""
    token = paused(place, asking(effects))

    def answer(number: int) -> int:
        store = place.open()
        try:
            if by == "client":
                RunClient(store, allow_blocking=True).answer(token, number)
            else:
                Flujo(asking(effects), store=store).resume(token, number)
        except AlreadyAnswered:
            return REFUSED
        return ANSWERED

    codes = all_at_once(8, answer)
    assert sorted(codes) == [ANSWERED] + [REFUSED] * 7
    store = place.open()
    if by == "client":
        Flujo(asking(effects), store=store).resume("run")
    assert RunClient(store, allow_blocking=True).state("run").output == repr(codes.index(ANSWERED))
    assert effects.counted() == {"use": 1}
    with pytest.raises(AlreadyAnswered):
        RunClient(store, allow_blocking=True).answer(token, 9)
    with pytest.raises(AlreadyAnswered):
        Flujo(asking(effects), store=store).resume(token, 9)


def test_an_answer_is_reused_if_the_process_dies_after_giving_it(place: Place, effects: Effects) -> None:
    """Killed right after the answer was stored: nobody has to be asked again."""
    token = paused(place, asking(effects))
    points = Points(name="after answer")
    dying = Flujo(asking(effects), store=PointedStore(place.open(), points))
    assert in_another_process(lambda: dying.resume(token, "yes")) == KILLED
    assert effects.counted() == {}
    assert RunClient(place.open(), allow_blocking=True).prompts() == []
    assert Flujo(asking(effects), store=place.open(AN_HOUR_LATER)).resume("run").output == "'yes'"


def test_a_token_of_an_earlier_question_is_refused(place: Place, effects: Effects) -> None:
    """An approval of one amount is not an approval of another, in the same place of the same run."""
    token = paused(place, asking(effects, message="Pay 10?"))
    stale = token.replace(token.split(":")[1], "0" * 16)
    for attempt in (
        lambda: RunClient(place.open(), allow_blocking=True).answer(stale, "yes"),
        lambda: Flujo(asking(effects, message="Pay 10?"), store=place.open()).resume(stale, "yes"),
    ):
        with pytest.raises(NotPaused):
            attempt()
    other = paused(place, asking(effects, message="Pay 9000?"), "other")
    assert other.split(":")[1] != token.split(":")[1]


def test_a_loop_that_asks_each_time_takes_each_answer_for_its_own_question(place: Place) -> None:
    """The first answer's token is refused in the second turn, also where the question reads the same."""
    loop = Step.loop_until("loop", Step.human_in_the_loop("ask", "Enough?"), lambda output, context: output == "yes")
    flujo = Flujo(loop, store=place.open())
    first = flujo.run("start", run_id="run")
    second = flujo.resume(first.state_token, "no")
    assert (first.status, second.status) == ("paused", "paused")
    with pytest.raises(AlreadyAnswered):
        flujo.resume(first.state_token, "yes")
    assert flujo.resume(second.state_token, "yes").output == "yes"


@pytest.mark.parametrize(
    ("schema", "bad", "good", "used"),
    [
        (int, "many", 3, "3"),
        ({"type": "object", "required": ["euros"]}, {}, {"euros": 2}, "{'euros': 2}"),
        (Approval, {"yes": "perhaps"}, {"yes": True}, "Approval(yes=True, reason='')"),
        (Amount, {"euros": "x"}, {"euros": 4}, "Amount(euros=4)"),
    ],
    ids=["type", "json schema", "pydantic", "attrs"],
)
@pytest.mark.parametrize("by", ["resume", "client"])
def test_an_answer_that_does_not_fit_leaves_the_pause_open(
    place: Place, effects: Effects, schema: Any, bad: Any, good: Any, used: str, by: str
) -> None:
    """Whoever answers, with or without the pipeline at hand; what fits is what the schema makes of it."""
    token = paused(place, asking(effects, schema))
    store = place.open()
    flujo, client = Flujo(asking(effects, schema), store=store), RunClient(store, allow_blocking=True)
    with pytest.raises(InvalidAnswer):
        client.answer(token, bad) if by == "client" else flujo.resume(token, bad)
    assert client.get("run").state_token == token
    if by == "client":
        client.answer(token, good)
    result = flujo.resume("run") if by == "client" else flujo.resume(token, good)
    assert result.output == used


def test_an_answer_that_only_the_pipeline_can_refuse_fails_its_step(place: Place, effects: Effects) -> None:
    """A JSON Schema cannot say everything: what it lets through and the step refuses is a failure that says so."""
    token = paused(place, asking(effects, Approval))
    RunClient(place.open(), allow_blocking=True).answer(token, {"yes": True, "reason": "damn"})
    result = Flujo(asking(effects, Approval), store=place.open()).resume("run")
    assert result.status == "failed"
    assert "be polite" in (result.feedback or "")
    assert "still paused" not in (result.feedback or "")
    assert effects.counted() == {}


def picky(effects: Effects, **options: Any) -> Pipeline:
    """A question whose validator takes one answer only, with a processor that writes into the context."""

    def note(answer: Any, *, context: Any) -> Any:
        context.seen = [*getattr(context, "seen", []), answer]
        return answer

    async def instead(data: Any) -> str:
        effects.add("instead")
        return f"instead of {data}"

    def only_good(answer: Any) -> str | None:
        return None if answer == "good" else f"{answer!r} is not good"

    ask = Step.human_in_the_loop(
        "ask", "ok?", validators=only_good, processors={"after": note}, fallback=Step("robot", instead), **options
    )
    return Pipeline.from_step(ask)


@pytest.mark.parametrize("by", ["resume", "client"])
def test_a_refused_answer_goes_to_the_fallback_in_another_process(place: Place, effects: Effects, by: str) -> None:
    """The answer is used up, nothing of it is in the context, and the fallback is done once."""
    token = paused(place, picky(effects))
    flujo = Flujo(picky(effects), store=place.open())
    if by == "client":
        RunClient(place.open(), allow_blocking=True).answer(token, "bad")
    result = flujo.resume("run") if by == "client" else flujo.resume(token, "bad")
    assert (result.status, result.output) == ("completed", "instead of data")
    assert not hasattr(result.final_context, "seen")
    assert effects.counted() == {"instead": 1}


def test_a_question_that_is_asked_again_survives_its_process(place: Place, effects: Effects) -> None:
    """Each process refuses one answer; the retries are counted over all of them, and old tokens stay used up."""
    pipeline = picky(effects, max_retries=2, backoff=Backoff.none())
    tokens = [paused(place, pipeline)]
    for answer in ("bad", "worse"):
        resume = functools.partial(Flujo(pipeline, store=place.open()).resume, tokens[-1], answer)
        assert in_another_process(resume) == 0
        tokens.append(RunClient(place.open(), allow_blocking=True).get("run").state_token or "")
    assert len(set(tokens)) == 3
    flujo = Flujo(pipeline, store=place.open())
    with pytest.raises(NotPaused):
        flujo.resume(tokens[0], "good")
    result = flujo.resume(tokens[2], "good")
    assert (result.output, result.step_history[0].attempts, result.final_context.seen) == ("good", 3, ["good"])


def test_a_process_that_dies_while_it_refuses_an_answer_loses_nothing(place: Place, effects: Effects) -> None:
    """Killed at any call to the store: whoever resumes it finds the question asked again, once, and counted."""
    pipeline = picky(effects, max_retries=1, backoff=Backoff.none())
    for number in itertools.count(1):
        run_id = f"run {number}"
        token = paused(place, pipeline, run_id)
        dying = Flujo(pipeline, store=PointedStore(place.open(), Points(number)))
        code = in_another_process(functools.partial(dying.resume, token, "bad"))
        later = Flujo(pipeline, store=place.open(AN_HOUR_LATER))
        again = later.resume(run_id)
        if again.state_token == token:  # it died before the answer was stored
            again = later.resume(token, "bad")
        assert again.state_token != token
        assert "'bad' is not good" in (again.feedback or "")
        result = later.resume(again.state_token, "good")
        assert (result.output, result.step_history[0].attempts) == ("good", 2)
        if code == 0:
            break
        assert code == KILLED
    assert number > 5


def test_a_changed_pipeline_takes_no_answer(place: Place, effects: Effects) -> None:
    """It is refused before the answer is consumed, which can then be given with another mode."""
    token = paused(place, asking(effects))
    longer = asking(effects) >> Step("more", lambda data: data)
    with pytest.raises(FingerprintMismatch, match="step 'more' was added"):
        Flujo(longer, store=place.open()).resume(token, "yes")
    assert RunClient(place.open(), allow_blocking=True).get("run").status == "paused"
    assert Flujo(longer, store=place.open()).resume(token, "yes", mode="compat").status == "completed"


def test_questions_side_by_side_are_answered_in_any_order(place: Place) -> None:
    """Two branches ask; each answer goes to its own, by whoever and whenever."""
    branches = {name: Step.human_in_the_loop(f"ask {name}", f"{name}?") for name in ("left", "right")}
    pipeline = Pipeline.from_step(Step.parallel("both", branches))
    Flujo(pipeline, store=place.open()).run(0, run_id="run")
    client = RunClient(place.open(), allow_blocking=True)
    tokens = {prompt.message: prompt.state_token for prompt in client.prompts()}
    assert set(tokens) == {"left?", "right?"}
    client.answer(tokens["right?"], "R")
    assert [prompt.message for prompt in client.prompts()] == ["left?"]
    still = Flujo(pipeline, store=place.open()).resume("run")
    assert still.status == "paused"
    result = Flujo(pipeline, store=place.open()).resume(tokens["left?"], "L")
    assert result.output == {"left": "L", "right": "R"}


def test_a_question_is_answered_once_while_the_run_goes_on_with_another_answer(place: Place) -> None:
    """The answer is kept for whoever goes on with the run, and a second one is refused."""
    store, taken = place.open(), []

    async def after_left(data: str) -> str:
        RunClient(store, allow_blocking=True).answer(tokens["right?"], "R")
        with pytest.raises(AlreadyAnswered):
            RunClient(store, allow_blocking=True).answer(tokens["right?"], "too late")
        taken.append(data)
        return data

    ask_left = Step.human_in_the_loop("ask left", "left?") >> Step("after left", after_left)
    pipeline = Pipeline.from_step(
        Step.parallel("both", {"left": ask_left, "right": Step.human_in_the_loop("ask right", "right?")})
    )
    Flujo(pipeline, store=store).run(0, run_id="run")
    tokens = {prompt.message: prompt.state_token for prompt in RunClient(store, allow_blocking=True).prompts()}
    assert Flujo(pipeline, store=store).resume(tokens["left?"], "L").status == "paused"
    assert taken == ["L"]
    assert Flujo(pipeline, store=store).resume("run").output == {"left": "L", "right": "R"}


def test_a_run_that_is_resumed_without_an_answer_still_asks(place: Place, effects: Effects) -> None:
    """The same question, under the same token; nothing before it is done again."""
    token = paused(place, asking(effects))
    again = Flujo(asking(effects), store=place.open()).resume("run")
    assert (again.status, again.state_token) == ("paused", token)
    assert [prompt.state_token for prompt in RunClient(place.open(), allow_blocking=True).prompts()] == [token]


def test_prompts_are_read_in_pages(place: Place) -> None:
    """Latest first; the cursor of the last prompt of a page requests the next one."""
    store = place.open()
    client = RunClient(store, allow_blocking=True)
    for number in range(3):
        Flujo(Step.human_in_the_loop("ask", f"{number}?"), store=store).run(0, run_id=f"run {number}")
    first = client.prompts(limit=2)
    assert [prompt.message for prompt in first] == ["2?", "1?"]
    assert [prompt.run_id for prompt in client.prompts(limit=2, cursor=first[-1].cursor)] == ["run 0"]
    assert len(client.prompts()) == 3
