"""`python -m benchmarks`: the table on standard output, the samples in `benchmarks/results/`."""

import argparse
import sys
from pathlib import Path

from benchmarks.driver import benchmark
from benchmarks.report import as_json, machine, save, table
from benchmarks.roster import LOCAL, PEERS, YARDSTICK
from benchmarks.works import WORKS

RESULTS = Path(__file__).parent / "results"


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    """What was asked for on the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--peers", action="store_true", help="ask the peers too, each in its own environment")
    parser.add_argument("--only", action="append", default=[], metavar="WORK", help="e.g. chain; may be repeated")
    parser.add_argument("--share", type=float, default=1.0, help="do this share of the work, e.g. 0.1")
    parser.add_argument("--clock", choices=["wall", "cpu"], default="wall", help="cpu on a busy machine")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where the JSON goes")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    """Run the benchmark; 1 if somebody could not take part."""
    asked = arguments(argv)
    works = [work for work in WORKS if not asked.only or work.name in asked.only]
    if asked.share != 1.0:
        works = [work.scaled(asked.share) for work in works]
    before = machine()
    outcome = benchmark(LOCAL + (PEERS if asked.peers else ()), works, clock=asked.clock, tell=_progress)
    path = save(as_json(outcome, clock=asked.clock, before=before), asked.results)
    print(table(outcome))
    print(_legend(asked.clock, before["load"]))
    print(f"samples: {path}", file=sys.stderr)
    return 1 if outcome.absent or any(figure.error for figure in outcome.figures) else 0


def _progress(text: str) -> None:
    print(f"… {text}", file=sys.stderr, flush=True)


def _legend(clock: str, load: tuple[float, ...] | None) -> str:
    busy = "" if load is None else f" The machine's load was {load[0]:.1f} at the beginning."
    return (
        f"\nBest and median of interleaved repetitions by the {clock} clock; spread is (max - min) / median; "
        f"the ratio compares best with best, and more than 1 costs more than {YARDSTICK}.{busy}"
    )


if __name__ == "__main__":
    sys.exit(main())
