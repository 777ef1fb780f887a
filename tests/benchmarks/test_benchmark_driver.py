"""The benchmark's machinery, with nothing in it that depends on how fast the machine is."""

import json
from pathlib import Path

import attrs
import pytest
from benchmarks.driver import benchmark, fitted
from benchmarks.figures import Figure
from benchmarks.report import table
from benchmarks.roster import LOCAL, YARDSTICK, Contender
from benchmarks.works import WORKS, Work

from benchmarks import __main__ as command
from benchmarks import driver

pytestmark = pytest.mark.slow

CHAIN = Work(name="chain", title="chain", unit="µs", size=10, rounds=2, repetitions=3)
BROKEN = Contender("broken", ("-c", "raise SystemExit('no such peer')"))


def scripted(name: str, *lines: str) -> Contender:
    """A contender that says these lines, one for its introduction and one for each request."""
    code = f"import sys\nfor line in {lines!r}:\n    print(line, flush=True)\n    sys.stdin.readline()"
    return Contender(name, ("-c", code))


HELLO = '{"versions": {"python": "3"}, "works": ["chain"]}'


def test_the_whole_benchmark_runs_small(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every module of a contender that lives here does every work it knows; the table and the samples come out."""
    some = [contender for contender in LOCAL if not set(contender.arguments) & {"--waiting", "bare", "trio", "atomic"}]
    monkeypatch.setattr(command, "LOCAL", tuple(some))
    code = command.main(["--share", "0.005", "--results", str(tmp_path)])
    printed = capsys.readouterr().out
    assert code == 0, printed
    document = json.loads((tmp_path / "latest.json").read_text(encoding="utf-8"))
    assert {figure["contender"] for figure in document["figures"]} == {contender.name for contender in some}
    assert {figure["work"] for figure in document["figures"]} == {work.name for work in WORKS}
    assert all(figure["each"] for figure in document["figures"])
    assert document["versions"][YARDSTICK]["trio"]
    assert all(work.title in printed for work in WORKS)


def test_a_warm_pipeline_reads_no_signature(tmp_path: Path) -> None:
    """How a step is called is decided when it is declared, never again."""
    ours = [contender for contender in LOCAL if contender.arguments[-1] == "benchmarks.contenders.ours"]
    (figure,) = benchmark(ours, [work for work in WORKS if work.name == "inspections"]).figures
    assert figure.each == (0.0,)


def test_a_contender_that_does_not_start_is_listed_with_its_error() -> None:
    """Nobody is skipped in silence."""
    outcome = benchmark([BROKEN, scripted("fine", HELLO)], [])
    assert outcome.absent == {"broken": "no such peer"}
    assert list(outcome.versions) == ["fine"]
    assert "**broken** did not take part: no such peer" in table(outcome)


def test_a_contender_that_fails_at_a_work_says_so_in_the_table() -> None:
    """An error in one work is a row of that work."""
    failing = scripted("failing", HELLO, '{"error": "ValueError: too many steps"}')
    (figure,) = benchmark([failing], [CHAIN]).figures
    assert figure.error == "ValueError: too many steps"
    assert "ValueError: too many steps" in table(driver.Outcome(figures=(figure,), versions={}, absent={}))


def test_a_contender_that_dies_at_work_is_reported() -> None:
    """A process that ends in the middle leaves its last words."""
    code = f"print({HELLO!r}, flush=True); input(); raise SystemExit('out of memory')"
    dying = Contender("dying", ("-c", code))
    (figure,) = benchmark([dying], [CHAIN]).figures
    assert figure.error == "out of memory"
    assert [figure.error for figure in benchmark([dying], [CHAIN, CHAIN]).figures] == ["out of memory"] * 2


def test_a_work_that_would_take_too_long_is_not_begun() -> None:
    """The warm-up tells; the table says what was expected."""
    slow = scripted("slow", HELLO, '{"amount": 100}')
    (figure,) = benchmark([slow], [CHAIN]).figures
    assert figure.error == "would take about 2,000 s by what a tenth of it took"


def test_amounts_are_divided_by_the_work_that_was_done() -> None:
    """Ten steps in two rounds that took 40 µs are 2 µs a step; the warm-up does not count."""
    amounts = ['{"amount": 9}', *['{"amount": 40e-6}'] * 2, '{"amount": 60e-6}']
    long = attrs.evolve(CHAIN, unit="KB")  # not a time, so nothing is fitted to the slow warm-up
    (figure,) = benchmark([scripted("steady", HELLO, *amounts)], [long]).figures
    assert figure.best == pytest.approx(2e-6)
    assert figure.median == pytest.approx(2e-6)
    assert figure.spread == pytest.approx(0.5)


def test_slow_contenders_repeat_less_and_divide_what_can_be_divided() -> None:
    """A sample stays within its time; the size changes only where less costs proportionally less."""
    work = Work(name="chunks", title="chunks", unit="per second", size=100_000, repetitions=9)
    assert fitted(work, each=1e-9) == work
    assert (fitted(work, each=1e-4).size, fitted(work, each=1e-4).repetitions) == (100_000, 1)
    divided = fitted(attrs.evolve(work, divisible=True), each=1e-4)
    assert (divided.size, divided.repetitions) == (20_000, 2)


def test_whoever_was_asked_for_less_is_marked_in_the_table() -> None:
    """A figure for 40,000 chunks does not pass for one of 100,000."""
    work = Work(name="chunks", title="chunks", unit="per second", size=40_000)
    figure = Figure(work=work, contender="slow", divided=True, each=(0.001,))
    shown = table(driver.Outcome(figures=(figure,), versions={}, absent={}))
    assert "| slow (with 40,000) | 1,000/s | 1,000/s | one sample |" in shown


def test_ratios_compare_costs_whatever_unit_is_shown() -> None:
    """A contender of half the rate has twice the cost."""
    work = Work(name="runs", title="runs", unit="per second", size=1)
    fast = Figure(work=work, contender=YARDSTICK, each=(0.01, 0.02))
    slow = Figure(work=work, contender="slow", each=(0.02, 0.03))
    assert slow.ratio_to(fast) == pytest.approx(2.0)
    shown = table(driver.Outcome(figures=(fast, slow), versions={}, absent={}))
    assert "| runs | raw trio | 100/s | 66.7/s | 67% | 1.00 |" in shown
    assert "|  | slow | 50/s | 40/s | 40% | 2.00 |" in shown


def test_the_best_of_differences_is_the_usual_one() -> None:
    """Noise can make a difference negative, so the least of them says nothing."""
    work = Work(name="added", title="added", unit="µs", difference=True)
    assert Figure(work=work, contender="ours", each=(-1.0, 2.0, 9.0)).best == 2.0
