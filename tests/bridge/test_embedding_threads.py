"""Synchronous steps run in threads, and the loop goes on meanwhile, however quick they are."""

from __future__ import annotations

import contextvars
import threading
from typing import Any

import anyio
import anyio.to_thread
import pytest
import sniffio
from embedding_hosts import HostCase, each_host

from flujo_actors import Flujo, Step, abandoned_threads
from flujo_actors.errors import StepTimeout

seen_by: contextvars.ContextVar[str] = contextvars.ContextVar("seen_by", default="nobody")


def where(data: Any) -> tuple[Any, threading.Thread]:
    return data, threading.current_thread()


@each_host
def test_a_sync_step_runs_in_a_thread_however_quick_it_is(host: HostCase) -> None:
    """Nothing that it does can hold up the loop for longer than a quick call takes."""

    async def main() -> None:
        for _ in range(3):
            _, thread = (await Flujo(Step("s", where)).run_async(1)).output
            assert thread is not threading.current_thread()

    host.run(main)


@each_host
def test_the_loop_goes_on_while_a_sync_step_takes_its_time(host: HostCase) -> None:
    """A step that waits for somebody on the loop gets what it waits for, the first time and later."""
    told = threading.Event()

    def waits(data: int) -> bool:
        return told.wait(60)

    async def tell() -> None:
        told.set()

    async def main() -> None:
        flujo = Flujo(Step("waits", waits))
        for _ in range(3):
            told.clear()
            async with anyio.create_task_group() as group:
                run = flujo.run_async(1)
                group.start_soon(tell)
                assert (await run).output is True

    host.run(main)


@each_host
def test_a_sync_step_sees_the_variables_of_its_caller_and_keeps_its_own(host: HostCase) -> None:
    """What it sets is seen by nobody else, and it is told of no event loop, for its thread runs none."""

    def looks(data: list[str]) -> list[str]:
        before = seen_by.get()
        seen_by.set("a step")
        with pytest.raises(sniffio.AsyncLibraryNotFoundError):
            sniffio.current_async_library()
        return [*data, before]

    async def main() -> None:
        seen_by.set("caller")
        result = await Flujo(Step("one", looks) >> Step("two", looks)).run_async([])
        assert (result.output, seen_by.get()) == (["caller", "caller"], "caller")

    host.run(main)


@each_host
def test_what_a_sync_step_raises_is_its_failure(host: HostCase) -> None:
    """However it came to the loop."""

    def breaks(data: int) -> int:
        raise KeyError("nothing there")

    async def main() -> None:
        result = await Flujo(Step("breaks", breaks)).run_async(1)
        error = result.step_history[-1]
        assert not error.success
        assert "KeyError" in (error.feedback or "")

    host.run(main)


@each_host
def test_a_sync_step_that_is_too_late_is_left_behind_and_frees_its_place(host: HostCase) -> None:
    """With one place for all, the next step begins when the thread that was left has ended."""
    go_on = threading.Event()

    def stuck(data: int) -> bool:
        return go_on.wait(60)

    async def main() -> None:
        settings: Any = {"sync_step_threads": 1}
        late = await Flujo(Step("stuck", stuck, timeout_s=0.5), settings=settings).run_async(1)
        assert StepTimeout.__name__ in (late.step_history[-1].feedback or "")
        assert abandoned_threads() == ("stuck",)
        async with anyio.create_task_group() as group:
            run = Flujo(Step("next", where), settings=settings).run_async(2)
            group.start_soon(anyio.to_thread.run_sync, go_on.set)
            assert (await run).output[0] == 2
        assert abandoned_threads() == ()

    host.run(main)
