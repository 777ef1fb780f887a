"""Writes `cli.md` from the help of the command itself: `make docs`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click

from flujo_actors._api.cli.command_group import PROGRAM, flujo_actors
from flujo_actors._api.cli.file_replacement import replace_file

PAGE = Path(__file__).with_name("cli.md")

INTRODUCTION = """# Command line

<!-- Written by docs/cli_page.py from the command's own help: change that, and run `make docs`. -->

`pip install 'flujo-actors[cli]'` installs the command. `python -m flujo_actors` is the same.

TARGET is a [blueprint](blueprints.md), `file.py:name` or `package.module:name`, by default `pipeline.yaml`. Python
that is named on the command line needs no allow-list.

- **stdout** has only the result: findings of `validate`, the output of a run, one JSON document with `--json`.
  Progress, warnings and summaries go to **stderr**.
- `-v`, `-q`, `--color` and `--config` are accepted before and after the command. `NO_COLOR` and `FORCE_COLOR` are
  obeyed. Without a terminal there are no colors and no animations. Control characters in names and messages are
  escaped.
- SPAN is a number with a unit: `90s`, `15m`, `2h`, `30d`, `1w`. A number without a unit is refused in
  `--older-than`, `--since` and `--timeout`. `worker --grace` and `--every` also accept plain seconds.
- An error is one line; `-vv` shows the traceback. A closed pipe ends the command quietly.
- `eval "$(flujo-actors completion bash)"` completes commands and options.

| exit code | meaning |
|---|---|
| 0 | done |
| 1 | the work failed: findings at or above `--fail-on` are left, a diff is not empty, a run failed or was aborted |
| 2 | it could not start: usage, an unreadable file, a refused blueprint, invalid settings, an invalid answer |
| 3 | paused: the run waits for an answer |
| 4 | conflict: leased by another process, already answered, the run exists |
| 5 | no such run |
| 130, 143 | stopped by a signal |
"""


def page() -> str:
    """The whole page."""
    group = flujo_actors()
    context = _context(group, PROGRAM)
    parts = [INTRODUCTION, f"\n```text\n{group.get_help(context)}\n```\n"]
    for name in sorted(group.list_commands(context)):
        command = group.get_command(context, name)
        assert command is not None
        parts.extend(_entries(command, name, context))
    return "".join(parts)


def _context(command: click.Command, name: str, parent: click.Context | None = None) -> click.Context:
    names = ["-h", "--help"]  # as the command itself says; it remembers what it was first asked with
    return click.Context(
        command, info_name=name, parent=parent, terminal_width=100, max_content_width=100, help_option_names=names
    )


def _entries(command: click.Command, name: str, parent: click.Context) -> Iterator[str]:
    context = _context(command, name, parent)
    title = context.command_path.removeprefix(f"{PROGRAM} ")
    yield f"\n## {title}\n\n```text\n{command.get_help(context)}\n```\n"
    if isinstance(command, click.Group):
        for inner in sorted(command.list_commands(context)):
            found = command.get_command(context, inner)
            assert found is not None
            yield from _entries(found, inner, context)


if __name__ == "__main__":
    replace_file(PAGE, page())
