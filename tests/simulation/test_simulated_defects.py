"""Defects that the simulation must find: each is patched into the library, found by a seed and shrunk."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
from simulated_pipelines import CASES

from flujo_actors import Backoff, Flujo, RunClient, Step
from flujo_actors._core import seams
from flujo_actors._core.outcomes import RunId
from flujo_actors._core.records.records import Append, Lease, Record
from flujo_actors._core.step_paths import StepPath
from flujo_actors._durable.leases import HeldLease
from flujo_actors._durable.store_journal import StoreJournal
from flujo_actors._runtime.calls import agent_call
from flujo_actors._runtime.run.messages import StepRequest, StepState
from flujo_actors._runtime.tree.step_supervisor import StepSupervisor
from flujo_actors.errors import LeaseLost
from flujo_actors.stores._memory_store import MemoryStore
from flujo_actors.testing import SimulationFailed, World, faults, simulate
from flujo_actors.testing._simulated_world import SimulatedStore

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


# --- Defects of keys, results and state ---------------------------------------------------------------------------
# Rules (c), (d) and (i): each defect breaks its own rule, with the sentence of that rule.


def key_per_process(patch: pytest.MonkeyPatch) -> None:
    """The idempotency key of a repeated call is that of another process."""
    made = agent_call.idempotency_key
    patch.setattr(agent_call, "idempotency_key", lambda *given: f"{made(*given)}@{seams.process.pid}")


def key_per_run(patch: pytest.MonkeyPatch) -> None:
    """All steps of a run have the same idempotency key."""
    patch.setattr(agent_call, "idempotency_key", lambda *given: "r")


def edited(patch: pytest.MonkeyPatch, edit: Callable[[Record], Record | None]) -> None:
    """Replace or drop records on their way into the store."""
    write = MemoryStore.append

    def append(self: MemoryStore, batch: Sequence[Append]) -> Any:
        kept = [
            attrs.evolve(each, records=tuple(made for record in each.records if (made := edit(record)) is not None))
            for each in batch
        ]
        return write(self, kept)

    patch.setattr(MemoryStore, "append", append)


def no_end(patch: pytest.MonkeyPatch) -> None:
    """A run returns before its end is recorded."""
    edited(patch, lambda record: None if record.kind == "ended" else record)


def other_output(patch: pytest.MonkeyPatch) -> None:
    """The recorded output of a step is not the one that its caller gets."""
    edited(patch, lambda record: attrs.evolve(record, body=record.body.replace('"output":15', '"output":16')))


def other_status(patch: pytest.MonkeyPatch) -> None:
    """The recorded end of a run is not the one that its caller gets."""
    edited(patch, lambda record: attrs.evolve(record, body=record.body.replace('"completed"', '"failed"')))


BROKEN_RULES: dict[str, tuple[Patch, str]] = {
    "another key": (key_per_process, r"\(c\) 'a' is called again with another idempotency key: 'r:a@2'"),
    "shared key": (key_per_run, r"\(c\) 'pay' has the idempotency key of 'r:a': 'r'"),
    "no end": (no_end, r"\(d\) the run returned 'completed' without an `ended` record"),
    "other output": (other_output, r"\(i\) the run returned the output 15, its records say 16"),
    "other status": (other_status, r"\(i\) the run returned 'completed', its records say 'failed'"),
}


def keyed(world: World) -> Flujo:
    async def pay(data: int, *, idempotency_key: str) -> int:
        world.effect("pay", key=idempotency_key)
        return data + 7

    return Flujo(Step("a", pay) >> Step("pay", pay), store=world.store)


@pytest.mark.slow
@pytest.mark.parametrize("name", BROKEN_RULES)
def test_keys_results_and_state_are_compared_with_the_records(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The present code passes the same seeds."""
    patch, sentence = BROKEN_RULES[name]
    given: dict[str, Any] = {"seeds": 100, "faults": [faults.crash(p=0.1)]}
    simulate(keyed, 1, **given)
    patch(monkeypatch)
    with pytest.raises(SimulationFailed, match=sentence) as failed:
        simulate(keyed, 1, **given)
    assert len(failed.value.faults) <= 3


# --- Defects of answers and compensations -------------------------------------------------------------------------
# Rules (f) and (h), each by its own sentence.


def accepted_again(patch: pytest.MonkeyPatch) -> None:
    """An answer to an answered question is accepted and dropped."""
    patch.setattr(RunClient, "answer", lambda self, token, answer, **options: None)


def answered_twice(patch: pytest.MonkeyPatch) -> None:
    """The stored records have an answer twice."""
    read = MemoryStore.read

    def repeated(self: MemoryStore, run_id: RunId, *given: Any, **options: Any) -> Any:
        found = [each for record in read(self, run_id, *given, **options) for each in _doubled(record)]
        return [attrs.evolve(record, seq=place) for place, record in enumerate(found, 1)]

    patch.setattr(SimulatedStore, "read", MemoryStore.read)  # the run itself reads the right records
    patch.setattr(MemoryStore, "read", repeated)


def _doubled(record: Record) -> Sequence[Record]:
    return [record, record] if record.kind == "answered" or "~c" in record.path else [record]


def hidden_failure(patch: pytest.MonkeyPatch) -> None:
    """The failure that a compensation follows is not recorded."""
    edited(patch, lambda record: None if record.kind == "settled" and '"failure"' in record.body else record)


FURTHER: dict[str, tuple[Patch, str, str]] = {
    "accepted again": (
        accepted_again,
        "question",
        r"\(f\) question 'how' was answered, and another answer was accepted",
    ),
    "answered twice": (answered_twice, "question", r"\(f\) question 'how' was asked 1 times and answered 2 times"),
    "undone twice": (answered_twice, "saga", r"\(h\) compensation 'car/~c' is committed twice"),
    "undone first": (hidden_failure, "saga", r"\(h\) compensation 'car/~c' runs before any failure"),
}


@pytest.mark.parametrize("name", FURTHER)
def test_answers_and_compensations_are_compared_with_the_records(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The present code passes the same seeds."""
    patch, case_name, sentence = FURTHER[name]
    case = CASES[case_name]
    given: dict[str, Any] = {"seeds": 20, "faults": [faults.duplicate_answer(p=0.5)], "answers": case.answers}
    simulate(case.factory, case.input, **given)
    patch(monkeypatch)
    with pytest.raises(SimulationFailed, match=sentence):
        simulate(case.factory, case.input, **given)


# --- Defects A4 and A6 ---------------------------------------------------------------------------------------------
# A step that leaves a cancel scope open, and a process that is frozen past its lease: each has its own pipeline.


def leaking(world: World) -> Flujo:
    """Items that leave a cancel scope with a deadline open: some are cancelled, and none may vanish."""

    async def square(data: int) -> int:
        trio.CancelScope(deadline=trio.current_time() + 5).__enter__()
        await world.sleep(world.rng.uniform(0, 6))
        return data * data

    return Flujo(Step.map_over("squares", Step("square", square)), store=world.store)


def whole(world: World) -> str | None:
    assert world.result is not None
    complete = world.result.status != "completed" or world.result.output == [1, 4, 9]
    return None if complete else f"completed as {world.result.output!r}"


def vanished_branch(patch: pytest.MonkeyPatch) -> None:
    """A child that was cancelled by foreign code is taken for one that its parent cancelled."""

    async def actor(self: Any, request: StepRequest, started: int) -> None:
        settled = None
        with contextlib.suppress(trio.Cancelled):
            settled = await self._performer.perform(StepState(request))
        self._send.send_nowait(settled)

    patch.setattr(StepSupervisor, "_actor", actor)


def retried(world: World) -> Flujo:
    """A payment whose first attempt fails: the second one follows after a while."""

    async def pay(data: int) -> int:
        world.effect("pay")
        if len(world.effects) == 1:
            raise ConnectionError("try again")
        return data

    waits = Backoff(first=30.0, ceiling=60.0)
    return Flujo(Step("pay", pay, max_retries=2, backoff=waits) >> Step("end", abs), store=world.store)


async def frozen(world: World, flujo: Flujo) -> Any:
    """Drive a life that stops for longer than its lease; meanwhile another process commits the payment."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(freeze, world)
        try:
            return await (flujo.resume_async("r") if world.records() else flujo.run_async(1, run_id="r"))
        except LeaseLost:
            return None


async def freeze(world: World) -> None:
    await trio.sleep(world.rng.uniform(0, 20))
    world.process.now += 45
    run, records = world.store.get(RunId("r")), world.records()
    if run.ended_at is None and not run.leased and all(record.path != "pay" for record in records[2:]):
        lease = world.store.claim(RunId("r"), owner="another process", lease_s=30.0)
        paid = Record(kind="settled", path=StepPath("pay"), body='{"v":2,"success":{"name":"pay","output":1}}')
        world.store.append([Append(lease=lease, records=(paid,), status="running", release=True)])


def unchecked_lease(patch: pytest.MonkeyPatch) -> None:
    """An owner does not compare its lease with the clock before an attempt."""
    patch.setattr(HeldLease, "lapsed", property(lambda self: False))


OWN: dict[str, tuple[Patch, dict[str, Any], str]] = {
    "A4": (vanished_branch, {"factory": leaking, "input": [1, 2, 3], "check": whole}, r"\(a\)|completed as"),
    "A6": (unchecked_lease, {"factory": retried, "drive": frozen, "faults": faults.none()}, r"\(b\) step 'pay'"),
}


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", OWN)
def test_a_defect_of_branches_or_leases_is_found_and_shrunk(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The present code passes the same seeds."""
    patch, options, rule = OWN[name]
    given = {"faults": faults.only("store_slow"), **options}
    simulate(**given, seeds=50)
    patch(monkeypatch)
    with pytest.raises(SimulationFailed, match=rule) as failed:
        simulate(**given, seeds=SEEDS)
    assert len(failed.value.faults) <= 10


FAILED = [line.split("\t") for line in Path(__file__).with_name("failed_seeds.txt").read_text().splitlines()]


@pytest.mark.parametrize(("name", "seed"), FAILED)
def test_a_seed_that_failed_once_passes(name: str, seed: str) -> None:
    """Seeds 6 and 25 of the granular pipeline: the commit of a unit lost its reply, and a retry repeated the unit."""
    case = CASES[name]
    simulate(case.factory, case.input, seeds=[int(seed)], answers=case.answers, check=case.promise)
