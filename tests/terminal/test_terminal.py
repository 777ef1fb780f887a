"""The live view of a run, in a real terminal and elsewhere."""

from __future__ import annotations

import io
import json
import re
import textwrap
import threading
from pathlib import Path
from typing import Any

import pytest
import trio

from flujo_actors import Chunk, Flujo, LightRecord, MemoryStore, Outline, Pipeline, RunClient, Started, Step, Success
from flujo_actors._core.step_paths import StepPath
from flujo_actors._core.views.live_view import live_rows
from flujo_actors.errors import DeclarationError
from flujo_actors.terminal import _renderers, draw, tail, watch
from flujo_actors.terminal._renderers import mode_for
from flujo_actors.terminal._watch_view import LiveView
from kit.screens import Screen, python

# --- rows -------------------------------------------------------------------------------------------------------


def row(seq: int, kind: Any, path: str = "", **facts: Any) -> LightRecord:
    return LightRecord(seq, kind, StepPath(path), float(seq), **facts)


def map_of(count: int, *, done: int, failed: int, started: int) -> Outline:
    outline = Outline([row(1, "admitted"), row(2, "settled", "plan", status="success"), row(3, "started", "each")])
    for item in range(started):
        outline.apply(row(4, "started", f"each/~i{item}", name="summarize", of=count))
    for item in range(done + failed):
        status = "success" if item < done else "failure"
        outline.apply(row(5, "settled", f"each/~i{item}", status=status, note="broken", cost_usd=0.01, tokens=2))
    return outline


def test_a_map_of_thousands_is_one_row_with_counts() -> None:
    """And below it the oldest that run, and the last that failed."""
    rows = live_rows(map_of(10_000, done=8_311, failed=12, started=8_387), now=100.0, height=20)
    texts = [each.text for each in rows]
    assert len(rows) == 7
    assert "✓ 8,311  ✗ 12  … 64 running  1,613 to go" in texts[1]
    assert "83.23 $" in texts[1]
    assert [each.startswith("  ▸ summarize") for each in texts[2:5]] == [True] * 3
    assert texts[5].startswith("  ✗ [8322]") or texts[5].startswith("  ✗ summarize")
    assert texts[6].startswith("● running")
    assert "16,646 tok" in texts[6]


@pytest.mark.parametrize("height", [1, 2, 3, 5, 8])
def test_the_view_is_never_taller_than_it_may_be(height: int) -> None:
    """What is done goes first; the last row says how the run stands."""
    outline = Outline([row(1, "admitted")])
    for step in range(30):
        outline.apply(row(2, "settled", f"done {step}", status="success"))
    outline.apply(row(3, "started", "busy"))
    rows = live_rows(outline, now=4.0, height=height)
    assert len(rows) == height
    assert rows[-1].name == "running"
    if height > 2:
        assert any(each.name == "busy" for each in rows)
        assert any("more lines" in each.name for each in rows)


def test_a_step_shows_its_last_words_and_a_question_what_it_asks() -> None:
    """In one line, without anything that a terminal obeys."""
    outline = Outline([row(1, "started", "write"), row(2, "paused", "ask", note="Well\x1b[2J?")])
    said = {StepPath("write"): "to be\r\nor\x1b[A"}
    texts = [each.text for each in live_rows(outline, now=3.0, height=9, tails=said)]
    assert any("to be or\\x1b[A" in text for text in texts)
    assert any(text.startswith("? ask") and "Well\\x1b[2J?" in text for text in texts)
    assert not any("\x1b" in text for text in texts)


# --- where lines stay -------------------------------------------------------------------------------------------


async def work(x: int) -> int:
    if x == 7:
        raise ValueError("no\x1b[31m sevens")
    return x


MAP = Step.parallel(
    "each", {str(item): Step(f"work {item}", work, input=item) for item in range(30)}, on_branch_failure="ignore"
)


def lines_of(**options: Any) -> list[str]:
    file = io.StringIO()
    trio.run(lambda: watch(Flujo(Step("plan", work) >> MAP).run_async(1), file=file, **options))
    return file.getvalue().splitlines()


def test_lines_that_stay_tell_of_steps_and_of_maps_by_counts() -> None:
    """A line when a step begins and ends, of many the failures and the counts, and no escape at all."""
    lines = lines_of()
    assert lines[0] == "▸ plan"
    assert lines[1].startswith("✓ plan")
    assert [line for line in lines if "work" in line] == [line for line in lines if line.startswith("✗ each › work 7")]
    assert any(line.startswith("✓ each") and "✓ 29  ✗ 1" in line for line in lines)
    assert lines[-1].startswith("■ completed")
    assert not any("\x1b" in line for line in lines)


def test_a_map_tells_how_far_it_is_now_and_then() -> None:
    """At most once in ten seconds."""
    now = [0.0]
    file = io.StringIO()
    lines = _renderers.PlainLines(file, color=False, clock=lambda: now[0])
    for item in range(100):
        lines.show(row(item, "started", f"each/~i{item}", of=100))
        lines.show(row(item, "settled", f"each/~i{item}", status="success"))
        now[0] += 0.25
    told = [line for line in file.getvalue().splitlines() if "running" in line]
    assert len(told) == 2
    assert told[0] == "▸ each  ✓ 41  ✗ 0  … 0 running  59 to go"


def test_json_lines_are_the_records_of_the_run() -> None:
    """Each line is a document with its version; the last one is the end; text only where it was asked for."""
    rows = [json.loads(line) for line in lines_of(progress="json")]
    assert all(each["v"] == 1 for each in rows)
    assert [each["seq"] for each in rows] == list(range(1, len(rows) + 1))
    assert (rows[0]["kind"], rows[-1]["kind"], rows[-1]["status"]) == ("admitted", "ended", "completed")
    assert lines_of(progress="quiet") == []


async def spell(text: str) -> Any:
    for letter in text:
        yield letter


def test_text_is_told_in_json_where_it_was_asked_for() -> None:
    """With the path of the step that says it."""
    file = io.StringIO()
    trio.run(lambda: watch(Flujo(Step("spell", spell)).run_async("ab"), file=file, progress="json", chunks=True))
    rows = [json.loads(line) for line in file.getvalue().splitlines()]
    assert [each["text"] for each in rows if each["kind"] == "chunk"] == ["a", "b"]


@pytest.mark.parametrize(
    ("environment", "tty", "mode"),
    [
        ({}, True, "live"),
        ({}, False, "plain"),
        ({"TERM": "dumb"}, True, "plain"),
        ({"CI": "true"}, True, "plain"),
        ({"NO_COLOR": "1"}, True, "plain"),
        ({"FORCE_COLOR": "1"}, False, "plain"),
    ],
)
def test_the_place_decides_how_a_run_is_shown(environment: dict[str, str], tty: bool, mode: str) -> None:
    """Unless somebody says how."""
    file = io.StringIO()
    file.isatty = lambda: tty  # type: ignore[method-assign]
    assert mode_for("auto", file, environment).progress == mode
    assert mode_for("json", file, environment).progress == "json"
    painted = mode == "live" or not environment.keys().isdisjoint({"FORCE_COLOR", "CI"})
    assert mode_for("auto", file, environment).color == painted
    with pytest.raises(DeclarationError, match="progress"):
        mode_for("loud", file, environment)  # type: ignore[arg-type]


def test_watching_gives_the_result_and_raises_what_the_run_raises() -> None:
    """It is the run, with somebody looking at it."""
    result = trio.run(lambda: watch(Flujo(Step("work", work)).run_async(3), progress="quiet"))
    assert (result.status, result.output) == ("completed", 3)
    assert "✓ work" in draw(result)
    assert "\x1b[32m" in draw(result, color=True)


def test_a_stored_run_is_shown_to_its_end() -> None:
    """From whatever process it comes; what comes back is how it stands."""
    store, file = MemoryStore(), io.StringIO()
    Flujo(Step("work", work) >> Pipeline((Step("more", work),), name="inner"), store=store).run(1, run_id="r")
    info = trio.run(lambda: tail(store, "r", file=file))
    assert info.status == "completed"
    assert file.getvalue().splitlines()[-1].startswith("■ completed")
    assert "✓ inner › more" in file.getvalue()


def test_a_sleeping_step_asks_no_person() -> None:
    """It has a mark of its own, also while its run has no record of the wait."""
    store = MemoryStore()
    Flujo(Step.sleep("nap", 3600), store=store).run(run_id="r")
    rows = [each.text for each in live_rows(Outline(RunClient(store).records("r")), now=3.0, height=9)]
    assert rows[0].startswith("☾ nap")
    unwritten = Outline([row(1, "started", "nap"), row(2, "ended", "", status="sleeping")])
    assert live_rows(unwritten, now=3.0, height=9)[0].mark == "☾"


def test_a_run_that_asks_is_shown_until_it_asks() -> None:
    """Nobody waits in front of a terminal for somebody else's answer."""
    store, file = MemoryStore(), io.StringIO()
    Flujo(Step.human_in_the_loop("ask", "Well?"), store=store).run(run_id="r")
    info = trio.run(lambda: tail(store, "r", file=file, progress="plain"))
    assert info.status == "paused"
    assert "? ask  Well?" in file.getvalue()


def test_outcomes_and_records_show_the_same_tree() -> None:
    """What is told in this process comes to the same outline as what is stored."""
    from flujo_actors._core.views.record_summaries import LightOutcomes

    store = MemoryStore()

    async def main() -> Outline:
        rows = LightOutcomes(at=0.0)
        outline = Outline([rows.first])
        run = Flujo(Step("plan", work) >> MAP, store=store).run_async(1, run_id="r", started=True)
        async for outcome in run:
            assert isinstance(outcome, Started | Success | Chunk) or outcome.path
            record = rows.record(outcome, at=1.0)
            if record is not None:
                outline.apply(record)
        outline.apply(rows.end(await run, at=2.0))
        return outline

    told, stored = trio.run(main), Outline(RunClient(store).records("r"))
    for one, other in ((told, stored), (stored, told)):
        assert {path: (node.name, node.status) for path, node in one.nodes.items()} == {
            path: (node.name, node.status) for path, node in other.nodes.items()
        }
    assert (told.status, told.root.done) == (stored.status, stored.root.done)


class Watched(io.StringIO):
    """A terminal that looks, whenever a failure is told, whether somebody else could draw meanwhile."""

    view: LiveView
    could_draw: list[bool]

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        if "✗ broken" in text:
            other = threading.Thread(target=self._look)
            other.start()
            other.join()
        return super().write(text)

    def _look(self) -> None:
        free = self.view._live._lock.acquire(blocking=False)
        self.could_draw.append(free)
        if free:
            self.view._live._lock.release()


def test_nobody_draws_the_view_while_a_failure_is_told_above_it() -> None:
    """Where the view is has been decided by then: another one in between would stay as stray lines."""
    terminal = Watched()
    view = LiveView(terminal, color=False)
    terminal.view, terminal.could_draw = view, []
    view.show(row(1, "settled", "broken", name="broken", status="failure", note="no"))
    view.close()
    assert terminal.could_draw
    assert not any(terminal.could_draw)


# --- a real terminal --------------------------------------------------------------------------------------------

LIVE = textwrap.dedent("""
    import sys, trio
    from pathlib import Path
    from flujo_actors import Flujo, Step
    from flujo_actors.terminal import watch

    async def until(name):
        while not (Path(sys.argv[1]) / name).exists():
            await trio.sleep(0.02)

    async def work(x):
        await trio.sleep(0.02 * (x % 5))
        if x == 30:
            await until("seen")
        if x % 25 == 7:
            raise ValueError(f"bad item {x} \\x1b[2J\\x1b[31m")
        return x

    async def write(_):
        for word in "words \\x1b[2J\\x1b[5A here".split(" ") * 8:
            await trio.sleep(0.02)
            yield word + " "

    async def hold(x):
        await until("go")
        return x

    many = {str(i): Step(f"work {i}", work, input=i) for i in range(60)}
    pipeline = (Step("first", lambda x: x) >> Step.parallel("each", many, on_branch_failure="ignore", max_concurrency=4)
                >> Step("write", write) >> Step("hold", hold))
    result = trio.run(lambda: watch(Flujo(pipeline).run_async(1)))
    print("the result is", result.status)
""")


def live(tmp_path: Path, **options: Any) -> Screen:
    """A run with a branch that waits until `seen` exists, and a last step that waits for `go`."""
    return Screen([*python(LIVE), str(tmp_path)], **options)


@pytest.mark.slow
@pytest.mark.parametrize(("columns", "lines"), [(80, 24), (40, 10)])
def test_a_live_view_stays_in_its_terminal(tmp_path: Path, columns: int, lines: int) -> None:
    """It shows counts and the running few, never scrolls by itself, and leaves failures as lines that stay."""
    screen = live(tmp_path, columns=columns, lines=lines)
    screen.until(lambda screen: any("✓" in line and "running" in line for line in screen.shown))
    (tmp_path / "seen").touch()
    screen.until_text("hold")
    (tmp_path / "go").touch()
    assert screen.end() == 0
    assert screen.tallest <= lines
    everything = [*screen.scrolled, *screen.shown]
    failures = [line.split("  ")[0] for line in everything if line.startswith("✗")]
    assert failures == [f"✗ each › work {item}" for item in (7, 32, 57)]
    assert sum("the result is completed" in line for line in everything) == 1
    assert sum(line.startswith("■ completed") for line in everything) == 1
    assert b"\x1b[2J" not in screen.raw
    assert len(screen.scrolled) <= 3


@pytest.mark.slow
def test_a_live_view_follows_its_window(tmp_path: Path) -> None:
    """Made smaller and larger again, it goes on and fits."""
    screen = live(tmp_path)
    screen.until(lambda screen: any("running" in line for line in screen.shown))
    screen.resize(columns=50, lines=12)
    (tmp_path / "seen").touch()
    screen.until_text("hold")
    assert len(screen.shown) <= 12
    assert max(map(len, screen.shown)) <= 50
    screen.resize(columns=100, lines=30)
    (tmp_path / "go").touch()
    assert screen.end() == 0
    assert any(line.startswith("■ completed") for line in screen.shown)


@pytest.mark.slow
@pytest.mark.parametrize("environment", [{"NO_COLOR": "1"}, {"TERM": "dumb"}, {"CI": "1", "NO_COLOR": "1"}])
def test_no_escape_is_written_where_none_is_wanted(tmp_path: Path, environment: dict[str, str]) -> None:
    """Lines that stay, in plain characters."""
    for name in ("seen", "go"):
        (tmp_path / name).touch()
    screen = live(tmp_path, **environment)
    assert screen.end() == 0
    assert not re.search(rb"\x1b", screen.raw)
    assert "■ completed".encode() in screen.raw


def test_a_waiting_run_has_the_word_and_color_of_its_state() -> None:
    """As on the page: waiting, in yellow, with its question, tokens and dollars."""
    file = io.StringIO()
    lines = _renderers.PlainLines(file, color=True)
    for record in (
        row(1, "admitted"),
        row(2, "paused", "ask", name="ask", note="Pay $900?"),
        row(3, "ended", status="paused", tokens=1200, cost_usd=0.5, note="Pay $900?"),
    ):
        lines.show(record)
    asked, ended = file.getvalue().splitlines()
    assert asked == "\x1b[33m?\x1b[0m ask  Pay $900?"
    assert ended.startswith("\x1b[33m■\x1b[0m waiting")
    assert "1,200 tok" in ended
