"""The page and other processes: workers that die, servers that are stopped and come back, the command itself."""

from __future__ import annotations

import asyncio
import os
import re
import resource
import signal
import sys
import textwrap
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Page, expect

from flujo_actors import Flujo, RunClient, Step
from kit import preloaded
from page.conftest import apart

pytestmark = pytest.mark.slow

WORKER = """
import sys, trio
from flujo_actors import Flujo, Step

async def first(data): return data + 1
async def second(data):
    if "--stay" in sys.argv:
        print("working", flush=True)
        await trio.sleep_forever()
    return data * 10

pipeline = Step("first", first) >> Step("second", second)
flujo = Flujo(pipeline, store=sys.argv[1], settings={"durability": {"lease_s": 2}})
if "--recover" in sys.argv:
    print([each.output for each in flujo.recover(wait=True)], flush=True)
else:
    flujo.run(1, run_id="r")
"""


def started(*arguments: str, **options: Any) -> preloaded.Popen:
    return preloaded.Popen(
        [sys.executable, *arguments], stdout=preloaded.PIPE, stderr=preloaded.STDOUT, text=True, **options
    )


class Command:
    """`flujo-actors page` in a process of its own."""

    def __init__(self, place: str, *options: str) -> None:
        self.process = started("-m", "flujo_actors", "page", "--store", place, "--port", "0", *options)
        assert self.process.stdout is not None
        self.link = self.process.stdout.readline().strip()
        assert self.link.startswith("http://127.0.0.1:"), self.link + self.process.stdout.read()

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Stop it; as a shell tells how it ended."""
        self.process.send_signal(number)
        self.process.communicate(timeout=120)
        return abs(self.process.returncode) % 128


def test_a_run_whose_worker_was_killed_is_abandoned_and_goes_on_when_it_is_recovered(
    tab: Page, place: str, tmp_path: Path
):
    """The page never says "running" for ever, and needs no reload."""
    script = tmp_path / "worker.py"
    script.write_text(textwrap.dedent(WORKER))
    worker = started(str(script), place, "--stay")
    assert worker.stdout is not None
    assert worker.stdout.readline().strip() == "working"
    command = Command(place)
    try:
        tab.goto(command.link)
        tab.click(".runs a.m")
        expect(tab.locator(".line.running")).to_contain_text("second")
        worker.kill()
        worker.communicate(timeout=120)
        expect(tab.locator(".status")).to_contain_text("abandoned")
        recovering = started(str(script), place, "--recover")
        assert "[20]" in recovering.communicate(timeout=120)[0]
        expect(tab.locator(".status")).to_contain_text("completed")
    finally:
        worker.kill()
        worker.stdout.close()
        tab.goto("about:blank")
        command.stop()


SPEAKER = """
import sys, trio
from flujo_actors import Flujo, Step

async def speak(data):
    while line := await trio.to_thread.run_sync(sys.stdin.readline):
        yield line.strip() + " "

Flujo(Step("speak", speak), store=sys.argv[1]).run(1, run_id="r", backend="trio")
"""


def test_the_text_of_a_step_in_another_process_is_seen_while_it_is_written(tab: Page, place: str, tmp_path: Path):
    """Its owner leaves the end of it in the store, for as long as somebody looks."""
    script = tmp_path / "speaker.py"
    script.write_text(textwrap.dedent(SPEAKER))
    speaker = started(str(script), place, stdin=preloaded.PIPE)
    assert speaker.stdin is not None
    command = Command(place)
    try:
        tab.goto(command.link)
        tab.click(".runs a.m")
        tab.locator(".line", has_text="speak").click()
        expect(tab.locator(".status")).to_have_attribute("data-live", "true")
        for number in range(600):  # what is written before the owner knows that somebody listens is not kept
            speaker.stdin.write(f"word{number}\n")
            speaker.stdin.flush()
            tab.wait_for_timeout(200)
            if tab.locator(".live").count():
                break
        speaker.stdin.write("last\n")
        speaker.stdin.flush()
        expect(tab.locator(".live")).to_contain_text("last")
        speaker.communicate(timeout=120)
        expect(tab.locator(".status")).to_contain_text("completed")
    finally:
        speaker.kill()
        tab.goto("about:blank")
        command.stop()


def test_a_reader_goes_on_when_its_server_comes_back(tab: Page, place: str):
    """The stream connects again from the last record that was seen; the rows are those of a fresh load."""
    release = threading.Event()

    async def wait(data: Any) -> Any:
        import anyio.to_thread

        await anyio.to_thread.run_sync(release.wait)
        return data

    begun = threading.Event()

    async def begin(data: Any) -> Any:
        begun.set()
        return data

    flujo = Flujo(Step("begin", begin) >> Step("wait", wait) >> Step("end", begin), store=place)
    run = threading.Thread(target=lambda: flujo.run(1, run_id="r"))
    run.start()
    assert begun.wait(120)
    command = Command(place, "--token", "s3cret-for-the-test")
    port = re.search(r":(\d+)/", command.link)
    assert port is not None
    try:
        tab.goto(command.link)
        tab.click(".runs a.m")
        expect(tab.locator(".line.running")).to_contain_text("wait")
        assert command.stop() == signal.SIGTERM
        expect(tab.locator(".strip-off")).to_contain_text("reconnecting")
        release.set()
        run.join(120)
        command = Command(place, "--token", "s3cret-for-the-test", "--port", port[1])
        expect(tab.locator(".status")).to_contain_text("completed")
        rows = tab.evaluate("runPage.run.rows.map(row => row[0])")
        assert rows == list(range(1, len(rows) + 1))
        seen = tab.locator(".line").all_inner_texts()
        tab.reload()
        expect(tab.locator(".line")).to_have_count(len(seen))
    finally:
        release.set()
        tab.goto("about:blank")
        command.stop()


def test_a_stopped_server_ends_with_its_viewers_still_there(place: str):
    """SIGTERM ends it, however many streams are open."""
    apart(lambda: Flujo(Step.human_in_the_loop("ask", "Fine?"), store=place).run(1, run_id="r"))
    command = Command(place, "--token", "t0ken-t0ken")
    base = command.link.partition("?")[0]
    headers = {"authorization": "Bearer t0ken-t0ken"}
    with httpx.Client(headers=headers, timeout=120, limits=httpx.Limits(max_connections=60)) as http:
        streams = [http.stream("GET", f"{base}api/events?run=r") for _ in range(50)]
        answers = [stream.__enter__() for stream in streams]
        assert {answer.status_code for answer in answers} == {200}
        assert command.stop() == signal.SIGTERM
        for stream in streams:
            stream.__exit__(None, None, None)


VIEWERS = 1_000


async def _viewer(host: str, port: int, open_ones: asyncio.Semaphore, ready: Callable[[], None]) -> str:
    """Read the stream of a run over a socket until its answer; return the status line."""
    async with open_ones:
        reader, writer = await asyncio.open_connection(host, port)
        request = f"GET /api/events?run=r HTTP/1.1\r\nHost: {host}:{port}\r\nAuthorization: Bearer t0ken-t0ken\r\n\r\n"
        writer.write(request.encode())
        status = (await reader.readline()).decode()
        await reader.readuntil(b"event: run")
    ready()
    await reader.readuntil(b"answered")
    writer.close()
    return status


def test_a_thousand_idle_viewers_share_one_process(place: str):
    """Each gets the next record; they cost memory in proportion, and no thread each."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 3 * VIEWERS:
        pytest.skip(f"TOO FEW FILES: {VIEWERS} viewers need {3 * VIEWERS} open files, and {hard} are allowed")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 3 * VIEWERS), hard))
    flujo: Flujo[Any, Any, Any] = Flujo(Step.human_in_the_loop("ask", "Fine?", input_schema=bool), store=place)
    token = str(apart(lambda: flujo.run(1, run_id="r")).state_token)
    command = Command(place, "--token", "t0ken-t0ken")
    facts = Path(f"/proc/{command.process.pid}/status")

    def fact(name: str) -> int:
        return int(re.findall(rf"{name}:\s+(\d+)", facts.read_text())[0])

    host, _, port = command.link.removeprefix("http://").partition("/")[0].partition(":")
    seen: list[int] = []

    async def all_of() -> list[str]:
        waiting, everyone = asyncio.Semaphore(50), asyncio.Event()

        def ready() -> None:
            seen.append(1)
            if len(seen) == VIEWERS:
                everyone.set()

        viewers = [asyncio.create_task(_viewer(host, int(port), waiting, ready)) for _ in range(VIEWERS)]
        await everyone.wait()
        assert fact("VmRSS") - before < 200_000
        assert fact("Threads") < 100
        await asyncio.to_thread(RunClient(place, allow_blocking=True).answer, token, True)
        return await asyncio.gather(*viewers)

    try:
        before = fact("VmRSS")
        answers = apart(lambda: asyncio.run(all_of()), timeout=280)
        assert set(answers) == {"HTTP/1.1 200 OK\r\n"}
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        command.stop()


def test_the_link_of_the_command_opens_the_page_once(place: str):
    """Whoever finds it later in a log comes too late."""
    command = Command(place)
    try:
        first = httpx.get(command.link, follow_redirects=False, timeout=120)
        second = httpx.get(command.link, follow_redirects=False, timeout=120)
        assert (first.status_code, second.status_code) == (303, 401)
    finally:
        assert command.stop() == signal.SIGTERM


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--store", "sqlite:///x.db", "--host", "0.0.0.0"], "--token"),
        ([], "--store"),
        (["--store", "sqlite:///x.db", "--port", "70000"], "cannot listen"),
    ],
)
def test_a_page_that_cannot_be_shown_says_why(options: list[str], says: str, tmp_path: Path):
    """With the code of what could not start."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("FLUJO_")}
    command = started("-m", "flujo_actors", "page", *options, cwd=tmp_path, env=environment)
    said = command.communicate(timeout=120)[0]
    assert command.returncode == 2
    assert says in said
