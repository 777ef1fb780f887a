"""Labels of runs: given, read by steps, listed by, changed and deleted, on every store."""

from __future__ import annotations

import copy
import enum
import json
import pickle
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import trio

from flujo_actors import (
    AsyncRunClient,
    DeclarationError,
    Flujo,
    MemoryStore,
    Pipeline,
    RunClient,
    RunNotFound,
    Step,
)

ASK = Step.human_in_the_loop("ok", "Go?", input_schema=bool)


async def echo(data: Any) -> Any:
    return data


async def tenant(data: Any, *, labels: Mapping[str, str]) -> str | None:
    return labels.get("tenant")


class Plan(enum.Enum):
    """Member whose value is no text."""

    PRO = 1


class Color(str, enum.Enum):  # noqa: UP042 (its str() is not its text)
    """Member that is a text."""

    RED = "red"


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def store(request: pytest.FixtureRequest) -> Iterator[Any]:
    """An empty store of each kind."""
    if request.param == "memory":
        yield MemoryStore()
    else:
        yield request.getfixturevalue(f"{request.param}_place").open()


def ids(client: RunClient, **filters: Any) -> list[str]:
    return [info.run_id for info in client.list(order="created", **filters)]


def test_a_run_has_the_labels_of_its_flujo_and_its_own(store: Any) -> None:
    """Its own replace those of the same name; the result and the listing have both."""
    flujo = Flujo(Step("a", tenant), store=store, labels={"env": "prod", "tenant": "0"})
    result = flujo.run(1, run_id="r", labels={"tenant": "7"})
    assert (result.output, result.labels) == ("7", {"env": "prod", "tenant": "7"})
    client = RunClient(store)
    assert client.get("r").labels == {"env": "prod", "tenant": "7"}
    assert client.wait("r").labels == {"env": "prod", "tenant": "7"}
    assert flujo.run(1).labels == {"env": "prod", "tenant": "0"}


def test_runs_without_a_store_have_labels() -> None:
    """Steps, hooks and results have them."""
    seen = []

    def hook(payload: Any, *, labels: Mapping[str, str]) -> None:
        seen.append((payload.kind, labels["tenant"]))

    result = Flujo(Step("a", tenant), hooks=[hook]).run(1, labels={"tenant": "7"})
    assert (result.output, result.labels) == ("7", {"tenant": "7"})
    assert ("pre_run", "7") in seen
    assert ("post_run", "7") in seen


def test_every_way_to_start_a_run_takes_labels(store: Any) -> None:
    """Also the asynchronous ones."""
    flujo = Flujo(Step("a", echo), store=store)

    async def start() -> None:
        await flujo.run_async(1, run_id="async", labels={"t": "1"})
        async for _ in flujo.run_outcomes_async(1, run_id="outcomes", labels={"t": "1"}):
            pass
        await flujo.submit(1, run_id="submit", labels={"t": "1"})

    trio.run(start)
    flujo.submit_sync(1, run_id="sync", labels={"t": "1"})
    assert ids(RunClient(store), labels={"t": "1"}) == ["sync", "submit", "outcomes", "async"]


@pytest.mark.parametrize(
    ("labels", "told"),
    [
        ({"tenant": 7}, "labels: the value of 'tenant' must be a text, not 7: write '7'"),
        ({"a b": "x"}, "labels: 'a b' is no name: "),
        ({"flujo.x": "x"}, "labels: 'flujo.x' is reserved"),
        ({f"l{number}": "x" for number in range(17)}, "labels: 17 given, at most 16"),
        ({"a": "x" * 257}, "labels: the value of 'a' has 257 characters"),
        ({"a": ""}, "labels: the value of 'a' has 0 characters"),
        ({"a": None}, "labels: the value of 'a' must be a text, not None"),
        ({"a": Plan.PRO}, "labels: the value of 'a' must be a text, not <Plan.PRO: 1>"),
        (["a"], "labels must be a dict of texts"),
    ],
)
def test_invalid_labels_are_refused_before_the_run_exists(labels: Any, told: str) -> None:
    """The message has the name and the remedy."""
    store = MemoryStore()
    flujo = Flujo(Step("a", echo), store=store)
    for start in (flujo.run, flujo.submit_sync, flujo.run_async):
        with pytest.raises(DeclarationError) as refused:
            start(1, labels=labels)
        assert str(refused.value).startswith(told)
    with pytest.raises(DeclarationError):
        Flujo(Step("a", echo), labels=labels)
    assert RunClient(store).list() == []


def test_the_labels_of_a_flujo_count_toward_the_limit() -> None:
    """Nine and nine are too many."""
    nine = {f"a{number}": "x" for number in range(9)}
    with pytest.raises(DeclarationError, match="labels: 18 given, at most 16"):
        Flujo(Step("a", echo), labels=nine).run(1, labels={f"b{number}": "x" for number in range(9)})


def test_labels_are_read_only_and_can_be_copied() -> None:
    """They are JSON, as other dicts are."""
    labels = Flujo(Step("a", echo)).run(1, labels={"tenant": "7", "color": Color.RED}).labels
    with pytest.raises(TypeError, match="read-only"):
        labels["tenant"] = "8"  # type: ignore[index]
    assert json.dumps(labels) == '{"tenant": "7", "color": "red"}'
    assert pickle.loads(pickle.dumps(labels)) == copy.deepcopy(labels) == labels


def test_a_listing_by_labels_has_other_filters(store: Any) -> None:
    """All labels must match; `None` matches any value."""
    flujo = Flujo(Step("a", echo), store=store)
    for number in range(4):
        labels = {"tenant": str(number % 2), **({"vip": "yes"} if number == 3 else {})}
        flujo.submit_sync(number, run_id=f"r{number}", labels=labels, queue="q")
    client = RunClient(store)
    assert ids(client, labels={"tenant": "1"}) == ["r3", "r1"]
    assert ids(client, labels={"tenant": "1", "vip": None}) == ["r3"]
    assert ids(client, labels={"tenant": "2"}) == []
    assert ids(client, labels={"tenant": "0"}, state="blocked", queue="q", limit=1) == ["r2"]
    assert ids(client, labels={"tenant": "0"}, search="r0") == ["r0"]
    assert {info.run_id for info in client.list(labels={"tenant": "0"})} == {"r0", "r2"}
    with pytest.raises(DeclarationError, match="write '7'"):
        client.list(labels={"tenant": 7})  # type: ignore[dict-item]


def test_labels_are_changed_at_any_time(store: Any) -> None:
    """While the run waits and after its end; no record is written."""
    flujo = Flujo(Pipeline([ASK, Step("a", tenant)]), store=store)
    token = flujo.run(1, run_id="r", labels={"tenant": "7", "draft": "yes"}).state_token
    client = RunClient(store)
    assert [prompt.labels for prompt in client.prompts()] == [{"tenant": "7", "draft": "yes"}]
    before = client.get("r").records
    assert client.set_labels("r", {"tenant": "8"}, remove=("draft",)) == {"tenant": "8"}
    assert client.get("r").records == before
    result = flujo.resume(token, True)
    assert (result.output, result.labels) == ("8", {"tenant": "8"})
    client.set_labels("r", {"reviewed": "yes"})
    assert ids(client, labels={"reviewed": "yes"}) == ["r"]
    with pytest.raises(RunNotFound):
        client.set_labels("missing", {"a": "b"})
    with pytest.raises(DeclarationError, match="write \\('draft',\\)"):
        client.set_labels("r", remove="draft")


def test_an_async_client_changes_labels() -> None:
    """As every method of the client."""
    store = MemoryStore()
    Flujo(Step("a", echo), store=store).run(1, run_id="r")

    async def change() -> Any:
        async with AsyncRunClient(store) as client:
            await client.set_labels("r", {"a": "b"})
            return await client.list(labels={"a": "b"})

    assert [info.run_id for info in trio.run(change)] == ["r"]


def test_a_fork_has_the_labels_of_its_origin(store: Any) -> None:
    """As they are when it is made."""
    Flujo(Step("a", echo), store=store).run(1, run_id="r", labels={"tenant": "7"})
    client = RunClient(store)
    client.fork("r", 1, new_id="fork")
    assert client.get("fork").labels == {"tenant": "7"}
    assert ids(client, labels={"tenant": "7"}) == ["fork", "r"]


def test_a_worker_gives_a_run_its_labels(store: Any) -> None:
    """Those of the store, not of its own `Flujo`."""
    step = Step("a", tenant)
    Flujo(step, store=store).submit_sync(1, run_id="r", labels={"tenant": "7"})

    async def work() -> None:
        async with Flujo(step, store=store, labels={"tenant": "0"}).worker(once=True) as worker:
            await worker.stopped()

    trio.run(work)
    result = RunClient(store).wait("r", timeout=120)
    assert (result.output, result.labels) == ("7", {"tenant": "7"})


def test_deleted_runs_leave_no_labels(store: Any) -> None:
    """Neither `delete` nor `forget` does."""
    flujo = Flujo(Step("a", echo), store=store)
    for run_id in ("one", "two"):
        flujo.run(1, run_id=run_id, labels={"canary": "7"})
    client = RunClient(store)
    client.delete("one")
    assert client.forget(older_than_s=0) == 1
    assert ids(client, labels={"canary": None}) == []
    assert store.labels_of(["one", "two"]) == {}


def test_a_store_without_labels_names_the_missing_method() -> None:
    """Pipelines without labels run in it as before."""

    class Plain(MemoryStore):
        set_labels = labels_of = property()  # type: ignore[assignment]

    store = Plain()
    flujo = Flujo(Pipeline([ASK]), store=store)
    assert flujo.run(1).status == "paused"
    assert len(RunClient(store).prompts()) == 1
    for use in (lambda: flujo.run(1, labels={"a": "b"}), lambda: RunClient(store).list(labels={"a": "b"})):
        with pytest.raises(DeclarationError, match="needs a store with `set_labels`, and Plain has none"):
            use()


def test_a_parameter_with_a_default_keeps_it() -> None:
    """Only a keyword-only parameter, or one without a default, receives the labels of the run."""

    async def older(data: Any, labels: tuple[str, ...] = ("cat", "dog")) -> Any:
        return labels

    def also_older(labels: list[str]) -> Any:
        return labels

    assert Flujo(Step("a", older)).run(1, labels={"tenant": "7"}).output == ("cat", "dog")
    assert Flujo(Step("a", also_older)).run(["data"], labels={"tenant": "7"}).output == ["data"]


def test_a_step_can_return_the_labels_it_was_given(store: Any) -> None:
    """They are stored as any other value."""

    async def returned(data: Any, *, labels: Mapping[str, str]) -> Any:
        return labels

    Flujo(Step("a", returned), store=store).run(1, run_id="r", labels={"tenant": "7"})
    assert RunClient(store).wait("r").output == {"tenant": "7"}
