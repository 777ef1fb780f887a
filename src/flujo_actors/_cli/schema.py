"""`flujo-actors schema`: the JSON Schema of the language, for editors."""

from __future__ import annotations

import json
from pathlib import Path

import click

from .._blueprint.json_schema import blueprint_schema
from ..errors import DeclarationError


@click.command()
@click.option("-o", "--output", metavar="FILE", help="Write it to a file.")
def schema(output: str | None) -> None:
    """Print the JSON Schema of blueprints, for editors.

    With `# yaml-language-server: $schema=FILE` above a blueprint, VS Code and every other client of
    yaml-language-server complete and check it.
    """
    text = json.dumps(blueprint_schema(), indent=2, ensure_ascii=False) + "\n"
    if output is None:
        click.echo(text, nl=False)
        return
    try:
        Path(output).write_text(text, encoding="utf-8")
    except OSError as error:
        raise DeclarationError(f"{output} cannot be written: {error.strerror}") from error
