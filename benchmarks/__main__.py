"""`python -m benchmarks`: the table on standard output, the samples in `benchmarks/results/local/`."""

import argparse
import os
import sys
import time
from pathlib import Path

from benchmarks import comparison, growth
from benchmarks.driver import Outcome, benchmark
from benchmarks.report import as_json, legend, machine, place, publish, save, table, versions
from benchmarks.roster import BY_HAND, LOCAL, PEERS
from benchmarks.works import WORKS

PUBLISHED = Path(__file__).parent / "results"
RESULTS = PUBLISHED / "local"
BEGUN = time.perf_counter()
IMAGES = Path(__file__).parents[1] / "docs" / "images"


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    """What was asked for on the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--peers", action="store_true", help="ask everybody, peers in their own environments")
    parser.add_argument("--growth", action="store_true", help="plot how cost grows with size instead")
    parser.add_argument("--retrieval", action="store_true", help="measure searches and assembled contexts instead")
    parser.add_argument("--watching", action="store_true", help="measure watching and live views instead")
    parser.add_argument("--passages", type=int, default=10_000, help="how many are searched with --retrieval")
    parser.add_argument("--only", action="append", default=[], metavar="WORK", help="e.g. chain; may be repeated")
    parser.add_argument("--share", type=float, default=1.0, help="do this share of the work, e.g. 0.1")
    parser.add_argument("--clock", choices=["wall", "cpu"], default="wall", help="cpu on a busy machine")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where the JSON goes")
    parser.add_argument("--publish", action="store_true", help="keep the JSON for the figures of README")
    parser.add_argument("--images", type=Path, default=IMAGES, help="where the charts go")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    """Run the benchmark; 1 if somebody could not take part."""
    asked = arguments(argv)
    if asked.retrieval:
        return _retrieve(asked)
    if asked.watching:
        return _watch(asked)
    return _plot(asked) if asked.growth else _compare(asked)


def _compare(asked: argparse.Namespace) -> int:
    works = [work for work in WORKS if not asked.only or work.name in asked.only]
    if asked.share != 1.0:
        works = [work.scaled(asked.share) for work in works]
    before = machine()
    outcome = benchmark(LOCAL + (BY_HAND + PEERS if asked.peers else ()), works, clock=asked.clock, tell=_progress)
    after = machine()
    document = as_json(outcome, clock=asked.clock, before=before, after=after)
    path = save(document, asked.results)
    if asked.publish:
        _progress(f"published: {publish(document, PUBLISHED)}")
    if asked.peers:
        _progress(str(comparison.draw(outcome, asked.images)))
    print(table(outcome), legend(asked.clock, before, after), f"\n{versions(outcome)}", sep="\n")
    _progress(f"samples: {path}")
    return _code(outcome)


def _retrieve(asked: argparse.Namespace) -> int:
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ.setdefault(name, "1")  # one thread for everybody, as the others have; read when numpy is loaded
    from benchmarks.retrieval import report  # loads numpy and pydantic-ai, which nothing else here needs

    for line in report(asked.passages, share=asked.share):
        print(line, flush=True)
    return 0


def _watch(asked: argparse.Namespace) -> int:
    from benchmarks.watching import report  # loads what draws, which nothing else here needs

    for line in report(share=asked.share):
        print(line, flush=True)
    return 0


def _plot(asked: argparse.Namespace) -> int:
    before, plots, code = machine(), {}, 0
    for each in growth.GROWTHS:
        if not asked.only or each.name in asked.only:
            outcome = growth.measure(each, LOCAL, clock=asked.clock, share=asked.share, tell=_progress)
            plots[each.name] = growth.draw(each, outcome, asked.images)
            code |= _code(outcome)
    data = {"machine": place(before, machine()), "plots": plots}
    path = growth.save(data, asked.images)
    print(growth.table(data), f"\n{data['machine']}", sep="\n")
    _progress(f"plots and their data: {path.parent}")
    return code


def _code(outcome: Outcome) -> int:
    return 1 if outcome.absent or any(figure.error for figure in outcome.figures) else 0


def _progress(text: str) -> None:
    print(f"{time.perf_counter() - BEGUN:6.1f} s … {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
