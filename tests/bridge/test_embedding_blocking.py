"""No call blocks the thread of a host's loop: a guard raises for whatever would."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from blockbuster import BlockBuster, blockbuster_ctx
from embedding_hosts import HostCase, each_host

from flujo_actors import Flujo, Step
from flujo_actors.errors import DeclarationError


@pytest.fixture
def guard() -> Iterator[BlockBuster]:
    """A guard that raises `BlockingError` for blocking calls in the thread of a running asyncio loop."""
    with blockbuster_ctx() as active:
        yield active


def increased(data: int) -> int:
    return data + 1


def refused(data: int) -> int:
    raise ValueError("no")


async def same(data: Any) -> Any:
    return data


@each_host
def test_a_sync_step_does_not_block_the_loop(host: HostCase, guard: BlockBuster) -> None:
    """However quick it is, the loop's thread does not wait for its thread; also if it fails, or is one of many."""
    quick, many = Flujo(Step("s", increased) >> Step("t", increased)), Flujo(Step.map_over("m", Step("x", increased)))

    async def main() -> None:
        for _ in range(3):
            assert (await quick.run_async(0)).output == 2
        assert (await many.run_async(range(10))).output == list(range(1, 11))
        assert "ValueError: no" in str((await Flujo(Step("f", refused)).run_async(1)).feedback)

    host.run(main)


@each_host
def test_a_pipeline_is_made_in_a_coroutine_without_blocking(host: HostCase, guard: BlockBuster) -> None:
    """The configuration file is not looked up by code on a loop."""

    async def main() -> None:
        assert (await Flujo(Step("s", same)).run_async(1)).output == 1
        configured = Flujo(Step("s", same), settings={"run.undo_grace_s": 1.0})
        assert (await configured.run_async(2)).output == 2

    host.run(main)


@each_host
def test_a_run_on_a_sqlite_store_does_not_block_the_loop(host: HostCase, guard: BlockBuster, tmp_path: Path) -> None:
    """Files, the process table and the database are read in threads, or before the loop runs."""
    # A lock around a few instructions may be held by a thread at that moment, and is free in the next.
    for name in ("threading.Lock.acquire", "threading.Lock.acquire_lock"):
        guard.functions[name].deactivate()
    store = f"sqlite:///{tmp_path}/runs.db"
    steps = Step("s", increased) >> Step.human_in_the_loop("ask", message="Go on?") >> Step("t", same)
    flujo = Flujo(steps, store=store)

    async def main() -> None:
        paused = await flujo.run_async(1)
        assert paused.status == "paused"
        assert (await flujo.resume_async(paused.state_token, "yes")).output == "yes"
        assert not await flujo.recover_async()
        assert (await Flujo(Step("u", same), store=store).run_async(3)).output == 3

    host.run(main)


def test_a_configuration_file_that_was_missing_is_looked_up_outside_of_loops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Code without a loop sees the file as it is; code on a loop sees one that was found before."""
    monkeypatch.chdir(tmp_path)
    made: list[Flujo[Any, Any]] = [Flujo(Step("s", same))]
    (tmp_path / "flujo.toml").write_text("nonsense = 1\n")

    async def main() -> None:
        made.append(Flujo(Step("s", same)))

    asyncio.run(main())
    with pytest.raises(DeclarationError, match="nonsense"):
        Flujo(Step("s", same))
    with pytest.raises(DeclarationError, match="nonsense"):
        asyncio.run(main())
    (tmp_path / "flujo.toml").unlink()
    asyncio.run(main())
    assert len(made) == 3
