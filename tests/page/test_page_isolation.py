"""Content of one store, page or run never appears on another one."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette

from flujo_actors import Flujo, RunClient, Step
from flujo_actors.page import HOST_APP, run_page
from flujo_actors.stores import MemoryStore

pytestmark = pytest.mark.anyio


async def failed_run(store: Any, text: str) -> None:
    """Leave a run whose record holds a text."""

    async def fail(_: object) -> object:
        raise ValueError(text)

    await Flujo(Step("work", fail), store=store).run_async("x", run_id="r")


async def streamed(app: Any, path: str = "/api/events?run=r") -> str:
    """Everything that the event stream of an ended run sends."""
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://page") as http:
        return (await http.get(path)).text


async def test_each_of_many_stores_shows_its_own_run():
    """Stores that are created after one another may share an address in memory."""
    for number in range(20):
        store = MemoryStore()
        await failed_run(store, f"text of tenant {number}.")
        assert f"text of tenant {number}." in await streamed(run_page(store, auth=HOST_APP))
        del store
        gc.collect()


async def test_a_page_without_content_stays_so_beside_a_page_with_content(tmp_path: Path):
    """Both pages show the same run of the same store in one process."""
    place = f"sqlite:///{tmp_path}/runs.db"
    await failed_run(place, "a private text")
    app = Starlette()
    app.mount("/admin", run_page(place, auth=HOST_APP))
    app.mount("/support", run_page(place, auth=HOST_APP, content=False))
    assert "a private text" in await streamed(app, "/admin/api/events?run=r")
    assert "a private text" not in await streamed(app, "/support/api/events?run=r")


async def test_a_run_id_that_is_used_again_shows_the_new_run(tmp_path: Path):
    """Nothing of the deleted run is left."""
    place = f"sqlite:///{tmp_path}/runs.db"
    page = run_page(place, auth=HOST_APP)
    await failed_run(place, "the first text")
    assert "the first text" in await streamed(page)
    RunClient(place, allow_blocking=True).delete("r")
    await failed_run(place, "the second text")
    told = await streamed(page)
    assert "the first text" not in told
    assert "the second text" in told
