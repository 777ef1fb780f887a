"""Processes of one history: clients that log their calls, workers that log their writes, kills and stops by a seed.

All times are monotonic, which processes of one machine share. A line is written to a log before and after each call,
so a call of a killed process has no end. A killed client is replaced by a process that repeats its last call.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import random
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import trio
from run_history import ENDED, NOT_COPIED, FinalRun, Operation, RunHistory

from flujo_actors import Flujo, RunClient, Step
from flujo_actors.errors import FlujoError, RunLeased, StoreError
from kit.durable_places import Place
from kit.other_processes import forked

CLIENTS, WORKERS, RUNS, CALLS = 3, 2, 12, 110
"""Processes, runs, and calls of each client; a call on several runs counts once."""

CLIENT_KILLS = 6
"""Most kills of clients in one history: each begins again."""

LEASE_S = 1.5
"""Lease of a run: shorter than the longest stop of a process."""

SETTINGS = {"durability": {"lease_s": LEASE_S}, "fleet": {"max_deliveries": 1_000}}
"""A run of killed workers does not fail: its end is to be seen."""

FINISH_S = 60.0
"""Bound of the time in which all runs must end once no process is killed any more."""

VERBS = ("submit",) * 3 + ("answer",) * 6 + ("look", "look", "list", "watch", "watch", "wait", "cancel", "fork")


# --- Log ----------------------------------------------------------------------------------------------------------


class Log:
    """File of JSON lines that several processes append to."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def write(self, **facts: object) -> None:
        os.write(self._file, f"{json.dumps(facts)}\n".encode())

    def lines(self) -> Iterator[dict[str, Any]]:
        for line in self.path.read_text().splitlines():
            with contextlib.suppress(json.JSONDecodeError):  # the line of a killed process
                yield json.loads(line)

    def merged(self, kind: str) -> list[dict[str, Any]]:
        """Return the lines of a kind, with the facts of their ends."""
        found: dict[str, dict[str, Any]] = {}
        for facts in self.lines():
            if facts["kind"] == kind:
                found.setdefault(facts["key"], {}).update(facts)
        return [each for each in found.values() if "begin" in each]


class LoggedStore:
    """Store that logs the epoch of each write, and knows the epochs that this process was granted."""

    def __init__(self, store: Any, log: Log) -> None:
        self._store, self._log, self._count = store, log, 0
        self.epochs: dict[str, int] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def append(self, batch: Sequence[Any]) -> list[Any]:
        keys = [self._begun(each) for each in batch]
        verdicts: list[Any] = self._store.append(batch)
        for key, verdict in zip(keys, verdicts, strict=True):
            self._log.write(kind="append", key=key, end=time.monotonic(), written=not isinstance(verdict, FlujoError))
        return verdicts

    def _begun(self, append: Any) -> str:
        self._count += 1
        key = f"{os.getpid()}/{self._count}"
        written = [written_form(record) for record in append.records]
        run, epoch = append.lease.run_id, append.lease.epoch
        self._log.write(kind="append", key=key, run=run, epoch=epoch, records=written, begin=time.monotonic())
        return key

    def claim(self, *given: Any, **options: Any) -> Any:
        return self._granted(self._store.claim(*given, **options))

    def take_over(self, *given: Any, **options: Any) -> Any:
        return self._granted(self._store.take_over(*given, **options))

    def claim_next(self, *given: Any, **options: Any) -> Any:
        return self._all_granted(self._store.claim_next(*given, **options))

    def claim_all(self, *given: Any, **options: Any) -> Any:
        return self._all_granted(self._store.claim_all(*given, **options))

    def _all_granted(self, claimed: list[Any]) -> list[Any]:
        for each in claimed:
            self._granted(each.lease)
        return claimed

    def _granted(self, lease: Any) -> Any:
        self.epochs[lease.run_id] = lease.epoch
        return lease


def written_form(record: Any) -> str:
    """Return what identifies a record among those of its run."""
    return f"{record.kind} {record.path} {hashlib.sha256(record.body.encode()).hexdigest()[:16]}"


# --- Processes ----------------------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class Scene:
    """Database and logs of one history."""

    place: Place
    calls: Log
    writes: Log
    effects: Log
    seed: str

    @classmethod
    def in_folder(cls, place: Place, folder: Path, seed: str) -> Scene:
        place.open().close()  # the schema exists before the processes
        logs = {name: Log(folder / f"{name}-{seed}") for name in ("calls", "writes", "effects")}
        return cls(place=place, seed=seed, **logs)

    def flujo(self, store: Any) -> Flujo:
        """Return two steps with an effect, a question after each."""

        async def note(data: int, *, idempotency_key: str) -> int:
            at = time.monotonic()
            run, _, step = idempotency_key.partition(":")
            life = getattr(store, "epochs", {}).get(run, 0)
            self.effects.write(kind="effect", run=run, step=step, life=life, at=at)
            return data

        asked = partial(Step.human_in_the_loop, input_schema=int)
        steps = Step("note", note) >> asked("how", "How many?") >> Step("pay", note) >> asked("why", "Why so many?")
        return Flujo(steps, store=store, settings=SETTINGS)


def work(scene: Scene, parent: int) -> None:
    """Execute runs until the process is killed, or its test has ended."""

    async def main() -> None:
        store = LoggedStore(scene.place.open(), scene.writes)
        async with scene.flujo(store).worker(look_s=0.1):
            while os.getppid() == parent:
                await trio.sleep(0.5)

    trio.run(main)


class LoggedClient:
    """Client that logs each call before and after it."""

    def __init__(self, scene: Scene, name: str) -> None:
        self._scene, self._name, self._client = scene, name, RunClient(scene.place.open())
        self._flujo = scene.flujo(scene.place.open())
        self.calls = 0

    def call(self, do: Callable[[], object], verb: str, run: str, **facts: object) -> None:
        """Make one logged call; with a store error it may have happened or not."""
        self.calls += 1
        key = f"{os.getpid()}/{self.calls}"
        told = {"kind": "call", "key": key, "process": self._name, "verb": verb, "run": run, **facts}
        self._scene.calls.write(begin=time.monotonic(), **told)
        try:
            found = do()
            result = {"result": "ok", **(found if isinstance(found, dict) else {})}
        except (FlujoError, TimeoutError) as error:
            if type(error) in (StoreError, RunLeased):
                return
            result = {"result": type(error).__name__}
        self._scene.calls.write(kind="call", key=key, end=time.monotonic(), **result)

    def one(self, rng: random.Random) -> None:
        """Make one call by chance."""
        run, value = f"r{rng.randrange(RUNS)}", rng.randrange(1_000_000)
        match rng.choice(VERBS):
            case "submit":
                self.submit(run, value)
            case "answer":
                self._answer_one(rng, value)
            case "look":
                self.call(partial(self._look, run), "look", run)
            case "list":
                self.call(self._list, "list", "")
            case "watch":
                self._watch_one(run, rng.randrange(4))
            case "wait":
                self.call(lambda: {"value": self._client.wait(run, timeout=0.05).status}, "wait", run)
            case "cancel" if rng.random() < 0.3:
                self.cancel(run)
            case "fork" if rng.random() < 0.3:
                self.fork(run, rng.randrange(1, 4), f"{run}.f{value}")
            case _:
                self.call(partial(self._look, run), "look", run)

    def repeat(self, facts: dict[str, Any]) -> None:
        """Make the call of a killed process again."""
        match facts["verb"]:
            case "submit":
                self.submit(facts["run"], facts["value"], repeats=True)
            case "answer":
                self.answer(facts["token"], facts["run"], facts["question"], facts["value"], repeats=True)
            case "cancel":
                self.cancel(facts["run"], repeats=True)
            case "fork":
                self.fork(facts["origin"], facts["after"], facts["run"], repeats=True)
            case _:
                pass

    def submit(self, run: str, value: int, **facts: object) -> None:
        self.call(lambda: self._flujo.submit_sync(value, run_id=run), "submit", run, value=value, **facts)

    def cancel(self, run: str, **facts: object) -> None:
        self.call(lambda: self._client.cancel(run), "cancel", run, **facts)

    def fork(self, run: str, seq: int, new: str, **facts: object) -> None:
        do = partial(self._client.fork, run, seq, new_id=new)
        self.call(do, "fork", new, origin=run, after=seq, **facts)

    def answer(self, token: str, run: str, question: str, value: int, **facts: object) -> None:
        do = partial(self._client.answer, token, value)
        self.call(do, "answer", run, token=token, question=question, value=value, **facts)

    def _answer_one(self, rng: random.Random, value: int) -> None:
        """Answer a question that was open a moment ago, some of them twice."""
        asked = list(self._client.questions())
        if not asked:
            self.call(self._list, "list", "")
            return
        chosen = rng.choice(asked)
        for number in range(1 if rng.random() < 0.8 else 2):
            run, _, question = chosen.state_token.split(":", 2)
            self.answer(chosen.state_token, run, question, value + number)

    def _look(self, run: str) -> dict[str, object]:
        found = self._client.get(run)
        return {"value": found.status, "records": found.records}

    def _list(self) -> dict[str, object]:
        return {"seen": {each.run_id: [each.status, each.records] for each in self._client.list()}}

    def _watch_one(self, run: str, after: int) -> None:
        self.call(lambda: {"seqs": trio.run(self._watched, run, after)}, "watch", run, after=after)

    async def _watched(self, run: str, after: int) -> list[int]:
        seqs: list[int] = []
        with trio.move_on_after(0.05):
            async for record in self._client.watch(run, after=after):
                seqs.append(record.seq)
        return seqs


def call_often(scene: Scene, name: str) -> None:
    """Make the calls of a client that its killed predecessors have left."""
    mine = [each for each in scene.calls.merged("call") if each["process"] == name]
    client, rng = LoggedClient(scene, name), random.Random(f"{scene.seed}/{name}/{len(mine)}")
    if mine and "end" not in mine[-1]:
        client.repeat(mine[-1])
    while client.calls + len(mine) < CALLS:
        client.one(rng)


# --- Kills and stops ----------------------------------------------------------------------------------------------


class Processes:
    """Clients and workers of a history."""

    def __init__(self, scene: Scene) -> None:
        self._scene, self._test = scene, os.getpid()
        names = [f"c{number}" for number in range(CLIENTS)] + [f"w{number}" for number in range(WORKERS)]
        self._children = {name: self._begun(name) for name in names}
        self.kills = self.stops = 0
        self._left = CLIENT_KILLS

    def _begun(self, name: str) -> int:
        if name.startswith("w"):
            return forked(partial(work, self._scene, self._test))
        return forked(partial(call_often, self._scene, name))

    def torment(self, rng: random.Random) -> None:
        """Kill and stop processes until all clients have made their calls."""
        while any(name.startswith("c") for name in self._alive()):
            time.sleep(rng.uniform(0.05, 0.25))
            name = rng.choice(sorted(self._children))
            if rng.random() < 0.3:
                self._stop(name, LEASE_S * 1.3 if rng.random() < 0.2 else rng.uniform(0.05, 0.3))
            elif name.startswith("w") or self._left > 0:
                self._left -= name.startswith("c")
                self._kill(name)

    def _alive(self) -> Iterable[str]:
        for name, child in list(self._children.items()):
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                assert os.waitstatus_to_exitcode(status) == 0, f"{name} failed"
                del self._children[name]
        return self._children

    def _stop(self, name: str, seconds: float) -> None:
        self.stops += 1
        os.kill(self._children[name], signal.SIGSTOP)
        time.sleep(seconds)
        os.kill(self._children[name], signal.SIGCONT)

    def _kill(self, name: str) -> None:
        self.kills += 1
        end(self._children.pop(name))
        self._children[name] = self._begun(name)

    def end(self) -> None:
        for child in self._children.values():
            end(child)


def end(child: int) -> None:
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


# --- History ------------------------------------------------------------------------------------------------------


def history_of(scene: Scene) -> tuple[RunHistory, Processes]:
    """Return the history of killed and stopped processes, after all its runs have ended."""
    processes = Processes(scene)
    try:
        processes.torment(random.Random(scene.seed))
        client = RunClient(scene.place.open())
        finish(LoggedClient(scene, "test"), client)
    finally:
        processes.end()
    writers, effects = _writers(scene), list(scene.effects.lines())
    runs = {run.run_id: final_run(client, run.run_id, writers, effects) for run in client.list()}
    return RunHistory(operations=tuple(_operations(scene)), runs=runs), processes


def finish(logged: LoggedClient, client: RunClient) -> None:
    """Answer what is open until all runs have ended."""
    until = time.monotonic() + FINISH_S
    while open_runs := [run for run in client.list() if run.status not in ENDED]:
        assert time.monotonic() < until, f"runs that did not end: {[str(run) for run in open_runs]}"
        for question in client.questions():
            run, _, name = question.state_token.split(":", 2)
            logged.answer(question.state_token, run, name, -1)
        time.sleep(0.05)


def _operations(scene: Scene) -> Iterator[Operation]:
    names = {field.name for field in attrs.fields(Operation)}
    for each in scene.calls.merged("call"):
        if each["verb"] == "list":
            for run, (status, records) in each.get("seen", {}).items():
                yield Operation(
                    **_known({**each, "verb": "look", "run": run, "value": status, "records": records}, names)
                )
        else:
            yield Operation(**_known({**each, "seqs": tuple(each.get("seqs", ()))}, names))


def _known(facts: dict[str, Any], names: set[str]) -> dict[str, Any]:
    return {name: value for name, value in facts.items() if name in names}


Writers = dict[tuple[str, str], list[tuple[int, float | None]]]
"""Epoch and end of the writes, by run and record."""


def _writers(scene: Scene) -> Writers:
    """Return epoch and end of the writes of a record, without refused ones."""
    found: dict[tuple[str, str], list[tuple[int, float | None]]] = {}
    for each in scene.writes.merged("append"):
        for record in each["records"] if each.get("written", True) else ():
            found.setdefault((each["run"], record), []).append((each["epoch"], each.get("end")))
    return found


def final_run(client: RunClient, run: str, writers: Writers, effects: list[dict[str, Any]]) -> FinalRun:
    """Return a run as its records show it."""
    records = [client.record(run, each.seq) for each in client.records(run)]
    origin = json.loads(records[0].body).get("origin")
    copied = 0 if origin is None else _copied(client, **origin)
    own = records[copied:]
    return FinalRun(
        status=client.get(run).status,
        epochs=tuple(_epochs(run, records, writers)),
        admitted=sum(record.kind == "admitted" for record in records),
        answers=_answers(own),
        ended_at=_monotonic(records[-1].at or 0.0),
        effects=tuple((each["step"], each["life"], each["at"]) for each in effects if each["run"] == run),
        commits=dict(_commits(run, own, writers)),
        records=tuple(f"{record.kind} {record.path}" for record in records),
        origin=None if origin is None else (origin["run_id"], origin["seq"]),
    )


def _copied(client: RunClient, run_id: str, seq: int) -> int:
    kinds = [record.kind for record in client.records(run_id) if record.seq <= seq]
    return sum(kind not in NOT_COPIED for kind in kinds)


def _epochs(run: str, records: Sequence[Any], writers: Writers) -> Iterator[int]:
    """Yield the epoch of each record: the lowest of its writers that does not go back, if there is one."""
    last = 0
    for record in records:
        epochs = sorted(epoch for epoch, _ in writers.get((run, written_form(record)), ()))
        last = next((epoch for epoch in epochs if epoch >= last), min(epochs, default=last))
        yield last


def _answers(records: Sequence[Any]) -> dict[str, tuple[object, ...]]:
    found: dict[str, tuple[object, ...]] = {}
    for record in records:
        if record.kind == "answered":
            found[record.path] = (*found.get(record.path, ()), json.loads(record.body)["answer"])
    return found


def _commits(run: str, records: Sequence[Any], writers: Writers) -> Iterator[tuple[str, float]]:
    """Yield the steps with an effect that are committed, and when that was acknowledged."""
    for record in records:
        if record.kind == "settled" and record.path in ("note", "pay"):
            ends = [end for _, end in writers.get((run, written_form(record)), ()) if end is not None]
            yield record.path, min(ends, default=math.inf)


def _monotonic(wall: float) -> float:
    return wall - time.time() + time.monotonic()
