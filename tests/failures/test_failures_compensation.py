"""Compensation: what is undone, by whom, in which order, with what, and what becomes of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import pytest
from sagas import Saga, both_hosts, run_in

from flujo_actors import (
    Aborted,
    Backoff,
    Compensate,
    DeclarationError,
    Flujo,
    InvalidAnswer,
    Pipeline,
    PipelineResult,
    Recovered,
    Step,
    Undo,
    UsageLimitExceededError,
    UsageLimits,
    from_json,
    make_agent_async,
    to_json,
)
from flujo_actors.testing import Billed, scripted_model


async def fine(data: Any) -> Any:
    return data


async def broken(data: Any) -> Any:
    raise ValueError("broke")


BROKEN = Step("broken", broken)


# --- what is undone -----------------------------------------------------------------------------------------


@both_hosts
def test_a_composite_that_completed_is_undone_by_its_own_compensation_alone(host: Callable[..., Any]) -> None:
    """It knows the whole; those inside it are not asked."""
    saga = Saga()
    trip = Pipeline([saga.step("flight"), saga.step("hotel")], name="trip", compensate=saga.undo("trip"))
    run_in(host, trip >> BROKEN)
    assert saga.log == ["flight", "hotel", "undo trip"]
    assert (saga.told[0].input, saga.told[0].output) == ("", "hotel!")


@both_hosts
def test_a_composite_that_failed_is_undone_from_the_inside(host: Callable[..., Any]) -> None:
    """Its own compensation is not called: there is no whole to undo."""
    saga = Saga()
    trip = Pipeline([saga.step("flight"), saga.step("hotel", raises="full")], name="trip", compensate=saga.undo("trip"))
    run_in(host, saga.step("a") >> trip)
    assert saga.log == ["a", "flight", "hotel", "undo hotel?", "undo flight", "undo a"]


@both_hosts
def test_branches_are_undone_backwards_from_the_last_declared(host: Callable[..., Any]) -> None:
    """a1, a2 | b1, b2: b2, b1, a2, a1, however long each took."""
    saga = Saga()
    branches = {
        "a": saga.step("a1", takes=0.3) >> saga.step("a2"),
        "b": saga.step("b1") >> saga.step("b2"),
    }
    run_in(host, Step.parallel("p", branches) >> BROKEN)
    assert saga.log[4:] == ["undo b2", "undo b1", "undo a2", "undo a1"]


@both_hosts
def test_items_are_undone_from_the_highest_index_and_turns_from_the_last(host: Callable[..., Any]) -> None:
    """Also where items take turns of different length."""
    log: list[Any] = []

    async def item(n: int) -> int:
        return n * 10

    async def undo_item(undo: Undo) -> None:
        log.append((undo.path, undo.input, undo.output))

    async def count(n: int) -> int:
        return n + 1

    each = Step.map_over("items", Step("item", item, compensate=undo_item), items=[3, 1, 2], max_concurrency=2)
    turns = Step.loop_until("loop", Step("count", count, compensate=undo_item), lambda n, context: n >= 2, input=0)
    run_in(host, each >> turns >> BROKEN)
    assert log == [
        ("loop/~i2", 1, 2), ("loop/~i1", 0, 1),
        ("items/~i2", 2, 20), ("items/~i1", 1, 10), ("items/~i0", 3, 30),
    ]  # fmt: skip


@both_hosts
def test_a_map_whose_item_fails_undoes_those_that_were_begun(host: Callable[..., Any]) -> None:
    """What completed, what failed and what was cut short; not what never began."""
    log: list[str] = []

    async def item(n: int) -> int:
        import anyio

        await anyio.sleep(n)
        if n == 2:
            raise ValueError("two")
        return n

    async def undo_item(undo: Undo) -> None:
        log.append(f"{undo.input}{'' if undo.completed else '?'}")

    body = Step("item", item, compensate=undo_item)
    run_in(host, Step.map_over("items", body, items=[1, 2, 9, 5], max_concurrency=3))
    assert log == ["5?", "9?", "2?", "1"]
    log.clear()
    run_in(host, Step.map_over("items", body, items=[1, 2, 9, 5], max_concurrency=2))
    assert log == ["9?", "2?", "1"]


@both_hosts
def test_a_failed_call_that_is_ignored_is_undone_at_once(host: Callable[..., Any]) -> None:
    """While its siblings are at work; they stand, and are undone if something fails later."""
    saga = Saga()
    branches = {"a": saga.step("a", takes=5.0), "b": saga.step("b", raises="broke")}
    ignoring = Step.parallel("p", branches, on_branch_failure="ignore")
    result = run_in(host, ignoring)
    assert (result.status, result.output) == ("completed", {"a": "a!"})
    assert sorted(saga.log[:2]) == ["a", "b"]
    assert saga.log[2:] == ["undo b?"]
    saga.log.clear()
    result = run_in(host, ignoring >> BROKEN)
    assert saga.log[2:] == ["undo b?", "undo a"]
    assert result.fully_undone


@both_hosts
def test_an_attempt_cut_short_by_its_timeout_is_undone_before_the_next(host: Callable[..., Any]) -> None:
    """What was in flight is told so."""
    saga = Saga()
    both = Pipeline([saga.step("a"), saga.step("slow", takes=60.0)])
    again = Step.parallel("p", {"x": both}, timeout_s=1.0, max_retries=1, backoff=Backoff.none())
    result = run_in(host, again)
    assert result.status == "failed"
    assert saga.log == ["a", "slow", "undo slow?", "undo a"] * 2


@both_hosts
def test_a_fallback_that_failed_is_undone_before_the_handler_is_told(host: Callable[..., Any]) -> None:
    """And its step after that, by what stands around it."""
    saga = Saga()
    fallback = Pipeline([saga.step("x"), saga.step("y", raises="too")])
    pay = saga.step("pay", raises="declined", fallback=fallback, on_failure=saga.handler("tell"))
    run_in(host, pay)
    assert saga.log == ["pay", "x", "y", "undo y?", "undo x", "tell", "undo pay?"]


@both_hosts
def test_a_fallback_inside_a_step_without_a_compensation_is_undone_itself(host: Callable[..., Any]) -> None:
    """As anything inside a step that completed."""
    saga = Saga()
    pay = Step("pay", saga.call("pay", raises="declined"), fallback=saga.step("invoice"))
    run_in(host, pay >> BROKEN)
    assert saga.log == ["pay", "invoice", "undo invoice"]


def test_a_step_that_was_not_begun_has_nothing_to_undo() -> None:
    """A hook that is against it, or an input that cannot be made."""
    saga = Saga()

    def hook(payload: Any) -> Any:
        return Aborted(reason="not today") if payload.kind == "pre_step" and payload.step_name == "b" else None

    result = Flujo(saga.step("a") >> saga.step("b"), hooks=hook).run("x")
    assert result.status == "aborted"
    assert saga.log == ["a", "undo a"]
    assert [each.step_name for each in result.undone] == ["a"]


def test_a_question_that_nobody_answered_has_nothing_to_undo() -> None:
    """But what was done before it in its branch has."""
    saga = Saga()
    asking = saga.step("a") >> Step.human_in_the_loop("ask", "?", compensate=saga.undo("ask"))
    both = Step.parallel("p", {"a": asking, "b": Step("b", saga.call("b", takes=0.01, raises="broke"))})
    assert Flujo(both).run("x").status == "failed"
    assert saga.log[-1] == "undo a"
    assert "undo ask?" not in saga.log


# --- what a compensation gets -------------------------------------------------------------------------------


@attrs.define
class Trip:
    seat: str = ""
    undone: list[str] = attrs.field(factory=list)


@both_hosts
def test_a_compensation_gets_context_resources_and_a_key_of_its_own(host: Callable[..., Any]) -> None:
    """It sees what its step left in the context, also in a branch; what it leaves there stays."""
    seen: list[Any] = []

    async def book(data: Any, *, context: Trip, idempotency_key: str) -> str:
        context.seat = "12A"
        seen.append(idempotency_key)
        return "booked"

    async def cancel(undo: Undo, *, context: Trip, resources: Any, idempotency_key: str) -> None:
        seen.append((context.seat, resources, idempotency_key, undo.forward_key))
        context.undone.append(undo.step_name)

    one = Step.parallel("p", {"x": Step("book", book, compensate=cancel)})
    other = Step("fine", fine, compensate=cancel)
    flujo = Flujo(one >> other >> BROKEN, context_model=Trip, resources="db")
    result = run_in(host, flujo, run_id="r")
    assert seen == [
        "r:p/x",
        ("12A", "db", "r:fine/~c", "r:fine"),
        ("12A", "db", "r:p/x/~c", "r:p/x"),
    ]
    assert result.final_context.undone == ["fine", "book"]


def test_an_undo_says_why() -> None:
    """What failed, in words and as the failure; an abort has no failure."""
    saga = Saga()
    Flujo(saga.step("a") >> BROKEN).run("x")
    [undo] = saga.told
    assert "broke" in undo.reason
    assert (undo.failure.step_name, undo.failure.message) == ("broken", "broke")

    async def stops(data: Any) -> Any:
        return Aborted(reason="enough")

    Flujo(saga.step("a") >> Step("stops", stops)).run("x")
    assert (saga.told[1].reason, saga.told[1].failure) == ("enough", None)


def test_an_undo_sees_what_its_step_saw_and_not_what_became_of_it() -> None:
    """Steps that change their data in place do not change what is undone."""
    seen: list[Any] = []

    async def fill(basket: list[str]) -> list[str]:
        basket.append("tea")
        return basket

    async def undo(undo: Undo) -> None:
        seen.append((undo.input, undo.output))

    async def empty(basket: list[str]) -> None:
        basket.clear()
        raise ValueError("dropped")

    Flujo(Step("fill", fill, compensate=undo) >> Step("empty", empty)).run(["cup"])
    assert seen == [(["cup"], ["cup", "tea"])]


def test_a_step_with_an_input_of_its_own_is_undone_with_that() -> None:
    """It is what it worked on."""
    saga = Saga()
    Flujo(Step("a", fine, input=lambda previous, context: f"{previous}!", compensate=saga.undo("a")) >> BROKEN).run("x")
    assert saga.told[0].input == "x!"


def test_a_compensation_is_a_step_with_attempts_of_its_own() -> None:
    """Tried as often as it says, with a fallback, as a pipeline; anything below it may ask for `undo`."""
    log: list[str] = []

    async def first(undo: Undo) -> str:
        log.append(f"first {undo.output}")
        return "kept"

    async def second(text: str, *, undo: Undo) -> None:
        log.append(f"second {text} {undo.step_name}")

    refund = Step(
        "refund", broken, max_retries=3, backoff=Backoff.none(), fallback=Step("f", first) >> Step("s", second)
    )
    result = Flujo(Step("pay", fine, compensate=refund) >> BROKEN).run("x")
    assert log == ["first x", "second kept pay"]
    assert result.fully_undone
    assert [each.name for each in result.step_history] == ["pay", "broken", "refund"]
    assert result.step_history[2].attempts == 5


def test_a_compensation_is_counted_and_never_refused() -> None:
    """The budget is spent, and the refund is made all the same."""
    models = [scripted_model(Billed("ok", input_tokens=90)), scripted_model(Billed("undone", input_tokens=50))]
    pay, refund = (make_agent_async(model) for model in models)

    async def empty(data: Any) -> None:
        raise UsageLimitExceededError("spent")

    pipeline = Step("pay", pay, compensate=Step("refund", refund, input="refund")) >> Step("next", empty)
    with pytest.raises(UsageLimitExceededError) as stopped:
        Flujo(pipeline, usage_limits=UsageLimits(total_tokens_limit=100)).run("x")
    result = stopped.value.result
    assert isinstance(result, PipelineResult)
    assert [each.name for each in result.step_history] == ["pay", "next", "refund"]
    assert result.total_tokens == sum(each.token_counts for each in result.step_history) == 140
    assert [each.success for each in result.undone] == [True]


# --- what stops a run ---------------------------------------------------------------------------------------


@both_hosts
def test_a_limit_that_is_reached_undoes_everything_and_is_raised(host: Callable[..., Any]) -> None:
    """No handler, no fallback, at any depth; the error has the result."""
    saga = Saga()

    async def limit(data: Any) -> Any:
        saga.log.append("limit")
        raise UsageLimitExceededError("too much")

    b = Step("b", limit, compensate=saga.undo("b"), on_failure=saga.handler("h"), fallback=Step("f", saga.call("f")))
    inner = Pipeline([saga.step("a2"), b], on_failure=saga.handler("h2"))
    with pytest.raises(UsageLimitExceededError) as stopped:
        run_in(host, saga.step("a1") >> inner)
    assert saga.log == ["a1", "a2", "limit", "undo b?", "undo a2", "undo a1"]
    assert [each.step_name for each in stopped.value.result.undone] == ["b", "a2", "a1"]  # type: ignore[union-attr]


def test_a_run_that_a_hook_aborts_is_undone() -> None:
    """And stays aborted."""
    saga = Saga()

    def hook(payload: Any) -> Any:
        return Aborted(reason="enough") if payload.kind == "post_step" and payload.step_name == "b" else None

    result = Flujo(saga.step("a") >> saga.step("b") >> saga.step("c"), hooks=hook).run("x")
    assert (result.status, result.feedback) == ("aborted", "enough")
    assert saga.log == ["a", "b", "undo b", "undo a"]


# --- a compensation that fails ------------------------------------------------------------------------------


def test_undoing_that_stopped_inside_goes_no_further_around_it() -> None:
    """A person has to look at it first."""
    saga = Saga()
    strict = Compensate(saga.undo("hotel", raises="closed"), if_it_fails="stop")
    inner = Pipeline([saga.step("hotel", compensate=strict), BROKEN], name="inner")
    result = Flujo(saga.step("flight") >> inner).run("x")
    assert saga.log == ["flight", "hotel", "undo hotel"]
    assert result.feedback is not None
    assert result.feedback.endswith("ValueError: closed")


def test_an_attempt_that_counts_is_undone_although_one_before_it_could_not_be() -> None:
    """Where undoing stopped was another attempt."""
    saga = Saga()
    strict = Compensate(saga.undo("hotel", raises="closed"), if_it_fails="stop")
    inner = Pipeline([saga.step("hotel", compensate=strict), Step("b", saga.call("b", raises="once", times=1))])
    twice = Step.parallel("p", {"x": inner}, max_retries=1, backoff=Backoff.none())
    Flujo(saga.step("flight") >> twice >> BROKEN).run("x")
    assert saga.log == ["flight", "hotel", "b", "undo hotel", "hotel", "b", "undo hotel"]


@both_hosts
@pytest.mark.parametrize(
    ("answers", "undone"), [(["skip"], False), (["retry", "retry"], True), (["retry", "skip"], False)]
)
def test_a_person_says_what_to_do_about_a_compensation(
    host: Callable[..., Any], answers: list[str], undone: bool
) -> None:
    """Try again, or leave it; the rest waits meanwhile, and is undone then."""
    saga = Saga()
    left = [2]

    async def cancel(undo: Undo, *, idempotency_key: str) -> None:
        saga.log.append(f"undo hotel {idempotency_key}")
        left[0] -= 1
        if left[0] >= 0:
            raise ValueError("closed")

    asking = Compensate(cancel, if_it_fails="pause")
    flujo = Flujo(saga.step("flight") >> saga.step("hotel", compensate=asking) >> BROKEN)

    async def main() -> Any:
        result = await flujo.run_async("x", run_id="r")
        for answer in answers:
            assert result.status == "paused"
            assert "'hotel' could not be undone" in (result.feedback or "")
            with pytest.raises(InvalidAnswer):
                await flujo.resume_async(result.state_token, "perhaps")
            result = await flujo.resume_async(result.state_token, answer)
        return result

    result = host(main)
    assert result.status == "failed"
    assert saga.log[-1] == "undo flight"
    assert set(saga.log[2:-1]) == {"undo hotel r:hotel/~c"}
    assert [(each.step_name, each.success) for each in result.undone] == [("hotel", undone), ("flight", True)]


@both_hosts
def test_a_compensation_may_ask_before_it_acts(host: Callable[..., Any]) -> None:
    """The run is paused, the rest waits, and nothing is done twice."""
    saga = Saga()
    refund = Step.human_in_the_loop("sure", "Refund 900?") >> Step("refund", saga.handler("refund"))
    flujo = Flujo(saga.step("a") >> saga.step("pay", compensate=refund) >> saga.step("c", raises="broke"))

    async def main() -> Any:
        outcomes = [each async for each in flujo.run_async("x", run_id="r")]
        assert type(outcomes[-1]).__name__ == "Paused"
        assert saga.log == ["a", "pay", "c", "undo c?"]
        return await flujo.resume_async(outcomes[-1].state_token, "yes")

    result = host(main)
    assert (result.status, saga.log[4:]) == ("failed", ["refund", "undo a"])
    assert [each.step_name for each in result.undone] == ["c", "pay", "a"]


# --- what is told -------------------------------------------------------------------------------------------


@both_hosts
def test_whoever_watches_hears_nothing_after_a_top_level_failure(host: Callable[..., Any]) -> None:
    """Handlers and undoing inside a step come before it; what the run undoes is in its result."""
    saga = Saga()
    inner = Pipeline([saga.step("x"), Step("y", broken, on_failure=Step("tell", fine))], name="inner")
    flujo = Flujo(saga.step("a") >> inner)

    async def main() -> Any:
        return [each async for each in flujo.run_async("x")]

    told = host(main)
    assert [getattr(each.step_result, "name", None) for each in told] == ["a", "x", "tell", "y", "undo", "inner"]
    assert saga.log == ["a", "x", "undo x", "undo a"]


def test_a_result_with_what_was_undone_goes_to_json_and_back() -> None:
    """Equal after the round trip."""
    saga = Saga()
    result = Flujo(saga.step("a", compensate=saga.undo("a", raises="closed")) >> BROKEN).run("x")
    again = from_json(to_json(result), PipelineResult)
    assert again == result
    assert (again.undone, again.fully_undone) == (result.undone, False)


# --- declarations -------------------------------------------------------------------------------------------


def test_what_undoes_cannot_be_undone() -> None:
    """Neither itself nor a part of it."""
    with pytest.raises(DeclarationError, match="has a `compensate` itself"):
        Step("a", fine, compensate=Step("b", fine, compensate=fine))
    with pytest.raises(DeclarationError, match="has a `compensate` itself"):
        Step("a", fine, compensate=Pipeline([Step("b", fine, compensate=fine)]))
    with pytest.raises(DeclarationError, match="must be one of 'started', 'completed'"):
        Compensate(fine, when="never")  # type: ignore[arg-type]
    with pytest.raises(DeclarationError, match="if_it_fails must be one of"):
        Compensate(fine, if_it_fails="hope")  # type: ignore[arg-type]
    with pytest.raises(DeclarationError, match="must be a step or a pipeline"):
        Step("a", fine, compensate=42)  # type: ignore[arg-type]


def test_a_recovered_pipeline_has_nothing_left_to_undo_inside() -> None:
    """It was undone before it recovered; its own compensation undoes the whole."""
    saga = Saga()
    inner = Pipeline(
        [saga.step("x"), BROKEN], on_failure=saga.handler("h", returns=Recovered("ok")), compensate=saga.undo("inner")
    )
    Flujo(inner >> Step("z", broken)).run("q")
    assert saga.log == ["x", "undo x", "h", "undo inner"]
