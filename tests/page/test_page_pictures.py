"""The pictures of the page in the documents: `PICTURES=1 pytest tests/page/test_page_pictures.py` draws them anew."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from flujo_actors import Flujo, Step
from flujo_actors.page import run_page
from page.conftest import apart, shown

pytestmark = pytest.mark.slow

SHORTER = """
for (const frame of document.querySelectorAll('.frames code'))
  frame.textContent = frame.textContent.split('/').slice(-2).join('/');
"""
"""Where the files of this machine stand is nobody's business."""

IMAGES = Path(__file__).parents[2] / "docs/images"


async def draft(topic: str, *, context: Any) -> str:
    context.topic = topic
    return f"All about {topic}"


async def look_up(text: str) -> str:
    raise ConnectionError("no network")


async def remember(text: str) -> str:
    return f"{text}: it likes water of 80 degrees"


async def check(number: int) -> int:
    return number


def test_the_run_page_is_shown_in_the_documents(tab: Page, place: str, tmp_path: Path):
    """A run that waits for an answer, as in the picture."""
    pipeline = (
        Step("draft", draft)
        >> Step("look up", look_up, max_retries=1, fallback=Step("remember", remember))
        >> Step.map_over("check facts", Step("check", check), items=list(range(40)))
        >> Step.human_in_the_loop("approve", "Publish it?", input_schema=bool)
        >> Step.parallel(
            "publish", {"site": Step("site", check), "letter": Step("write", check) >> Step("send", check)}
        )
    )
    apart(lambda: Flujo(pipeline, store=place).run("green tea", run_id="tea-1"))
    folder = IMAGES if os.environ.get("PICTURES") else tmp_path
    with shown(tab, run_page(place)) as base:
        tab.goto(f"{base}/#run=tea-1&step=look+up&tab=error")
        expect(tab.locator(".question")).to_be_visible()
        expect(tab.locator(".frames").first).to_be_visible()
        tab.evaluate(SHORTER)
        tab.screenshot(path=folder / "page-run.png")
        tab.goto(f"{base}/#run=tea-1&view=graph&step=approve")
        expect(tab.locator(".box.waiting")).to_be_visible()
        tab.screenshot(path=folder / "page-graph.png")
    for name in ("page-run.png", "page-graph.png"):
        assert (folder / name).stat().st_size > 10_000
        assert (IMAGES / name).exists()
