"""What steps are saying, passed on in unlogged tables: nothing of it is written to the log, or survives a crash."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ..._core.outcomes import RunId
from ..._core.paths import StepPath
from .._rows import restored, storable
from . import _statements as sql
from ._scanning import hash_of

if TYPE_CHECKING:  # they need the driver
    from ._connections import IsThere, PostgresConnections
    from ._session import Connection


class PostgresTexts:
    """The part of a Postgres store that passes on what steps are saying."""

    _connections: PostgresConnections

    def swap_texts(self, said: Mapping[RunId, Mapping[StepPath, str]]) -> set[RunId]:
        hashes = {hash_of(run_id): run_id for run_id in said}
        asked = self._connections.read(lambda db: db.ask(sql.WANTED_TEXTS, (list(hashes),)))
        wanted = {hashes[bytes(run)] for (run,) in asked}
        if wanted:
            self._connections.write(lambda db: _replaced(db, {run_id: said[run_id] for run_id in wanted}))
        return wanted

    def watch_texts(self, run_ids: Sequence[RunId], *, for_s: float) -> dict[RunId, dict[StepPath, str]]:
        hashes = {hash_of(run_id): run_id for run_id in run_ids}
        self._connections.write(lambda db: _wanted(db, sorted(hashes), for_s))
        texts: dict[RunId, dict[StepPath, str]] = {run_id: {} for run_id in run_ids}
        for run, path, text in self._connections.read(lambda db: db.ask(sql.TEXTS, (list(hashes),))):
            texts[hashes[bytes(run)]][StepPath(restored(path))] = restored(text)
        return texts


def _replaced(db: Connection, texts: Mapping[RunId, Mapping[StepPath, str]]) -> tuple[None, IsThere]:
    db.execute(sql.DROP_TEXTS, ([hash_of(run_id) for run_id in texts],))
    for run_id, said in texts.items():
        for path, text in said.items():
            db.execute(sql.LEAVE_TEXT, (hash_of(run_id), storable(path), storable(text)))
    return None, lambda db: False


def _wanted(db: Connection, hashes: Sequence[bytes], for_s: float) -> tuple[None, IsThere]:
    db.execute(sql.DROP_STALE_TEXTS)
    for run in hashes:
        db.execute(sql.WANT_TEXTS, {"run": run, "for_s": for_s})
    return None, lambda db: False
