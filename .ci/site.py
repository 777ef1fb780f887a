"""Builds the docs site into `build/docs/site`, from the documents as they are: `make site`.

Rules:
1. The documents stay the source. The README is the first page, `docs/` is the rest; nothing is written twice.
2. A link to a file of the project that is no document leads to a page that shows the file.
3. A warning ends the build, and so does a link to a page, a heading or a picture that is not there.
4. A reader's browser asks no other host for anything: foreign addresses are links to follow, and nothing else.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path, PurePosixPath
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).parents[1]
REPOSITORY = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"]["Repository"]
RAW = REPOSITORY.replace("//github.com", "//raw.githubusercontent.com")
OWN = re.compile(rf"\]\((?:{REPOSITORY}/(?:blob|tree)|{RAW})/main/")
"""Absolute addresses of files of the project: a package index shows the README, and only these work there."""
BADGE = re.compile(r"^\[!\[.*\n", re.MULTILINE)
PLACE = ROOT / "build" / "docs"
BESIDE = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "SUPPORT.md": "support.md",
    "RELEASING.md": "releasing.md",
    "CODE_OF_CONDUCT.md": "conduct.md",
}
FENCE = re.compile(r"^(?P<indent> *)```", re.MULTILINE)
MARKED = re.compile(r"^( *```python)[ ]compile-only[^\n]*$", re.MULTILINE)
LINK = re.compile(r"\]\((?P<target>(?!https?:|mailto:|#)[^)#\s]+)(?P<anchor>#[^)\s]*)?\)")
UNSEARCHED = "---\nsearch:\n  exclude: true\n---\n\n"
"""Head of a page that shows a source file: documents are searched, sources are not."""
PICTURE = re.compile(r"!\[(?P<text>[^\]]*)\]\((?P<target>[^)#\s]+)\)")
DARK = {
    "white": "#0d0e12",
    "#212529": "#e9ecef",
    "#495057": "#ced4da",
    "#868e96": "#adb5bd",
    "#e9ecef": "#343a40",
    "#a5d8ff": "#1864ab",
    "#ffa8a8": "#c92a2a",
    "#2f9e44": "#69db7c",
    "#d9480f": "#ffa94d",
    "#1971c2": "#74c0fc",
    "#9c36b5": "#da77f2",
}
"""Colors of a diagram on a dark page, by those on a light one."""
LANGUAGES = {".py": "python", ".yaml": "yaml", ".yml": "yaml", ".toml": "toml", ".service": "ini", ".js": "javascript"}


def main() -> None:
    place = Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else PLACE
    if place.exists():
        shutil.rmtree(place)
    gather(place / "source")
    shutil.copy(ROOT / "mkdocs.yml", place)
    shutil.copy(ROOT / ".ci" / "attrs_constructors.py", place)
    subprocess.run([sys.executable, "-m", "zensical", "build", "--strict", "-f", str(place / "mkdocs.yml")], check=True)
    shutil.copy(ROOT / "docs" / "llms.txt", place / "site")
    if wrong := problems(place / "site"):
        sys.exit("\n".join(["the site is built, but:", *wrong]))
    print(f"{len(list((place / 'site').rglob('*.html')))} pages: {place / 'site' / 'index.html'}")


# --- what the pages are made of ---


def gather(source: Path) -> None:
    """The documents with links that hold within the site, and a page for each file that they lead to."""
    documents = [*(ROOT / name for name in BESIDE), *sorted((ROOT / "docs").rglob("*.md"))]
    shown = {*(ROOT / "examples").glob("*.py")}
    for document in documents:
        text = as_document(document.read_text(encoding="utf-8"))
        shown |= {file for file in linked(document, text) if not is_part_of_the_site(file)}
        write(source / page_of(document), relinked(document, MARKED.sub(r"\1", text)))
    shutil.copytree(ROOT / "docs" / "images", source / "images")
    for diagram in (source / "images").glob("*.svg"):
        write(diagram.with_name(f"{diagram.stem}-dark.svg"), darkened(diagram.read_text(encoding="utf-8")))
    for asset in ("iframe-worker.js", "site.css"):
        shutil.copy(ROOT / "docs" / asset, source)
    for file in with_what_is_inside(shown):
        write(source / page_of(file), page_about(file))


def as_document(text: str) -> str:
    """The text without badges, and with relative links to files of the project."""
    return OWN.sub("](", BADGE.sub("", text))


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def is_part_of_the_site(file: Path) -> bool:
    name = file.relative_to(ROOT).as_posix()
    return name in BESIDE or (name.startswith("docs/") and file.suffix in {".md", ".png", ".svg"})


def with_what_is_inside(shown: set[Path]) -> Iterator[Path]:
    for file in sorted(shown):
        yield file
        if file.is_dir():
            yield from files_in(file)


def files_in(folder: Path) -> list[Path]:
    """Everything in a folder but what Python compiled there."""
    return sorted(each for each in folder.rglob("*") if each.is_file() and each.suffix != ".pyc")


def page_of(file: Path) -> str:
    """Where a file of the project stands in the site."""
    name = file.relative_to(ROOT).as_posix()
    if name in BESIDE:
        return BESIDE[name]
    return name.removeprefix("docs/") if is_part_of_the_site(file) else f"files/{name}.md"


def page_about(file: Path) -> str:
    """A page that shows a file, or lists a folder."""
    title = f"{UNSEARCHED}# {file.relative_to(ROOT).as_posix()}\n\n"
    if file.is_dir():
        inside = files_in(file)
        rows = (f"- [{each.relative_to(file).as_posix()}]({way(page_of(file), page_of(each))})" for each in inside)
        return title + "\n".join(rows) + "\n"
    language = LANGUAGES.get(file.suffix, "text")
    return f"{title}````{language}\n{file.read_text(encoding='utf-8')}````\n"


def prose(text: str) -> Iterator[tuple[str, bool]]:
    """The text in pieces, each with whether it is outside of fenced code."""
    outside = True
    for piece in re.split(r"(?m)^(?= *```)", text):
        fence = FENCE.match(piece)
        if not fence:
            yield piece, outside
            continue
        head, _, rest = piece.partition("\n")
        yield head + "\n", False
        outside = not outside
        yield rest, outside


def linked(document: Path, text: str) -> set[Path]:
    """The files of the project that a document leads to."""
    pieces = (piece for piece, outside in prose(text) if outside)
    return {(document.parent / found["target"]).resolve() for piece in pieces for found in LINK.finditer(piece)}


def relinked(document: Path, text: str) -> str:
    """The text with links from its page to the other pages."""
    here = page_of(document)

    def link(found: re.Match[str]) -> str:
        there = page_of((document.parent / found["target"]).resolve())
        return f"]({way(here, there)}{found['anchor'] or ''})"

    linked_text = (LINK.sub(link, piece) if outside else piece for piece, outside in prose(text))
    return "".join(PICTURE.sub(in_both_schemes, piece) for piece in linked_text)


def in_both_schemes(picture: re.Match[str]) -> str:
    """A picture with its dark variant, of which a page shows one."""
    name = PurePosixPath(picture["target"])
    dark = name.with_name(f"{name.stem}-dark{name.suffix}")
    if name.suffix != ".svg" and not (ROOT / "docs" / "images" / dark.name).exists():
        return picture[0]
    return f"![{picture['text']}]({name}#only-light)![{picture['text']}]({dark}#only-dark)"


def darkened(diagram: str) -> str:
    """The diagram with the colors of a dark page."""
    return re.sub(r'"(white|#[0-9a-f]{6})"', lambda found: f'"{DARK.get(found[1], found[1])}"', diagram)


def way(here: str, there: str) -> str:
    """The relative address of one page, seen from another."""
    up = "../" * (len(PurePosixPath(here).parts) - 1)
    return up + there


# --- what was built ---


class Page(HTMLParser):
    """What a page is called by, leads to, and loads."""

    LOADS = ("src", "srcset", "data", "poster")

    def __init__(self, html: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.leads: list[str] = []
        self.loads: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if not value:
                continue
            if name == "id" or (tag == "a" and name == "name"):
                self.ids.add(value)
            elif name == "href":
                (self.leads if tag == "a" else self.loads).append(value)
            elif name in self.LOADS:
                self.loads.append(value)


def problems(site: Path) -> list[str]:
    """What a reader would stumble over: dead links, and whatever asks another host."""
    pages = {path: Page(path.read_text(encoding="utf-8")) for path in sorted(site.rglob("*.html"))}
    return [problem for path, page in pages.items() for problem in problems_of(path, page, pages)]


def problems_of(path: Path, page: Page, pages: dict[Path, Page]) -> Iterator[str]:
    for address in page.loads:
        if is_foreign(address):
            yield f"{path.name} loads {address}"
        elif not address.startswith("data:") and not target(path, address).exists():
            yield f"{path.name} loads {address}, which is not there"
    for address in page.leads:
        if not is_foreign(address) and not leads_somewhere(path, address, pages):
            yield f"{path.name} leads to {address}, which is not there"


def is_foreign(address: str) -> bool:
    return bool(urlsplit(address).netloc) or address.startswith("mailto:")


def target(path: Path, address: str) -> Path:
    """The file behind an address: that of the 404 page, which is served anywhere, begins at the root of the site."""
    said = unquote(urlsplit(address).path)
    return (path.parent / said.removeprefix("/")).resolve() if said else path


def leads_somewhere(path: Path, address: str, pages: dict[Path, Page]) -> bool:
    there = target(path, address)
    anchor = unquote(urlsplit(address).fragment)
    if there not in pages:
        return there.is_file() and not anchor
    return not anchor or anchor in pages[there].ids


if __name__ == "__main__":
    main()
