"""Submit once: used ids, singleton keys, and races of processes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

from flujo_actors import (
    DeclarationError,
    Flujo,
    MemoryStore,
    Pipeline,
    RunClient,
    RunExists,
    SingletonBusy,
    SqliteStore,
    Step,
    Undo,
)
from kit.other_processes import all_at_once
from kit.postgres_server import session_server


async def echo(data: Any) -> Any:
    return data


async def fail(data: Any) -> Any:
    raise ValueError("no")


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Any) -> Iterator[Any]:
    """An empty store of each kind."""
    match request.param:
        case "memory":
            yield MemoryStore()
        case "sqlite":
            yield SqliteStore(tmp_path / "runs.db", synchronous="OFF")
        case _:
            yield session_server().fresh_url()


def make(store: Any, step: Any = None) -> tuple[Flujo[Any, Any, Any], RunClient]:
    flujo: Flujo[Any, Any, Any] = Flujo(step or Step("a", echo), store=store)
    assert flujo.store is not None
    return flujo, RunClient(flujo.store)


def test_a_used_id_is_returned(store: Any) -> None:
    """Whatever the state of its run; the input is not compared."""
    flujo, client = make(store)
    assert flujo.submit_sync(1, run_id="o", if_exists="return") == "o"
    assert flujo.submit_sync(2, run_id="o", if_exists="return") == "o"
    client.cancel("o")
    assert flujo.submit_sync(3, run_id="o", if_exists="return") == "o"
    assert [(info.run_id, info.status, info.retries) for info in client.list()] == [("o", "aborted", 0)]
    assert client.state("o").input == 1
    with pytest.raises(RunExists, match="exists already"):
        flujo.submit_sync(1, run_id="o")


def test_a_failed_run_is_retried(store: Any) -> None:
    """Only then; an open or completed run is returned as it is."""
    flujo, client = make(store, Step("f", fail))
    flujo.run(1, run_id="o")
    assert flujo.submit_sync(1, run_id="o", if_exists="retry_failed") == "o"
    assert (client.get("o").retries, client.get("o").status) == (1, "running")
    assert flujo.submit_sync(1, run_id="o", if_exists="retry_failed") == "o"
    assert client.get("o").retries == 1
    done, _ = make(flujo.store, Step("a", echo))
    done.run(1, run_id="p")
    assert done.submit_sync(1, run_id="p", if_exists="retry_failed") == "p"
    assert client.get("p").status == "completed"


def test_a_run_of_another_pipeline_is_always_refused(store: Any) -> None:
    """With its name."""
    flujo, _ = make(store, Pipeline([Step("a", echo)], name="other"))
    flujo.submit_sync(1, run_id="order-7")
    mine, _ = make(flujo.store)
    for if_exists in ("raise", "return", "retry_failed"):
        with pytest.raises(RunExists, match="run 'order-7' exists and belongs to pipeline 'other'"):
            mine.submit_sync(1, run_id="order-7", if_exists=if_exists)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"if_exists": "return"}, "if_exists='return' needs a run_id"),
        ({"if_exists": "skip", "run_id": "o"}, "if_exists must be 'raise' or 'return' or 'retry_failed'"),
        ({"when_busy": "raise"}, "when_busy='raise' needs a singleton key"),
        ({"when_busy": "wait", "singleton": "k"}, "when_busy must be 'return' or 'raise' or 'replace'"),
        ({"singleton": ""}, "singleton must be a text of 1 to 256 characters"),
        ({"singleton": 7}, "singleton must be a text of 1 to 256 characters"),
        ({"singleton": "k" * 257}, "singleton must be a text of 1 to 256 characters"),
    ],
)
def test_options_that_do_not_fit_are_refused(options: Any, told: str) -> None:
    """Before a run exists."""
    flujo, client = make(MemoryStore())
    with pytest.raises(DeclarationError, match=told):
        flujo.submit_sync(1, **options)
    assert client.list() == []


def test_one_open_run_has_a_key(store: Any) -> None:
    """Its end frees the key; runs of any pipeline share it."""
    flujo, client = make(store)
    first = flujo.submit_sync(1, singleton="inbox:\0\ud800")
    other, _ = make(flujo.store, Step("b", echo))
    assert other.submit_sync(2, singleton="inbox:\0\ud800") == first
    with pytest.raises(SingletonBusy) as busy:
        flujo.submit_sync(1, singleton="inbox:\0\ud800", when_busy="raise")
    assert busy.value.run_id == first
    assert isinstance(busy.value, RunExists)
    client.cancel(first)
    second = flujo.submit_sync(1, singleton="inbox:\0\ud800")
    assert second != first
    assert len(client.list()) == 2
    with pytest.raises(SingletonBusy):
        client.retry(first)
    assert client.get(first).status == "aborted"
    assert flujo.submit_sync(1, singleton="another") not in (first, second)


def test_a_run_is_replaced(store: Any) -> None:
    """One without an owner and without compensations ends at once."""
    flujo, client = make(store)
    first = flujo.submit_sync(1, singleton="k")
    second = flujo.submit_sync(2, singleton="k", when_busy="replace")
    assert (client.get(first).status, client.get(second).status) == ("aborted", "running")
    assert client.state(first).feedback == f"replaced by run {second}"
    assert flujo.submit_sync(3, singleton="k") == second
    assert flujo.submit_sync(4, singleton="free", when_busy="replace") not in (first, second)


def test_a_replaced_run_with_an_owner_is_stopped_by_it(store: Any) -> None:
    """Its successor is submitted at once."""
    begun = trio.Event()

    async def works(data: Any) -> Any:
        if data == "first":
            begun.set()
            await trio.sleep_forever()
        return data

    flujo, client = make(store, Step("w", works))
    first = flujo.submit_sync("first", singleton="k")

    async def main() -> str:
        with trio.fail_after(120):
            async with flujo.worker(slots=2, look_s=0.1):
                await begun.wait()
                second = await flujo.submit("second", singleton="k", when_busy="replace")
                while (await trio.to_thread.run_sync(client.get, second)).status != "completed":
                    await trio.sleep(0.05)
                while (await trio.to_thread.run_sync(client.get, first)).status != "aborted":
                    await trio.sleep(0.05)
                return second

    assert trio.run(main) != first


def test_a_replaced_run_with_compensations_is_left_to_a_worker(store: Any) -> None:
    """Until then it is `cancelling`, and the key belongs to its successor."""

    async def undo(undo: Undo) -> None:
        pass

    pipeline = Pipeline([Step("pay", echo, compensate=undo), Step.human_in_the_loop("ok", "Go?")])
    flujo, client = make(store, pipeline)
    first = flujo.submit_sync(1, singleton="k")

    async def main() -> None:
        async with flujo.worker(once=True) as worker:
            await worker.stopped()

    trio.run(main)
    assert client.get(first).state == "waiting"
    second = flujo.submit_sync(2, singleton="k", when_busy="replace")
    assert client.get(first).state == "cancelling"
    assert flujo.submit_sync(3, singleton="k") == second


def test_a_used_id_is_found_before_a_busy_key(store: Any) -> None:
    """And no key moves."""
    flujo, client = make(store)
    first = flujo.submit_sync(1, singleton="k")
    flujo.submit_sync(1, run_id="o")
    again = flujo.submit_sync(1, run_id="o", if_exists="return", singleton="k", when_busy="replace")
    assert (again, client.get(first).status) == ("o", "running")
    assert flujo.submit_sync(1, singleton="k") == first


def test_a_store_without_keys_names_the_missing_method() -> None:
    """Submissions without a key work in it as before."""

    class Plain(MemoryStore):
        holder_of = property()  # type: ignore[assignment]

    flujo, _ = make(Plain())
    flujo.submit_sync(1)
    with pytest.raises(DeclarationError, match="a singleton key needs a store with `holder_of`, and Plain has none"):
        flujo.submit_sync(1, singleton="k")


def submitted_by(flujo: Flujo) -> Iterator[str]:
    """Lines with the id of each of 250 submissions, in turn by run id and by singleton key."""
    for number in range(250):
        once = {"singleton": "k"} if number % 2 else {"run_id": "only", "if_exists": "return"}
        yield f"{number % 2} {flujo.submit_sync(number, **once)}\n"


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sqlite", "postgres", "engine"])
def test_of_a_thousand_racing_submissions_one_creates_the_run(kind: str, tmp_path: Path) -> None:
    """Every caller of four processes has its id; with an engine, run and ticket are one transaction."""
    url = f"sqlite:///{tmp_path}/runs.db" if kind == "sqlite" else session_server().fresh_url()
    _, client = make(url)
    client.list()

    def race(number: int) -> int:
        flujo = Flujo(Step("a", echo), store=url, **({"engine": "postgres"} if kind == "engine" else {}))
        (tmp_path / f"racer {number}").write_text("".join(submitted_by(flujo)))
        return 0

    assert all_at_once(4, race) == [0] * 4
    lines = [line for file in tmp_path.glob("racer *") for line in file.read_text().splitlines()]
    assert len(lines) == 1000
    assert len({line for line in lines if line.startswith("0 ")}) == 1
    assert len({line for line in lines if line.startswith("1 ")}) == 1
    assert {info.run_id for info in client.list()} == {line[2:] for line in lines}
    assert len(client.list()) == 2
