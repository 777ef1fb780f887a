"""Text of strangers, and results as trees: what reaches a terminal is text and nothing else."""

from __future__ import annotations

import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from flujo_actors import PipelineResult, StepResult
from flujo_actors._core.views.run_tree import in_lines, last_words, one_line

ANY_TEXT = st.text(st.characters(exclude_categories=()))


def commands(text: str) -> list[str]:
    """The characters of a text that a terminal, or a reader's eye, would be led by."""
    return [each for each in text if unicodedata.category(each) in ("Cc", "Cs", "Zl", "Zp") or each in "\u202e\u2066"]


@given(ANY_TEXT)
def test_one_line_has_no_commands(text: str) -> None:
    """No escape, no return, no change of direction, and it can be written in UTF-8."""
    line = one_line(text)
    assert commands(line) == []
    assert line.encode().decode() == line


@given(ANY_TEXT)
def test_lines_keep_only_their_ends_and_tabs(text: str) -> None:
    """Everything else is as in one line."""
    assert set(commands(in_lines(text))) <= {"\n", "\t"}


def test_escapes_are_shown_as_such() -> None:
    """So that whoever reads knows what was there."""
    assert one_line("a\x1b[2Jb\n c\u202e") == "a\\x1b[2Jb c\\u202e"
    assert in_lines("a\r\nb\rc\td\x07") == "a\nb\\x0dc\td\\x07"


@given(ANY_TEXT, st.integers(1, 40))
def test_last_words_fit(text: str, chars: int) -> None:
    """However long the text is."""
    assert len(last_words(text, chars)) <= chars


def result(*steps: StepResult, status: str = "completed") -> PipelineResult:
    return PipelineResult(run_id="r", status=status, step_history=steps)  # type: ignore[arg-type]


def test_a_result_is_a_tree_of_text() -> None:
    """One line per step, what failed and why, in the order of the steps."""
    inner = StepResult(name="inner", latency_s=1.0, success=False, feedback="no\x1b[31m way")
    text = result(StepResult(name="outer", latency_s=3.0, step_history=(inner,)), status="failed").tree()
    first, outer, below = text.splitlines()
    assert first == "failed in 3.00 s"
    assert "✓ outer" in outer
    assert "✗ inner" in below
    assert below.endswith("no\\x1b[31m way")


def test_equal_siblings_are_one_line() -> None:
    """More than eight of a map: counts, and the first failures below; eight are shown one by one."""
    items = [StepResult(name=f"each[{item}]", success=item % 50 != 7, feedback="bad") for item in range(200)]
    text = result(StepResult(name="each", step_history=items)).tree()
    assert "each × 200" in text
    assert "✓ 196  ✗ 4" in text
    assert len(text.splitlines()) == 6
    assert len(result(StepResult(name="each", step_history=items[:8])).tree().splitlines()) == 10


def test_a_notebook_shows_text_as_text() -> None:
    """Whatever a step says is no markup."""
    shown = result(StepResult(name="<script>x</script>"))._repr_html_()
    assert "<script>" not in shown
    assert "&lt;script&gt;" in shown
