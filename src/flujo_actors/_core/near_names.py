"""The known name that somebody may have meant by an unknown one."""

from __future__ import annotations

from collections.abc import Sequence


def nearest(name: str, known: Sequence[str], *, cutoff: float = 0.6) -> str | None:
    """The name most like it, if there is one that is like it at all."""
    import difflib  # only to word a refusal

    return next(iter(difflib.get_close_matches(name, known, n=1, cutoff=cutoff)), None)
