"""The measurement of retrieval: it runs, and its figures are what the documents say."""

from __future__ import annotations

import re

import pytest
from benchmarks.__main__ import main
from benchmarks.questions import PASSAGES, QUESTIONS

pytestmark = pytest.mark.slow


def test_every_question_has_a_passage() -> None:
    """What is asked for is there."""
    assert set(QUESTIONS.values()) <= set(PASSAGES)
    assert len(QUESTIONS) >= 20


def test_searches_are_measured(capsys: pytest.CaptureFixture[str]) -> None:
    """Words find most passages first, both together no fewer, and exact vectors find what numpy finds."""
    assert main(["--retrieval", "--passages", "300"]) == 0
    printed = capsys.readouterr().out
    rows = dict(re.findall(r"^\| ([^|]+?) \| (.+) \|$", printed, re.MULTILINE))
    words, both = rows["words (BM25)"].split(" | "), rows["hybrid, half and half"].split(" | ")
    assert float(words[0]) >= 0.6
    assert float(both[1]) >= float(words[1])
    assert float(words[2]) < 0.2
    assert rows["SqliteRetriever, by meaning and words"].split(" | ")[2] == "1.000"
    assert "Assembling three sources without a search adds" in printed
