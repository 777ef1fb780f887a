"""Trio functions awaited by asyncio code, with trio as a guest and with trio in another thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any

import pytest
import trio

from flujo_actors._bridge.host_loop import current_host
from flujo_actors._bridge.to_asyncio import AsyncioLoop, helper_loop
from flujo_actors._bridge.to_trio import TrioCaller

Main = Callable[[AsyncioLoop, TrioCaller], Awaitable[Any]]
_color: ContextVar[str] = ContextVar("color", default="none")


def _as_guest(main: Main) -> Any:
    """Run a trio function in an asyncio program."""

    async def program() -> Any:
        host = await current_host()
        loop = host.asyncio()

        async def on_trio() -> Any:
            return await main(loop, TrioCaller(loop.keep_awake))

        return await host.enter(on_trio)

    return asyncio.run(program())


def _beside_a_helper(main: Main) -> Any:
    """Run a trio function in a trio program, with an asyncio loop in another thread."""

    async def program() -> Any:
        loop = helper_loop()
        return await main(loop, TrioCaller(loop.keep_awake))

    return trio.run(program)


each_host = pytest.mark.parametrize("in_host", [_as_guest, _beside_a_helper])


@each_host
def test_asyncio_code_gets_the_answer_of_a_trio_function(in_host: Callable[[Main], Any]) -> None:
    """The function runs on trio, in the thread of the run, and its value comes back."""

    async def double(number: int) -> tuple[int, int]:
        await trio.sleep(0)
        return number * 2, threading.get_ident()

    async def main(loop: AsyncioLoop, caller: TrioCaller) -> None:
        assert await loop.call(lambda: caller.call(double, 21)) == (42, threading.get_ident())
        assert caller.same_thread is loop.same_thread

    in_host(main)


@each_host
def test_many_tasks_call_at_once(in_host: Callable[[Main], Any]) -> None:
    """Every caller gets its own answer."""

    async def same(number: int) -> int:
        await trio.lowlevel.checkpoint()
        return number

    async def main(loop: AsyncioLoop, caller: TrioCaller) -> None:
        async def everybody() -> list[int]:
            return await asyncio.gather(*(caller.call(same, number) for number in range(100)))

        assert await loop.call(everybody) == list(range(100))

    in_host(main)


@each_host
def test_an_exception_of_the_trio_function_is_the_callers(in_host: Callable[[Main], Any]) -> None:
    """Also a group, and also one that is no `Exception`; the trio run lives on."""

    class Strange(BaseException):
        pass

    async def fail(error: BaseException) -> None:
        async with trio.open_nursery():
            raise error

    async def main(loop: AsyncioLoop, caller: TrioCaller) -> None:
        async def caught(error: BaseException) -> BaseException | None:
            with pytest.raises(BaseExceptionGroup) as group:
                await caller.call(fail, error)
            return group.value.exceptions[0]

        for error in (ValueError("no"), Strange()):
            assert await loop.call(lambda error=error: caught(error)) is error

    in_host(main)


@each_host
def test_contextvars_flow_into_the_trio_function(in_host: Callable[[Main], Any]) -> None:
    """What the asyncio task has set is what the trio function reads."""

    async def read() -> str:
        return _color.get()

    async def main(loop: AsyncioLoop, caller: TrioCaller) -> None:
        async def painted() -> str:
            _color.set("red")
            return await caller.call(read)

        assert await loop.call(painted) == "red"

    in_host(main)


@each_host
def test_cancelling_the_asyncio_task_waits_for_the_trio_functions_cleanup(in_host: Callable[[Main], Any]) -> None:
    """The cancellation reaches the function, and the caller learns of it when the cleanup is over."""
    cleaned: list[str] = []

    async def wait_forever(begun: Callable[[], None]) -> None:
        begun()
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                await trio.sleep(0.001)
            cleaned.append("trio")

    async def main(loop: AsyncioLoop, caller: TrioCaller) -> None:
        async def cancelled() -> list[str]:
            here, begun = asyncio.get_running_loop(), asyncio.Event()
            task = asyncio.create_task(caller.call(wait_forever, lambda: here.call_soon_threadsafe(begun.set)))
            await begun.wait()
            task.cancel("enough")
            with pytest.raises(asyncio.CancelledError, match="enough"):
                await task
            return list(cleaned)

        assert await loop.call(cancelled) == ["trio"]

    in_host(main)


@each_host
def test_a_cancelled_run_lets_asyncio_code_finish_what_it_shields(in_host: Callable[[Main], Any]) -> None:
    """A write that asyncio code shields is not cut short by the cancellation of the trio task it works for."""
    written: list[str] = []

    async def write() -> None:
        await trio.sleep(0.002)
        written.append("record")

    async def main(loop: AsyncioLoop, caller: TrioCaller) -> None:
        async def shielding() -> None:
            writing = asyncio.ensure_future(caller.call(write))
            try:
                await asyncio.shield(writing)
            finally:
                await asyncio.wait([writing])

        with trio.move_on_after(0.0005) as scope:
            await loop.call(shielding)
        assert scope.cancelled_caught
        assert written == ["record"]

    in_host(main)


@each_host
def test_cancelling_the_trio_task_cancels_what_its_asyncio_code_waits_for(in_host: Callable[[Main], Any]) -> None:
    """The cancellation goes to asyncio and from there back to trio; nothing is left behind."""
    ended: list[str] = []

    async def wait_forever() -> None:
        try:
            await trio.sleep_forever()
        finally:
            ended.append("trio")

    async def main(loop: AsyncioLoop, caller: TrioCaller) -> None:
        with trio.move_on_after(0.001):
            await loop.call(lambda: caller.call(wait_forever))
        assert ended == ["trio"]

    in_host(main)
