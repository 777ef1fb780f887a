"""Docstrings of the most used names: arguments, exceptions, and an example that runs."""

from __future__ import annotations

import functools
import importlib
import inspect
import re
import textwrap
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio

import flujo_actors
from flujo_actors import errors, stores, testing

METHODS = {
    "flujo_actors.Flujo": "run run_async resume retry recover cancel submit worker schedule replay",
    "flujo_actors.Step": "from_callable granular parallel map_over branch_on loop_until sequence human_in_the_loop"
    " approval select_agent sleep wait_for",
    "flujo_actors.RunClient": "list get state records watch wait questions answer cancel retry fork send steer wake"
    " totals export import_runs delete prune",
}
NAMES = {
    "flujo_actors": "Flujo Step step Pipeline RunClient AsyncRunClient make_agent_async UsageLimits RateLimit Backoff"
    " Cache Webhook RunFilter Compensate SqliteStore load_blueprint from_retrieval from_state to_json run_page"
    " event_app parse_and_validate normalize_json_text",
    "flujo_actors.stores": "open_store",
    "flujo_actors.testing": "scripted_model ScriptedAgent run_on_mock_clock simulate",
    "flujo_actors.protocols.ag_ui": "ag_ui_app",
    "flujo_actors.protocols.mcp": "mcp_server",
    "flujo_actors.protocols.sse": "sse_response",
}
MOST_USED = [
    f"{owner}.{name}" for table in (METHODS, NAMES) for owner, names in table.items() for name in names.split()
]
WITH_EXAMPLE = {
    "flujo_actors": "MemoryStore PostgresStore PipelineResult PipelineResult.unwrap StepResult Chunk Paused RunHandle"
    " InMemoryRetriever SqliteRetriever PostgresRetriever LoopGuard Budget Price Redirect Context Question"
    " compact_history current_unit load_settings from_literal from_history register_type",
    "flujo_actors.telemetry": "LogSink MemorySink",
    "flujo_actors.telemetry.otel": "OtelSink",
}
"""Names with an example, whose arguments the reference test checks."""
EXAMPLES = [*MOST_USED, *(f"{owner}.{name}" for owner, names in WITH_EXAMPLE.items() for name in names.split())]
KIT = ("ScriptedAgent", "scripted_model", "run_on_mock_clock", "Delayed", "simulate", "CallTool")
BUILT_IN = ("TimeoutError", "TypeError", "ValueError", "AssertionError")
SECTION = re.compile(r"^(Args|Raises|Example):\n((?:    .*\n|\n)+)", re.MULTILINE)
CODE = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@functools.cache
def found(name: str) -> Any:
    module, _, rest = name.rpartition(".")
    try:
        return getattr(importlib.import_module(module), rest)
    except ModuleNotFoundError:
        return getattr(found(module), rest)


def sections(name: str) -> dict[str, str]:
    text = (inspect.getdoc(found(name)) or "") + "\n"
    return {title: textwrap.dedent(body) for title, body in SECTION.findall(text)}


def test_the_list_has_more_than_sixty_names() -> None:
    """The list itself is not cut."""
    assert len({*MOST_USED}) == len(MOST_USED) > 60


@pytest.mark.parametrize("name", MOST_USED)
def test_every_parameter_has_a_sentence(name: str) -> None:
    """The arguments of a docstring are those of the signature, in its order; options of a step may follow."""
    parameters = [each for each in inspect.signature(found(name)).parameters if each not in ("self", "options")]
    described = [each.lstrip("*") for each in re.findall(r"^(\*{0,2}\w+): \S", sections(name)["Args"], re.MULTILINE)]
    assert [each for each in described if each in parameters] == parameters
    assert name == "flujo_actors.Step" or {*described} - {*parameters} <= {"options"}


@pytest.mark.parametrize("name", MOST_USED)
def test_every_exception_is_one_that_exists(name: str) -> None:
    """An exception that a docstring names can be imported, or is a built-in one."""
    raised = re.findall(r"^(\w+): \S", sections(name)["Raises"], re.MULTILINE)
    assert raised
    known = {*dir(errors), *dir(testing), *BUILT_IN, "SimulationFailed"}
    assert {*raised} - known == set()


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_example_of_a_docstring_runs(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Public names are imported; everything else is in the example."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {each: getattr(flujo_actors, each) for each in flujo_actors.__all__}
    names |= {each: getattr(testing, each) for each in KIT}
    names |= {"open_store": stores.open_store, "attrs": attrs, "trio": trio, "pytest": pytest, "Path": Path}
    names |= {name.rpartition(".")[2]: found(name)}
    [code] = CODE.findall(sections(name)["Example"])
    exec(compile(code, name, "exec"), names)
