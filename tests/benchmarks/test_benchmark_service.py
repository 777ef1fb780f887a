"""The match of the support desks, in small, with those desks that need nothing but this environment."""

import json
import sys
from pathlib import Path
from xml.etree import ElementTree

import attrs
import pytest
from benchmarks.roster import OURS, Contender
from benchmarks.service import __main__ as command
from benchmarks.service import page
from benchmarks.service.match import Case, Match, Sample, Table, cases, play
from benchmarks.service.roster import BARE, DESKS, LANGGRAPH, ROOT, pinned
from benchmarks.service.verdict import ALONE, CPU, figures, first_of, verdicts

HERE = [desk for desk in DESKS if desk.name in (OURS, BARE)]


def sample(desk: str, cpu_ms: float, *, store: str = "memory", watched: bool = False, at_once: int = 25) -> Sample:
    """One sample of ten tickets that took this much each."""
    case = Case(store=store, watched=watched, at_once=at_once, tickets=10)
    seconds = cpu_ms / 100
    return Sample(desk=desk, case=case, cpu=seconds, wall=seconds, latencies=(0.1, 0.3, 0.2), pieces=300 * watched)


def match_of(*samples: Sample) -> Match:
    return Match(samples=samples, versions={OURS: {"trio": "1"}}, absent={})


@pytest.mark.slow
def test_the_desks_answer_tickets_over_the_wire(tmp_path: Path) -> None:
    """Ours in memory and in SQLite, bare pydantic-ai in memory; awaited and watched; every reply is the right one."""
    asked = cases({1: 1}, ["memory", "sqlite"])
    places = {OURS: {"sqlite": str(tmp_path / "runs.db")}}
    match = play(HERE, asked, rounds=1, places=places, python=lambda desk: sys.executable)
    assert not match.absent
    seen = {(each.desk, each.case.store, each.case.watched) for each in match.samples}
    stores = ((OURS, "memory"), (OURS, "sqlite"), (BARE, "memory"))
    assert seen == {(*store, watched) for store in stores for watched in (False, True)}
    assert all(each.cpu > 0 and len(each.latencies) == 1 for each in match.samples)
    assert all((each.pieces >= 30) == each.case.watched for each in match.samples)
    assert match.versions[BARE]["openai"] == match.versions[OURS]["openai"]
    assert (tmp_path / "runs.db").exists()


@pytest.mark.slow
def test_a_desk_that_cannot_be_started_is_listed() -> None:
    """The others play without it."""
    broken = Contender("broken", ("-c", "raise SystemExit('no such desk')"))
    match = play([broken], [], rounds=1, places={}, python=lambda desk: sys.executable)
    assert match.absent == {"broken": "no such desk"}


class Scripted:
    """Stands in for a desk's process."""

    works = frozenset({"memory"})

    def __init__(self, name: str, log: list[str]) -> None:
        self.contender = Contender(name, ())
        self._log = log

    def revive(self) -> None:
        """It never dies."""

    def ask(self, request: dict[str, object]) -> dict[str, object]:
        self._log.append(f"{self.contender.name} {request['at_once']}")
        return {"cpu": 1.0, "wall": 1.0, "latencies": [1.0], "pieces": 0}


def test_desks_take_turns_case_by_case_and_who_begins_rotates() -> None:
    """What disturbs the machine for a while disturbs all of them."""
    log: list[str] = []
    asked = [Case(store="memory", watched=False, at_once=at_once, tickets=1) for at_once in (1, 25)]
    table = Table([Scripted("a", log), Scripted("b", log)], asked, {})  # type: ignore[list-item]
    assert len(table.rounds(2, 1e9, lambda text: None)) == 8
    assert log == ["a 1", "b 1", "a 25", "b 25", "b 1", "a 1", "b 25", "a 25"]


def test_a_match_ends_when_its_time_is_over_but_not_before_the_second_round() -> None:
    """A slow machine gets fewer rounds, and the page says how many."""
    asked = [Case(store="memory", watched=False, at_once=1, tickets=1)]
    assert len(Table([Scripted("a", [])], asked, {}).rounds(9, 0.0, lambda text: None)) == 2  # type: ignore[list-item]


def test_a_store_that_a_desk_lacks_is_not_asked_for() -> None:
    """Bare pydantic-ai has memory only, and that is no failure."""
    absent: dict[str, str] = {}
    asked = [Case(store="sqlite", watched=False, at_once=1, tickets=1)]
    assert Table([Scripted("a", [])], asked, absent).rounds(1, 1e9, lambda text: None) == []  # type: ignore[list-item]
    assert not absent


# --- what it says ---------------------------------------------------------------------------------------------


def test_a_figure_is_the_best_round_with_half_of_the_spread_as_noise() -> None:
    """Rounds of 20 and 30 ms: 20 ms, and 20 % either way."""
    (figure,) = figures([sample(OURS, 30), sample(OURS, 20)], [CPU])
    assert figure.shown == "20.0 ms ±20%"
    (alone,) = figures([sample(OURS, 30, at_once=1), sample(OURS, 20)], [ALONE])
    assert alone.shown == "200.0 ms"


def test_goals_compare_processor_time_with_those_they_name() -> None:
    """Within 10 % of bare pydantic-ai in memory, no more than LangGraph on SQLite; who is missing is said."""
    seen = [sample(OURS, 21), sample(BARE, 20), sample(OURS, 41, store="sqlite"), sample(LANGGRAPH, 40, store="sqlite")]
    told = {each.goal.title: each.said for each in verdicts(figures(seen))}
    assert told == {
        "awaited, memory: at most bare pydantic-ai + 10%": "met",
        "awaited, sqlite: at most langgraph": "not met",
        "watched, memory: at most bare pydantic-ai + 10%": "not measured",
        "watched, sqlite: at most langgraph": "not measured",
    }


def test_who_is_first_is_said_with_how_far_behind_the_next_one_is() -> None:
    """A lead that is smaller than the noise is none."""
    clear = first_of(figures([sample(OURS, 30), sample(LANGGRAPH, 20)], [CPU]))
    assert clear is not None
    assert clear.said == "**langgraph** (flujo-actors +50%)"
    noisy = first_of(figures([sample(OURS, 21), sample(OURS, 30), sample(LANGGRAPH, 20)], [CPU]))
    assert noisy is not None
    assert noisy.said == "langgraph or flujo-actors +5%, within the noise"
    assert first_of(figures([sample(OURS, 30)], [CPU])) is None


def test_the_page_gets_its_section_and_the_chart(tmp_path: Path) -> None:
    """What stands outside of the markers stays; a second match takes the place of the first."""
    (tmp_path / "images").mkdir()
    document = tmp_path / "benchmarks" / "service.md"
    document.parent.mkdir()
    document.write_text(f"before\n{page.BEGIN}\nold\n{page.END}\nafter\n", encoding="utf-8")
    match = match_of(sample(OURS, 30), sample(LANGGRAPH, 20), sample(OURS, 60, watched=True))
    for _ in range(2):
        list(page.write(match, tmp_path, how="Two rounds.", place="a machine"))
    written = document.read_text(encoding="utf-8")
    assert written.startswith("before\n")
    assert written.endswith("\nafter\n")
    assert "old" not in written
    assert written.count("| memory | awaited | flujo-actors | 30.0 ms |  | 33.3/s |  |") == 1
    assert "flujo-actors 30." in written
    ElementTree.parse(tmp_path / "images" / page.CHART)


def test_a_page_without_markers_is_refused() -> None:
    """Nothing is written to where nobody looks for it."""
    with pytest.raises(ValueError, match="no place for it"):
        page.replaced("a page", "a section")


def test_the_page_of_the_project_has_a_place_for_it() -> None:
    """The markers are there, and a match has been played."""
    written = (ROOT / "docs" / "benchmarks" / "service.md").read_text(encoding="utf-8")
    assert page.replaced(written, "x") != written
    assert f"| memory | awaited | {OURS} |" in written.partition(page.BEGIN)[2]


def test_everything_of_others_is_pinned_and_what_desks_share_is_the_same() -> None:
    """The same release of the OpenAI client for all three: what differs is what is built on it."""
    needs = {desk.name: desk.requirements for desk in DESKS}
    assert all("==" in need for name in (LANGGRAPH, BARE) for need in needs[name])
    assert all(set(pinned("openai", "pydantic")) <= set(of_one) for of_one in needs.values())
    assert {desk.environment for desk in DESKS} == {"service-ours", "service-langgraph", "service-pydantic_ai"}


def test_a_quick_match_leaves_the_page_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It prints the tables and keeps the samples; whoever failed makes the command fail."""
    match = match_of(sample(OURS, 30), sample(LANGGRAPH, 20))
    monkeypatch.setattr(command, "play", lambda *args, **options: match)
    monkeypatch.setattr(command, "ROOT", tmp_path)
    assert command.main(["--quick", "--results", str(tmp_path)]) == 0
    assert "**langgraph** (flujo-actors +50%)" in capsys.readouterr().out
    assert len(json.loads((tmp_path / "service.json").read_text(encoding="utf-8"))["samples"]) == 2
    failed = attrs.evolve(match, absent={LANGGRAPH: "ERROR: no such package"})
    monkeypatch.setattr(command, "play", lambda *args, **options: failed)
    assert command.main(["--quick", "--results", str(tmp_path)]) == 1
    assert "**langgraph** did not take part: ERROR: no such package" in capsys.readouterr().out
