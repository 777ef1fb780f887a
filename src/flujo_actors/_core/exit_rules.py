"""Exit rule of supervision: the parent's action for a child that ended.

Two users share it, with this table:

| child | restart type | restarts left | result of a failure |
|---|---|---|---|
| child of a supervisor | as declared | as the intensity allows | end, restart or escalate |
| step in its actor (retries) | transient | `max_retries - failures + 1` | retry, or settle as `Failure` |
| step seen by its parent, `propagate` | transient | 0 | escalate: stop siblings, the parent fails |
| step seen by its parent, `ignore` | temporary | 0 | end: siblings continue |

A control error and `Aborted` always escalate.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

RestartType: TypeAlias = Literal["permanent", "transient", "temporary"]
"""Exits after which a child is started again: all, failures, none."""

ExitAction: TypeAlias = Literal["end", "restart", "escalate"]
"""Actions of a parent."""


def exit_action(restart: RestartType, *, failed: bool, restarts_left: int) -> ExitAction:
    """Return the parent's action for a child that ended."""
    if restart == "temporary" or (restart == "transient" and not failed):
        return "end"
    return "restart" if restarts_left > 0 else "escalate"
