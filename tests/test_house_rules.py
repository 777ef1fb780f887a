"""The house rules that a program can check: sizes, names, where `async` may stand, and who catches everything."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "flujo_actors"
SOURCES = sorted(PACKAGE.rglob("*.py"))

LINES_OF_A_FILE = 450
LINES_OF_A_FUNCTION = 50

IMPORTS_OF_THE_PACKAGE = 20
NAMES_THAT_SAY_NOTHING = {"util", "utils", "helper", "helpers", "common", "base", "manager", "managers", "misc"}

PURE_ROOMS = ("_core", "structured")
ASYNC_IN_PURE_ROOMS = {"structured/_builtins.py": ["run"]}
"""`wrap_dict` is a step for whoever declares it, and what a step calls may be async."""

BROAD_EXCEPTS = {
    "_agents/granular/conversation.py": 1,
    "_bridge/asyncio_stream.py": 1,
    "_bridge/eager_call.py": 2,
    "_bridge/guard.py": 1,
    "_bridge/guest.py": 1,
    "_bridge/long_call.py": 2,
    "_bridge/to_asyncio.py": 1,
    "_bridge/to_trio.py": 1,
    "_bridge/two_parts.py": 2,
    "_calls/agent.py": 1,
    "_core/foreign_code.py": 1,
    "_core/json_codec.py": 1,
    "_core/record_bodies.py": 1,
    "_durable/borrowing.py": 1,
    "_durable/recovering.py": 1,
    "_durable/store_transaction.py": 4,
    "_durable/stored_runs.py": 1,
    "_handle.py": 1,
    "_tree/attempt.py": 1,
    "_tree/root.py": 2,
    "stores/postgres/_connections.py": 2,
    "stores/sqlite/_connections.py": 2,
    "structured/_output_data.py": 1,
    "structured/_schema.py": 2,
}
"""How many handlers of a file catch every exception. A number may fall, and a file may move; nothing may be added."""

STORIES_ACROSS_ROOMS = {
    "benchmarks",
    "contract",
    "costs",
    "examples",
    "failures",
    "faults",
    "governance",
    "kit",
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


def name(source: Path) -> str:
    return source.relative_to(PACKAGE).as_posix()


def functions(source: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    return (node for node in ast.walk(tree(source)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def catches_everything(handler: ast.ExceptHandler) -> bool:
    caught = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return any(
        one is None or (isinstance(one, ast.Name) and one.id in {"Exception", "BaseException"}) for one in caught
    )


def broad_handlers(source: Path) -> list[ast.ExceptHandler]:
    handlers = (node for node in ast.walk(tree(source)) if isinstance(node, ast.ExceptHandler))
    return [handler for handler in handlers if catches_everything(handler)]


def test_no_file_is_longer_than_a_reader_can_hold() -> None:
    """A file beyond the limit is two things."""
    sizes = {name(source): len(source.read_text(encoding="utf-8").splitlines()) for source in SOURCES}
    assert {file: size for file, size in sizes.items() if size > LINES_OF_A_FILE} == {}


@pytest.mark.slow
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
    for node in ast.walk(tree(source)):
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


def aliases(source: Path) -> dict[str, ast.expr]:
    """What a module calls a type: `Facts = Mapping[str, object]`, `Row: TypeAlias = list[str]`."""
    found: dict[str, ast.expr] = {}
    for node in ast.walk(tree(source)):
        match node:
            case ast.Assign(targets=[ast.Name(id=alias)], value=(ast.Subscript() | ast.BinOp() | ast.Name()) as said):
                found[alias] = said
            case ast.AnnAssign(
                target=ast.Name(id=alias), annotation=ast.Name(id="TypeAlias"), value=ast.expr() as said
            ):
                found[alias] = said
    return found


def standing_for_any(source: Path, known: set[str]) -> set[str]:
    """What `Any` is called in one module: itself, an alias of something with it, or one that is imported."""
    imported = {each.name for node in ast.walk(tree(source)) if isinstance(node, ast.ImportFrom) for each in node.names}
    found, before = {"Any"} | (known & imported), set[str]()
    while found != before:
        before = found
        found = found | {alias for alias, said in aliases(source).items() if words_of(said) & found}
    return found


def names_for_any() -> set[str]:
    """What `Any` is called in any module; an alias may be made of one that another module has."""
    found, before = set[str](), {"Any"}
    while found != before:
        before, found = found, set[str]().union(*(standing_for_any(source, found) for source in SOURCES))
    return found


@pytest.mark.slow
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
    rooms = {place.stem.lstrip("_") for place in PACKAGE.iterdir() if place.suffix == ".py" or place.is_dir()}
    folders = {place.name for place in (ROOT / "tests").iterdir() if place.is_dir() and any(place.rglob("*.py"))}
    assert sorted(folders - rooms - STORIES_ACROSS_ROOMS) == []
