"""How pauses come and go, in every store.

1. A pause is known by its run, its path and its token.
2. A pause that is asked again replaces the one that waits at its path, and the answered one of the same token.
3. An answer consumes a pause that waits; the pause is kept, so that a second answer can be told so.
4. An answer is taken whether somebody works on the run or not: whoever goes on with it finds it in its records.
5. A pause that is withdrawn waits no more, and when a run ends, nothing does.
"""

from __future__ import annotations

from .._core.records import StoredStatus, has_ended


def closes_pauses(status: StoredStatus | None) -> bool:
    """Whether a run that takes on this status has ended (rule 5)."""
    return has_ended(status)
