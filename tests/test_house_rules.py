"""The house rules that a program can check: sizes, names, where `async` may stand, and who catches everything."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "flujo_actors"
SOURCES = sorted(PACKAGE.rglob("*.py"))

LINES_OF_A_FILE = 640
LINES_OF_A_FUNCTION = 50
LINES_OF_A_SMALL_FILE = 60

MODULES = 400
MODULES_OF_A_FOLDER = 30

ENTRIES = {
    "_agents",
    "_api",
    "_blueprint",
    "_bridge",
    "_core",
    "_dsl",
    "_durable",
    "_fleet",
    "_runtime",
    "actors",
    "errors.py",
    "page",
    "protocols",
    "stores",
    "structured",
    "telemetry",
    "terminal",
    "testing",
}
"""The top level of the package, next to `__init__.py`, `__main__.py` and `py.typed`."""

WORDS_IN_ING = {
    "binding",
    "embedding",
    "encoding",
    "fencing",
    "finding",
    "mapping",
    "processing",
    "settings",
    "string",
    "testing",
    "wiring",
}
"""Words in -ing that are nouns of the field."""

METAPHORS = {
    "aftermath",
    "alarms",
    "arrivals",
    "beliefs",
    "book",
    "desk",
    "ears",
    "elsewhere",
    "errand",
    "errands",
    "handwriting",
    "home",
    "office",
    "offices",
    "outlet",
    "played",
    "player",
    "said",
    "seat",
    "seats",
    "silence",
    "sureness",
    "tariffs",
    "told",
    "undone",
}
"""House words for which the field has a noun."""

BACKENDS = {"postgres", "sqlite"}
"""Folders that may have modules of equal names: one per backend."""


IMPORTS_OF_THE_PACKAGE = 30
NAMES_THAT_SAY_NOTHING = {"util", "utils", "helper", "helpers", "common", "base", "manager", "managers", "misc"}

PURE_ROOMS = ("_core", "structured")
ASYNC_IN_PURE_ROOMS = {"structured/_builtins.py": ["run"]}
"""`wrap_dict` is a step for whoever declares it, and what a step calls may be async."""

BROAD_EXCEPTS = {
    "_agents/granular/conversation.py": 1,
    "_api/handle.py": 1,
    "_bridge/guest.py": 1,
    "_bridge/loop_call.py": 4,
    "_bridge/to_asyncio.py": 2,
    "_bridge/to_trio.py": 1,
    "_bridge/user_code_guard.py": 1,
    "_core/error_info.py": 1,
    "_core/records/json_codec.py": 1,
    "_core/records/record_bodies.py": 1,
    "_durable/claims.py": 1,
    "_durable/connection_lock.py": 1,
    "_durable/durable_run_registry.py": 1,
    "_durable/store_transaction.py": 4,
    "_api/evaluation/case_runs.py": 1,
    "_runtime/tree/attempt.py": 1,
    "_runtime/tree/run_supervisor.py": 2,
    "stores/postgres/_connections.py": 2,
    "stores/sqlite/_connections.py": 2,
    "testing/_simulation.py": 1,
    "structured/_compiled_schema.py": 1,
}
"""How many handlers of a file catch every exception. A number may fall, and a file may move; nothing may be added."""

LATE_IMPORTS = {
    "_agents/retrieval/postgres_retriever.py": (1, "psycopg, which only this retriever needs"),
    "_api/cli/entry.py": (3, "click may be missing; the causes of a crash are looked up after it"),
    "stores/postgres/_store.py": (1, "psycopg may be missing, and the error names the extra"),
    "telemetry/_null_telemetry.py": (2, "the expressions of the redactor, for the first error or log message"),
    "testing/_scripted_agent.py": (1, "pydantic-ai, which only scripted models need"),
    "testing/_simulated_world.py": (1, "pydantic-ai, which only simulated models need"),
}
"""Imports of the package inside functions, with their reasons. `_api/wiring.py` loads the optional parts of a run, and
the tables of `__init__` load names on use; nothing else imports late. At most twenty."""

STORIES_ACROSS_ROOMS = {
    "benchmarks",
    "contract",
    "costs",
    "examples",
    "failures",
    "faults",
    "governance",
    "history",
    "kit",
    "simulation",
    "typing",
    "wire",
}
"""Folders of tests that belong to no single room; every other one has the name of the room it tests."""

SHARE_OF_ANY = 0.05
"""Which part of all annotations may say `Any`, or a name that stands for it. It may fall; it may not grow."""

MACHINE_PATH = re.compile(
    r"(?<![\w.])/(?:home|Users)/(?!someone\b)\w+|(?<![\w.])/(?:root|work|mnt)/\w+|[A-Z]:\\Users\\"
)
WRITTEN = ("src", "tests", "docs", "examples", "benchmarks", ".ci")
TEXTS = {".py", ".md", ".toml", ".txt", ".svg", ".json", ""}


@cache
def tree(source: Path) -> ast.Module:
    return ast.parse(source.read_text(encoding="utf-8"))


@cache
def nodes(source: Path) -> tuple[ast.AST, ...]:
    """Everything in a module, walked once for all rules."""
    return tuple(ast.walk(tree(source)))


def name(source: Path) -> str:
    return source.relative_to(PACKAGE).as_posix()


def functions(source: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    return (node for node in nodes(source) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return the lines of a function without its docstring, which may list many arguments."""
    first = node.body[0]
    documented = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
    text = (first.end_lineno or first.lineno) - first.lineno + 1 if documented else 0
    return (node.end_lineno or node.lineno) - node.lineno + 1 - text


def catches_everything(handler: ast.ExceptHandler) -> bool:
    caught = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return any(
        one is None or (isinstance(one, ast.Name) and one.id in {"Exception", "BaseException"}) for one in caught
    )


def broad_handlers(source: Path) -> list[ast.ExceptHandler]:
    handlers = (node for node in nodes(source) if isinstance(node, ast.ExceptHandler))
    return [handler for handler in handlers if catches_everything(handler)]


def lines_of_code(source: Path) -> int:
    """Return the lines of a file without its docstrings and the sentences beneath its fields."""
    bodies = (node.body for node in ast.walk(tree(source)) if isinstance(getattr(node, "body", None), list))
    texts = [each for body in bodies for each in body if isinstance(each, ast.Expr) and is_text(each.value)]
    length = len(source.read_text(encoding="utf-8").splitlines())
    return length - sum((each.end_lineno or each.lineno) - each.lineno + 1 for each in texts)


def is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def test_no_file_is_longer_than_a_reader_can_hold() -> None:
    """A file beyond the limit is two things."""
    sizes = {name(source): lines_of_code(source) for source in SOURCES}
    assert {file: size for file, size in sizes.items() if size > LINES_OF_A_FILE} == {}


def test_no_function_is_longer_than_a_page() -> None:
    """A function beyond the limit is two things."""
    sizes = {f"{name(source)}: {one.name}": lines(one) for source in SOURCES for one in functions(source)}
    assert {function: size for function, size in sizes.items() if size > LINES_OF_A_FUNCTION} == {}


def imported(source: Path) -> set[Path]:
    """The modules of the package that are imported at the top of one, for more than type checkers."""
    found: set[Path] = set()
    for node in tree(source).body:
        if isinstance(node, ast.ImportFrom) and node.level:
            room = source.parents[node.level - 1].joinpath(*(node.module.split(".") if node.module else ()))
            found |= {room / each.name if is_module(room / each.name) else room for each in node.names}
    return found


def is_module(place: Path) -> bool:
    return place.with_suffix(".py").is_file()


def test_no_module_needs_half_of_the_house() -> None:
    """Who imports more than so many modules of the package does several things; facades do nothing else."""
    counts = {name(source): len(imported(source)) for source in SOURCES if source.name != "__init__.py"}
    assert {file: count for file, count in counts.items() if count > IMPORTS_OF_THE_PACKAGE} == {}


def test_every_module_has_a_name_that_says_something() -> None:
    """A thing without a name has not been understood yet."""
    words = {name(source): set(source.stem.strip("_").split("_")) for source in SOURCES}
    assert [file for file, said in words.items() if said & NAMES_THAT_SAY_NOTHING] == []


@pytest.mark.parametrize("room", PURE_ROOMS)
def test_nothing_is_awaited_in_a_pure_room(room: str) -> None:
    """What decides gets values and returns values; waiting is the shell's."""
    found = {
        name(source): [one.name for one in functions(source) if isinstance(one, ast.AsyncFunctionDef)]
        for source in sorted((PACKAGE / room).rglob("*.py"))
    }
    allowed = {file: names for file, names in ASYNC_IN_PURE_ROOMS.items() if file.startswith(f"{room}/")}
    assert {file: names for file, names in found.items() if names} == allowed


def test_who_catches_everything_is_on_a_list_that_only_shrinks() -> None:
    """A new broad handler needs a reason good enough to change the list for, and one that went leaves it."""
    found = Counter({name(source): len(broad_handlers(source)) for source in SOURCES})
    assert +found == Counter(BROAD_EXCEPTS)


def test_whoever_catches_everything_raises_it_again_or_says_why_not() -> None:
    """A comment stands at the handler, or above what it guards, unless the handler ends by raising."""
    silent = [
        f"{name(source)}:{handler.lineno}"
        for source in SOURCES
        for handler in broad_handlers(source)
        if not isinstance(handler.body[-1], ast.Raise) and not commented(source, handler)
    ]
    assert silent == []


def commented(source: Path, handler: ast.ExceptHandler) -> bool:
    """Whether a comment stands within the handler, or in the few lines before it."""
    around = source.read_text(encoding="utf-8").splitlines()[handler.lineno - 6 : handler.end_lineno]
    return any("# " in line for line in around)


def annotations(source: Path) -> Iterator[ast.expr]:
    """The types of parameters, of what is returned, and of names."""
    for node in nodes(source):
        match node:
            case ast.FunctionDef(returns=ast.expr() as said) | ast.AsyncFunctionDef(returns=ast.expr() as said):
                yield said
            case ast.arg(annotation=ast.expr() as said) | ast.AnnAssign(annotation=said):
                yield said


def words_of(said: ast.expr) -> set[str]:
    """The names in a type, and the words in one that is written as a text."""
    texts = {node.value for node in ast.walk(said) if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    names = {node.id for node in ast.walk(said) if isinstance(node, ast.Name)}
    attributes = {node.attr for node in ast.walk(said) if isinstance(node, ast.Attribute)}
    return names | attributes | set(re.findall(r"\w+", " ".join(texts)))


@cache
def aliases(source: Path) -> dict[str, set[str]]:
    """The words of what a module calls a type: `Facts = Mapping[str, object]`, `Row: TypeAlias = list[str]`."""
    found: dict[str, ast.expr] = {}
    for node in nodes(source):
        match node:
            case ast.Assign(targets=[ast.Name(id=alias)], value=(ast.Subscript() | ast.BinOp() | ast.Name()) as said):
                found[alias] = said
            case ast.AnnAssign(
                target=ast.Name(id=alias), annotation=ast.Name(id="TypeAlias"), value=ast.expr() as said
            ):
                found[alias] = said
    return {alias: words_of(said) for alias, said in found.items()}


@cache
def imported_words(source: Path) -> set[str]:
    """What a module imports by name."""
    return {each.name for node in nodes(source) if isinstance(node, ast.ImportFrom) for each in node.names}


def standing_for_any(source: Path, known: set[str]) -> set[str]:
    """What `Any` is called in one module: itself, an alias of something with it, or one that is imported."""
    found, before = {"Any"} | (known & imported_words(source)), set[str]()
    while found != before:
        before = found
        found = found | {alias for alias, words in aliases(source).items() if words & found}
    return found


def names_for_any() -> set[str]:
    """What `Any` is called in any module; an alias may be made of one that another module has."""
    found, before = set[str](), {"Any"}
    while found != before:
        before, found = found, set[str]().union(*(standing_for_any(source, found) for source in SOURCES))
    return found


def test_types_say_what_a_thing_is() -> None:
    """`object` for what is passed on, a variable for what flows, a protocol for what is used; `Any` is rare."""
    known = names_for_any()
    said = [(words_of(one), source) for source in SOURCES for one in annotations(source)]
    unsaid = {source: standing_for_any(source, known) for source in SOURCES}
    assert sum(bool(words & unsaid[source]) for words, source in said) <= SHARE_OF_ANY * len(said)


def written() -> Iterator[Path]:
    """What people wrote: sources, tests and documents."""
    for place in (ROOT, *(ROOT / folder for folder in WRITTEN)):
        found = place.glob("*") if place == ROOT else place.rglob("*")
        yield from (file for file in found if file.is_file() and file.suffix in TEXTS and file.name != ".git")


def test_nothing_names_a_path_of_the_machine_it_was_written_on() -> None:
    """The project is the same wherever it is cloned."""
    found = {
        file.relative_to(ROOT).as_posix(): MACHINE_PATH.findall(file.read_text(encoding="utf-8")) for file in written()
    }
    assert {file: paths for file, paths in found.items() if paths} == {}


def test_the_short_page_for_those_in_a_hurry_is_short() -> None:
    """Who has little time gets the commands, the places and the rules on one screen or two."""
    assert len((ROOT / "AGENTS.md").read_text(encoding="utf-8").splitlines()) <= 60


def test_the_page_of_the_design_names_every_room() -> None:
    """A newcomer can say where each thing is after reading it."""
    rooms = {place.name for place in PACKAGE.iterdir() if place.is_dir() and (place / "__init__.py").is_file()}
    page = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
    assert sorted(room for room in rooms if f"`{room}`" not in page) == []


def test_the_folders_of_tests_mirror_the_rooms() -> None:
    """Who changes a room knows where its tests are; what is promised across rooms stands in a folder of its own."""
    rooms = {place.name.lstrip("_") for place in PACKAGE.rglob("*") if (place / "__init__.py").is_file()}
    folders = {place.name for place in (ROOT / "tests").iterdir() if place.is_dir() and any(place.rglob("*.py"))}
    assert sorted(folders - rooms - STORIES_ACROSS_ROOMS) == []


def stem_words(source: Path) -> set[str]:
    """Words of a module's name; those of a package for its `__init__`."""
    stem = source.parent.name if source.name == "__init__.py" else source.stem
    return set(stem.strip("_").split("_"))


def classes(source: Path) -> list[str]:
    """Names of the classes of a module, at any depth."""
    return [node.name for node in nodes(source) if isinstance(node, ast.ClassDef)]


def dotted(source: Path) -> str:
    """Name under which a source is imported."""
    parts = source.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def importers() -> dict[Path, set[Path]]:
    """Modules by the modules that import them, at any place in their code."""
    found: dict[Path, set[Path]] = {source: set() for source in SOURCES}
    for source in SOURCES:
        for node in nodes(source):
            if isinstance(node, ast.ImportFrom) and node.level:
                room = source.parents[node.level - 1].joinpath(*(node.module.split(".") if node.module else ()))
                for each in node.names:
                    for place in (room / each.name, room):
                        if place.with_suffix(".py") in found:
                            found[place.with_suffix(".py")].add(source)
    return found


def test_the_package_has_a_bounded_number_of_modules() -> None:
    """A module is a noun with work behind it, so their number is bounded."""
    assert len(SOURCES) <= MODULES


def test_the_top_level_has_the_entries_of_the_design() -> None:
    """A newcomer sees eighteen names."""
    entries = {place.name for place in PACKAGE.iterdir() if place.name != "__pycache__"}
    assert entries - {"__init__.py", "__main__.py", "py.typed"} == ENTRIES


def test_no_folder_holds_more_modules_than_a_reader_can_scan() -> None:
    """A folder beyond the limit is two folders."""
    counts = Counter(source.parent.relative_to(PACKAGE).as_posix() for source in SOURCES)
    assert {folder: count for folder, count in counts.items() if count > MODULES_OF_A_FOLDER} == {}


def late_imports(source: Path) -> int:
    """Number of imports of the package inside the functions of a module."""
    inside = [node for function in functions(source) for node in ast.walk(function)]
    own = [node for node in inside if isinstance(node, ast.ImportFrom) and _is_own(node)]
    own += [node for node in inside if isinstance(node, ast.Import) and node.names[0].name.startswith(PACKAGE.name)]
    return len(set(own))


def _is_own(node: ast.ImportFrom) -> bool:
    return node.level > 0 or (node.module or "").startswith(PACKAGE.name)


def test_own_modules_are_imported_late_by_the_wiring_only() -> None:
    """The parts that a run needs are decided in one module; every exception has a reason."""
    counts = {name(source): late_imports(source) for source in SOURCES if name(source) != "_api/wiring.py"}
    allowed = {file: count for file, (count, _) in LATE_IMPORTS.items()}
    assert {file: count for file, count in counts.items() if count > allowed.get(file, 0)} == {}
    assert sum(allowed.values()) <= 20


def test_no_module_is_named_by_a_gerund() -> None:
    """A module is a thing; words in -ing are allowed if they are nouns of the field."""
    words = {name(source): {word for word in stem_words(source) if re.search(r"ings?$", word)} for source in SOURCES}
    allowed = WORDS_IN_ING | {f"{word}s" for word in WORDS_IN_ING}
    assert {file: found for file, found in words.items() if found - allowed} == {}


def test_no_module_is_named_by_a_metaphor() -> None:
    """Names of modules are words that an engineer would search for."""
    assert {name(source): stem_words(source) for source in SOURCES if stem_words(source) & METAPHORS} == {}


def test_no_small_module_serves_one_neighbor_only() -> None:
    """A small file with one importer in its own folder is part of that importer."""
    small = [
        source for source in SOURCES if len(source.read_text(encoding="utf-8").splitlines()) <= LINES_OF_A_SMALL_FILE
    ]
    users = importers()
    lonely = [each for each in small if each.name != "__init__.py" and len(users[each]) == 1]
    assert [name(each) for each in lonely if next(iter(users[each])).parent == each.parent] == []


def test_no_class_name_has_two_meanings() -> None:
    """A class name means one thing in the whole package."""
    counts = Counter(one for source in SOURCES for one in classes(source))
    assert {one: count for one, count in counts.items() if count > 1} == {}


def test_equal_module_names_are_those_of_backends() -> None:
    """Two modules of one name are two backends of one thing."""
    stems = [source for source in SOURCES if source.stem not in {"__init__", "__main__"}]
    counts = Counter(source.stem for source in stems if source.parent.name not in BACKENDS)
    assert {stem: count for stem, count in counts.items() if count > 1} == {}


EVERY_IMPORT = """
import importlib, os, sys
for module in sys.argv[1:]:
    child = os.fork()
    if child == 0:
        try:
            importlib.import_module(module)
        except BaseException as error:
            print(module, repr(error), flush=True)
        os._exit(0)
    os.waitpid(child, 0)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs fork")
def test_every_module_can_be_imported_on_its_own() -> None:
    """No module relies on another one having been imported before it: only a cycle of imports could make it.

    A module of a package in its cycle begins with that package, so the package is tried for it.
    """
    found = cycles(imports_of_modules())
    modules = [each for cycle in found for each in sorted(cycle) if not ({*with_packages(each)} - {each}) & cycle]
    done = subprocess.run([sys.executable, "-c", EVERY_IMPORT, *modules], capture_output=True, text=True, check=True)
    assert modules
    assert done.stdout == ""


def imports_of_modules() -> dict[str, set[str]]:
    """Names of own modules that a module imports while it is imported itself, its packages among them."""
    names = {dotted(source): source for source in SOURCES if source.stem != "__main__"}
    return {
        name: {each for found in (name, *imported_names(name, source)) for each in with_packages(found)} & {*names}
        for name, source in names.items()
    }


def imported_names(name: str, source: Path) -> Iterator[str]:
    """Names in the imports of a module outside of functions; those of classes and functions are harmless."""
    package = name.split(".") if source.stem == "__init__" else name.split(".")[:-1]
    for node in at_once(tree(source)):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            start = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*start, *([node.module] if node.module else [])])
            yield from (f"{base}.{each.name}" for each in node.names)


def at_once(node: ast.AST) -> Iterator[ast.AST]:
    """Nodes that are executed by an import."""
    for child in ast.iter_child_nodes(node):
        is_for_checkers = isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test)
        is_later = is_for_checkers or isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
        if isinstance(child, ast.stmt | ast.ExceptHandler) and not is_later:
            yield child
            yield from at_once(child)


def with_packages(name: str) -> Iterator[str]:
    while name:
        yield name
        name = name.rpartition(".")[0]


def cycles(graph: dict[str, set[str]]) -> list[set[str]]:
    """Sets of modules that reach each other."""
    reach = {name: reached(graph, name) for name in graph}
    found = {frozenset(other for other in reach[name] if name in reach[other]) | {name} for name in graph}
    return [{*each} for each in found if len(each) > 1]


def reached(graph: dict[str, set[str]], name: str) -> set[str]:
    seen, ahead = set[str](), [name]
    while ahead:
        new = graph[ahead.pop()] - seen
        seen |= new
        ahead += new
    return seen
