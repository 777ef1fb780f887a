"""Help pages are complete: each metric and each exception of the code has a row."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider

from flujo_actors import errors
from flujo_actors.telemetry.otel import OtelSink

DOCS = Path(__file__).parents[2] / "docs"
ROW = re.compile(r"^\| `(?P<name>[\w.]+)` \|(?P<rest>.+)\|$", re.MULTILINE)


class MeterFake:
    """Meter and its provider that keep the name and the unit of each instrument."""

    def __init__(self) -> None:
        self.units: dict[str, str] = {}

    def get_meter(self, name: str) -> MeterFake:
        return self

    def _create(self, name: str, unit: str, *_: Any, **__: Any) -> None:
        self.units[name] = unit

    create_histogram = create_counter = create_gauge = _create


def rows(page: str) -> dict[str, list[str]]:
    """Cells of the tables of a page by the name in their first cell."""
    text = (DOCS / page).read_text(encoding="utf-8")
    return {found["name"]: [cell.strip() for cell in found["rest"].split(" | ")] for found in ROW.finditer(text)}


def test_each_metric_has_a_row_with_its_unit_and_an_alert() -> None:
    """The monitoring page lists the instruments of the sink, all of them and no others."""
    meter: Any = MeterFake()
    OtelSink(TracerProvider(), meter)
    listed = rows("monitoring.md")
    assert sorted(listed) == sorted(meter.units)
    for name, (kind, labels, alert) in listed.items():
        assert f"`{meter.units[name]}`" in kind, name
        assert all((labels, alert)), name


def exceptions() -> list[str]:
    found = inspect.getmembers(errors, inspect.isclass)
    return [name for name, each in found if issubclass(each, Exception) and each.__module__ == errors.__name__]


@pytest.mark.parametrize("name", exceptions())
def test_each_exception_has_a_row_with_cause_and_fix(name: str) -> None:
    """The troubleshooting page has a cause and a fix for each exception of the library."""
    cause, fix = rows("help/troubleshooting.md")[name]
    assert all((cause, fix))


def test_the_page_lists_no_unknown_exception() -> None:
    """A row of a removed exception is found."""
    assert set(rows("help/troubleshooting.md")) <= set(exceptions())
