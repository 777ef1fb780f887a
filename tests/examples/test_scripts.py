"""The programs whose output is not the text of their page (test_gallery.py), run as a user runs them."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(name: str, *arguments: str, complaint: str = "") -> str:
    """What the program prints; it must end well and complain about nothing else."""
    done = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLES / name), *arguments],
        capture_output=True,
        encoding="utf-8",
        env={**os.environ, "PYTHONIOENCODING": "utf-8"},
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(complaint, done.stderr)
    return done.stdout


@pytest.fixture(scope="module")
def demo() -> str:
    """What the demo prints when its output is not a terminal."""
    return run("demo.py")


def test_the_demo_types_the_article_as_it_is_written(demo: str) -> None:
    """All chunks are on the screen, in order, before the step that wrote them is done."""
    typed = " ".join(demo.split())
    article = "Two hearts pump blood through the gills, the third through the body. Copper carries their oxygen"
    assert typed.index(article) < typed.index("✓ article: ")


def test_the_demo_ends_with_a_tree_of_the_run(demo: str) -> None:
    """Every step has its line, nested steps below their parents, with what happened to it."""
    _, first, *lines = demo[demo.index("completed in ") :].strip().splitlines()
    assert first.startswith("├─ ✓ research ")
    assert any(line.startswith("│     └─ ✓ own notes ") for line in lines)
    assert any("fell back: Agent execution failed with ConnectionError" in line for line in lines)
    assert lines[-1].startswith("└─ ✓ article ")


def test_the_demo_is_plain_text_where_there_is_no_terminal(demo: str) -> None:
    """No color codes end up in a file or a pipe."""
    assert "\x1b" not in demo


def test_the_plain_script_prices_asks_and_fails_as_it_should() -> None:
    """A cheap order goes through, a dear one asks first, an impossible one is a result and not a crash."""
    logged = (
        r"step 'price' failed at \S+plain_script\.py:\d+ in price.* path 'price', attempt 1\): .*KeyError: 'unicorn'\n"
    )
    printed = run("plain_script.py", complaint=logged)
    assert "=> ordered for 43 coins" in printed
    assert "the boss is asked: May I?\n  run completed\n  => ordered, with approval" in printed
    assert (
        "step 'price' failed\n  run failed\n  => failed: step 'price' failed: Agent execution failed with KeyError"
        in printed
    )


def test_the_cited_answers_show_what_was_used_and_what_was_dropped() -> None:
    """An answer with its source, one that was refused for a wrong id, one about nothing, and a wall."""
    printed = run("cited_answers.py", complaint=r"step 'answer' failed \(run .*has no value \(None\).*\n")
    first, second, third, fourth = printed.strip().split("\n\n")
    assert "the pump lost prime [pump-1]. " in first
    assert "shown: pump-1 (" in first
    assert "dropped, over the token budget: pump-2 (" in first
    assert "[kiln-9]. \n  (refused, asked again)\n" in second
    assert "[kiln-1]. \n  shown: kiln-1 (" in second
    assert "The manual says nothing about that.\n  shown: nothing; " in third
    assert "filter 'tenant' has no value" in fourth
    assert "secret" not in printed


def test_the_saga_undoes_what_was_booked_also_after_a_power_cut() -> None:
    """The last started first, with the same key when it is done again, and nothing is booked twice."""
    said = run("saga.py")
    first, second = said.strip().split("\n\n")
    for trip, text in (("trip-1", first), ("trip-2", second)):
        assert text.startswith(f"{trip} failed: ")
        assert text.splitlines()[0].endswith("no cars left")
        assert text.count("booked    flight, hotel\n") == text.count("booked") == 1
        assert text.index("notified  clerk: car") < text.index("cancelled car    in case it was rented")
        assert text.index(f"cancelled hotel  under the key {trip}:") < text.index("cancelled flight under the key")
        assert text.endswith("undone: car, hotel, flight; everything: yes")
    assert first.count("cancelled hotel") == 1
    assert second.count("cancelled hotel  under the key trip-2:travel/hotel/~c") == 2


def test_the_router_learns_which_model_to_ask(tmp_path: Path) -> None:
    """It loses less than who asks in turn, also after the better model became worse, and draws both."""
    said = run("learning_router.py", str(tmp_path / "regret.svg"))
    learned, in_turn = (float(line.split("halfway,")[1].split()[0]) for line in said.splitlines()[:2])
    assert learned < in_turn * 0.8
    assert (tmp_path / "regret.svg").read_text(encoding="utf-8").count("<polyline") >= 2
