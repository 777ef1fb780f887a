"""Every command by its name: where it is, and what the list of commands says of it.

A command is a click command in a module of its own, `"module:function"` seen from this package, and is imported when
it is used. What it needs beyond click (yaml, trio, a store) it imports when it is carried out.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import attrs


@attrs.frozen
class LateCommand:
    """A command that is not loaded yet."""

    home: str
    """`module:function`."""
    summary: str
    """Its line in the list of commands: the first line of its own help."""


COMMANDS: Mapping[str, LateCommand] = MappingProxyType(
    {
        "worker": LateCommand(".worker:worker", "Play the runs that wait in queues, until stopped."),
        "completion": LateCommand(".completion:completion", "Print a script that completes commands in a shell."),
        "init": LateCommand(".init:init", "Make a project with a blueprint that runs offline."),
        "schema": LateCommand(".schema:schema", "Print the JSON Schema of blueprints, for editors."),
        "show": LateCommand(".show:show", "Draw a pipeline: a tree, Mermaid, DOT, SVG, JSON, or as a blueprint."),
        "explain": LateCommand(".explain:explain", "Explain a rule: why, a bad and a good example, the fix."),
        "run": LateCommand(".run:run", "Run a pipeline: its output to stdout, what it does to stderr."),
        "runs": LateCommand(".runs:runs", "Look at stored runs, answer, resume, cancel and delete them."),
        "validate": LateCommand(".validate:validate", "Say what is wrong with blueprints, and mend it with --fix."),
        "page": LateCommand(".page:page", "Show the runs of a store in a browser."),
        "serve": LateCommand(".page:page", "Show the runs of a store in a browser."),
    }
)
