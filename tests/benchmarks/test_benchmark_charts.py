"""Charts and growth: well-formed SVG, and exponents that say what they should."""

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
from benchmarks.charts import Bar, Line, bar_panels, line_chart
from benchmarks.comparison import panels
from benchmarks.figures import Figure
from benchmarks.growth import GROWTHS, exponent
from benchmarks.roster import LOCAL, YARDSTICK
from benchmarks.works import Work

from benchmarks import __main__ as command

SVG = "{http://www.w3.org/2000/svg}"


def test_a_line_chart_has_a_dot_for_every_point() -> None:
    """Names are escaped, small values have their place too."""
    lines = [Line("a < b", ((10, 0.01), (100, 0.1), (1000, 2.0))), Line("ours", ((10, 1.0), (100, 1.0)), ours=True)]
    root = ElementTree.fromstring(line_chart("Growth & cost", "steps", "ms", lines))
    assert len(root.findall(f"{SVG}circle")) == 5
    assert {"Growth & cost", "● a < b", "1,000", "0.01"} <= {text.text for text in root.findall(f"{SVG}text")}


def test_longer_bars_cost_more() -> None:
    """The scale is logarithmic, and no bar vanishes."""
    bars = [Bar("fast", 1.0, "1 µs", ours=True), Bar("slow", 100.0, "100 µs")]
    root = ElementTree.fromstring(bar_panels("Cost", {"chain": bars}, "a note"))
    fast, slow = (float(bar.attrib["width"]) for bar in root.findall(f"{SVG}rect")[1:])
    assert 0 < fast < slow


def test_the_comparison_shows_the_best_first() -> None:
    """Contenders without a figure are left out."""
    work = Work(name="chain", title="chain of 100 steps, per step", unit="µs")
    figures = (
        Figure(work=work, contender="slow", each=(2e-4,)),
        Figure(work=work, contender="absent", error="died"),
        Figure(work=work, contender=YARDSTICK, each=(1e-5, 2e-5)),
    )
    (bars,) = panels(figures).values()
    assert [(bar.label, bar.shown) for bar in bars] == [(YARDSTICK, "10 µs"), ("slow", "200 µs")]


@pytest.mark.parametrize("power", [0.5, 1.0, 2.0])
def test_the_exponent_is_the_power_of_the_size(power: float) -> None:
    """Whatever the constant."""
    points = tuple((10.0**n, 3 * 10.0 ** (n * power)) for n in range(1, 6))
    assert exponent(points) == pytest.approx(power)
    assert exponent(points[:1] * 2) is None


def test_a_plot_is_drawn_with_its_data(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Small: nesting of this library alone."""
    ours = [contender for contender in LOCAL if contender.arguments[-1] == "benchmarks.contenders.ours"]
    monkeypatch.setattr(command, "LOCAL", tuple(ours))
    asked = ["--growth", "--only", "nesting", "--share", "0.05", "--images", str(tmp_path)]
    assert command.main(asked) == 0
    ElementTree.parse(tmp_path / "growth-nesting.svg")
    data = json.loads((tmp_path / "growth.json").read_text(encoding="utf-8"))
    assert [x for x, _ in data["plots"]["nesting"]["lines"]["flujo-actors"]["points"]] == [1, 5]
    assert "Pipelines in pipelines" in capsys.readouterr().out


def test_every_plot_grows_over_the_range_that_was_promised() -> None:
    """Chains to 10,000 steps, nesting to 100 levels, payloads to 10 MB, histories to 100,000 records."""
    ranges = {growth.name: (min(growth.sizes), max(growth.sizes)) for growth in GROWTHS}
    assert ranges["chain"] == (10, 10_000)
    assert ranges["nesting"] == (1, 100)
    assert ranges["payload"] == (1_000, 10_000_000)
    assert ranges["history"] == (10, 100_000)
