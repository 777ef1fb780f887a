"""Language rules that a program can check: docstrings, comments, messages, CLI help and documents."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import click
import pytest

from flujo_actors._api.cli.command_group import flujo_actors

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "flujo_actors"
TOP = "flujo_actors"
PACKAGES = [TOP, *sorted(entry.name for entry in PACKAGE.iterdir() if entry.is_dir() and any(entry.rglob("*.py")))]

LIMITS = {
    r"\bwhom?ever\b": 1,
    r"\b(?:some|no|every)body\b": 2,
    r"\b(?:told|tells?|telling)\b": 8,
    r"\b(?:says|said)\b": 8,
    r"\bwhat (?:is|was|are|were|the|it|they|has|have|had|came|comes|happens|happened)\b": 12,
    r"\b(?:stands|stood)\b": 2,
    r"\b(?:goes|go|went) on\b": 2,
    r"\b(?:comes|come) to\b|\bcame of\b": 3,
    r"\belsewhere\b|\bat home\b": 1,
    r"\bhand(?:s|ed)? in\b": 1,
    r"\bplay(?:s|ed)?\b": 1,
    r"\bat work\b|\bunder way\b": 2,
    r"\bt(?:akes?|ook|aken) over\b": 1,
    r"\blets? go\b": 1,
    r"\bbesides?\b": 4,
}
"""Occurrences per 10,000 words at most, by pattern; trio's own documentation is below each limit."""

TARGETS = {
    r"\b(?:told|tells|says|said)\b": 10,
    r"\b(?:whoever|somebody|nobody|everybody)\b": 1,
    r"\b(?:goes on|stands|comes to|hands in|plays)\b": 2,
}
"""Occurrences per 10,000 words at most in one kind of text, over all packages and all documents."""

WANTED = {"return": 25, "timeout": 3, "callback": 1, "cache": 1}
"""Occurrences per 10,000 words of docstrings at least, by stem."""

PAGE_TEXT = re.compile(r"`([^`]*)`|\"([^\"\n]*)\"|>([^<>{}]+)<")
"""Texts of a script or an HTML file: literals, and text between tags."""

CODE = re.compile(r"^```.*?^```$|`[^`\n]*`", re.DOTALL | re.MULTILINE)

NO_FIRST_WORD = re.compile(r"(?:What|Whoever|Whom|Which|How|Who|Where|When|Why)\b")
WORDS_OF_A_FIRST_LINE = 12
LONG_FIRST_LINES = 0.05
"""Share of the strings below a package's assignments whose first line may be longer."""

DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


@cache
def nodes(source: Path) -> tuple[ast.AST, ...]:
    """Everything in a module, parsed and walked once for all rules."""
    return tuple(ast.walk(ast.parse(source.read_text(encoding="utf-8"))))


def docstring_nodes(source: Path) -> Iterator[ast.Constant]:
    """Docstrings of modules, classes and functions, and the strings below assignments."""
    for node in nodes(source):
        body = getattr(node, "body", None)
        for statement in body if isinstance(body, list) else ():
            match statement:
                case ast.Expr(value=ast.Constant(value=str()) as text):
                    yield text


def docstrings(source: Path) -> list[str]:
    return [node.value for node in docstring_nodes(source) if isinstance(node.value, str)]


def comments(source: Path) -> list[str]:
    tokens = tokenize.generate_tokens(io.StringIO(source.read_text(encoding="utf-8")).readline)
    return [token.string.lstrip("# ") for token in tokens if token.type == tokenize.COMMENT]


def messages(source: Path) -> list[str]:
    """String literals of more than one word that are not docstrings."""
    documented = {id(node) for node in docstring_nodes(source)}
    literals = (node for node in nodes(source) if isinstance(node, ast.Constant))
    return [
        one.value for one in literals if isinstance(one.value, str) and " " in one.value and id(one) not in documented
    ]


def too_frequent(texts: list[str]) -> dict[str, float]:
    """Rates per 10,000 words that are above their limit; a single occurrence is never too many."""
    joined = "\n".join(texts)
    words = max(1, len(re.findall(r"[A-Za-z']+", joined)))
    counts = {pattern: len(re.findall(pattern, joined, flags=re.IGNORECASE)) for pattern in LIMITS}
    return {
        pattern: round(count * 10_000 / words, 1)
        for pattern, count in counts.items()
        if count > 1 and count * 10_000 / words > LIMITS[pattern]
    }


def sources(package: str) -> list[Path]:
    return sorted(PACKAGE.glob("*.py") if package == TOP else (PACKAGE / package).rglob("*.py"))


def help_texts(command: click.Command, context: click.Context) -> Iterator[str]:
    """Help of a command, of its options and of its subcommands."""
    yield command.get_help(context)
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            assert child is not None
            yield from help_texts(child, child.make_context(name, [], parent=context, resilient_parsing=True))


@pytest.mark.parametrize("package", PACKAGES)
def test_docstrings_use_the_words_of_the_field(package: str) -> None:
    """Each banned word stays below its rate in the docstrings and comments of a package."""
    assert (
        too_frequent([text for source in sources(package) for text in (*docstrings(source), *comments(source))]) == {}
    )


@pytest.mark.parametrize("package", PACKAGES)
def test_messages_use_the_words_of_the_field(package: str) -> None:
    """Errors, log lines and page strings keep the same rates."""
    assert too_frequent([text for source in sources(package) for text in messages(source)]) == {}


def test_help_of_commands_uses_the_words_of_the_field() -> None:
    """The help of every command keeps the same rates."""
    texts = command_texts()
    assert len(texts) > 20
    assert too_frequent(texts) == {}


def test_documents_use_the_words_of_the_field() -> None:
    """The prose of README, guides and decisions keeps the same rates; code in them is not prose."""
    texts = document_texts()
    assert len(texts) > 60
    assert too_frequent(texts) == {}


def page_strings() -> list[str]:
    """Texts of more than one word in the files of the run page."""
    files = [each for each in sorted((PACKAGE / "page" / "static").glob("*.*")) if each.suffix in {".js", ".html"}]
    found = (text for each in files for text in PAGE_TEXT.findall(each.read_text(encoding="utf-8")))
    return [text for texts in found for text in texts if " " in text]


def document_texts() -> list[str]:
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    return [CODE.sub("", page.read_text(encoding="utf-8")) for page in pages]


def command_texts() -> list[str]:
    group = flujo_actors()
    return list(help_texts(group, group.make_context("flujo-actors", [], resilient_parsing=True)))


TEXTS: dict[str, Callable[[], list[str]]] = {
    "documents": document_texts,
    "docstrings": lambda: [text for source in PACKAGE.rglob("*.py") for text in docstrings(source)],
    "comments": lambda: [text for source in PACKAGE.rglob("*.py") for text in comments(source)],
    "help of commands": command_texts,
    "strings of the page": page_strings,
    "errors and log lines": lambda: [text for source in PACKAGE.rglob("*.py") for text in messages(source)],
}


@pytest.mark.parametrize("kind", TEXTS)
def test_a_kind_of_text_meets_the_targets(kind: str) -> None:
    """Banned words are counted together, by their group; not one of them is free."""
    joined = "\n".join(TEXTS[kind]())
    words = len(re.findall(r"[A-Za-z']+", joined))
    assert words > 200
    rates = {each: len(re.findall(each, joined, re.IGNORECASE)) * 10_000 / words for each in TARGETS}
    assert {each: rate for each, rate in rates.items() if rate > TARGETS[each]} == {}


@pytest.mark.parametrize("package", PACKAGES)
def test_a_docstring_begins_with_a_noun_or_an_imperative(package: str) -> None:
    """A first line that begins with a question word is a clause, which a reader cannot skim."""
    found = [
        f"{source.name}: {text.splitlines()[0]}" for source in sources(package) for text in docstrings(source) if text
    ]
    assert [line for line in found if NO_FIRST_WORD.match(line.split(": ", 1)[1])] == []


@pytest.mark.parametrize("package", PACKAGES)
def test_first_lines_of_modules_classes_and_functions_are_short(package: str) -> None:
    """At most twelve words, so that an index of them can be skimmed."""
    documented = [node for source in sources(package) for node in nodes(source) if isinstance(node, DOCUMENTED)]
    lines = [text.strip().splitlines()[0] for node in documented if (text := ast.get_docstring(node))]
    assert [line for line in lines if len(line.split()) > WORDS_OF_A_FIRST_LINE] == []


@pytest.mark.parametrize("package", PACKAGES)
def test_first_lines_below_assignments_are_short(package: str) -> None:
    """At most twelve words, but for one in twenty."""
    lines = [text.strip().splitlines()[0] for source in sources(package) for text in docstrings(source) if text.strip()]
    long = [line for line in lines if len(line.split()) > WORDS_OF_A_FIRST_LINE]
    assert len(long) <= LONG_FIRST_LINES * len(lines), long[:20]


def test_docstrings_name_what_a_caller_gets() -> None:
    """Words that readers of an API search for occur as often as in the documentation of peers."""
    joined = "\n".join(text for source in PACKAGE.rglob("*.py") for text in docstrings(source)).lower()
    words = len(re.findall(r"[a-z']+", joined))
    rates = {stem: len(re.findall(rf"\b{stem}", joined)) * 10_000 / words for stem in WANTED}
    assert {stem: rate for stem, rate in rates.items() if rate < WANTED[stem]} == {}


WORDS_OF_A_SENTENCE = 25
LONG_SENTENCES = 0.01
"""Share of the sentences of documents that may be longer: enumerations, mostly."""
NO_SENTENCE = re.compile(
    r"^ *```.*?^ *```$|^ *(?:\||#|!!!|:::|Next:|===)[^\n]*$|<!--.*?-->|^    (?:options|members):[^\n]*$",
    re.DOTALL | re.MULTILINE,
)
ITEM = re.compile(r"^\s*(?:[-*]|\d+\.)\s", re.MULTILINE)


def sentences(document: str) -> Iterator[str]:
    """Sentences of a document, without tables, headings and code; a name in code is one word."""
    text = ITEM.sub("\n\n", NO_SENTENCE.sub("\n\n", document))
    text = re.sub(r"`[^`]*`", "x", re.sub(r"\]\([^)]*\)", "]", text))
    for paragraph in re.split(r"\n\s*\n", text):
        yield from re.split(r"(?<=[.!?:])\s+", " ".join(paragraph.split()))


def test_sentences_of_documents_are_short() -> None:
    """A sentence of more than 25 words is two, or a list."""
    pages = [*(ROOT / "docs").rglob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md"]
    found = [each for page in pages for each in sentences(page.read_text(encoding="utf-8"))]
    long = [each for each in found if len(re.findall(r"[A-Za-z0-9'×%-]+", each)) > WORDS_OF_A_SENTENCE]
    assert len(found) > 3_000
    assert len(long) <= LONG_SENTENCES * len(found), (len(long), len(found), long)
