"""Defects that the simulation must find: each is patched into the library, found by a seed and shrunk."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest
from simulated_pipelines import CASES

from flujo_actors._core.outcomes import RunId
from flujo_actors._core.records.records import Append, Lease, Record
from flujo_actors._core.step_paths import StepPath
from flujo_actors._durable.store_journal import StoreJournal
from flujo_actors.errors import LeaseLost
from flujo_actors.stores._memory_store import MemoryStore
from flujo_actors.testing import SimulationFailed, faults, simulate

SEEDS = 400
"""Histories within which each defect must be found."""

Patch = Callable[[pytest.MonkeyPatch], None]


def lost_record(patch: pytest.MonkeyPatch) -> None:
    """The record of a settled step is acknowledged and not written."""
    write = MemoryStore.append

    def append(self: MemoryStore, batch: Sequence[Append]) -> Any:
        kept = [
            attrs.evolve(each, records=tuple(record for record in each.records if record.path != "pay"))
            for each in batch
        ]
        return write(self, kept)

    patch.setattr(MemoryStore, "append", append)


def stale_epoch(patch: pytest.MonkeyPatch) -> None:
    """A write with the lease of a former owner is accepted."""

    def lost(self: MemoryStore, lease: Lease) -> LeaseLost | None:
        return None

    patch.setattr(MemoryStore, "_lost", lost)


def forgotten_unit(patch: pytest.MonkeyPatch) -> None:
    """A resumed granular step does not recall its committed units."""
    patch.setattr(StoreJournal, "unit", lambda self, path: None)


def second_answer(patch: pytest.MonkeyPatch) -> None:
    """A repeated answer is recorded again instead of being refused."""
    answer = MemoryStore.answer

    def twice(self: MemoryStore, run_id: RunId, path: StepPath, *, token: str, record: Record) -> None:
        answer(self, run_id, path, token=token, record=record)
        self._runs[run_id].add(record, 0.0)

    patch.setattr(MemoryStore, "answer", twice)


def forgotten_compensation(patch: pytest.MonkeyPatch) -> None:
    """A resumed run does not know which compensations are committed."""
    patch.setattr(StoreJournal, "recall", lambda self, path: None if "~c" in path else RECALL(self, path))


RECALL = StoreJournal.recall

DEFECTS: dict[str, tuple[Patch, str, list[str], str]] = {
    "lost record": (lost_record, "chain", ["crash"], "seed"),
    "stale epoch": (stale_epoch, "map", ["lease_lost", "crash"], r"\(e\)"),
    "forgotten unit": (forgotten_unit, "granular", ["crash"], r"\(b\)"),
    "second answer": (second_answer, "question", ["duplicate_answer"], r"\([af]\)"),
    "forgotten compensation": (forgotten_compensation, "saga", ["crash"], r"\([bh]\)"),
}


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", DEFECTS)
def test_a_known_defect_is_found_and_shrunk(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each defect breaks a rule within some hundred seeds, and few faults remain after shrinking."""
    patch, case_name, kinds, rule = DEFECTS[name]
    case = CASES[case_name]
    patch(monkeypatch)
    injected = [attrs.evolve(kind, p=max(kind.p, 0.05)) for kind in faults.only(*kinds)]
    with pytest.raises(SimulationFailed, match=rule) as failed:
        simulate(case.factory, case.input, seeds=SEEDS, faults=injected, answers=case.answers, check=case.promise)
    assert len(failed.value.faults) <= 10


FAILED = [line.split("\t") for line in Path(__file__).with_name("failed_seeds.txt").read_text().splitlines()]


@pytest.mark.parametrize(("name", "seed"), FAILED)
def test_a_seed_that_failed_once_passes(name: str, seed: str) -> None:
    """Seeds 6 and 25 of the granular pipeline: the commit of a unit lost its reply, and a retry repeated the unit."""
    case = CASES[name]
    simulate(case.factory, case.input, seeds=[int(seed)], answers=case.answers, check=case.promise)
