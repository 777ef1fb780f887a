"""Names of files, modules and classes in documents: each exists."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "flujo_actors"
TEXTS = {".cfg", ".importlinter", ".md", ".py", ".sh", ".toml", ".txt", ".yaml", ".yml", ""}
FOLDERS = ("docs", "examples", "benchmarks", ".ci")
FILES = ("AGENTS.md", "CHANGELOG.md", "CONTRIBUTING.md", "README.md", "SECURITY.md", "Makefile", "mkdocs.yml")

SEGMENT = r"[A-Za-z_][\w-]*"
IN_THE_REPOSITORY = re.compile(
    rf"(?<![\w/.-])((?:src|tests|docs|examples|benchmarks|\.ci)/(?:{SEGMENT}/)*{SEGMENT}\.py)\b"
)
"""A Python file, written from the root of the repository."""
IN_THE_PACKAGE = re.compile(rf"(?<![\w/.-])(?:src/flujo_actors/)?(_[a-z]+(?:/{SEGMENT})+(?:\.py)?|_[a-z]+/)(?![\w/<*])")
"""A module or folder of a private package, written from the root of the package."""
DOTTED = re.compile(r"(?<![\w./@-])(flujo_actors(?:\.[A-Za-z_]\w*)+)")
"""A module of the package or a name in it."""
LOGGERS = {"flujo_actors.events"}

CLASS = re.compile(r"`([A-Z][a-z]+(?:[A-Z][a-z]+)+)`")
"""A class name of two words or more, in a document for contributors."""
DECLARED = re.compile(r"^(?:class )?([A-Z]\w+)(?:\(|\[|:| =)", re.MULTILINE)
"""A class or an alias at the top of a module."""
FOR_CONTRIBUTORS = ("AGENTS.md", "CONTRIBUTING.md", "docs/architecture.md", "docs/design.md", "docs/glossary.md")
OF_OTHERS = {"AttributeError", "BaseException", "CancelledError", "EventStreamHandler", "KeyboardInterrupt", "KeyError"}
OF_OTHERS |= {"SystemExit", "TypedDict", "ValueError"}


def documents() -> list[Path]:
    """The texts of the repository that name code, without results of benchmarks."""
    inside = (path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.suffix in TEXTS)
    kept = (path for path in inside if path.is_file() and not {"results", "__pycache__"} & set(path.parts))
    return sorted([*kept, *(ROOT / name for name in FILES)])


def name(document: Path) -> str:
    return document.relative_to(ROOT).as_posix()


def is_there(place: str) -> bool:
    """Whether the package has the module or folder, written with or without `.py`."""
    path = PACKAGE / place
    return path.exists() or path.with_suffix(".py").is_file()


@cache
def resolves(dotted: str) -> bool:
    """Whether the name is a module, an attribute of one, or a logger."""
    if dotted in LOGGERS:
        return True
    parts = dotted.split(".")
    for length in range(len(parts), 0, -1):
        try:
            found: object = importlib.import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        try:
            for part in parts[length:]:
                found = getattr(found, part)
        except AttributeError:
            return False
        return True
    return False


def wrong(document: Path) -> Iterator[str]:
    text = document.read_text(encoding="utf-8")
    yield from (path for path in IN_THE_REPOSITORY.findall(text) if not (ROOT / path).is_file())
    yield from (place for place in IN_THE_PACKAGE.findall(text) if not is_there(place))
    yield from (dotted for dotted in DOTTED.findall(text) if not resolves(dotted))


@pytest.mark.parametrize("document", documents(), ids=name)
def test_every_file_and_module_that_a_document_names_exists(document: Path) -> None:
    """A document that names a moved module misleads its readers."""
    assert sorted(set(wrong(document))) == []


@cache
def declared() -> frozenset[str]:
    """The classes and aliases of the package."""
    texts = [path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py")]
    return frozenset(found for text in texts for found in DECLARED.findall(text))


@pytest.mark.parametrize(
    "document", [*FOR_CONTRIBUTORS, *(name(each) for each in sorted((ROOT / "docs" / "decisions").glob("*.md")))]
)
def test_every_class_that_a_document_for_contributors_names_exists(document: str) -> None:
    """A class name in these documents is found by a search in the sources."""
    named = set(CLASS.findall((ROOT / document).read_text(encoding="utf-8")))
    assert sorted(named - declared() - OF_OTHERS) == []


@pytest.mark.parametrize("text", ["src/flujo_actors/_tree/step.py", "`_tree/step.py`", "`flujo_actors.nothing.Here`"])
def test_a_name_of_something_that_is_not_there_is_noticed(text: str, tmp_path: Path) -> None:
    """The check itself finds the names of files, modules and classes."""
    document = tmp_path / "document.md"
    document.write_text(text, encoding="utf-8")
    assert list(wrong(document))
