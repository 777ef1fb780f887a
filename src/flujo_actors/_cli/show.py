"""`flujo-actors show`: a pipeline as a tree or a picture."""

from __future__ import annotations

from pathlib import Path

import click

from .._blueprint.analysis import Analysis
from .._blueprint.boxes import Drawing, drawing_of, drawing_of_pipeline
from .._blueprint.drawings import as_dot, as_json, as_mermaid, as_tree
from .._blueprint.promoting import promoted_text
from .._blueprint.refusing import refused
from .._blueprint.svg import as_svg
from .._blueprints import look_at, project_of
from .call import Call, pass_call
from .printing import printable
from .targets import DEFAULT, is_python, pipeline_of

_FORMATS = {"tree": as_tree, "mermaid": as_mermaid, "dot": as_dot, "svg": as_svg, "json": as_json}


@click.command()
@click.argument("target", default=DEFAULT, metavar="[TARGET]")
@click.option("--format", "kind", type=click.Choice([*_FORMATS, "yaml"]), default="tree", help="How to draw it.")
@click.option("--resolved", is_flag=True, help="Show what schemas were promoted to.")
@click.option("--allow", multiple=True, metavar="MODULES", help="Python that a blueprint may name.")
@pass_call
def show(call: Call, target: str, kind: str, resolved: bool, allow: tuple[str, ...]) -> None:
    """Draw a pipeline: a tree, Mermaid, DOT, SVG, JSON, or as a blueprint.

    TARGET is a blueprint, file.py:name or package.module:name; pipeline.yaml if there is none. Of a blueprint nothing
    is imported.
    """
    if kind == "yaml":
        click.echo(_as_yaml(call, target, resolved=resolved, allow=allow), nl=False)
        return
    drawn = _FORMATS[kind](_drawing(call, target, resolved=resolved, allow=allow))
    click.echo(printable(drawn, lines=True), nl=False)


def _drawing(call: Call, target: str, *, resolved: bool, allow: tuple[str, ...]) -> Drawing:
    if is_python(target):
        return drawing_of_pipeline(pipeline_of(target))
    analysis = _looked_at(call, target, allow)
    return drawing_of(analysis.model, analysis.flow if resolved else None)


def _looked_at(call: Call, target: str, allow: tuple[str, ...]) -> Analysis:
    file = Path(target)
    linted = look_at(file, project_of(file, allow=allow, config=call.config))
    if linted.analysis is None or linted.refusals:
        raise refused(target, linted.refusals or linted.findings)
    return linted.analysis


def _as_yaml(call: Call, target: str, *, resolved: bool, allow: tuple[str, ...]) -> str:
    if is_python(target):
        from .._blueprint.export import dump_blueprint  # loads the runtime's own classes

        return dump_blueprint(pipeline_of(target))
    analysis = _looked_at(call, target, allow)
    return promoted_text(analysis) if resolved else analysis.model.source.text
