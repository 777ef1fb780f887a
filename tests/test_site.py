"""The docs site: built from the documents, complete, read without a network and found through by a newcomer."""

from __future__ import annotations

import ast
import functools
import re
import runpy
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from playwright.sync_api import Page, expect, sync_playwright

from flujo_actors import Step, UnknownOption
from page.conftest import FLAGS, chromium

ROOT = Path(__file__).parents[1]
SITE = runpy.run_path(str(ROOT / ".ci" / "site.py"))
PACKAGES = [
    "",
    "actors",
    "page",
    "stores",
    "structured",
    "telemetry",
    "telemetry.otel",
    "terminal",
    "testing",
    "testing.wire",
]
FIELD_WORDS = {
    "migrate": ["migrate/langgraph.html", "migrate/flujo.html", "migrate/pydantic-ai.html", "stores.html"],
    "upgrade": ["upgrade.html"],
    "retention": ["production/retention.html"],
    "retry": ["how-to/retries-and-fallbacks.html", "production/resume-and-recover.html"],
    "checkpoint": ["glossary.html", "durability.html", "migrate/langgraph.html"],
    "rate limit": ["rate-limits.html"],
    "interrupt": ["how-to/approvals.html"],
    "kubernetes": ["production/reference-architecture.html"],
    "pgbouncer": ["production/postgres.html", "stores.html", "help/faq.html"],
    "backup": ["production.html", "production/postgres.html"],
    "webhook": ["how-to/approve-by-webhook.html", "how-to/send-webhooks.html", "examples/webhook-callback.html"],
    "jupyter": ["help/faq.html", "how-to/asyncio-trio-sync.html", "examples/notebook.html"],
    "cancel": ["how-to/cancel-a-run.html"],
    "versioning": ["production/deploy-a-changed-pipeline.html", "help/faq.html", "version-policy.html"],
    "time travel": ["help/faq.html", "how-to/fork-and-compare.html"],
    "fork": ["how-to/fork-and-compare.html"],
    "replay": ["rehearse.html"],
    "gates": ["evaluate.html", "how-to/evaluate-in-ci.html", "reference/evaluation-rules.html"],
    "partial structured output": ["help/faq.html", "how-to/structured-output.html"],
    "mock tools": ["help/faq.html", "how-to/scripted-models.html"],
    "idempotency": ["help/faq.html", "durability.html"],
    "exactly once": ["how-to/exactly-once-writes.html"],
    "timeout": ["help/faq.html", "how-to/retries-and-fallbacks.html"],
    "concurrency limit": ["help/faq.html", "production/workers-and-queues.html"],
    "large payloads": ["help/faq.html"],
    "secrets": ["help/faq.html", "production/security-and-pii.html"],
    "encryption at rest": ["help/faq.html", "production/security-and-pii.html"],
    "multi-tenant": ["help/faq.html", "production/labels-and-tenants.html"],
    "dead letter": ["help/faq.html", "production/workers-and-queues.html"],
    "observability": ["help/faq.html", "how-to/opentelemetry.html"],
    "reconnect": ["how-to/stream-with-fastapi.html"],
    "child workflow": ["help/faq.html", "migrate/temporal-dbos.html"],
    "durable sleep": ["help/faq.html", "waiting.html"],
    "schedule": ["schedules.html"],
    "ollama": ["help/faq.html", "examples/local-model.html", "install.html"],
    "cost per tenant": ["help/faq.html", "production.html", "rate-limits.html"],
    "typed state": ["help/faq.html", "how-to/share-state.html"],
    "sqlite": ["help/faq.html", "stores.html"],
    "windows": ["help/faq.html"],
    "license": ["help/faq.html", "index.html"],
    "deterministic": ["help/faq.html"],
    "django": ["help/faq.html", "how-to/asyncio-trio-sync.html"],
    "human in the loop": ["steps.html", "how-to/approvals.html"],
    "streaming": ["how-to/stream-with-fastapi.html", "help/faq.html"],
    "handoff": ["how-to/multi-agent-patterns.html", "help/faq.html"],
    "guardrails": ["help/faq.html"],
    "rag": ["how-to/rag-and-citations.html"],
    "fan out": ["how-to/parallel-and-map.html"],
    "saga": ["how-to/compensation.html", "examples/saga.html"],
    "prometheus": ["monitoring.html"],
    "gdpr": ["help/faq.html", "production/retention.html"],
    "extras": ["install.html", "help/faq.html"],
    "429": ["help/faq.html", "rate-limits.html"],
    "exit codes": ["reference/errors.html"],
    "serverless": ["help/faq.html"],
    "parallel tool calls": ["help/faq.html"],
    "custom model provider": ["help/faq.html", "agents.html"],
    "serialization": ["help/faq.html", "durability.html"],
    "prompt version": ["help/faq.html"],
    "token count": ["help/faq.html", "reference/usage-and-limits.html"],
    "stream final answer": ["help/faq.html", "outcomes.html"],
    "retry structured output": ["help/faq.html", "how-to/structured-output.html", "structured.html"],
    "subgraph": ["help/faq.html", "migrate/langgraph.html"],
    "priority queue": ["help/faq.html", "production/workers-and-queues.html"],
    "conversation": ["how-to/store-conversations.html", "chat.html"],
    "conditional edge": ["migrate/langgraph.html"],
    "restore": ["production/postgres.html", "help/faq.html"],
    "step options": ["reference/step-options.html"],
    "dependency injection": ["help/faq.html", "how-to/tools-and-dependencies.html"],
    "multimodal": ["help/faq.html", "agents.html"],
    "images": ["help/faq.html", "agents.html"],
    "tool choice": ["help/faq.html"],
    "temperature": ["help/faq.html", "agents.html"],
    "trim messages": ["help/faq.html"],
    "summarize history": ["help/faq.html"],
    "context window": ["help/faq.html"],
    "batch api": ["help/faq.html"],
    "debounce": ["help/faq.html"],
    "deduplicate": ["help/faq.html"],
    "hallucination": ["help/faq.html"],
    "custom events": ["help/faq.html"],
    "websocket": ["help/faq.html", "how-to/stream-with-fastapi.html"],
    "mermaid": ["help/faq.html", "cli.html"],
    "mypy": ["help/faq.html"],
    "type checking": ["help/faq.html"],
    "audit": ["help/faq.html"],
    "stuck": ["help/faq.html"],
    "pending": ["help/faq.html"],
    "high availability": ["help/faq.html"],
    "failover": ["help/faq.html"],
    "graceful shutdown": ["help/faq.html"],
    "rolling deploy": ["help/faq.html", "production/deploy-a-changed-pipeline.html"],
    "blue green": ["help/faq.html"],
    "worker affinity": ["help/faq.html"],
    "search attributes": ["help/faq.html"],
    "correlation id": ["help/faq.html"],
    "poison": ["help/faq.html"],
    "keda": ["help/faq.html"],
    "mutex": ["help/faq.html"],
    "throttle": ["help/faq.html"],
    "progress": ["help/faq.html"],
    "backpressure": ["help/faq.html"],
    "system prompt": ["help/faq.html"],
}
"""Words of the field, each with the pages that answer it: one of them is among the first three hits."""
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
    listed = {page for page in pages if re.match(r"decisions/\d", page)}
    assert sorted(in_the_navigation(said)) == sorted(pages - listed)


def test_every_example_has_a_page_that_links_to_its_program() -> None:
    """A page has the purpose, the command and the output of a program; the gallery lists the page."""
    gallery = (ROOT / "docs" / "examples" / "index.md").read_text(encoding="utf-8")
    for program in sorted((ROOT / "examples").glob("*.py")):
        page = ROOT / "docs" / "examples" / f"{program.stem.replace('_', '-')}.md"
        assert f"](../../examples/{program.name})" in page.read_text(encoding="utf-8")
        assert f"({page.name})" in gallery


def test_the_summary_for_language_models_leads_to_pages() -> None:
    """Each link of `llms.txt` is a page of the site, at the address of the project."""
    links = re.findall(r"\]\((\S+)\)", (ROOT / "docs" / "llms.txt").read_text(encoding="utf-8"))
    address = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"]["Documentation"]
    pages = {SITE["page_of"](each) for each in (ROOT / "docs").rglob("*.md")} | set(SITE["BESIDE"].values())
    assert links
    assert [each for each in links if not each.startswith(f"{address}/")] == []
    assert {each.removeprefix(f"{address}/").replace(".html", ".md") for each in links} - pages == set()


def test_every_public_name_has_an_entry_in_the_reference() -> None:
    """What can be imported can be looked up, once."""
    pages = [each.read_text(encoding="utf-8") for each in sorted((ROOT / "docs" / "reference").glob("*.md"))]
    entries = [name for page in pages for name in REFERRED.findall(page)]
    assert sorted(entries) == sorted({*entries})
    offered = {f"{package}.{name}".removeprefix("."): name for package in PACKAGES for name in public_names(package)}
    assert {where for where, name in offered.items() if where not in entries and name not in entries} == set()


def labels(entries: list[Any]) -> Iterator[tuple[str, str]]:
    for entry in entries:
        for label, each in entry.items():
            yield from labels(each) if isinstance(each, list) else [(each, label)]


def document_of(page: str) -> Path:
    beside = {there: name for name, there in SITE["BESIDE"].items()}
    return ROOT / beside.get(page, f"docs/{page}")


def title(document: Path) -> str:
    return next(line[2:].strip() for line in document.read_text(encoding="utf-8").splitlines() if line.startswith("# "))


def test_a_page_has_the_title_of_its_navigation_label() -> None:
    """A reader finds the words of the navigation above the page."""
    entries = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]
    shown = [(page, label) for page, label in labels(entries) if page != "index.md" and not page.startswith("files/")]
    assert [(page, label) for page, label in shown if title(document_of(page)) != label] == []


def page_links(document: Path) -> Iterator[tuple[str, Path]]:
    """Links of a document to whole pages: text and file."""
    prose = "".join(text for text, outside in SITE["prose"](document.read_text(encoding="utf-8")) if outside)
    for text, target in re.findall(r"(?<!!)\[([^\]]+)\]\((?!https?:)([^)#]+\.md)\)", prose):
        yield text, document.parent / target


def test_a_link_that_names_a_page_has_its_title() -> None:
    """A link text in capitals is a title; a word of a sentence may be a link, too."""
    named = [
        (document.name, text, title(target))
        for document in sorted((ROOT / "docs").rglob("*.md"))
        for text, target in page_links(document)
        if text[0].isupper() and not re.match(r"\d", target.name)
    ]
    assert len(named) > 300
    assert [each for each in named if each[1].lower() != each[2].lower()] == []


GUIDES = {"Get started", "Evaluate", "How-to: build", "How-to: integrate", "How-to: test and debug"}
GUIDES |= {"Production", "Migrate"}


def guides() -> list[Path]:
    entries = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]
    return [document_of(page) for entry in entries for page in in_the_navigation([entry]) if {*entry} & GUIDES]


@pytest.mark.parametrize("document", guides(), ids=lambda path: path.stem)
def test_a_guide_opens_with_code_and_ends_with_the_next_pages(document: Path) -> None:
    """A reader sees what can be done and how, and where to continue."""
    lines = document.read_text(encoding="utf-8").rstrip().splitlines()
    first = next(number for number, line in enumerate(lines) if line.lstrip().startswith(("```", "|", "![")))
    assert first < 20
    assert lines[-1].startswith("Next: ")
    assert 2 <= lines[-1].count("](") <= 4


SCREEN = 65
"""Lines of a document that a screen shows, roughly."""


@pytest.mark.parametrize("document", sorted((ROOT / "docs" / "how-to").glob("*.md")), ids=lambda path: path.stem)
def test_a_how_to_page_has_at_most_two_screens(document: Path) -> None:
    """One problem, one page; mechanism belongs to the explanations."""
    assert len(document.read_text(encoding="utf-8").splitlines()) <= 2 * SCREEN


OF_A_KIND: dict[str, Callable[..., object]] = {
    "agent": functools.partial(Step, "a", str),
    "granular": functools.partial(Step.granular, "a", str),
    "parallel": functools.partial(Step.parallel, "a", {"b": str}),
    "map_over": functools.partial(Step.map_over, "a", str),
    "branch_on": functools.partial(Step.branch_on, "a", max, {"b": str}),
    "loop_until": functools.partial(Step.loop_until, "a", str, max),
    "sequence": functools.partial(Step.sequence, "a", str),
    "human_in_the_loop": functools.partial(Step.human_in_the_loop, "a", "b"),
    "approval": functools.partial(Step.approval, "a", "b"),
    "select_agent": functools.partial(Step.select_agent, "a", {"b": str, "c": str}),
    "sleep": functools.partial(Step.sleep, "a", 1),
    "wait_for": functools.partial(Step.wait_for, "a", "b"),
}
"""Declarations by the name of their kind in the table of options."""
OPTION = re.compile(r"^\| `(\w+)` \| ([^|]+) \|", re.MULTILINE)
MADE_BY_OTHERS = {"resumable", "deadline_s"}
"""Fields that `granular` and `timeout_s` fill in."""


@pytest.mark.parametrize("kind", OF_A_KIND)
def test_one_table_lists_the_options_of_a_kind(kind: str) -> None:
    """The table and the declaration have the same options, so a reader needs no source."""
    with pytest.raises(UnknownOption) as refused:
        OF_A_KIND[kind](qqqq=1)
    taken = {*str(refused.value).partition("it has ")[2].split(", ")} - MADE_BY_OTHERS
    rows = OPTION.findall((ROOT / "docs" / "reference" / "step-options.md").read_text(encoding="utf-8"))
    kinds = {"every", kind} | ({"agent"} if kind == "granular" else set())
    listed = [name for name, cell in rows if kinds & {*cell.replace("`", "").split(", ")}]
    assert sorted(listed) == sorted(taken)


@pytest.mark.parametrize(
    ("written", "built"),
    [
        ("[Steps](docs/steps.md#maps)", "[Steps](steps.md#maps)"),
        ("![A picture](docs/images/no-variant.png)", "![A picture](images/no-variant.png)"),
        (
            "![A page](docs/images/page-run.png)",
            "![A page](images/page-run.png#only-light)![A page](images/page-run-dark.png#only-dark)",
        ),
        (
            "![A run](docs/images/run.svg)",
            "![A run](images/run.svg#only-light)![A run](images/run-dark.svg#only-dark)",
        ),
        ("[a script](examples/plain_script.py)", "[a script](files/examples/plain_script.py.md)"),
        ("[elsewhere](https://example.org/docs/steps.md)", "[elsewhere](https://example.org/docs/steps.md)"),
        ("```text\n[Steps](docs/steps.md)\n```\n", "```text\n[Steps](docs/steps.md)\n```\n"),
    ],
)
def test_a_link_of_the_readme_becomes_a_link_between_pages(written: str, built: str) -> None:
    """Links that hold in a clone hold in the site, and what is shown as text stays as it is."""
    assert SITE["relinked"](ROOT / "README.md", written) == built


def test_every_picture_has_a_dark_variant() -> None:
    """No picture is a white block on a dark page; diagrams are recolored by the build."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    shown = {name for page in pages for _, name in SITE["PICTURE"].findall(page.read_text(encoding="utf-8"))}
    names = {Path(name).name for name in shown if name.endswith(".png")}
    assert len(names) >= 5
    assert [name for name in names if not (ROOT / "docs" / "images" / name.replace(".png", "-dark.png")).exists()] == []


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


def first_hits(page: Page, words: str) -> list[str]:
    """The pages of the first three results, once the list belongs to these words."""
    hit = page.locator(f'ol a[href*="h={words.replace(" ", "+")}"]')
    hit.first.wait_for()
    addresses = [link.get_attribute("href") or "" for link in hit.all()[:3]]
    return [address.partition("?")[0].rpartition("/site/")[2] for address in addresses]


@pytest.mark.slow
def test_the_site_is_read_and_searched_from_a_folder(place: Path) -> None:
    """No server, no network: the pages open, the search answers, and no other host is asked for anything."""
    path = chromium()
    if path is None:
        pytest.skip("NO BROWSER: the docs site was not looked at; install one with `apt-get install chromium`")
    asked: list[str] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS, timeout=120_000)
        page = browser.new_page()
        page.set_default_timeout(60_000)
        page.on("request", lambda request: asked.append(request.url))
        page.goto((place / "site" / "index.html").as_uri())
        page.get_by_role("link", name="Explanation", exact=True).first.click()
        page.get_by_role("heading", name="How a run works", level=1).wait_for()
        page.get_by_role("button", name="Search").first.click()
        box = page.get_by_placeholder("Search").last
        expect(box).to_be_focused()
        for typed, key in enumerate("back-pressure", start=1):
            page.keyboard.press(key)
            expect(box).to_have_value("back-pressure"[:typed])
        page.get_by_text(re.compile(r"^[1-9]\d* results?$")).wait_for()
        expect(box).to_have_value("back-pressure")
        for words, wanted in FIELD_WORDS.items():
            box.fill(words)
            assert {*wanted} & {*first_hits(page, words)}, (words, first_hits(page, words))
        browser.close()
    assert [url for url in asked if not url.startswith(("file:", "data:", "about:", "blob:"))] == []


@pytest.mark.slow
def test_the_reference_shows_signatures_and_what_they_are_for(place: Path) -> None:
    """The pages of the reference are made from the code: a class, its signature, its sentence."""
    page = (place / "site" / "reference" / "declaring.html").read_text(encoding="utf-8")
    assert 'id="flujo_actors.Step.map_over"' in page
    assert "max_concurrency" in page
    assert "Step with one agent: callable," in page
