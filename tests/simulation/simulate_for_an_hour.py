"""Run every simulated pipeline for a share of an hour, and add failing seeds to `failed_seeds.txt`."""

from __future__ import annotations

import sys
from pathlib import Path

from simulated_pipelines import CASES

from flujo_actors.testing import simulate

FAILED = Path(__file__).with_name("failed_seeds.txt")
FIRST_SEED = 1_000


def main(seconds: float) -> int:
    """Return 1 if a seed failed, else 0."""
    found = 0
    for name, case in CASES.items():
        simulation = simulate(
            case.factory,
            case.input,
            seeds=range(FIRST_SEED, FIRST_SEED + 1),
            for_s=seconds / len(CASES),
            answers=case.answers,
            check=case.promise,
            raises=False,
        )
        count = len(simulation.failures)
        sys.stdout.write(f"{name}: {simulation.seeds} seeds, {simulation.crashes} crashes, {count} failures\n")
        found += count
        with FAILED.open("a") as file:
            for failure in simulation.failures:
                sys.stdout.write(f"{failure}\n")
                file.write(f"{name}\t{failure.seed}\n")
    return min(found, 1)


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]) if len(sys.argv) > 1 else 3600.0))
