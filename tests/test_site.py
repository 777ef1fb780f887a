"""The docs site: built from the documents, complete, read without a network and found through by a newcomer."""

from __future__ import annotations

import ast
import re
import runpy
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from playwright.sync_api import sync_playwright

from page.conftest import FLAGS, chromium

ROOT = Path(__file__).parents[1]
SITE = runpy.run_path(str(ROOT / ".ci" / "site.py"))
PACKAGES = ["", "actors", "page", "stores", "structured", "telemetry", "telemetry.otel", "terminal", "testing"]
REFERRED = re.compile(r"^::: flujo_actors\.(\S+)$", re.MULTILINE)


def in_the_navigation(entries: list[Any]) -> Iterator[str]:
    for entry in entries:
        for each in entry.values() if isinstance(entry, dict) else [entry]:
            yield from in_the_navigation(each) if isinstance(each, list) else [each]


def public_names(package: str) -> list[str]:
    """What a package offers by name."""
    path = ROOT / "src" / "flujo_actors" / Path(*package.split(".")) / "__init__.py"
    imports = [
        node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.ImportFrom)
    ]
    named = [each.asname for node in imports for each in node.names if each.asname]
    return [name for name in named if not name.startswith("_")]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the site in it."""
    folder = tmp_path_factory.mktemp("site") / "docs"
    built = subprocess.run([sys.executable, ROOT / ".ci" / "site.py", folder], capture_output=True, text=True)
    assert built.returncode == 0, built.stdout + built.stderr
    return folder


def test_every_document_has_a_place_in_the_navigation() -> None:
    """A page that nobody is led to is not read; the decisions are in the table of theirs."""
    said = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]
    pages = {SITE["page_of"](each) for each in (ROOT / "docs").rglob("*.md")} | set(SITE["BESIDE"].values())
    examples = {SITE["page_of"](each) for each in (ROOT / "examples").glob("*.py")}
    listed = {page for page in pages if re.match(r"decisions/\d", page)}
    assert sorted(in_the_navigation(said)) == sorted((pages - listed) | examples)


def test_every_public_name_has_an_entry_in_the_reference() -> None:
    """What can be imported can be looked up, once."""
    pages = [each.read_text(encoding="utf-8") for each in sorted((ROOT / "docs" / "reference").glob("*.md"))]
    entries = [name for page in pages for name in REFERRED.findall(page)]
    assert sorted(entries) == sorted({*entries})
    offered = {f"{package}.{name}".removeprefix("."): name for package in PACKAGES for name in public_names(package)}
    assert {where for where, name in offered.items() if where not in entries and name not in entries} == set()


@pytest.mark.parametrize(
    ("written", "built"),
    [
        ("[Steps](docs/steps.md#maps)", "[Steps](steps.md#maps)"),
        ("![A picture](docs/images/page-run.png)", "![A picture](images/page-run.png)"),
        ("[a script](examples/plain_script.py)", "[a script](files/examples/plain_script.py.md)"),
        ("[elsewhere](https://example.org/docs/steps.md)", "[elsewhere](https://example.org/docs/steps.md)"),
        ("```text\n[Steps](docs/steps.md)\n```\n", "```text\n[Steps](docs/steps.md)\n```\n"),
    ],
)
def test_a_link_of_the_readme_becomes_a_link_between_pages(written: str, built: str) -> None:
    """Links that hold in a clone hold in the site, and what is shown as text stays as it is."""
    assert SITE["relinked"](ROOT / "README.md", written) == built


def test_a_dead_link_and_a_foreign_script_are_found(tmp_path: Path) -> None:
    """The check of the site sees what it is there for."""
    (tmp_path / "a.html").write_text('<h1 id="top"></h1><a href="b.html#low"></a><a href="c.html">', encoding="utf-8")
    (tmp_path / "b.html").write_text(
        '<script src="https://cdn.example/x.js"></script><a href="a.html#top">', encoding="utf-8"
    )
    assert SITE["problems"](tmp_path) == [
        "a.html leads to b.html#low, which is not there",
        "a.html leads to c.html, which is not there",
        "b.html loads https://cdn.example/x.js",
    ]


@pytest.mark.slow
def test_the_site_is_read_and_searched_from_a_folder(place: Path) -> None:
    """No server, no network: the pages open, the search answers, and no other host is asked for anything."""
    path = chromium()
    if path is None:
        pytest.skip("NO BROWSER: the docs site was not looked at; install one with `apt-get install chromium`")
    asked: list[str] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
        page = browser.new_page()
        page.on("request", lambda request: asked.append(request.url))
        page.goto((place / "site" / "index.html").as_uri())
        page.get_by_role("link", name="Build", exact=True).first.click()
        page.get_by_role("heading", name="Steps", level=1).wait_for()
        page.get_by_role("button", name="Search").first.click()
        page.get_by_placeholder("Search").last.fill("back-pressure")
        page.get_by_text(re.compile(r"^[1-9]\d* results?$")).wait_for()
        browser.close()
    assert [url for url in asked if not url.startswith(("file:", "data:", "about:", "blob:"))] == []


@pytest.mark.slow
def test_the_reference_shows_signatures_and_what_they_are_for(place: Path) -> None:
    """The pages of the reference are made from the code: a class, its signature, its sentence."""
    page = (place / "site" / "reference" / "declaring.html").read_text(encoding="utf-8")
    assert 'id="flujo_actors.Step.map_over"' in page
    assert "max_concurrency" in page
    assert "One agent: a callable, an object with" in page
