"""A real Chromium for the tests of the page, and runs to look at."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from examples.served import served

T = TypeVar("T")

expect.set_options(timeout=120_000)  # a slow machine draws late; a page that is right never waits this long

HERE = ("http://127.0.0.1:", "about:")

FLAGS = ["--disable-gpu", "--disable-background-networking", "--disable-component-update", "--disable-sync"]
FLAGS += ["--no-first-run", "--disable-quic", *(["--no-sandbox"] if os.geteuid() == 0 else [])]


def chromium() -> str | None:
    """Where Chromium is, if it is anywhere."""
    named = os.environ.get("CHROMIUM")
    return named or next(filter(None, map(shutil.which, ["chromium", "chromium-browser", "google-chrome"])), None)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Debian's Chromium, driven by Playwright."""
    path = chromium()
    if path is None:
        pytest.skip("NO BROWSER: the run page was not tested; install one with `apt-get install chromium`")
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=path, args=FLAGS, timeout=120_000)
        yield opened
        opened.close()


@pytest.fixture
def tab(browser: Browser) -> Iterator[Page]:
    """A fresh page; whatever goes wrong in it, or leaves its origin, fails the test."""
    context = browser.new_context(viewport={"width": 1280, "height": 800})
    page = context.new_page()
    page.set_default_timeout(60_000)
    wrong: list[str] = []
    page.on("pageerror", lambda error: wrong.append(f"error: {error}"))
    page.on("console", lambda said: wrong.append(said.text) if "Content Security Policy" in said.text else None)
    page.on("request", lambda asked: wrong.append(asked.url) if not asked.url.startswith(HERE) else None)
    yield page
    context.close()
    assert wrong == []


@contextmanager
def shown(tab: Page, app: Any) -> Iterator[str]:
    """The address of an application; the tab has left it when the server is stopped."""
    with served(app) as base:
        try:
            yield base
        finally:
            tab.goto("about:blank")


@pytest.fixture
def place(tmp_path: Path) -> str:
    """The address of a store in a file."""
    return f"sqlite:///{tmp_path}/runs.db"


def apart(call: Callable[[], T], *, timeout: float = 120) -> T:
    """Do something in a thread of its own: the browser's driver has a loop in this one."""
    got: list[Any] = []

    def work() -> None:
        try:
            got.append((call(), None))
        except BaseException as error:
            got.append((None, error))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(timeout)
    assert got, "it did not come back"
    value, error = got[0]
    if error is not None:
        raise error
    return value


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    """The loops that servers bring: uvicorn's and hypercorn's."""
    return str(request.param)
