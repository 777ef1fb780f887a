"""Runs that are ended from outside: by whoever runs them, by a client, by leaving them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from sagas import Saga, both_hosts

from flujo_actors import Compensate, Flujo, MemoryStore, NotPaused, Pipeline, RunClient, Step, Undo
from flujo_actors.testing import JumpingLoop
from kit.durable_places import Place


async def broken(data: Any) -> Any:
    raise ValueError("broke")


# --- a caller that leaves -----------------------------------------------------------------------------------


def test_a_run_without_a_store_is_undone_when_its_caller_leaves(caplog: pytest.LogCaptureFixture) -> None:
    """Nobody could resume it; what was undone is in the log."""
    saga = Saga()
    flujo = Flujo(saga.step("a") >> saga.step("slow", takes=1000.0))

    async def main() -> None:
        with trio.move_on_after(1):
            await flujo.run_async("x")

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    assert saga.log == ["a", "slow", "undo slow?", "undo a"]
    assert "it was undone: 'slow', 'a'" in caplog.text


def test_the_same_in_asyncio() -> None:
    """A task that is cancelled while its run undoes waits for it."""
    saga = Saga()
    flujo = Flujo(saga.step("a") >> saga.step("slow", takes=1000.0))

    async def main() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(flujo.run_async("x"), 1)

    with asyncio.Runner(loop_factory=JumpingLoop) as runner:
        runner.run(main())
    assert saga.log == ["a", "slow", "undo slow?", "undo a"]


def test_undoing_ends_when_its_time_is_over_and_what_is_left_is_named(caplog: pytest.LogCaptureFixture) -> None:
    """`undo_grace_s`, as a setting or as an argument."""
    saga = Saga()

    async def forever(undo: Undo) -> None:
        saga.log.append("undo b")
        await trio.sleep_forever()

    async def main(flujo: Flujo) -> float:
        with trio.move_on_after(1):
            await flujo.run_async("x")
        return trio.current_time()

    pipeline = saga.step("a") >> saga.step("b", compensate=forever) >> saga.step("slow", takes=1000.0)
    for flujo in (Flujo(pipeline, undo_grace_s=5), Flujo(pipeline, settings={"run": {"undo_grace_s": 5}})):
        saga.log.clear()
        caplog.clear()
        at = trio.run(main, flujo, clock=trio.testing.MockClock(autojump_threshold=0))
        assert at == 6.0
        assert saga.log == ["a", "b", "slow", "undo slow?", "undo b"]
        assert "not undone: 'b' (path 'b'), 'a' (path 'a')" in caplog.text


@pytest.mark.parametrize("nested", [False, True])
def test_a_caller_that_leaves_while_a_run_is_undone_does_not_keep_it_from_being_undone(nested: bool) -> None:
    """What was in flight is begun again, with the same key: nobody knows how far it came."""
    saga, keys = Saga(), []

    async def slowly(undo: Undo, *, idempotency_key: str) -> None:
        saga.log.append("undo b")
        keys.append(idempotency_key)
        await trio.sleep(5)

    rest = saga.step("b", compensate=slowly) >> Step("c", broken)
    flujo = Flujo(saga.step("a") >> (Pipeline([rest], name="rest") if nested else rest))

    async def main() -> None:
        with trio.move_on_after(1):
            await flujo.run_async("x")

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    assert saga.log == ["a", "b", "undo b", "undo b", "undo a"]
    assert len(set(keys)) == 1


def test_a_durable_run_is_left_as_it_is_when_its_caller_leaves() -> None:
    """It can be resumed, and goes on."""
    saga = Saga()
    store = MemoryStore()
    scope = trio.CancelScope()

    async def slow(data: Any) -> str:
        saga.log.append("slow")
        if not scope.cancel_called:
            scope.cancel()
            await trio.sleep_forever()
        return "done"

    flujo = Flujo(saga.step("a") >> Step("slow", slow, compensate=saga.undo("slow")), store=store)

    async def main() -> Any:
        with scope:
            await flujo.run_async("x", run_id="r")
        return await flujo.resume_async("r")

    assert trio.run(main).status == "completed"
    assert saga.log == ["a", "slow", "slow"]


def test_ctrl_c_undoes_and_is_raised() -> None:
    """Raised inside a step, as it is when the step computes."""
    saga = Saga()

    async def slow(data: Any) -> None:
        saga.log.append("slow")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Flujo(saga.step("a") >> Step("slow", slow, compensate=saga.undo("slow"))).run("x")
    assert saga.log == ["a", "slow", "undo slow?", "undo a"]


def test_ctrl_c_leaves_a_durable_run_to_be_resumed(tmp_path: Path) -> None:
    """Nothing is undone."""
    saga = Saga()
    pressed = [True]

    async def slow(data: Any) -> str:
        saga.log.append("slow")
        if pressed:
            pressed.clear()
            raise KeyboardInterrupt
        return "done"

    pipeline = saga.step("a") >> Step("slow", slow, compensate=saga.undo("slow"))
    flujo = Flujo(pipeline, store=f"sqlite:///{tmp_path / 'r.db'}")
    with pytest.raises(KeyboardInterrupt):
        flujo.run("x", run_id="r")
    assert flujo.resume("r").status == "completed"
    assert saga.log == ["a", "slow", "slow"]


# --- cancelling from outside --------------------------------------------------------------------------------


def _declared(saga: Saga) -> Any:
    both = Step.parallel(
        "both",
        {
            "one": saga.step("x") >> Step.human_in_the_loop("ask", "Go on?") >> saga.step("never"),
            "two": saga.step("y"),
        },
    )
    return saga.step("a") >> both >> saga.step("last")


def _paused(store: Any, saga: Saga) -> Flujo:
    flujo = Flujo(_declared(saga), store=store)
    assert flujo.run("in", run_id="r").status == "paused"
    saga.log.clear()
    return flujo


@both_hosts
def test_a_paused_run_is_cancelled_by_whoever_has_its_pipeline(host: Callable[..., Any]) -> None:
    """In memory or in a store: everything that was done is undone, and the run is aborted."""
    for store in (None, MemoryStore()):
        saga = Saga()
        flujo = _paused(store, saga)

        async def main(flujo: Flujo = flujo) -> Any:
            return await flujo.cancel_async("r", "changed my mind")

        result = host(main)
        assert (result.status, result.feedback) == ("aborted", "changed my mind")
        assert saga.log == ["undo y", "undo x", "undo a"]
        assert [(undo.input, undo.output, undo.reason) for undo in saga.told[-3:]] == [
            ("a!", "y!", "changed my mind"), ("a!", "x!", "changed my mind"), ("in", "a!", "changed my mind"),
        ]  # fmt: skip
        with pytest.raises(NotPaused):
            flujo.cancel("r")


def test_a_client_leaves_the_undoing_to_whoever_has_the_pipeline() -> None:
    """Until then the run goes no further: it can be neither answered nor resumed to go on."""
    for finish in (
        lambda flujo: flujo.recover()[0],
        lambda flujo: flujo.cancel("r"),
        lambda flujo: flujo.resume("r"),
    ):
        saga, store = Saga(), MemoryStore()
        flujo = _paused(store, saga)
        token = RunClient(store).get("r").state_token
        RunClient(store).cancel("r", "too late")
        assert saga.log == []
        assert RunClient(store).prompts() == []
        with pytest.raises(NotPaused):
            flujo.resume(str(token), "yes")
        result = finish(flujo)
        assert (result.status, result.feedback) == ("aborted", "too late")
        assert saga.log == ["undo y", "undo x", "undo a"]
        assert RunClient(store).get("r").status == "aborted"


def test_a_client_may_end_a_run_at_once_and_leave_everything_as_it_is() -> None:
    """With `undo=False`, also after it was cancelled to be undone; and where there is nothing to undo."""
    saga, store = Saga(), MemoryStore()
    flujo = _paused(store, saga)
    RunClient(store).cancel("r")
    RunClient(store).cancel("r", undo=False)
    assert RunClient(store).get("r").status == "aborted"
    assert (flujo.recover(), saga.log) == ([], [])
    plain = Flujo(Step.human_in_the_loop("ask", "?"), store=store)
    plain.run("x", run_id="plain")
    RunClient(store).cancel("plain")
    assert RunClient(store).get("plain").status == "aborted"


@pytest.mark.parametrize("undo", [True, False])
def test_a_run_at_work_is_undone_by_its_owner(undo: bool, tmp_path: Path) -> None:
    """It ends as aborted, within a second or so."""
    saga = Saga()
    url = f"sqlite:///{tmp_path / 'r.db'}"
    begun = trio.Event()

    async def slow(data: Any) -> None:
        saga.log.append("slow")
        begun.set()
        await trio.sleep_forever()

    flujo = Flujo(saga.step("a") >> Step("slow", slow, compensate=saga.undo("slow")), store=url)
    results: list[Any] = []

    async def run() -> None:
        results.append(await flujo.run_async("x", run_id="r"))

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run)
            await begun.wait()
            if undo:
                assert await flujo.cancel_async("r", "enough") is None
            else:
                await trio.to_thread.run_sync(lambda: RunClient(url).cancel("r", "enough", undo=False))

    trio.run(main)
    assert (results[0].status, results[0].feedback) == ("aborted", "enough")
    assert saga.log == ["a", "slow", *(["undo slow?", "undo a"] if undo else [])]


def test_a_run_that_a_dead_process_left_is_undone_with_what_was_in_flight() -> None:
    """Nobody knows what a call did that was under way: its compensation is told so."""
    saga, store, scope = Saga(), MemoryStore(), trio.CancelScope()

    async def slow(data: Any) -> None:
        saga.log.append("slow")
        scope.cancel()
        await trio.sleep_forever()

    pipeline = saga.step("a") >> Step("slow", slow, compensate=saga.undo("slow")) >> saga.step("never")
    flujo = Flujo(pipeline, store=store)

    async def main() -> Any:
        with scope:
            await flujo.run_async("x", run_id="r")
        return await flujo.cancel_async("r")

    assert trio.run(main).status == "aborted"
    assert saga.log == ["a", "slow", "undo slow?", "undo a"]


def test_a_cancelled_run_whose_compensation_asks_waits_for_the_answer() -> None:
    """And is cancelled with it."""
    saga, store = Saga(), MemoryStore()
    ask = Compensate(Step.human_in_the_loop("sure", "Refund?") >> Step("refund", saga.handler("refund")))
    pipeline = saga.step("pay", compensate=ask) >> Step.human_in_the_loop("ask", "Ship?")
    flujo = Flujo(pipeline, store=store)
    flujo.run("x", run_id="r")
    paused = flujo.cancel("r", "changed my mind")
    assert paused is not None
    assert (paused.status, paused.feedback) == ("paused", "Refund?")
    RunClient(store).cancel("r")
    assert [prompt.message for prompt in RunClient(store).prompts()] == ["Refund?"]
    result = flujo.resume(str(paused.state_token), "yes")
    assert (result.status, result.feedback, saga.log) == ("aborted", "changed my mind", ["pay", "refund"])
    assert [each.step_name for each in result.undone] == ["pay"]


def test_a_pipeline_without_compensations_is_cancelled_as_ever() -> None:
    """By the Flujo, too."""
    flujo = Flujo(Step.human_in_the_loop("ask", "?"))
    flujo.run("x", run_id="r")
    result = flujo.cancel("r", "enough")
    assert result is not None
    assert (result.status, result.undone) == ("aborted", ())


def test_a_client_of_any_database_leaves_the_undoing_to_whoever_has_the_pipeline(place: Place) -> None:
    """What was noted is read by another process, as it was meant."""
    saga = Saga()
    _paused(place.open(), saga)
    RunClient(place.open()).cancel("r", "too late")
    info = RunClient(place.open()).get("r")
    assert (info.status, info.state_token, info.abandoned) == ("running", None, True)
    [result] = Flujo(_declared(saga), store=place.open()).recover()
    assert (result.status, result.feedback) == ("aborted", "too late")
    assert saga.log == ["undo y", "undo x", "undo a"]
    assert [each.step_name for each in result.undone] == ["y", "x", "a"]
