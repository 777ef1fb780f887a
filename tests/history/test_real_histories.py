"""Histories of real processes: clients and workers on SQLite and Postgres, killed and stopped by a seed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from history_processes import CALLS, CLIENTS, Scene, history_of
from run_history import smallest, violations

from kit.durable_places import Place

SEEDS = [str(number) for number in range(int(os.environ.get("HISTORIES", "2")) // 2)]
"""Seeds for each database; `make simulate` takes 20 histories."""


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", SEEDS)
def test_a_history_of_killed_and_stopped_processes_breaks_no_rule(place: Place, tmp_path: Path, seed: str) -> None:
    """Calls of three clients on the runs of two workers are explained by one order, and every run ends."""
    history, processes = history_of(Scene.in_folder(place, tmp_path, seed))
    assert len({(each.process, each.begin) for each in history.operations}) >= 300
    assert (processes.kills > 0, processes.stops > 0) == (True, True)
    assert violations(history) == [], "\n".join(map(str, smallest(history).operations))
    assert len(history.operations) >= CLIENTS * CALLS - processes.kills
    place.check()
