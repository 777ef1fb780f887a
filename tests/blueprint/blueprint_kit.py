"""What the tests of blueprints share: a directory with a project, and a short way to look at a text."""

from __future__ import annotations

from pathlib import Path

from flujo_actors._blueprint.lint.fixer import Fixed, fix_all
from flujo_actors._blueprint.lint.linter import Linted, Linter
from flujo_actors._blueprint.parser.findings import Finding
from flujo_actors._blueprint.parser.project import Project

DESK = """
from dataclasses import dataclass


@dataclass
class Letter:
    text: str


def greet(data): return f"hello {data}"
def as_dict(data) -> dict[str, int]: return {"n": 1}
def as_text(data) -> str: return "x"
def as_letter(data) -> Letter: return Letter("x")
def is_done(output, context): return True
def choose(data, context): return "a"
"""


def make_project(directory: Path) -> Project:
    """A project whose module `shop.desk` may be named, with a child, a broken child and a prompt."""
    (directory / "child.yaml").write_text("steps:\n  - {name: a, uses: builtins.passthrough}\n")
    (directory / "broken.yaml").write_text("steps:\n  - {name: a}\n")
    (directory / "prompt.txt").write_text("You write for {{ who }}.")
    (directory / "shop").mkdir(exist_ok=True)
    (directory / "shop" / "__init__.py").write_text("raise RuntimeError('nobody imports me to look at a text')\n")
    (directory / "shop" / "desk.py").write_text(DESK)
    return Project(root=directory, allow=("shop",), path=(".",))


def looked_at(project: Project, text: str | bytes, name: str = "pipeline.yaml", **options: bool) -> Linted:
    content = text.encode() if isinstance(text, str) else text
    return Linter(project, **options).lint(name, content, project.root / name)


def found(project: Project, text: str | bytes) -> list[Finding]:
    return looked_at(project, text).findings


def rules(project: Project, text: str | bytes, *, notes: bool = False) -> list[str]:
    return [each.rule for each in found(project, text) if notes or each.severity != "note"]


def fixed(project: Project, text: str, *, unsafe: bool = False, **options: bool) -> Fixed:
    return fix_all(
        looked_at(project, text, **options),
        lambda changed: looked_at(project, changed, **options),
        unsafe=unsafe,
        wanted=lambda finding: True,
    )
