"""`simulate`: histories, faults, checks, shrinking and determinism."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from simulated_pipelines import CASES, Case

from flujo_actors import Flujo, Step
from flujo_actors.errors import DeclarationError
from flujo_actors.testing import NotDeterministic, SimulationFailed, World, faults, simulate

SEEDS = int(os.environ.get("FLUJO_SIMULATION_SEEDS", "200"))
"""Seeds of each pipeline; `make simulate` takes more."""


@pytest.mark.timeout(900)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_every_kind_of_pipeline_keeps_its_promises_under_all_faults(case: Case) -> None:
    """Crashes, store faults, lost leases, cancellation and model faults break no rule of the library."""
    simulation = simulate(case.factory, case.input, seeds=SEEDS, answers=case.answers, check=case.promise)
    assert simulation.seeds == SEEDS
    assert simulation.failures == ()


async def twice(data: int) -> int:
    return data * 2


def chain(world: World) -> Flujo:
    async def pay(data: int, *, idempotency_key: str) -> int:
        world.effect("pay", key=idempotency_key, amount=data)
        return data

    return Flujo(Step("a", twice) >> Step("pay", pay) >> Step("c", twice), store=world.store)


def test_without_faults_a_history_is_one_life() -> None:
    """The run completes, effects and records are in the world, and no time is spent on waiting."""
    seen: list[World] = []
    simulation = simulate(chain, 1, seeds=[7], faults=faults.none(), check=lambda world: seen.append(world))
    assert (simulation.lives, simulation.crashes, simulation.injected) == (1, 0, {})
    assert seen[0].result is not None
    assert seen[0].result.output == 4
    assert [(effect.name, effect.life, effect.facts) for effect in seen[0].effects] == [("pay", 1, {"amount": 2})]
    assert [record.kind for record in seen[0].records()] == ["admitted", "settled", "settled", "settled", "ended"]


def test_crashes_end_lives_and_the_run_continues() -> None:
    """Committed steps are not called again in the next life."""
    simulation = simulate(chain, 1, seeds=40, faults=[faults.crash(p=0.2)])
    assert simulation.crashes > 10
    assert simulation.lives == simulation.seeds + simulation.crashes
    assert simulation.injected == {"crash": simulation.crashes}


def unpaid(world: World) -> str | None:
    """Return the broken promise of a payment that must happen once."""
    paid = [effect for effect in world.effects if effect.name == "pay"]
    return f"paid {len(paid)} times" if len(paid) > 1 else None


def test_a_payment_without_idempotency_key_is_found() -> None:
    """S2: a crash between the payment and its record pays twice, and shrinking leaves that crash only."""
    with pytest.raises(SimulationFailed, match="check: paid 2 times") as failed:
        simulate(chain, 1, seeds=1000, check=unpaid)
    assert len(failed.value.faults) == 1
    assert str(failed.value.faults[0]).startswith(("crash", "store_fails", "lease_lost", "ack_lost"))
    assert any("<<" in str(event) for event in failed.value.timeline)
    assert f"simulate(chain, seeds=[{failed.value.seed}])" in str(failed.value)
    assert failed.value.world.effects[0].name == "pay"


def test_a_timeline_has_one_line_per_event() -> None:
    """A line has life, time, kind and text, and the fault at that place."""
    with pytest.raises(SimulationFailed) as failed:
        simulate(chain, 1, seeds=200, faults=faults.only("crash"), check=unpaid)
    crash = next(str(event) for event in failed.value.timeline if event.fault)
    assert crash.startswith("life 1  0.000 s  ")
    assert crash.endswith(("<< crash before", "<< crash after"))


def test_failures_can_be_collected() -> None:
    """With `raises=False` a simulation continues after a failure."""
    simulation = simulate(chain, 1, seeds=60, faults=[faults.crash(p=0.2)], check=unpaid, raises=False, shrink=False)
    assert simulation.seeds == 60
    assert len(simulation.failures) > 1


def test_state_outside_the_world_is_reported() -> None:
    """S1: a step that adds to a list outside the world has another history when it is repeated."""
    outside: list[int] = []

    def app(world: World) -> Flujo:
        async def add(data: int) -> list[int]:
            outside.append(data)
            return list(outside)

        return Flujo(Step("add", add), store=world.store)

    with pytest.raises(NotDeterministic, match="state outside the world"):
        simulate(app, 1, seeds=3)


def test_a_check_may_raise_or_return_a_sentence() -> None:
    """Both are failures, with the text as the reason."""

    def refuse(world: World) -> None:
        raise AssertionError("no")

    with pytest.raises(SimulationFailed, match="seed 0: check: no"):
        simulate(chain, 1, seeds=1, faults=faults.none(), check=refuse)
    with pytest.raises(SimulationFailed, match="seed 0: check: never"):
        simulate(chain, 1, seeds=1, faults=faults.none(), check=lambda world: "never")


def test_a_life_that_waits_forever_fails_at_once() -> None:
    """Nothing can happen any more: the open step is named."""
    import trio

    def app(world: World) -> Flujo:
        async def wait(data: int) -> int:
            await trio.sleep_forever()
            return data

        return Flujo(Step("wait", wait), store=world.store)

    with pytest.raises(SimulationFailed, match=r"life 1 is stuck: .*open steps: 'wait'"):
        simulate(app, 1, seeds=1, faults=faults.none())


def test_a_drive_replaces_the_default_one() -> None:
    """A life runs the drive, which may start several runs."""

    async def drive(world: World, flujo: Flujo) -> Any:
        for name in ("one", "two"):
            if not world.records(name):
                await flujo.run_async(1, run_id=name)
        return None

    seen: list[World] = []
    simulate(chain, seeds=[1], faults=faults.none(), drive=drive, check=lambda world: seen.append(world))
    assert len(seen[0].effects) == 2


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_history_is_the_same_with_another_hash_seed(tmp_path: Path) -> None:
    """S3: the trace of a seed is the same in new processes, whatever their hash seed."""
    script = tmp_path / "script.py"
    script.write_text(
        "from simulated_pipelines import CASES\n"
        "from flujo_actors.testing import simulate\n"
        "for name in ('nested', 'granular'):\n"
        "    case = CASES[name]\n"
        "    simulation = simulate(case.factory, case.input, seeds=1, answers=case.answers, raises=False)\n"
        "    print(*(simulation.trace(seed) for seed in range(4)), sep='\\n')\n"
    )
    traces = [_output(script, hash_seed) for hash_seed in ("1", "2")]
    assert traces[0] == traces[1]
    assert "append" in traces[0]


def _output(script: Path, hash_seed: str) -> str:
    here = str(Path(__file__).parent)
    path = os.pathsep.join([here, *(each for each in sys.path if each)])
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": path}
    done = subprocess.run(
        [sys.executable, str(script)], env=environment, capture_output=True, text=True, timeout=800, check=True
    )
    return done.stdout


def test_unknown_faults_and_chances_are_refused() -> None:
    """The error names the known faults."""
    with pytest.raises(DeclarationError, match="there is no fault 'fire'; known are crash, store_fails"):
        faults.only("fire")
    with pytest.raises(DeclarationError, match="p must be a number from 0 to 1"):
        faults.crash(p=2)


def test_more_seeds_run_for_a_time() -> None:
    """`for_s` continues after the given seeds, in CPU seconds."""
    simulation = simulate(chain, 1, seeds=1, for_s=0.2)
    assert simulation.seeds > 1
    assert simulation.cpu_s >= 0.2
