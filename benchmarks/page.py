"""`make bench-page`: what the run page costs, and how soon it shows what happens. Prints a table; nothing is kept.

Everything is on this machine: the server in a process of its own, a headless Chromium, viewers over loopback. Times are
as this machine was at that moment; the goals are for a quiet one.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
from playwright.sync_api import Browser, Page, sync_playwright

from flujo_actors import Flujo, Step
from flujo_actors import page as page_package

STATIC = Path(page_package.__file__).with_name("static")
TOKEN = "bench-page-token"
FLAGS = ["--disable-gpu", "--disable-background-networking", *(["--no-sandbox"] if os.geteuid() == 0 else [])]
VIEWERS, COMMITS, TURNS, WATCHING, SCROLLS = 200, 40, 400, 20, 4


async def one(number: int) -> int:
    return number + 1


async def two(number: int) -> int:
    return number * 2


@contextmanager
def serving(store: str) -> Iterator[tuple[str, psutil.Process]]:
    """`flujo-actors page` over a store: its address, and its process."""
    command = [sys.executable, "-m", "flujo_actors", "page", "--store", store, "--port", "0", "--token", TOKEN]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip().partition("?")[0], psutil.Process(process.pid)
    finally:
        process.terminate()
        process.communicate(timeout=20)


def opened(browser: Browser, base: str) -> Page:
    """A tab that is signed in."""
    tab = browser.new_context(viewport={"width": 1280, "height": 800}).new_page()
    tab.goto(f"{base}?token={TOKEN}")
    return tab


def until(tab: Page, expression: str) -> float:
    """How many seconds it took until something held in the page."""
    begun = time.monotonic()
    while not tab.evaluate(expression):
        time.sleep(0.005)
    return time.monotonic() - begun


def first_paint_ms(browser: Browser, base: str, run_id: str) -> float:
    tab = opened(browser, base)
    paints = []
    for _ in range(5):
        tab.goto("about:blank")
        tab.goto(f"{base}#run={run_id}")
        until(tab, "document.querySelector('.line') !== null")
        until(tab, "performance.getEntriesByName('first-contentful-paint').length > 0")
        paints.append(tab.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime"))
    tab.context.close()
    return statistics.median(paints)


def large_run(browser: Browser, base: str) -> tuple[float, float, int, float]:
    """Seconds until the tree is there and until all of it is, DOM nodes, MB of heap."""
    tab = opened(browser, base)
    tab.goto("about:blank")
    begun = time.monotonic()
    tab.goto(f"{base}#run=large")
    until(tab, "document.querySelector('.line') !== null")
    usable = time.monotonic() - begun
    until(tab, "runPage.run.loaded")
    whole = time.monotonic() - begun
    tab.locator(".fold").first.click()
    nodes = tab.evaluate("document.querySelectorAll('*').length")
    heap = tab.evaluate("(performance.memory?.usedJSHeapSize ?? 0) / 1e6")
    tab.context.close()
    return usable, whole, nodes, heap


SCROLL = """
(selector) => new Promise((done) => {
  const place = document.querySelector(selector);
  const frames = [];
  let way = 330, last = 0;
  const step = (now) => {
    if (last) frames.push(now - last);
    last = now;
    const before = place.scrollTop;
    place.scrollTop += way;
    if (place.scrollTop === before) way = -way;
    if (frames.length && frames.reduce((a, b) => a + b) > 3000) done([frames.length / 3, Math.max(...frames)]);
    else requestAnimationFrame(step);
  };
  requestAnimationFrame(step);
})
"""
"""How many frames a second there are while something is scrolled for three, and how long the longest took, in ms."""

CHANGES = """
() => {
  const path = (i) => `each/~i${(i >> 1) % 10000}/one`;
  const kind = (i) => (i % 2 ? 'settled' : 'started');
  const row = (seq, i) => [seq, Date.now(), kind(i), path(i), 'success', 1, 1, 0, 1, '', 'one', 0];
  let i = 0;
  window.changing = setInterval(() => {
    runPage.take(Array.from({ length: 100 }, () => row(runPage.run.all + 1 + (i % 100), i++)));
  }, 50);
}
"""
"""Two thousand changes a second, as the stream would bring them."""


def scrolled(browser: Browser, base: str) -> dict[str, tuple[float, float]]:
    """Frames a second and the longest one: of a blank page, of 10,000 items as tree and graph, at rest and live.

    They take turns, and of each the best turn counts: what else this machine does takes frames from all of them.
    """
    blank = browser.new_page(viewport={"width": 1280, "height": 800})
    blank.set_content('<div id="blank" style="height:800px;overflow:auto"><div style="height:800000px"></div></div>')
    tab = opened(browser, base)
    turns: dict[str, list[tuple[float, float]]] = {}
    for _ in range(SCROLLS):
        turns.setdefault("blank", []).append(tuple(blank.evaluate(SCROLL, "#blank")))
        for view, selector in [("", "#tree"), ("graph", "#graph")]:
            for name, measured in _scrolled_twice(tab, base, view, selector).items():
                turns.setdefault(name, []).append(measured)
    blank.close()
    tab.context.close()
    return {name: (max(fps for fps, _ in each), min(longest for _, longest in each)) for name, each in turns.items()}


def _scrolled_twice(tab: Page, base: str, view: str, selector: str) -> dict[str, tuple[float, float]]:
    """At rest, and while two thousand changes a second come in."""
    tab.goto("about:blank")
    tab.goto(f"{base}#run=large&view={view}")
    until(tab, "window.runPage?.run.loaded")
    if not view:
        tab.locator(".fold").first.click()
    found = {selector: tuple(tab.evaluate(SCROLL, selector))}
    tab.evaluate(CHANGES)
    found[f"{selector} live"] = tuple(tab.evaluate(SCROLL, selector))
    tab.evaluate("clearInterval(window.changing)")
    return found  # type: ignore[return-value]


def commit_to_pixel_s(browser: Browser, base: str, store: str) -> float:
    """From a commit of this process to the line in another process's page."""
    steps, gate = 12, threading.Semaphore(0)

    async def wait(number: int) -> int:
        import trio

        await trio.to_thread.run_sync(gate.acquire)
        return number

    pipeline = Step("s0", wait)
    for number in range(1, steps):
        pipeline = pipeline >> Step(f"s{number}", wait)  # type: ignore[assignment]
    run = threading.Thread(target=lambda: Flujo(pipeline, store=store).run(0, run_id="slow"))
    run.start()
    tab = opened(browser, base)
    tab.goto(f"{base}#run=slow")
    until(tab, "runPage.listens?.() && document.querySelector('.line') !== null")
    took = []
    for number in range(steps - 1):
        begun = time.monotonic()
        gate.release()
        until(tab, f"document.querySelectorAll('.line.success').length > {number}")
        took.append(time.monotonic() - begun)
    gate.release()
    run.join(30)
    tab.context.close()
    return statistics.median(took)


async def _viewers(
    base: str, run_id: str, count: int, heard: list[tuple[float, float]], ready: Callable[[], Any]
) -> None:
    limits = httpx.Limits(max_connections=count)
    headers = {"authorization": f"Bearer {TOKEN}"}
    async with httpx.AsyncClient(headers=headers, timeout=60, limits=limits) as http:

        async def view() -> None:
            async with http.stream("GET", f"{base}api/events?run={run_id}&after=0") as answer:
                ready()
                async for line in answer.aiter_lines():
                    if line.startswith("data: [["):
                        rows = json.loads(line.removeprefix("data: "))
                        heard.append((rows[-1][1] / 1000, time.time()))

        await asyncio.gather(*(view() for _ in range(count)))


def many_viewers(base: str, store: str, server: psutil.Process) -> tuple[float, float]:
    """The 99th percentile of seconds from commit to viewer, and the share of a core that the server took."""
    go, ready = threading.Event(), threading.Semaphore(0)

    async def paced(number: int) -> int:
        import trio

        if number == 0:
            await trio.to_thread.run_sync(go.wait)
        await trio.sleep(0.1)
        return number + 1

    body = Step("paced", paced)
    flujo = Flujo(Step.loop_until("loop", body, lambda n, context: n >= COMMITS, max_loops=COMMITS + 1), store=store)
    run = threading.Thread(target=lambda: flujo.run(0, run_id="watched"))
    run.start()
    time.sleep(1)
    heard: list[tuple[float, float]] = []
    viewing = threading.Thread(target=lambda: asyncio.run(_viewers(base, "watched", VIEWERS, heard, ready.release)))
    viewing.start()
    for _ in range(VIEWERS):
        ready.acquire(timeout=30)
    before, begun, since = server.cpu_times(), time.monotonic(), time.time()
    go.set()
    run.join(60)
    took, after = time.monotonic() - begun, server.cpu_times()
    viewing.join(30)
    used = after.user + after.system - before.user - before.system
    late = [seen - written for written, seen in heard if written >= since]
    return statistics.quantiles(late, n=100)[98], used / took


def turns_s(base: str, store: str, run_id: str, viewers: int) -> float:
    """How long a durable loop of `TURNS` turns takes, watched by so many."""
    go, used = threading.Event(), list[float]()

    async def turn(number: int) -> int:
        import trio

        if number == 0:
            await trio.to_thread.run_sync(go.wait)
        return number + 1

    loop = Step.loop_until("loop", Step("turn", turn), lambda n, context: n >= TURNS, max_loops=TURNS + 1)

    def work() -> None:
        Flujo(loop, store=store).run(0, run_id=run_id)
        used.append(time.monotonic())

    run = threading.Thread(target=work)
    run.start()
    time.sleep(1)
    command = [sys.executable, "-m", "benchmarks.page", "--view", base, run_id, str(viewers)]
    watching = subprocess.Popen(command) if viewers else None
    time.sleep(3 if viewers else 0)
    begun = time.monotonic()
    go.set()
    run.join(120)
    if watching is not None:
        watching.wait(60)
    return used[0] - begun


def page_kb() -> float:
    return sum(len(gzip.compress(path.read_bytes())) for path in STATIC.rglob("*") if path.is_file()) / 1000


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = f"sqlite:///{folder}/runs.db"
        Flujo(Step("one", one) >> Step("two", two), store=store).run(1, run_id="small")
        Flujo(Step.map_over("each", Step("one", one) >> Step("two", two)), store=store).run(
            list(range(10_000)), run_id="large"
        )
        with serving(store) as (base, server), sync_playwright() as playwright:
            chromium = os.environ.get("CHROMIUM", "/usr/bin/chromium")
            browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
            paint = first_paint_ms(browser, base, "small")
            usable, whole, nodes, heap = large_run(browser, base)
            rates = scrolled(browser, base)
            pixel = commit_to_pixel_s(browser, base, store)
            browser.close()
            latency, core = many_viewers(base, store, server)
            alone = statistics.median(turns_s(base, store, f"alone{i}", 0) for i in range(3))
            watched = statistics.median(turns_s(base, store, f"seen{i}", WATCHING) for i in range(3))
    rows = [
        ("first paint of a small run", f"{paint:.0f} ms", "300 ms"),
        ("commit to pixel, another process", f"{pixel:.2f} s", "0.5 s"),
        ("10,000 branches: usable / all rows", f"{usable:.2f} s / {whole:.2f} s", "1.5 s"),
        ("10,000 branches: DOM nodes, heap", f"{nodes}, {heap:.0f} MB", "400, 60 MB"),
        *(
            (
                f"scrolling {name}: frames a second, longest frame",
                f"{fps:.0f} ({fps / rates['blank'][0]:.2f} of a blank page's), {longest:.0f} ms",
                "0.90, 100 ms",
            )
            for name, (fps, longest) in rates.items()
        ),
        (f"{VIEWERS} viewers: p99, share of a core", f"{latency * 1000:.0f} ms, {core:.0%}", "250 ms, 25 %"),
        (f"a durable run beside {WATCHING} viewers of it", f"{watched / alone:.2f} x its time alone", "1.05 x"),
        ("the page, gzipped", f"{page_kb():.1f} kB", "60 kB"),
    ]
    print("| what | measured | goal |\n|---|---|---|")
    for row in rows:
        print("| " + " | ".join(row) + " |")


def view(base: str, run_id: str, count: str) -> None:
    """Viewers in a process of their own, until the run has ended."""
    asyncio.run(_viewers(base, run_id, int(count), [], lambda: None))


if __name__ == "__main__":
    view(*sys.argv[2:]) if sys.argv[1:2] == ["--view"] else main()
