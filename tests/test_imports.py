"""What the package loads: at its import, with a plain run, and with what a run has beyond that."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from flujo_actors._runtime.tree.step_supervisor import ROADS
from flujo_actors.errors import ProtocolError

pytestmark = pytest.mark.slow

PLAIN, BEYOND_ONE_CALL, OTHER_KINDS = 70, 78, 82
"""How many modules of the package a pipeline of async functions loads at most; how many if steps have more around them
than one call (retries, a worker thread); how many if steps have others inside. Think twice before one more."""

NOT_FOR_EVERY_RUN = ["_agents", "_api.cli", "_api.client", "_api.settings_loader", "stores", "structured", "testing"]
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
    done = subprocess.run([sys.executable, "-c", observed], capture_output=True, text=True, check=True, timeout=240)
    return set(done.stdout.split())


def own(modules: set[str]) -> set[str]:
    """Those of the package."""
    return {name for name in modules if name.partition(".")[0] == "flujo_actors"}


def rooms(modules: set[str]) -> set[str]:
    """The rooms of the package that they stand in."""
    return {name.split(".")[1] for name in own(modules) if "." in name}


def unneeded(modules: set[str]) -> list[str]:
    """Rooms and modules that a plain run does without, and that were loaded."""
    loaded = [f"{name.removeprefix('flujo_actors.')}." for name in own(modules)]
    return [each for each in NOT_FOR_EVERY_RUN if any(name.startswith(f"{each}.") for name in loaded)]


def foreign(modules: set[str]) -> set[str]:
    """The libraries among them that are neither the package nor part of Python."""
    return {name.partition(".")[0] for name in modules} - {"flujo_actors"} - sys.stdlib_module_names


@pytest.mark.parametrize("script", ["import flujo_actors", "from flujo_actors import Flujo, Step, Pipeline", PLAIN_RUN])
def test_a_plain_run_loads_few_modules_and_no_library(script: str) -> None:
    """The cost of the import is small, and does not wait in the next line."""
    modules = loaded_by(script)
    assert len(own(modules)) <= PLAIN
    assert unneeded(modules) == []
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
    assert unneeded(modules) == []
    assert foreign(modules) == set()
    assert sorted(modules & set(HEAVY)) == []


@pytest.mark.parametrize(
    ("given", "module"),
    [
        ("hooks=[print]", "flujo_actors._core.failure_info"),
        ("settings={'telemetry': {'log': True}}", "flujo_actors._core.telemetry_events"),
        ("resources={'api_key': 'canary-9000'}", "flujo_actors.telemetry._redaction.redactor"),
        ("settings={'sync_step_threads': 2}", "flujo_actors._core.settings_model"),
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
        ("Step('sync', print)", "flujo_actors._runtime.tree.attempt_loop"),
        ("Step.human_in_the_loop('ask', 'Fine?')", "flujo_actors._runtime.tree.composites"),
        (
            "Step('read', same, processing={'schema': {'type': 'object'}})",
            "flujo_actors._runtime.calls.structured_call",
        ),
        ("Step('think', make_agent_async('test'))", "flujo_actors._runtime.calls.model_call"),
        (
            "Step.parallel('all', {'a': Step('think', make_agent_async('test'))})",
            "flujo_actors._runtime.calls.model_call",
        ),
        ("Step.granular('think', make_agent_async('test'))", "flujo_actors._runtime.calls.conversations"),
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
from flujo_actors._api.cli.entry import main
assert main(["validate"]) == 0
"""


def test_validation_loads_what_reads_texts_and_nothing_of_what_runs_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the classes of steps nor those of their outcomes: `validate` is done before they would be there."""
    monkeypatch.chdir(tmp_path)
    modules = loaded_by(VALIDATION)
    assert sorted(rooms(modules)) == ["_api", "_blueprint", "_core", "errors", "telemetry"]
    assert {name for name in own(modules) if ".telemetry" in name or "._core" in name} == {
        "flujo_actors._core",
        "flujo_actors._core.default_settings",
        "flujo_actors._core.lazy_exports",
        "flujo_actors._core.validators",
        "flujo_actors.telemetry",
        "flujo_actors.telemetry._null_telemetry",
        "flujo_actors.telemetry._redaction",
        "flujo_actors.telemetry._redaction.credential_shapes",
    }
    assert len(own(modules)) <= 65
    assert {name for name in foreign(modules) if "cython" not in name} == {"click", "jinja2", "markupsafe", "yaml"}
    assert sorted(modules & {*HEAVY, "socket", "difflib", "jsonschema_rs"} - {"json"}) == []


def test_the_package_alone_loads_its_errors_only() -> None:
    """Who imports one name waits for that one."""
    modules = loaded_by("import flujo_actors")
    assert sorted(rooms(modules)) == ["_core", "errors", "telemetry"]
    assert {name for name in own(modules) if "._core" in name} == {
        "flujo_actors._core",
        "flujo_actors._core.lazy_exports",
    }


@pytest.mark.parametrize("package", PACKAGES)
def test_type_checkers_and_the_interpreter_find_late_names_in_the_same_place(package: str) -> None:
    """The imports under `TYPE_CHECKING` and the table of late names say the same."""
    tree = ast.parse(Path(str(importlib.import_module(package).__file__)).read_text(encoding="utf-8"))
    (branch,) = [each for each in tree.body if isinstance(each, ast.If)]
    imports = [each for each in branch.body if isinstance(each, ast.ImportFrom)]
    seen = {alias.asname or alias.name: (_home(each, package), alias.name) for each in imports for alias in each.names}
    aliases = [each for each in branch.body if isinstance(each, ast.Assign)]
    seen |= {ast.unparse(each.targets[0]): seen[ast.unparse(each.value)] for each in aliases}
    (table,) = [each for each in ast.walk(ast.Module(branch.orelse, [])) if isinstance(each, ast.Dict)]
    homes = {key: home.partition(":") for key, home in ast.literal_eval(table).items()}
    places = {
        key: (importlib.util.resolve_name(module, package), name or key) for key, (module, _, name) in homes.items()
    }
    assert places == seen


def _home(imported: ast.ImportFrom, package: str) -> str:
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
        "for it in ('starlette', 'sse_starlette', 'uvicorn'): sys.modules[it] = None\n"
        "sys.modules['pydantic_ai.conversation_store'] = None  # of pydantic-ai 2.66\n"
        "from flujo_actors import *\n"
        "try: from flujo_actors import run_page\n"
        "except ModuleNotFoundError as error: print(error)\n"
        "try: PostgresStore('postgresql://nowhere/')\n"
        "except DeclarationError as error: print(error)\n"
        "try: conversations('sqlite:///:memory:')\n"
        "except DeclarationError as error: print(error)\n"
        "agent = make_agent_async('test')\n"
        "try: Flujo(Step('a', agent, conversation='c'), store=MemoryStore())\n"
        "except DeclarationError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=240)
    assert "a Postgres store needs an extra: pip install 'flujo-actors[postgres]'" in done.stdout
    assert "pip install 'flujo-actors[page]'" in done.stdout
    assert done.stdout.count("stored conversations need pydantic-ai-slim 2.66 or newer") == 2


PARTS = {
    "a failure": "Flujo(Step('a', boom)).run(1)",
    "an object": "assert Flujo(Step('a', thing)).run(1).success",
    "a time limit": "assert Flujo(Step('a', same), usage_limits=UsageLimits(time_limit_s=9)).run(1).output == 1",
    "a step's limit": "assert Flujo(Step('a', same, usage_limits=UsageLimits(step_limit=3))).run(1).output == 1",
    "a handler": "assert not Flujo(Pipeline([Step('a', boom)], on_failure=same)).run(1).success",
    "a compensation": "assert Flujo(Step('a', same, compensate=same) >> Step('b', boom)).run(1).undone",
    "a confidence": "assert Flujo(Step('a', same, confidence=half, min_confidence=0.4)).run(1).output == 1",
    "votes": "assert Flujo(Step('a', same, confidence=Votes(3), min_confidence=0.4)).run(1).output == 1",
    "a review": (
        "assert Flujo(Step('a', same, confidence=half, min_confidence=0.9, on_low_confidence=same)).run(1).output == 1"
    ),
    "a selection": "assert Flujo(Step.select_agent('s', {'x': same, 'y': same})).run(1).output == 1",
    "a guard": (
        "assert Flujo(Step.loop_until('l', Step('a', double), lambda data, context: data > 2, max_loops=5, "
        "guard=LoopGuard())).run(1).output == 4"
    ),
    "an approval": (
        "f = Flujo(Step.approval('ask', 'Fine?') >> Step('b', same))\n"
        "assert f.resume(f.run(1).state_token, 'approve').success"
    ),
    "a pause of a plain step": (
        "f = Flujo(Step('a', pausing) >> Step('b', same))\nassert f.resume(f.run(1).state_token, 'yes').output == 'yes'"
    ),
    "a cancellation": "f = Flujo(Step('a', same, compensate=same) >> Step('b', pausing))\nf.cancel(f.run(1).run_id)",
    "a degraded value": "assert Flujo(Step('a', degraded) >> Step('b', same)).run(1).success",
    "a redirect": "assert Flujo(Step('a', same, validators=[turn])).run(1).output == 2",
    "a scope": (
        "named = lambda data, context, *, steps: steps['a']\n"
        "assert Flujo(Step('a', same) >> Step('b', same, input=named)).run(1).output == 1"
    ),
    "a store": "assert Flujo(Step('a', same) >> Step('b', same), store='sqlite:///:memory:').run(1).output == 1",
}
"""Programs that need one optional part of the runtime each."""

MAKING_PARTS = """
import attrs
from flujo_actors import Flujo, LoopGuard, Paused, Pipeline, Redirect, Step, StepResult, UsageLimits, Votes
@attrs.define
class Thing: number: int = 1
async def same(data): return data
async def double(data): return 2 * data
async def boom(data): raise ValueError("boom")
async def thing(data): return Thing()
async def half(data): return 0.5
async def pausing(data): return Paused(message="wait")
async def degraded(data): return StepResult(name="a", output="text", metadata={"degraded": True})
def turn(data): return True if data == 2 else Redirect(to=double, feedback="again")
"""


EVERY_PART = """
import json, os, sys, traceback
import attrs, cattrs, pydantic, sqlite3, trio
for part, script in json.load(sys.stdin).items():
    child = os.fork()
    if child == 0:
        try:
            exec(script, {"__name__": "__main__"})
        except BaseException:
            print(json.dumps([part, traceback.format_exc()]), flush=True)
        os._exit(0)
    os.waitpid(child, 0)
"""
"""Runs each program in a fork that has imported the libraries, and no module of the package."""


@pytest.fixture(scope="module")
def failed_parts() -> dict[str, str]:
    """Tracebacks of the programs that failed."""
    scripts = json.dumps({part: f"{MAKING_PARTS}\n{script}" for part, script in PARTS.items()})
    command = [sys.executable, "-c", EVERY_PART]
    done = subprocess.run(command, input=scripts, capture_output=True, text=True, check=True, timeout=240)
    return dict(json.loads(line) for line in done.stdout.splitlines())


@pytest.mark.skipif(sys.platform == "win32", reason="needs fork")
@pytest.mark.parametrize("part", PARTS)
def test_a_program_with_one_optional_part_has_all_its_modules(part: str, failed_parts: dict[str, str]) -> None:
    """The wiring loads the modules of a declaration, so that no table entry is missing in a fresh process."""
    assert failed_parts.get(part) is None


def test_a_missing_entry_of_a_table_is_a_protocol_error() -> None:
    """A road without its module is a defect of the wiring, and named."""
    with pytest.raises(ProtocolError, match="no road 'unknown'"):
        ROADS["unknown"]


def test_every_module_can_be_imported() -> None:
    """None of them is for type checkers only."""
    script = (
        "import importlib, pkgutil, flujo_actors\n"
        "for found in pkgutil.walk_packages(flujo_actors.__path__, 'flujo_actors.'):\n"
        "    if not found.name.endswith('__main__'): importlib.import_module(found.name)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr


def test_schedules_load_their_libraries_on_use() -> None:
    """The package loads neither cron expressions nor zones, and a stored run no cron expressions."""
    assert not {"cronsim", "zoneinfo"} & loaded_by("import flujo_actors\n")
    stored = "from flujo_actors import Flujo, MemoryStore, Step\nFlujo(Step('s', str), store=MemoryStore()).run(1)\n"
    assert "cronsim" not in loaded_by(stored)
