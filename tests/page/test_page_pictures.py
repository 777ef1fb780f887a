"""The pictures of the page in the documents: `PICTURES=1 pytest tests/page/test_page_pictures.py` draws them again."""

from __future__ import annotations

import os
from itertools import product
from pathlib import Path
from typing import Literal

import pytest
from playwright.sync_api import Browser, expect

from examples.served import served
from flujo_actors.page import run_page
from page.claims import COMPLETED, FAILED, WAITING_FOR_APPROVAL, WAITING_FOR_TOOL, seeded, service, with_waits
from page.conftest import apart

pytestmark = pytest.mark.slow

IMAGES = Path(__file__).parents[2] / "docs/images"

PICTURES = {
    "page-run": (f"#run={COMPLETED}", ".detail .out"),
    "page-waiting": (f"#run={WAITING_FOR_TOOL}", ".question"),
    "page-conversation": (f"#run={COMPLETED}&step=adjust&tab=conversation", ".msg"),
    "page-inbox": ("#page=inbox", ".question"),
    "page-graph": (f"#run={WAITING_FOR_APPROVAL}&view=graph&step=approve", ".box"),
    "page-failed": (f"#run={FAILED}", ".frames"),
    "page-runs": ("#", ".runs"),
}
"""Address, and content that must be there."""
ENDINGS: dict[Literal["light", "dark"], str] = {"light": ".png", "dark": "-dark.png"}
"""Endings of file names by theme; the docs site shows the one of its own theme."""


def test_the_pictures_of_the_documents_show_a_claims_service(browser: Browser, tmp_path: Path):
    """Runs with retrieval, tools, approvals and dollars, in light and dark."""
    place = f"sqlite:///{tmp_path}/runs.db"
    apart(lambda: seeded(place))
    folder = IMAGES if os.environ.get("PICTURES") else tmp_path
    with served(run_page(place, flujos=[service(place)])) as base:
        for (name, (address, content)), scheme in product(PICTURES.items(), ENDINGS):
            context = browser.new_context(viewport={"width": 1280, "height": 800}, color_scheme=scheme)
            tab = context.new_page()
            tab.route("**/api/records*", lambda route: route.fulfill(json=with_waits(route.fetch().json())))
            tab.goto(f"{base}/{address}")
            expect(tab.locator(content).first).to_be_visible()
            tab.screenshot(path=folder / f"{name}{ENDINGS[scheme]}")
            context.close()
    for name, ending in product(PICTURES, ENDINGS.values()):
        assert (folder / f"{name}{ending}").stat().st_size > 10_000
        assert (IMAGES / f"{name}{ending}").exists()
