"""`flujo-actors run` and `runs resume`: as a program in a pipe, and in a real terminal."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest

from flujo_actors import RunClient
from kit import preloaded
from kit.screens import Screen

APP = textwrap.dedent("""
    import signal
    from pathlib import Path
    import anyio
    from flujo_actors import Flujo, Step, UsageLimits, StepResult

    async def shout(text):
        return (text or "nothing").upper()

    async def words(text):
        for word in str(text).split():
            yield word + " "

    async def hold(text):
        Path("held").touch()
        try:
            while not Path("go").exists():
                await anyio.sleep(0.02)
        finally:
            with anyio.CancelScope(shield=True):
                if Path("slow cleanup").exists():
                    Path("cleaning up").touch()
                    await anyio.sleep(600)
                Path("cleaned up").touch()
        return text

    async def fail(_):
        raise ValueError("no\\x1b[2J way")

    async def escape(_):
        return "\\x1b[2J\\x1b[5Awords"

    async def spend(_):
        return StepResult(name="x", output=1, token_counts=100, cost_usd=0.5)

    def with_context(text, *, context):
        return f"{text} {context.place} {context.times + 1}"

    pipeline = Step("shout", shout) >> Step("words", words)
    oddly_named = Step("shout", shout) >> Step("words/of ~it", words)
    flujo = Flujo(pipeline)
    holding = Step("shout", shout) >> Step("hold", hold)
    approve = Step.human_in_the_loop("approve", "Publish?", input_schema=bool)
    asking = Step("shout", shout) >> approve >> Step("say", str)
    failing = Step("fail", fail)
    escaping = Step("escape", escape)
    counting = Step("count", lambda data: {"n": data["n"] + 1})
    spending = Step("spend", spend) >> Step("again", spend)
    placed = Step("placed", with_context)
""")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory with an application in it."""
    (tmp_path / "app.py").write_text(APP)
    return tmp_path


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "flujo_actors", *arguments]


def environment(**more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("FLUJO_")}
    return {**kept, "PYTHONUNBUFFERED": "1", **more}


def run(place: Path, *arguments: str, stdin: str | None = None, **more: str) -> subprocess.CompletedProcess[str]:
    return preloaded.run(
        command(*arguments), cwd=place, input=stdin, capture_output=True, text=True, timeout=60, check=False,
        env=environment(**more),
    )  # fmt: skip


STORE = ("--store", "sqlite:///runs.db")

# --- in a pipe --------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_run_writes_its_output_and_nothing_else_to_stdout(place: Path) -> None:
    """A text as it is; what it does goes to stderr in plain lines without an escape."""
    done = run(place, "run", "app.py:pipeline", "--input", "hello you")
    assert (done.returncode, done.stdout) == (0, "HELLO YOU \n")
    assert "✓ shout" in done.stderr
    assert done.stderr.splitlines()[-1].startswith("■ completed")
    assert "\x1b" not in done.stderr
    quiet = run(place, "run", "app:flujo", "-i", "hello", "-q")
    assert (quiet.stdout, quiet.stderr) == ("HELLO \n", "")


@pytest.mark.slow
def test_an_input_comes_as_text_or_json_from_an_option_a_file_or_stdin(place: Path) -> None:
    """Anything that is no text is written as JSON."""
    (place / "data.json").write_text('{"n": 4}')
    for given, stdin in (
        (["--input-json", '{"n": 4}'], None),
        (["--input-json", "@data.json"], None),
        (["--input-json", "-"], '{"n": 4}'),
        (["--input", '{"n": 4}', "--input-json"], None),
    ):
        done = run(place, "run", "app.py:counting", *given, stdin=stdin)
        assert (done.returncode, json.loads(done.stdout)) == (0, {"n": 5})
    assert run(place, "run", "app.py:pipeline", "-i", "@app.py", "-q").stdout.startswith("IMPORT SIGNAL ")
    wrong = run(place, "run", "app.py:counting", "--input-json", "{")
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert "JSON" in wrong.stderr


@pytest.mark.slow
def test_a_failed_run_is_1_and_says_why(place: Path) -> None:
    """On stderr, without what a terminal would obey; as a document with --json."""
    done = run(place, "run", "app.py:failing")
    assert (done.returncode, done.stdout) == (1, "")
    assert "no\\x1b[2J way" in done.stderr
    quiet = run(place, "run", "app.py:failing", "-q")
    assert quiet.stderr.startswith("failed: ")
    data = json.loads(run(place, "run", "app.py:failing", "--json").stdout)
    assert (data["schema_version"], data["status"], data["error"]["type_name"]) == (1, "failed", "ValueError")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["run", "app.py:nobody"], 2),
        (["run", "nowhere.py:x"], 2),
        (["run", "no_such_module:x"], 2),
        (["run", "app.py:pipeline", "--context", "nonsense"], 2),
        (["run", "app.py:pipeline", "--timeout", "soon"], 2),
        (["run", "app.py:pipeline", "--store", "nonsense://"], 2),
        (["run", "app.py:pipeline", "--nonsense"], 2),
        (["runs", "resume", "nobody", "app.py:pipeline", *STORE], 5),
    ],
)
def test_what_cannot_start_says_so(place: Path, arguments: list[str], code: int) -> None:
    """In a line, with the code for it, and no traceback."""
    done = run(place, *arguments)
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_options_reach_the_run(place: Path) -> None:
    """Context, limits, run id and timeout."""
    done = run(place, "run", "app.py:placed", "-i", "x", "-c", "place=Lima", "-c", "times=4", "-q")
    assert done.stdout == "x Lima 5\n"
    limited = run(place, "run", "app.py:spending", "--limit-tokens", "150", "-q")
    assert limited.returncode == 1
    assert run(place, "run", "app.py:spending", "--limit-usd", "9", "-q").returncode == 0
    assert run(place, "run", "app.py:pipeline", "-i", "a", "--run-id", "mine", *STORE, "-q").returncode == 0
    again = run(place, "run", "app.py:flujo", "-i", "a", "--run-id", "mine", *STORE)
    assert again.returncode == 4
    late = run(place, "run", "app.py:holding", "--timeout", "2s", *STORE)
    assert late.returncode == 1
    assert "longer than 2s" in late.stderr
    assert (place / "cleaned up").exists()


@pytest.mark.slow
def test_text_is_streamed_to_stdout(place: Path) -> None:
    """Once, and the output is not written again."""
    for pipeline in ("pipeline", "oddly_named"):
        done = run(place, "run", f"app.py:{pipeline}", "-i", "a b", "--stream", "-q")
        assert done.stdout == "A B \n"


@pytest.mark.slow
def test_watch_is_the_live_view(place: Path) -> None:
    """`--watch` draws on stderr, also where that is no terminal; a later `--progress` wins."""
    watched = run(place, "run", "app.py:pipeline", "-i", "a", "--watch")
    assert "\x1b[" in watched.stderr
    plain = run(place, "run", "app.py:pipeline", "-i", "a", "--watch", "--progress", "plain")
    assert ("\x1b[" in plain.stderr, plain.stdout) == (False, watched.stdout)


@pytest.mark.slow
def test_json_lines_equal_the_journal(place: Path) -> None:
    """Every line parses, the last one is the end; events are outcomes, and the result at last."""
    done = run(place, "run", "app.py:pipeline", "-i", "a", "--progress", "json", "--run-id", "r", *STORE)
    rows = [json.loads(line) for line in done.stderr.splitlines()]
    records = RunClient(f"sqlite:///{place}/runs.db").records("r")
    assert [(row["seq"], row["kind"], row["at"]) for row in rows] == [
        (record.seq, record.kind, record.at) for record in records
    ]
    assert (rows[-1]["kind"], rows[-1]["status"]) == ("ended", "completed")
    events = [
        json.loads(line) for line in run(place, "run", "app.py:pipeline", "-i", "a", "--events").stderr.splitlines()
    ]
    assert events[-1]["kind"] == "pipeline_result"
    assert {"success", "chunk", "started"} <= {event["kind"] for event in events}


@pytest.mark.slow
def test_a_paused_run_is_3_is_answered_and_resumed(place: Path) -> None:
    """The token is printed; a wrong answer is 2, a right one 0, a second one 4; then the run completes."""
    done = run(place, "run", "app.py:asking", "-i", "tea", "--run-id", "r", *STORE)
    assert (done.returncode, done.stdout) == (3, "")
    [token] = re.findall(r"^token: (.+)$", done.stderr, re.MULTILINE)
    again = run(place, "runs", "resume", "r", "app.py:asking", *STORE, "-q")
    assert (again.returncode, again.stdout, again.stderr) == (3, "", f"token: {token}\n")
    assert [run(place, "runs", "answer", token, value, *STORE).returncode for value in ("maybe", "true", "true")] == [
        2,
        0,
        4,
    ]
    resumed = run(place, "runs", "resume", "r", "app.py:asking", *STORE)
    assert (resumed.returncode, resumed.stdout) == (0, "True\n")


@pytest.mark.slow
def test_questions_are_asked_here_if_wanted(place: Path) -> None:
    """A wrong answer is asked again; without an answer the run stays paused; without a store too."""
    done = run(place, "run", "app.py:asking", "-i", "tea", "--ask", "-q", stdin="maybe\nyes\n")
    assert (done.returncode, done.stdout) == (0, "True\n")
    assert done.stderr.count("Publish?") == 2
    left = run(place, "run", "app.py:asking", "-i", "tea", "--ask", stdin="")
    assert left.returncode == 3
    assert "a run without a store cannot be resumed" in left.stderr


@pytest.mark.slow
def test_a_reader_that_leaves_is_no_error(place: Path) -> None:
    """A closed pipe ends quietly."""
    line = f"{' '.join(command('run', 'app.py:pipeline', '-i', 'a', '-q'))} | true"
    done = subprocess.run(line, shell=True, cwd=place, capture_output=True, text=True, timeout=240, env=environment())
    assert "Traceback" not in done.stderr


# --- signals ----------------------------------------------------------------------------------------------------


def begun(place: Path, *arguments: str) -> preloaded.Popen:
    """A run that holds, in a process of its own."""
    process = preloaded.Popen(
        command("run", "app.py:holding", *arguments), cwd=place, env=environment(), text=True,
        stdout=preloaded.PIPE, stderr=preloaded.PIPE,
    )  # fmt: skip
    _until(lambda: (place / "held").exists())
    return process


def _until(done: Any) -> None:
    deadline = time.monotonic() + 120
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["trio", "asyncio"])
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_stops_the_run_cleans_up_and_says_how_to_resume(
    place: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals, code: int, backend: str
) -> None:
    """The step's cleanup is done, and the run goes on from there."""
    monkeypatch.setenv("FLUJO_RUN__BACKEND", backend)
    (place / "flujo.toml").write_text(f'[run]\nbackend = "{backend}"\n')
    process = begun(place, "-i", "x", "--run-id", "r", *STORE)
    process.send_signal(number)
    out, err = process.communicate(timeout=120)
    assert (process.returncode, out) == (code, "")
    assert "flujo-actors runs resume r app.py:holding --store sqlite:///runs.db" in err
    assert (place / "cleaned up").exists()
    (place / "go").touch()
    resumed = run(place, "runs", "resume", "r", "app.py:holding", *STORE, "-q")
    assert (resumed.returncode, resumed.stdout) == (0, "X\n")


@pytest.mark.slow
def test_a_second_ctrl_c_stops_at_once_and_says_what_was_left(place: Path) -> None:
    """Whatever the cleanup is doing."""
    (place / "slow cleanup").touch()
    process = begun(place, "-i", "x")
    process.send_signal(signal.SIGINT)
    _until((place / "cleaning up").exists)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "left as it was: hold" in err
    assert not (place / "cleaned up").exists()


@pytest.mark.slow
def test_a_run_without_a_store_is_reported_as_not_resumable(place: Path) -> None:
    """Instead of a command that would not work."""
    process = begun(place, "-i", "x")
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "a run without a store cannot be resumed" in err


@pytest.mark.slow
def test_a_run_of_another_process_is_tailed_and_left_alone(place: Path) -> None:
    """Ctrl-C ends the looking, not the run; a second look sees it to its end."""
    process = begun(place, "-i", "x", "--run-id", "r", *STORE)
    screen = Screen(command("runs", "tail", "r", *STORE), cwd=place)
    screen.until_text("hold")
    screen.interrupt()
    assert screen.end() == 130
    assert process.poll() is None
    second = Screen(command("runs", "tail", "r", *STORE), cwd=place)
    second.until_text("hold")
    (place / "go").touch()
    assert second.end() == 0
    assert any("completed" in line for line in second.shown)
    process.communicate(timeout=120)
    assert process.returncode == 0


# --- in a terminal ----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_run_in_a_terminal_is_live_and_its_output_harmless(place: Path) -> None:
    """Rows change in place, the output is below them, and no escape of a model moves the cursor."""
    screen = Screen(command("run", "app.py:escaping"), cwd=place)
    assert screen.end() == 0
    assert "\\x1b[2J\\x1b[5Awords" in screen.shown
    assert b"\x1b[2J" not in screen.raw
    assert any(line.startswith("■ completed") for line in screen.shown)


@pytest.mark.slow
def test_ctrl_c_in_a_terminal(place: Path) -> None:
    """The view is left where it is, the cursor is shown again, and the code is 130."""
    screen = Screen(command("run", "app.py:holding", "-i", "x", "--run-id", "r", *STORE), cwd=place)
    screen.until_text("hold")
    screen.interrupt()
    assert screen.end() == 130
    assert any("runs resume r app.py:holding" in line for line in screen.shown)
    assert screen.raw.rfind(b"\x1b[?25h") > screen.raw.rfind(b"\x1b[?25l")
