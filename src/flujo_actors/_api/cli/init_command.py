"""`flujo-actors init`: a project that runs offline."""

from __future__ import annotations

import json
from pathlib import Path

import click

from ..._blueprint.parser.json_schema import blueprint_schema
from ...errors import DeclarationError
from .command_group import Invocation, pass_call
from .file_replacement import replace_file

SCHEMA = "blueprint.schema.json"

PIPELINE = f"""\
# yaml-language-server: $schema={SCHEMA}
version: "1"
name: demo

# What steps share. Templates read it as `context.…`, steps write it with `sink_to`.
context:
  initial:
    audience: sailors

# Model agents. `model: test` answers offline; write `openai:gpt-4o` or another one when you are ready.
agents:
  writer:
    model: test
    system_prompt: You write one paragraph, and nothing else.

steps:
  # A template reads the run's `input`, the `context`, `previous_step` and `steps.<name>.output`.
  - name: draft
    uses: agents.writer
    input: "Write about {{{{ input }}}} for {{{{ context.audience }}}}."
    config:
      max_retries: 2
      timeout_s: 60
    sink_to: draft

  # A function of steps.py; flujo.toml allows it.
  - name: count
    uses: steps:count_words

  - name: report
    uses: builtins.passthrough
    input: "{{{{ steps.draft.output }}}} ({{{{ previous_step.words }}}} words)"
"""

STEPS = '''\
"""Functions that pipeline.yaml runs."""


async def count_words(text: str) -> dict[str, int]:
    """How many words a text has."""
    return {"words": len(text.split())}
'''

CONFIG = """\
# Where runs are kept: `flujo-actors runs list` shows them.
store = "sqlite:///runs.db"

[blueprints]
# The Python that a blueprint may name, and where it is.
allow = ["steps"]
path = ["."]
# Limits of every run, regardless of its blueprint.
total_tokens_limit = 100000

[lint]
# error = ["V-A5"]
"""

TEST = '''\
"""The pipeline, run offline."""

from pathlib import Path

from flujo_actors import Flujo, lint, load_blueprint

PIPELINE = Path(__file__).parents[1] / "pipeline.yaml"


def test_the_pipeline_is_clean():
    assert [str(finding) for finding in lint(PIPELINE)] == []


def test_the_pipeline_runs():
    result = Flujo(load_blueprint(PIPELINE)).run("the tides")
    assert result.success, result.feedback
    assert result.output.endswith("words)")
'''

IGNORED = "runs.db*\n__pycache__/\n.venv/\n"


def files() -> dict[str, str]:
    """Return the files of a new project."""
    return {
        "pipeline.yaml": PIPELINE,
        "steps.py": STEPS,
        "flujo.toml": CONFIG,
        "tests/test_pipeline.py": TEST,
        ".gitignore": IGNORED,
        SCHEMA: json.dumps(blueprint_schema(), indent=2, ensure_ascii=False) + "\n",
    }


@click.command()
@click.argument("directory", default=".", metavar="[DIR]")
@click.option("--force", is_flag=True, help="Overwrite files that are there.")
@click.option("--dry-run", is_flag=True, help="Say what would be written, and write nothing.")
@pass_call
def init(call: Invocation, directory: str, force: bool, dry_run: bool) -> None:
    """Make a project with a blueprint that runs offline.

    It has a pipeline, a function, a configuration, a test and the schema for editors.
    """
    root = Path(directory)
    made = files()
    there = [name for name in made if (root / name).exists()]
    if there and not force and not dry_run:
        raise DeclarationError(
            f"{', '.join(there)} in {root} would be overwritten; choose another directory, or --force"
        )
    for name, text in made.items():
        click.echo(f"{'would write' if dry_run else 'wrote'} {root / name}")
        if not dry_run:
            _write(root, root / name, text)
    if not dry_run:
        call.print_note(_next_commands(directory))


def _write(root: Path, file: Path, text: str) -> None:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DeclarationError(f"{file} cannot be written: {error.strerror}") from error
    replace_file(file, text, within=root)


def _next_commands(directory: str) -> str:
    go = "" if directory == "." else f"  cd {directory}\n"
    return (
        f"\nNext:\n{go}"
        "  flujo-actors validate\n"
        '  flujo-actors run --input "the tides"\n'
        "  flujo-actors show --format mermaid"
    )
