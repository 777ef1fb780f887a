"""`flujo-actors show`: a pipeline as a tree or a picture."""

from __future__ import annotations

from pathlib import Path

import click

from ..._blueprint.diagrams import (
    DiagramLayout,
    as_dot,
    as_json,
    as_mermaid,
    as_svg,
    as_tree,
    drawing_of,
    drawing_of_pipeline,
)
from ..._blueprint.export import dump_blueprint, promoted_text
from ..._blueprint.parser.analysis import Analysis, refused
from ..blueprint_files import lint_file, project_of
from .command_group import Invocation, pass_call
from .output import printable
from .targets import DEFAULT, is_python, pipeline_of

_FORMATS = {"tree": as_tree, "mermaid": as_mermaid, "dot": as_dot, "svg": as_svg, "json": as_json}


@click.command()
@click.argument("target", default=DEFAULT, metavar="[TARGET]")
@click.option("--format", "kind", type=click.Choice([*_FORMATS, "yaml"]), default="tree", help="How to draw it.")
@click.option("--resolved", is_flag=True, help="Show what schemas were promoted to.")
@click.option("--allow", multiple=True, metavar="MODULES", help="Python that a blueprint may name.")
@pass_call
def show(call: Invocation, target: str, kind: str, resolved: bool, allow: tuple[str, ...]) -> None:
    """Draw a pipeline as tree, Mermaid, DOT, SVG, JSON or blueprint.

    TARGET is a blueprint, file.py:name or package.module:name; pipeline.yaml by default. A blueprint is drawn without
    importing anything.
    """
    if kind == "yaml":
        click.echo(_as_yaml(call, target, resolved=resolved, allow=allow), nl=False)
        return
    drawn = _FORMATS[kind](_drawing(call, target, resolved=resolved, allow=allow))
    click.echo(printable(drawn, lines=True), nl=False)


def _drawing(call: Invocation, target: str, *, resolved: bool, allow: tuple[str, ...]) -> DiagramLayout:
    if is_python(target):
        return drawing_of_pipeline(pipeline_of(target))
    analysis = _linted(call, target, allow)
    return drawing_of(analysis.model, analysis.flow if resolved else None)


def _linted(call: Invocation, target: str, allow: tuple[str, ...]) -> Analysis:
    file = Path(target)
    linted = lint_file(file, project_of(file, allow=allow, config=call.config))
    if linted.analysis is None or linted.refusals:
        raise refused(target, linted.refusals or linted.findings)
    return linted.analysis


def _as_yaml(call: Invocation, target: str, *, resolved: bool, allow: tuple[str, ...]) -> str:
    if is_python(target):
        return dump_blueprint(pipeline_of(target))
    analysis = _linted(call, target, allow)
    return promoted_text(analysis) if resolved else analysis.model.source.text
