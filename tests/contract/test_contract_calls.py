"""The calls a reader of the contract writes first, in the spellings that come to mind."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import anyio
import pytest
import trio

import flujo_actors
from flujo_actors import DeclarationError, Flujo, PipelineResult, Settings, Step, UsageLimits, load_settings


def _increased(number: int) -> int:
    return number + 1


FLUJO = Flujo(Step("increase", _increased))


async def _in_a_task() -> PipelineResult:
    return await asyncio.create_task(FLUJO.run_async(1))


async def _in_a_task_group() -> PipelineResult:
    async with asyncio.TaskGroup() as group:
        task = group.create_task(FLUJO.run_async(1))
    return task.result()


@pytest.mark.parametrize(
    "start",
    [
        lambda: asyncio.run(FLUJO.run_async(1)),
        lambda: asyncio.run(_in_a_task()),
        lambda: asyncio.run(_in_a_task_group()),
        lambda: trio.run(FLUJO.run_async, 1),
        lambda: anyio.run(FLUJO.run_async, 1),
        lambda: anyio.run(FLUJO.run_async, 1, backend="trio"),
    ],
    ids=["asyncio.run", "create_task", "TaskGroup", "trio.run", "anyio.run", "anyio.run on trio"],
)
def test_a_handle_goes_wherever_a_coroutine_goes(start: Callable[[], PipelineResult]) -> None:
    """Loops and task groups take a run as they take any other coroutine."""
    assert start().output == 2


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_task_group_starts_a_run_by_its_method(backend: str) -> None:
    """`start_soon(flujo.run_async, …)` runs the pipeline in the group."""
    seen: list[int] = []
    flujo = Flujo(Step("note", seen.append))

    async def main() -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(flujo.run_async, 1)
            group.start_soon(flujo.run_async, 2)

    anyio.run(main, backend=backend)
    assert sorted(seen) == [1, 2]


def test_cancelling_the_task_of_a_handle_cancels_the_run() -> None:
    """A run that is a task ends with its task, and its step is stopped."""
    stopped: list[str] = []

    async def endless(_: Any, started: asyncio.Event) -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.append("step")

    async def main() -> None:
        started = asyncio.Event()
        task = asyncio.create_task(Flujo(Step("wait", lambda data: endless(data, started))).run_async(1))
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert stopped == ["step"]


def test_a_handle_closed_before_it_ran_starts_nothing() -> None:
    """Giving a run up before its first step leaves nothing behind."""
    seen: list[int] = []
    Flujo(Step("note", seen.append)).run_async(1).close()
    assert seen == []


def test_usage_limits_are_given_by_position_as_the_contract_writes_them() -> None:
    """Cost first, then tokens."""
    assert UsageLimits(1.5, 100) == UsageLimits(total_cost_usd_limit=1.5, total_tokens_limit=100)


@pytest.mark.parametrize(
    "name",
    ["ContextError", "MergeConflict", "NotSerializable", "StepTimeout", "StoreVersionError", "StreamLimitExceeded"],
)
def test_an_error_a_user_meets_is_importable_from_the_package(name: str) -> None:
    """What feedback names or a call raises can be caught without knowing where it is defined."""
    assert getattr(flujo_actors, name) is getattr(flujo_actors.errors, name)


@pytest.mark.parametrize("variable", ["FLUJO_AROS_REPAIR_MAX_ATTEMPTS", "FLUJO_AROS__REPAIR__MAX_ATTEMPTS"])
def test_a_variable_may_join_its_levels_by_one_underscore_or_two(variable: str) -> None:
    """Both spellings of a variable set the same setting."""
    assert load_settings(environ={variable: "7"}).aros.repair.max_attempts == 7


def test_a_setting_may_be_written_with_dots_in_code() -> None:
    """A dotted key is the nested one, and other keys of the same section stay."""
    given = {"aros.repair.max_attempts": 4, "aros": {"schema_simplify": True}, "sync_step_threads": 3}
    settings = load_settings(environ={}, overrides=given)
    assert (settings.aros.repair.max_attempts, settings.aros.schema_simplify, settings.sync_step_threads) == (
        4,
        True,
        3,
    )


def test_a_misspelled_dotted_setting_is_refused_with_the_right_one() -> None:
    """The suggestion names the whole key."""
    with pytest.raises(DeclarationError, match=r"did you mean 'aros\.repair\.max_attempts'"):
        load_settings(environ={}, overrides={"aros.repair.max_attempt": 4})


def test_the_name_of_a_model_keeps_its_dots() -> None:
    """Only keys at the top are split; a price is found under the model's own name."""
    prices = {"gpt-4.1": {"input_usd": 2, "output_usd": 8}}
    assert "gpt-4.1" in load_settings(environ={}, overrides={"usage.prices": prices}).usage.prices


def test_settings_take_their_sections_as_dicts() -> None:
    """A nested dict becomes the typed section when the settings are built."""
    given: Any = {"repair": {"max_attempts": 3}}
    settings = Settings(aros=given)
    assert settings.aros.repair.max_attempts == 3


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"repairs": {}}, "unknown setting 'repairs': did you mean 'repair'"),
        (3, r"must be ArosSettings\(…\) or a dict, not 3"),
    ],
)
def test_a_wrong_section_is_refused_while_settings_are_built(given: Any, said: str) -> None:
    """A mistake shows where it was made, not in the first step that reads it."""
    with pytest.raises(DeclarationError, match=said):
        Settings(aros=given)


@pytest.mark.parametrize("run_id", ["", 3])
def test_a_run_id_that_is_no_name_is_refused_at_the_call(run_id: Any) -> None:
    """An id that came out empty must not turn into another one: nobody could find the run again."""
    with pytest.raises(DeclarationError, match="run_id must be a non-empty text or None"):
        FLUJO.run_async(1, run_id=run_id)
