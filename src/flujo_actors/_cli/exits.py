"""How the command ends: one number for each thing that a script can do next.

| code | meaning |
|---|---|
| 0 | done |
| 1 | the work failed: findings are left, a diff is not empty, a run failed or was aborted |
| 2 | it could not start: usage, something unreadable, a refused blueprint, bad settings, an invalid answer |
| 3 | paused: somebody is asked |
| 4 | somebody else has it: leased, already answered, the run exists |
| 5 | there is no such run |
| 130, 143 | stopped by a signal |
"""

from __future__ import annotations

from .. import errors

DONE = 0
FAILED = 1
REFUSED = 2
PAUSED = 3
TAKEN = 4
NOT_FOUND = 5
INTERRUPTED = 130
TERMINATED = 143

_BY_ERROR: tuple[tuple[type[errors.FlujoError], int], ...] = (
    (errors.RunNotFound, NOT_FOUND),
    (errors.RunLeased, TAKEN),
    (errors.LeaseLost, TAKEN),
    (errors.AlreadyAnswered, TAKEN),
    (errors.RunExists, TAKEN),
    (errors.RunPaused, PAUSED),
    (errors.NoOutput, FAILED),
    (errors.DeclarationError, REFUSED),
    (errors.ControlError, FAILED),
)
"""The first class that an error is of decides."""


def exit_code(error: errors.FlujoError) -> int:
    """The code for an error of the library; what is about one request that cannot be granted could not start.

    Whoever answers a run that is gone is told that nothing waits; what decides is that there is no such run.
    """
    if isinstance(error, errors.NotPaused) and isinstance(error.__cause__, errors.RunNotFound):
        return NOT_FOUND
    return next((code for kind, code in _BY_ERROR if isinstance(error, kind)), REFUSED)
