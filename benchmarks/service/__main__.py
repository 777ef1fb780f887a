"""`make bench-service`: the support desk three times, over the wire; a table, the goals, and who is first.

    python -m benchmarks.service [--quick] [--page | --no-page] [--only DESK] [--store memory]

The whole match takes some six minutes and writes its section of docs/benchmarks/service.md. `--quick` takes less than
one, says less (no Postgres, nothing with 100 at a time), and writes nothing unless `--page` is given. The first time,
environments are made in `.venvs/`.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import attrs

from benchmarks.protocol import SCRATCH, scratch
from benchmarks.report import machine, place
from benchmarks.service import page
from benchmarks.service.match import STORES, Match, cases, play
from benchmarks.service.roster import DESKS, ROOT

BEGUN = time.perf_counter()


@attrs.frozen(kw_only=True)
class Size:
    """How much is measured."""

    rounds: int
    tickets: Mapping[int, int]
    """How many tickets there are for each number at a time."""
    stores: tuple[str, ...] = STORES

    def said(self, match: Match) -> str:
        """How it was measured, for the page."""
        counts = ", ".join(f"{count} tickets {at_once} at a time" for at_once, count in self.tickets.items())
        return f"Up to {self.rounds} rounds, in turns, each with {counts}; {match.rounds} were run."


WHOLE = Size(rounds=3, tickets={1: 5, 25: 100, 100: 100})
"""Of few tickets one full garbage collection more or less is a tenth of the figure."""
QUICK = Size(rounds=2, tickets={1: 3, 25: 25}, stores=("memory", "sqlite"))


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    """What was asked for on the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.service", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="less of everything, in less than a minute")
    parser.add_argument("--page", action=argparse.BooleanOptionalAction, help="write into docs/benchmarks/service.md")
    names = [each.name for each in DESKS]
    parser.add_argument("--only", action="append", choices=names, help="this desk; may be repeated")
    parser.add_argument("--store", action="append", choices=STORES, help="this store; may be repeated")
    parser.add_argument("--results", type=Path, default=SCRATCH, help="where the samples go")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    """Play; 1 if somebody could not take part."""
    asked = arguments(argv)
    size = QUICK if asked.quick else WHOLE
    desks = [each for each in DESKS if not asked.only or each.name in asked.only]
    stores = tuple(asked.store or size.stores)
    before = machine()
    with places([each.name for each in desks], stores) as where:
        match = play(desks, cases(size.tickets, stores), rounds=size.rounds, places=where, tell=_progress)
    how, on = size.said(match), place(before, machine())
    print(page.section(match, how=how, place=on))
    _progress(f"samples: {save(match, asked.results)}")
    if asked.page if asked.page is not None else not (asked.quick or asked.only or asked.store):
        for path in page.write(match, ROOT / "docs", how=how, place=on):
            _progress(str(path))
    return 1 if match.absent else 0


@contextmanager
def places(desks: list[str], stores: tuple[str, ...]) -> Iterator[dict[str, dict[str, str]]]:
    """A database of its own for each desk: files on the disk, schemas of one real Postgres that syncs."""
    with scratch() as directory:
        found = {name: {"sqlite": str(directory / f"{name.replace(' ', '-')}.db")} for name in desks}
        if "postgres" in stores:
            fresh = _postgres()
            found = {name: {**these, "postgres": fresh()} for name, these in found.items()}
        yield found


def _postgres() -> Callable[[], str]:
    sys.path.insert(0, str(ROOT / "tests"))
    import psycopg

    from kit.postgres_server import session_server

    server = session_server()
    with psycopg.connect(server.url, autocommit=True) as db:
        db.execute("ALTER SYSTEM SET fsync = on")  # tests leave the disk alone; a service does not
        db.execute("SELECT pg_reload_conf()")
    return server.fresh_url


def save(match: Match, directory: Path) -> Path:
    """Every sample, as JSON."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "service.json"
    path.write_text(json.dumps(attrs.asdict(match), indent=1, default=dict), encoding="utf-8")
    return path


def _progress(text: str) -> None:
    print(f"{time.perf_counter() - BEGUN:6.1f} s … {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
