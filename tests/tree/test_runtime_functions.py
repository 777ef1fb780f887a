"""A plain function may stand wherever a step may; an unknown option and a forgotten `await` are told."""

from __future__ import annotations

import asyncio
import functools
import gc
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from scripted import AT_ONCE, failing, same

from flujo_actors import DeclarationError, Flujo, Pipeline, Step, StepResult, Success, UnknownOption, step

BACKENDS = ["trio", "asyncio"]


async def double(number: int) -> int:
    return 2 * number


def increase(number: int) -> int:
    return number + 1


async def count(upto: int) -> Any:
    for number in range(upto):
        yield str(number)


class Triple:
    def __call__(self, number: int) -> int:
        return 3 * number


ADD_SEVEN = functools.partial(lambda plus, number: number + plus, 7)


# --- functions as steps -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pipeline", "output"),
    [
        (lambda: Flujo(double), 6),
        (lambda: Flujo(increase), 4),
        (lambda: Flujo(count), "012"),
        (lambda: Flujo(Triple()), 9),
        (lambda: Flujo(ADD_SEVEN), 10),
        (lambda: Flujo(Step("a", same) >> double), 6),
        (lambda: Flujo(double >> Step("a", same)), 6),
        (lambda: Flujo(double >> (Step("a", same) >> Step("b", same))), 6),
        (lambda: Flujo(increase >> Step("a", same) >> double), 8),
        (lambda: Flujo(Pipeline([double, increase])), 7),
        (lambda: Flujo(Pipeline(double)), 6),
        (lambda: Flujo(Pipeline.from_step(double)), 6),
        (lambda: Flujo(Step.parallel("p", {"a": double, "b": increase})), {"a": 6, "b": 4}),
        (lambda: Flujo(Step.parallel("p", {"a": lambda x: x, "b": lambda x: -x})), {"a": 3, "b": -3}),
        (lambda: Flujo(Step.map_over("m", double, items=[1, 2])), [2, 4]),
        (lambda: Flujo(Step.branch_on("b", lambda data, context: "k", {"k": double})), 6),
        (lambda: Flujo(Step.branch_on("b", lambda data, context: "?", {"k": double}, default=increase)), 4),
        (lambda: Flujo(Step.loop_until("l", double, lambda output, context: output > 20)), 24),
        (lambda: Flujo(Step("s", failing(), fallback=double)), 6),
    ],
)
def test_a_plain_function_may_stand_wherever_a_step_may(pipeline: Callable[[], Flujo], output: Any) -> None:
    """On either side of an arrow, as a branch, a body, a default, a fallback, and as the whole pipeline."""
    assert pipeline().run(3).output == output


def test_a_function_is_a_step_named_after_it() -> None:
    """As `Step.from_callable` makes it."""
    pipeline = double >> Step("a", same) >> Triple() >> ADD_SEVEN
    assert [each.name for each in pipeline.steps] == ["double", "a", "Triple", "<lambda>"]


def test_two_lambdas_in_a_row_are_told_to_take_names() -> None:
    """They are called alike, and steps are told apart by name."""
    with pytest.raises(DeclarationError, match=r"two steps .* named '<lambda>'.* Step\(\"another name\", function\)"):
        Step("a", same) >> (lambda number: number) >> (lambda number: -number)


def test_what_a_function_needs_is_checked_where_it_stands() -> None:
    """A wrong declaration fails when it is built."""

    def needy(data: Any, database: Any) -> None: ...

    with pytest.raises(DeclarationError, match="step 'needy' calls a function that needs 'database'"):
        Step("a", same) >> needy


@pytest.mark.parametrize("wrong", [7, "text", int, object()])
def test_what_is_neither_a_step_nor_a_function_is_told_how_to_become_one(wrong: Any) -> None:
    """Classes too: whoever means the class says so with a step."""
    for make in (lambda: Step("a", same) >> wrong, lambda: wrong >> Step("a", same), lambda: Flujo(wrong)):
        with pytest.raises(DeclarationError, match=r"must be a step or a pipeline, .*Step\(\"…\", agent\)"):
            make()


def test_a_durable_run_of_functions_is_resumed(tmp_path: Path) -> None:
    """They have names and paths like any other steps."""
    url = f"sqlite:///{tmp_path}/runs.db"
    pipeline = double >> Step.human_in_the_loop("ask", "?") >> increase
    token = Flujo(pipeline, store=url).run(1).state_token
    assert Flujo(pipeline, store=url).resume(token, 41).output == 42


# --- options ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "meant"),
    [
        (lambda: Step("s", same, timeout=5), "timeout_s"),
        (lambda: Step("s", same, retries=2), "max_retries"),
        (lambda: Step("s", same, max_retry=2), "max_retries"),
        (lambda: Step("s", same, max_retrys=2), "max_retries"),
        (lambda: Step("s", same, retry=2), "max_retries"),
        (lambda: Step("s", same, validator=same), "validators"),
        (lambda: Step("s", same, fall_back=same), "fallback"),
        (lambda: Step.from_callable(same, timeout=5), "timeout_s"),
        (lambda: step(timeout=5)(same), "timeout_s"),
        (lambda: Step.parallel("s", {"a": same}, concurrency=2), "max_concurrency"),
        (lambda: Step.parallel("s", {"a": same}, timeout=2), "timeout_s"),
        (lambda: Step.map_over("s", same, item=[1]), "items"),
        (lambda: Step.branch_on("s", lambda data, context: 1, {1: same}, defaults=same), "default"),
        (lambda: Step.loop_until("s", same, lambda data, context: True, max_loop=3), "max_loops"),
        (lambda: Step.human_in_the_loop("s", "?", schema=bool), "input_schema"),
        (lambda: Step.granular("s", same, max_turn=3), "max_turns"),
        (lambda: Step.granular("s", same, timeout=3), "timeout_s"),
        (lambda: Step.approval("s", "?", deadline_s=3), "timeout_s"),
        (lambda: Step.wait_for("s", "paid", deadline_s=3), "timeout_s"),
    ],
)
def test_an_unknown_option_is_refused_with_the_nearest_name(make: Callable[[], Any], meant: str) -> None:
    """For every kind of step; it is a `TypeError`, too, as of any call."""
    with pytest.raises(
        UnknownOption, match=f"step '(s|same)' has no option '.*': did you mean '{meant}'\\?"
    ) as refused:
        make()
    assert isinstance(refused.value, DeclarationError)
    assert isinstance(refused.value, TypeError)


def test_an_option_like_no_other_is_refused_with_all_names() -> None:
    """Then the reader chooses."""
    with pytest.raises(UnknownOption, match=r"'zzz': it has agent, agent_options, backoff, .*max_retries.*") as refused:
        Step("s", same, zzz=1)
    assert "resumable" not in str(refused.value)


# --- forgotten awaits ---------------------------------------------------------------------------------------


async def forgets(number: int) -> Any:
    return double(number)


def forgets_in_a_thread(number: int) -> Any:
    return forgets(number)


async def forgets_in_a_result(number: int) -> Any:
    return Success(step_result=StepResult(name="mine", output=double(number)))


async def forgets_a_run(number: int) -> Any:
    return Flujo(double).run_async(number)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("options", [{}, {"max_retries": 1, "backoff": AT_ONCE}])
@pytest.mark.parametrize("agent", [forgets, forgets_in_a_thread, forgets_in_a_result, forgets_a_run])
def test_a_forgotten_await_is_a_failure_that_says_so(agent: Any, options: Any, backend: Any) -> None:
    """The coroutine is closed: Python has nothing to warn about."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = Flujo(Step("s", agent, **options)).run(1, backend=backend)
        gc.collect()
    assert result.status == "failed"
    assert "step 's' returned a " in str(result.feedback)
    assert "that was not awaited: write `return await …`" in str(result.feedback)


def test_a_forgotten_await_of_a_processor_is_told_as_well() -> None:
    """What the processor leaves is the step's output."""
    result = Flujo(Step("s", same, processors={"after": forgets})).run(1)
    assert "coroutine of 'double' that was not awaited" in str(result.feedback)


def test_a_task_that_nobody_awaited_is_cancelled() -> None:
    """It must not outlive its step."""
    tasks: list[asyncio.Task[Any]] = []

    async def starts(data: Any) -> Any:
        tasks.append(asyncio.create_task(asyncio.sleep(60)))
        return tasks[0]

    result = Flujo(Step("s", starts)).run(1, backend="asyncio")
    assert "returned a Task that was not awaited" in str(result.feedback)
    assert tasks[0].cancelled()


def test_a_function_that_returns_a_coroutine_is_awaited_as_ever() -> None:
    """A lambda around an async function is the usual way to bind an argument."""
    assert Flujo(lambda number: double(number)).run(2).output == 4
