"""What the package loads: at its import, with a plain run, and with what a run has beyond that."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

PLAIN, BEYOND_ONE_CALL, OTHER_KINDS = 64, 76, 82
"""How many modules of the package a pipeline of async functions loads at most; how many if steps have more around them
than one call (retries, a worker thread); how many if steps have others inside. Think twice before one more."""

NOT_FOR_EVERY_RUN = ["_agents", "_cli", "_client", "_settings", "stores", "structured", "testing"]
"""The rooms that a run of plain functions does without."""

HEAVY = ["asyncio", "cattrs", "hypothesis", "httpx", "json", "opentelemetry", "pydantic", "pydantic_ai", "sqlite3"]
"""What takes long to load, and is loaded by those who need it."""

PLAIN_RUN = """
from flujo_actors import Flujo, Pipeline, Step
async def double(number: int) -> int:
    return 2 * number
assert Flujo(Step("once", double) >> Step("twice", double)).run(1).output == 4
"""

RUN_IN_THREADS = """
from flujo_actors import Flujo, Pipeline, Step
def double(number: int) -> int:
    return 2 * number
assert Flujo(Step("once", double, max_retries=1) >> Step("twice", double)).run(1).output == 4
"""

RUN_OF_BRANCHES = """
from flujo_actors import Flujo, Step
assert Flujo(Step.map_over("each", Step("negated", lambda number: -number))).run([1, 2]).output == [-1, -2]
"""

MAKING = """
from flujo_actors import Flujo, Step
async def same(data): return data
"""

PACKAGES = ["flujo_actors", "flujo_actors.actors", "flujo_actors.stores", "flujo_actors.telemetry"]
"""Packages with names that are imported when they are first used."""


def loaded_by(script: str) -> set[str]:
    """The modules a fresh interpreter has loaded after the script, without those that trio loads anyway."""
    observed = (
        "import sys, trio\n"
        "async def nothing(): pass\n"
        "trio.run(nothing)\n"
        "before = set(sys.modules)\n"
        f"{script}\n"
        "print(*sorted(set(sys.modules) - before))\n"
    )
    done = subprocess.run([sys.executable, "-c", observed], capture_output=True, text=True, check=True, timeout=60)
    return set(done.stdout.split())


def own(modules: set[str]) -> set[str]:
    """Those of the package."""
    return {name for name in modules if name.partition(".")[0] == "flujo_actors"}


def rooms(modules: set[str]) -> set[str]:
    """The rooms of the package that they stand in."""
    return {name.split(".")[1] for name in own(modules) if "." in name}


def foreign(modules: set[str]) -> set[str]:
    """The libraries among them that are neither the package nor part of Python."""
    return {name.partition(".")[0] for name in modules} - {"flujo_actors"} - sys.stdlib_module_names


@pytest.mark.parametrize("script", ["import flujo_actors", "from flujo_actors import Flujo, Step, Pipeline", PLAIN_RUN])
def test_a_plain_run_loads_few_modules_and_no_library(script: str) -> None:
    """The cost of the import is small, and does not wait in the next line."""
    modules = loaded_by(script)
    assert len(own(modules)) <= PLAIN
    assert sorted(rooms(modules) & set(NOT_FOR_EVERY_RUN)) == []
    assert foreign(modules) == set()
    assert sorted(modules & set(HEAVY)) == []


@pytest.mark.parametrize(
    ("script", "most"),
    [
        (RUN_IN_THREADS, BEYOND_ONE_CALL),
        (RUN_OF_BRANCHES, OTHER_KINDS),
    ],
)
def test_retries_threads_and_branches_load_no_library_either(script: str, most: int) -> None:
    """They are this package's own, and come with the first step that needs them."""
    modules = loaded_by(script)
    assert len(own(modules)) <= most
    assert sorted(rooms(modules) & set(NOT_FOR_EVERY_RUN)) == []
    assert foreign(modules) == set()
    assert sorted(modules & set(HEAVY)) == []


@pytest.mark.parametrize(
    ("given", "module"),
    [
        ("hooks=[print]", "flujo_actors._core.hook_payloads"),
        ("settings={'telemetry': {'log': True}}", "flujo_actors._core.events"),
        ("resources={'api_key': 'canary-9000'}", "flujo_actors.telemetry._redaction.redactor"),
        ("settings={'sync_step_threads': 2}", "flujo_actors._core.settings"),
        ("store='sqlite:///:memory:'", "flujo_actors.stores.sqlite"),
    ],
)
def test_what_a_run_has_is_loaded_when_the_flujo_is_made(given: str, module: str) -> None:
    """Whoever asks for a part gets it before the run begins, not in the middle of it."""
    made = (
        f"from flujo_actors import Flujo, Step\nasync def same(data): return data\nFlujo(Step('only', same), {given})"
    )
    assert module in loaded_by(made)


@pytest.mark.parametrize(
    ("step", "module"),
    [
        ("Step('sync', print)", "flujo_actors._tree.retries"),
        ("Step.human_in_the_loop('ask', 'Fine?')", "flujo_actors._tree.composites"),
        ("Step('read', same, processing={'schema': {'type': 'object'}})", "flujo_actors._calls.structured"),
        ("Step('think', make_agent_async('test'))", "flujo_actors._calls.model"),
        ("Step.parallel('all', {'a': Step('think', make_agent_async('test'))})", "flujo_actors._calls.model"),
        ("Step.granular('think', make_agent_async('test'))", "flujo_actors._calls.conversations"),
    ],
)
def test_what_a_step_needs_is_loaded_before_its_time_runs(step: str, module: str) -> None:
    """The first attempt of a step with a timeout has all of it."""
    made = f"{MAKING}\nfrom flujo_actors import make_agent_async\nFlujo({step})"
    assert module in loaded_by(made)


def test_agents_that_are_no_granular_steps_load_nothing_of_those() -> None:
    """It is a tenth of all that agents load, and stays in memory."""
    made = (
        f"{MAKING}\nfrom flujo_actors import make_agent_async\nFlujo(Step('think', make_agent_async('test'))).run('x')"
    )
    assert not [each for each in loaded_by(made) if each.startswith("flujo_actors._agents.granular")]


VALIDATION = """
from pathlib import Path
Path("pipeline.yaml").write_text("steps: [{name: a, uses: builtins.passthrough, input: '{{ input }}'}]")
from flujo_actors._cli.entry import main
assert main(["validate"]) == 0
"""


def test_validation_loads_what_reads_texts_and_nothing_of_what_runs_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the classes of steps nor those of their outcomes: `validate` is done before they would be there."""
    monkeypatch.chdir(tmp_path)
    modules = loaded_by(VALIDATION)
    assert sorted(rooms(modules)) == [
        "_blueprint",
        "_blueprints",
        "_cli",
        "_core",
        "_lazy_names",
        "errors",
        "telemetry",
    ]
    assert {name for name in own(modules) if ".telemetry" in name or "._core" in name} == {
        "flujo_actors._core",
        "flujo_actors._core.default_settings",
        "flujo_actors._core.near_names",
        "flujo_actors.telemetry",
        "flujo_actors.telemetry._log_records",
        "flujo_actors.telemetry._redaction",
        "flujo_actors.telemetry._redaction.credential_shapes",
        "flujo_actors.telemetry._redaction.secret_names",
    }
    assert len(own(modules)) <= 65
    assert {name for name in foreign(modules) if "cython" not in name} == {"click", "jinja2", "markupsafe", "yaml"}
    assert sorted(modules & {*HEAVY, "socket", "difflib", "jsonschema_rs"} - {"json"}) == []


def test_the_package_alone_loads_its_errors_only() -> None:
    """Who imports one name waits for that one."""
    assert sorted(rooms(loaded_by("import flujo_actors"))) == ["_lazy_names", "errors", "telemetry"]


@pytest.mark.parametrize("package", PACKAGES)
def test_type_checkers_and_the_interpreter_find_late_names_in_the_same_place(package: str) -> None:
    """The imports under `TYPE_CHECKING` and the table of late names say the same."""
    tree = ast.parse(Path(str(importlib.import_module(package).__file__)).read_text(encoding="utf-8"))
    (branch,) = [each for each in tree.body if isinstance(each, ast.If)]
    seen = {alias.name: _home(each, package) for each in branch.body for alias in _import(each).names}
    (table,) = [each for each in ast.walk(ast.Module(branch.orelse, [])) if isinstance(each, ast.Dict)]
    places = {key: importlib.util.resolve_name(home, package) for key, home in ast.literal_eval(table).items()}
    assert places == seen


def _import(statement: ast.stmt) -> ast.ImportFrom:
    assert isinstance(statement, ast.ImportFrom)
    return statement


def _home(statement: ast.stmt, package: str) -> str:
    imported = _import(statement)
    return importlib.util.resolve_name("." * imported.level + str(imported.module), package)


@pytest.mark.parametrize("package", PACKAGES)
def test_a_late_name_that_is_not_there_is_an_attribute_error(package: str) -> None:
    """As of any module, with its name."""
    module: Any = importlib.import_module(package)
    with pytest.raises(AttributeError, match=f"module '{package}' has no attribute 'nothing'"):
        module.nothing


def test_import_star_needs_no_extra() -> None:
    """It gives every public name, also in a program that has not installed what only some of them need."""
    script = (
        "import sys\n"
        "for it in ('psycopg', 'psycopg_pool', 'opentelemetry.sdk', 'openai', 'anthropic'): sys.modules[it] = None\n"
        "for it in ('yaml', 'jinja2', 'click', 'rich'): sys.modules[it] = None\n"
        "from flujo_actors import *\n"
        "try: PostgresStore('postgresql://nowhere/')\n"
        "except DeclarationError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert "a Postgres store needs an extra: pip install flujo-actors[postgres]" in done.stdout
