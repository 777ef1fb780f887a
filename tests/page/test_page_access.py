"""The page without motion for readers who want none, and on every server."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
import trio
from playwright.sync_api import Browser, expect

from flujo_actors import Flujo, Step
from flujo_actors.page import run_page
from page.conftest import apart, shown

pytestmark = pytest.mark.slow


async def write(topic: str) -> str:
    return f"All about {topic}"


async def fail(topic: str) -> str:
    raise ValueError("no")


def several_runs(place: str) -> None:
    Flujo(Step("write", write) >> Step.human_in_the_loop("ask", "Fine?", input_schema=bool), store=place).run(
        "tea", run_id="asks"
    )
    Flujo(Step("write", write) >> Step("fail", fail, max_retries=1), store=place).run("tea", run_id="failed")


def test_nothing_moves_for_those_who_want_no_motion(browser: Browser, place: str):
    """No animation is drawn; a note that appears late, at once, is none."""
    apart(lambda: several_runs(place))
    context = browser.new_context(reduced_motion="reduce")
    tab = context.new_page()
    with shown(tab, run_page(place)) as base:
        tab.goto(f"{base}/#run=asks")
        expect(tab.locator(".line").first).to_be_visible()
        assert tab.evaluate("document.getAnimations().filter(each => each.effect.getTiming().duration > 1).length") == 0
    context.close()


@contextmanager
def on_hypercorn(app: Any) -> Iterator[str]:
    """The application under hypercorn on trio, in a thread."""
    from hypercorn.config import Config
    from hypercorn.trio import serve

    addresses: list[str] = []
    bound, stop = threading.Event(), threading.Event()

    async def main() -> None:
        config = Config()
        config.bind = ["127.0.0.1:0"]
        config.errorlog = None
        async with trio.open_nursery() as nursery:

            async def stopped() -> None:
                await trio.to_thread.run_sync(stop.wait)

            async def serving(task_status: Any = trio.TASK_STATUS_IGNORED) -> None:
                await serve(app, config, shutdown_trigger=stopped, task_status=task_status)

            addresses.extend(await nursery.start(serving))
            bound.set()

    thread = threading.Thread(target=trio.run, args=(main,))
    thread.start()
    try:
        assert bound.wait(120)
        yield addresses[0]
    finally:
        stop.set()
        thread.join(120)


def test_the_page_is_served_on_trio_too(place: str):
    """Hypercorn: the list, rows, and a live stream that ends with its run."""
    apart(lambda: several_runs(place))
    with on_hypercorn(run_page(place)) as base, httpx.Client(base_url=base, timeout=120) as http:
        assert {run["run_id"] for run in http.get("/api/runs").json()["runs"]} == {"asks", "failed"}
        with http.stream("GET", "/api/events?run=failed&after=0") as answer:
            told = "".join(answer.iter_text())
    assert told.count("event: records") >= 1
    assert "event: end" in told
