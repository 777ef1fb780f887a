"""What a batch of appends changes of runs in a Postgres database: each run once, where that can be."""

from __future__ import annotations

from collections.abc import Sequence

from ..._core.records import Append, has_ended


def advancing_together(batch: Sequence[Append], order: Sequence[int]) -> list[tuple[list[int], list[Append]]]:
    """The appends and their places in the batch, in that order: those of one run that follow each other are together.

    A row that is changed many times in one transaction has as many versions, all of which each change has to pass.
    """
    groups: list[tuple[list[int], list[Append]]] = []
    for place in order:
        append = batch[place]
        if groups and groups[-1][1][-1].lease == append.lease and _only_adds(groups[-1][1][-1]):
            groups[-1][0].append(place)
            groups[-1][1].append(append)
        else:
            groups.append(([place], [append]))
    return groups


def _only_adds(append: Append) -> bool:
    return append.status is None and not append.release and append.tokens is None and append.cost_usd is None


def change_of(group: Sequence[Append]) -> dict[str, object]:
    """What becomes of a run by these appends: all but the last of them only add records."""
    last = group[-1]
    return {
        "count": sum(len(append.records) for append in group),
        "status": last.status,
        "release": last.release,
        "ends": has_ended(last.status),
        "tokens": last.tokens,
        "cost_usd": last.cost_usd,
    }
