"""`AsyncRunClient` on both libraries, and the refusal of blocking calls in an event loop."""

from __future__ import annotations

import inspect
import threading
from typing import Any

import anyio
import anyio.to_thread
import pytest

from flujo_actors import (
    AsyncRunClient,
    DeclarationError,
    Flujo,
    LoopAlreadyRunning,
    MemoryStore,
    OnPause,
    RunClient,
    RunFilter,
    RunNotFound,
    Step,
)

BACKENDS = pytest.mark.parametrize("backend", ["asyncio", "trio"])


async def echo(data: Any) -> Any:
    return data


@pytest.fixture
def url(tmp_path: Any) -> str:
    return f"sqlite:///{tmp_path}/runs.db"


def test_every_method_of_the_client_is_there() -> None:
    """Under the same name and with the same parameters."""
    public = [name for name, _ in inspect.getmembers(RunClient, inspect.isfunction) if not name.startswith("_")]
    for name in public:
        if name != "not_ended":
            assert inspect.signature(getattr(AsyncRunClient, name)) == inspect.signature(getattr(RunClient, name)), name


@BACKENDS
def test_runs_are_read_answered_and_awaited(url: str, backend: str) -> None:
    """In a loop that is never blocked."""
    flujo = Flujo(Step("a", echo) >> Step.human_in_the_loop("ok", "Go?"), store=url)
    flujo.run(1, run_id="r")

    async def main() -> None:
        async with AsyncRunClient(url) as client:
            assert [info.run_id for info in await client.list(state="waiting")] == ["r"]
            [prompt] = await client.prompts()
            await client.answer(prompt.state_token, "yes", by="ada")
            assert (await client.get("r")).state == "blocked"
            async with anyio.create_task_group() as group:
                group.start_soon(flujo.resume_async, "r")
                assert (await client.wait("r", timeout=120)).status == "completed"
            kinds = [record.kind async for record in client.watch("r")]
            assert kinds[-1] == "ended"
            with pytest.raises(RunNotFound):
                await client.get("gone")

    anyio.run(main, backend=backend)


@BACKENDS
def test_a_wait_that_is_over_has_the_run(url: str, backend: str) -> None:
    """And the text of the blocking client."""
    Flujo(Step("a", echo), store=url).submit_sync(1, run_id="r", queue="gpu")

    async def main() -> None:
        with pytest.raises(
            TimeoutError, match=r"it is blocked since .* \(no live worker serves queue 'gpu'\)"
        ) as raised:
            await AsyncRunClient(url).wait("r", timeout=0.01)
        assert raised.value.info.state == "blocked"  # type: ignore[attr-defined]

    anyio.run(main, backend=backend)


@BACKENDS
def test_a_blocking_call_in_a_loop_is_refused(url: str, backend: str) -> None:
    """With the way out; a thread may block, and so may a client that says so."""
    Flujo(Step("a", echo), store=url).run(1, run_id="r")

    async def main() -> None:
        text = r"RunClient\.list blocks this event loop; use AsyncRunClient\(store\), or call it in a thread"
        with pytest.raises(LoopAlreadyRunning, match=text):
            RunClient(url).list()
        with pytest.raises(LoopAlreadyRunning, match=r"RunClient\.retry blocks"):
            RunClient(url).retry("r")
        assert len(await anyio.to_thread.run_sync(RunClient(url).list)) == 1
        assert len(RunClient(url, allow_blocking=True).list()) == 1
        assert [record async for record in RunClient(url).watch("r")]

    anyio.run(main, backend=backend)


def test_a_store_in_memory_may_be_read_in_a_loop() -> None:
    """It has no I/O; waiting blocks all the same."""
    store = MemoryStore()
    Flujo(Step("a", echo), store=store).run(1, run_id="r")

    async def main() -> None:
        assert len(RunClient(store).list()) == 1
        with pytest.raises(LoopAlreadyRunning):
            RunClient(store).wait("r")

    anyio.run(main)


@BACKENDS
@pytest.mark.parametrize("is_async", [True, False])
def test_a_hook_may_answer_a_question(url: str, backend: str, is_async: bool) -> None:
    """By the blocking client."""
    client = RunClient(url)

    def answer(paused: OnPause) -> None:
        client.answer(str(paused.outcome.state_token), "yes")

    async def answer_later(paused: OnPause) -> None:
        client.answer(str(paused.outcome.state_token), "yes")

    flujo = Flujo(Step.human_in_the_loop("ok", "Go?"), store=url, hooks=answer_later if is_async else answer)

    async def main() -> None:
        await flujo.run_async(1, run_id="r")
        assert (await AsyncRunClient(url).get("r")).questions == 0

    anyio.run(main, backend=backend)


@BACKENDS
def test_a_write_is_awaited_and_a_reader_leaves_at_once(backend: str) -> None:
    """When their caller is cancelled."""
    begun, go, written = threading.Event(), threading.Event(), threading.Event()

    class Slow(MemoryStore):
        def get(self, run_id: Any) -> Any:
            begun.set()
            go.wait(30)
            return super().get(run_id)

        def delete(self, run_ids: Any) -> int:
            begun.set()
            go.wait(30)
            written.set()
            return 0

    async def main() -> None:
        client = AsyncRunClient(Slow())
        async with anyio.create_task_group() as group:
            group.start_soon(client.get, "r")
            await anyio.to_thread.run_sync(begun.wait)
            group.cancel_scope.cancel()
        assert not go.is_set()
        begun.clear()
        async with anyio.create_task_group() as group:
            group.start_soon(client.delete, "r")
            await anyio.to_thread.run_sync(begun.wait)
            threading.Timer(0.05, go.set).start()
            group.cancel_scope.cancel()
        assert written.is_set()

    anyio.run(main, backend=backend)


@BACKENDS
def test_changes_of_many_runs_are_watched(url: str, backend: str) -> None:
    """First all open runs of the filter, then each change of state or questions, and the end."""
    flujo = Flujo(Step.human_in_the_loop("ok", "Go?") >> Step("a", echo), store=url)
    flujo.run(1, run_id="old", labels={"tenant": "7"})
    flujo.resume(str(RunClient(url).get("old").state_token), "yes")
    flujo.run(1, run_id="r", labels={"tenant": "7"})
    flujo.run(1, run_id="other", labels={"tenant": "8"})
    seen: list[tuple[str, str, int]] = []

    async def main() -> None:
        async with AsyncRunClient(url) as client:
            with anyio.fail_after(120):
                async for info in client.watch_runs(RunFilter(labels={"tenant": "7"}), every_s=0.02):
                    seen.append((info.run_id, info.state, info.questions))
                    if seen[-1] == ("r", "waiting", 1):
                        await client.answer(str(info.state_token), "yes")
                    elif seen[-1] == ("r", "blocked", 0):
                        await flujo.resume_async("r")
                    elif info.run_id == "r" and info.state == "completed":
                        await flujo.run_async(1, run_id="new", labels={"tenant": "7"})
                    elif info.run_id == "new":
                        return

    anyio.run(main, backend=backend)
    assert seen[0] == ("r", "waiting", 1)
    assert ("r", "completed", 0) in seen
    assert seen[-1][0] == "new"
    assert {run_id for run_id, _, _ in seen} == {"r", "new"}


def test_a_watch_of_a_state_reports_runs_that_leave_it(url: str) -> None:
    """A badge counts down, too."""
    flujo = Flujo(Step.human_in_the_loop("ok", "Go?"), store=url)
    flujo.run(1, run_id="r")
    seen: list[tuple[str, str]] = []

    async def main() -> None:
        client = AsyncRunClient(url)
        async for info in client.watch_runs(RunFilter(state="waiting", run_ids=["r"]), every_s=0.02):
            seen.append((info.run_id, info.state))
            if info.state != "waiting":
                return
            await client.cancel("r")

    anyio.run(main)
    assert seen == [("r", "waiting"), ("r", "aborted")]
    with pytest.raises(DeclarationError, match="watch_runs needs a RunFilter"):
        RunClient(url).watch_runs("r")  # type: ignore[arg-type]
