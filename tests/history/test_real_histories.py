"""Histories of real processes: clients and workers on SQLite and Postgres, killed and stopped by a seed."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
from run_history import FinalRun, Operation, RunHistory, smallest, violations

from flujo_actors import Flujo, RunClient, Step
from flujo_actors.errors import FlujoError, RunLeased, StoreError
from kit.durable_places import Place
from kit.other_processes import forked

CLIENTS, WORKERS, RUNS, CALLS = 3, 2, 8, 40
SETTINGS = {"durability": {"lease_s": 30.0}}
SEED = os.environ.get("FLUJO_HISTORY_SEED", "1")
WAITED_S = 20.0
"""Longest wait for the ends of all runs; runs that are still open then are only checked for safety."""


def app(place: Place, effects: Path) -> Flujo:
    async def note(data: int) -> int:
        with effects.open("a") as file:
            file.write(f"{data} {os.getpid()} {time.time()}\n")
        return data

    steps = Step("note", note) >> Step.human_in_the_loop("how", "How many?", input_schema=int) >> Step("end", abs)
    return Flujo(steps, store=place.open(), settings=SETTINGS)


def work(place: Place, effects: Path, parent: int) -> None:
    async def main() -> None:
        async with app(place, effects).worker(look_s=0.1):
            while os.getppid() == parent:  # a worker does not outlive its test
                await trio.sleep(0.5)

    trio.run(main)


class LoggedClient:
    """Client that logs each call before and after it."""

    def __init__(self, flujo: Flujo, store: Any, name: str, log: Path) -> None:
        self._flujo, self._client, self._name, self._log = flujo, RunClient(store), name, log
        self._calls = 0

    def call(self, verb: str, run: str, do: Callable[[], dict[str, Any]], **facts: Any) -> None:
        self._calls += 1
        key = f"{self._name}/{self._calls}"
        self._write({"key": key, "process": self._name, "verb": verb, "run": run, "begin": time.time(), **facts})
        try:
            found = {"result": "ok", **do()}
        except (FlujoError, TimeoutError) as error:
            if type(error) in (StoreError, RunLeased):
                return  # it may have happened or not
            found = {"result": type(error).__name__}
        self._write({"key": key, "end": time.time(), **found})

    def _write(self, line: dict[str, Any]) -> None:
        with self._log.open("a") as file:
            file.write(json.dumps(line) + "\n")

    def one(self, rng: random.Random) -> None:
        """Make one call by chance."""
        number, value = rng.randrange(RUNS), rng.randrange(1_000_000)
        run = f"r{number}"
        match rng.choice(("submit", "submit", "answer", "answer", "answer", "look", "watch", "wait", "cancel")):
            case "submit":
                self.call("submit", run, lambda: self._submitted(number, run))
            case "answer":
                self._answer(run, value)
            case "look":
                self.call("look", run, lambda: self._look(run))
            case "watch":
                self.call("watch", run, lambda: {"seqs": [each.seq for each in self._client.records(run)]})
            case "wait":
                self.call("wait", run, lambda: {"value": self._client.wait(run, timeout=0.05).status})
            case _ if rng.random() < 0.3:
                self.call("cancel", run, lambda: self._cancelled(run))
            case _:
                self._client.list()

    def _submitted(self, number: int, run: str) -> dict[str, Any]:
        self._flujo.submit_sync(number, run_id=run)
        return {}

    def _answer(self, run: str, value: int) -> None:
        with contextlib.suppress(FlujoError):
            tokens = [question.state_token for question in self._client.questions(run_id=run)]
            for token in tokens:
                self.call("answer", run, partial(self._answered, token, value), question="how", value=value)

    def _answered(self, token: str, value: int) -> dict[str, Any]:
        self._client.answer(token, value)
        return {}

    def _cancelled(self, run: str) -> dict[str, Any]:
        self._client.cancel(run)
        return {}

    def _look(self, run: str) -> dict[str, Any]:
        found = self._client.get(run)
        return {"value": found.status, "records": found.records}


def call_often(place: Place, effects: Path, name: str, seed: str, log: Path) -> None:
    rng = random.Random(f"{seed}/{name}")
    flujo = app(place, effects)
    client = LoggedClient(flujo, place.open(), name, log)
    for _ in range(CALLS):
        client.one(rng)
        time.sleep(rng.uniform(0, 0.02))


def torment(children: dict[str, int], again: Callable[[str], int], rng: random.Random) -> None:
    """Kill or stop processes while clients are alive; a killed worker is replaced."""
    while any(name.startswith("c") for name in alive(children)):
        name = rng.choice(sorted(alive(children)))
        time.sleep(rng.uniform(0.05, 0.3))
        if rng.random() < 0.3:
            with contextlib.suppress(ProcessLookupError):
                os.kill(children[name], signal.SIGSTOP)
                time.sleep(rng.uniform(0.05, 0.3))
                os.kill(children[name], signal.SIGCONT)
        elif name.startswith("w"):
            end(children.pop(name))
            children[name] = again(name)
        elif rng.random() < 0.1:
            end(children.pop(name))


def alive(children: dict[str, int]) -> list[str]:
    for name, child in list(children.items()):
        if os.waitpid(child, os.WNOHANG)[0]:
            del children[name]
    return list(children)


def end(child: int) -> None:
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def operations_in(log: Path) -> tuple[Operation, ...]:
    found: dict[str, dict[str, Any]] = {}
    for line in log.read_text().splitlines():
        with contextlib.suppress(json.JSONDecodeError):  # the line of a killed process
            facts = json.loads(line)
            found.setdefault(facts["key"], {}).update(facts)
    names = {field.name for field in attrs.fields(Operation)}
    made = [{name: value for name, value in each.items() if name in names} for each in found.values() if "verb" in each]
    return tuple(Operation(**{**each, "seqs": tuple(each.get("seqs", ()))}) for each in made)


def final_run(client: RunClient, run: str, effects: Path) -> FinalRun:
    records, state = client.records(run), client.state(run)
    at = {record.kind: record.at or 0.0 for record in records}
    noted = [line.split() for line in effects.read_text().splitlines()] if effects.exists() else []
    return FinalRun(
        status=client.get(run).status,
        epochs=(1,) * len(records),
        admitted=sum(record.kind == "admitted" for record in records),
        answers={"how": tuple(state.answers.values())},
        ended_at=at.get("ended", float("inf")),
        effects=tuple(("note", int(pid), float(when)) for data, pid, when in noted if f"r{data}" == run),
    )


def finish(client: RunClient, runs: list[str]) -> None:
    """Answer what is open until all runs have ended."""
    until = time.monotonic() + WAITED_S
    while time.monotonic() < until and any(client.get(run).status not in ("completed", "aborted") for run in runs):
        for question in client.questions():
            with contextlib.suppress(FlujoError):
                client.answer(question.state_token, -1)
        time.sleep(0.2)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif("FLUJO_HISTORIES" not in os.environ, reason="part of `make simulate`: FLUJO_HISTORIES=1")
def test_a_history_of_killed_and_stopped_processes_breaks_no_rule(place: Place, tmp_path: Path) -> None:
    """Submits, answers, cancels, looks, watches and waits of three clients are explained by one order."""
    effects, log, rng = tmp_path / "effects", tmp_path / "log", random.Random(SEED)
    test = os.getpid()
    log.touch()
    place.open().close()  # the schema exists before the processes

    def begun(name: str) -> int:
        if name.startswith("w"):
            return forked(lambda: work(place, effects, test))
        return forked(lambda: call_often(place, effects, name, SEED, log))

    children = {name: begun(name) for name in ("w1", "w2", "c1", "c2", "c3")}
    try:
        torment(children, begun, rng)
        client = RunClient(place.open())
        runs = sorted(run.run_id for run in client.list())
        finish(client, runs)
    finally:
        for child in children.values():
            end(child)
    operations = (*operations_in(log), *answered_at_the_end(runs))
    found = RunHistory(operations=operations, runs={run: final_run(client, run, effects) for run in runs})
    assert len(operations) > CALLS
    assert violations(found) == [], smallest(found).operations


def answered_at_the_end(runs: list[str]) -> list[Operation]:
    """Return the answers of the test itself, which may have been used or not."""
    return [
        Operation(process="test", verb="answer", run=run, question="how", value=-1, begin=time.time()) for run in runs
    ]
