"""The pictures of the page in the documents: `PICTURES=1 pytest tests/page/test_page_pictures.py` draws them again."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from examples.served import served
from flujo_actors.page import run_page
from page.claims import COMPLETED, FAILED, WAITING_FOR_APPROVAL, WAITING_FOR_TOOL, seeded, service, with_waits
from page.conftest import apart

pytestmark = pytest.mark.slow

IMAGES = Path(__file__).parents[2] / "docs/images"

PICTURES = {
    "page-run": (f"#run={COMPLETED}", ".detail .out", "light"),
    "page-waiting": (f"#run={WAITING_FOR_TOOL}", ".question", "light"),
    "page-run-dark": (f"#run={COMPLETED}&step=adjust&tab=conversation", ".msg", "dark"),
    "page-inbox": ("#page=inbox", ".question", "light"),
    "page-graph": (f"#run={WAITING_FOR_APPROVAL}&view=graph&step=approve", ".box", "light"),
    "page-failed-dark": (f"#run={FAILED}", ".frames", "dark"),
    "page-runs": ("#", ".runs", "light"),
}
"""Address, content that must be there, theme."""


def test_the_pictures_of_the_documents_show_a_claims_service(browser: Browser, tmp_path: Path):
    """Runs with retrieval, tools, approvals and dollars, in light and dark."""
    place = f"sqlite:///{tmp_path}/runs.db"
    apart(lambda: seeded(place))
    folder = IMAGES if os.environ.get("PICTURES") else tmp_path
    with served(run_page(place, flujos=[service(place)])) as base:
        for name, (address, content, scheme) in PICTURES.items():
            context = browser.new_context(viewport={"width": 1280, "height": 800}, color_scheme=scheme)  # type: ignore[arg-type]
            tab = context.new_page()
            tab.route("**/api/records*", lambda route: route.fulfill(json=with_waits(route.fetch().json())))
            tab.goto(f"{base}/{address}")
            expect(tab.locator(content).first).to_be_visible()
            tab.screenshot(path=folder / f"{name}.png")
            context.close()
    for name in PICTURES:
        assert (folder / f"{name}.png").stat().st_size > 10_000
        assert (IMAGES / f"{name}.png").exists()
