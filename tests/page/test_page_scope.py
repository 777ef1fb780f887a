"""Scope of the page: a user of one tenant tries to reach the runs of another."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from flujo_actors import DeclarationError, Flujo, MemoryStore, Pipeline, RunClient, Step
from flujo_actors.page import _app as page_app
from flujo_actors.page import run_page

pytestmark = pytest.mark.anyio

SAME_ORIGIN = {"origin": "http://localhost"}
SECRET = "the figures of bob"


@pytest.fixture
def anyio_backend() -> str:
    """The server's own library."""
    return "asyncio"


async def echo(data: Any) -> Any:
    return data


def pipeline() -> Pipeline:
    return Pipeline([Step("a", echo), Step.human_in_the_loop("ask", "Fine?", input_schema=bool)], name="p")


@pytest.fixture
def place(tmp_path: Path) -> str:
    """A store with runs of two tenants that ask something, and one without labels."""
    address = f"sqlite:///{tmp_path}/runs.db"
    flujo = Flujo(pipeline(), store=address)
    flujo.run("the figures of ada", run_id="hers", labels={"tenant": "ada"})
    flujo.run(SECRET, run_id="his", labels={"tenant": "bob"})
    flujo.run("nobody's", run_id="bare")
    return address


def page_for(place: Any, scope: Any = None, **options: Any) -> Any:
    return run_page(
        place, auth=lambda request: "ada", scope=scope or (lambda request, user: {"tenant": user}), **options
    )


def http(page: Any) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(page, client=("127.0.0.1", 50_000))
    return httpx.AsyncClient(transport=transport, base_url="http://localhost")


async def got(page: Any, path: str) -> httpx.Response:
    async with http(page) as client:
        return await client.get(path)


async def posted(page: Any, name: str, body: Any) -> httpx.Response:
    async with http(page) as client:
        return await client.post(f"/api/{name}", json=body, headers=SAME_ORIGIN)


def client_of(place: str) -> RunClient:
    return RunClient(place, allow_blocking=True)


def token_of(place: str, run_id: str) -> str:
    return str(client_of(place).get(run_id).state_token)


async def test_the_list_and_its_counts_are_those_of_the_scope(place: str) -> None:
    """Neither a search nor a label nor a cursor shows other runs."""
    page = page_for(place)
    found = (await got(page, "/api/runs")).json()
    assert [run["run_id"] for run in found["runs"]] == ["hers"]
    assert found["runs"][0]["labels"] == {"tenant": "ada"}
    assert (found["counts"], found["waiting"]) == ({"waiting": 1}, 1)
    for asked in ("q=his", "label=tenant:bob", "label=tenant:bob&label=tenant:ada", "pipeline=p&q=h&label=x", "q=bare"):
        assert (await got(page, f"/api/runs?{asked}")).json()["runs"] == []
    assert [run["run_id"] for run in (await got(page, "/api/runs?label=tenant")).json()["runs"]] == ["hers"]


@pytest.mark.parametrize(
    "path",
    [
        "records?run=his",
        "record?run=his&seq=1",
        "record?run=his&seq=1&full=1",
        "events?run=his",
        "graph?run=his",
        "compare?a=hers&b=his",
        "compare?a=his&b=hers",
        "export?run=his",
        "records?run=hers&run=his",
        "records?run=his&run=hers",
        "records?run=bare",
    ],
)
async def test_a_run_outside_the_scope_reads_as_a_missing_one(place: str, path: str) -> None:
    """The same status and text, so that its existence is not disclosed."""
    page = page_for(place)
    refused = await got(page, f"/api/{path}")
    other = "bare" if "bare" in path else "his"
    missing = await got(page, f"/api/{path.replace(other, 'gone')}")
    assert refused.status_code == missing.status_code == 404
    assert refused.text.replace(f"'{other}'", "'gone'") == missing.text
    assert SECRET not in refused.text


@pytest.mark.parametrize("name", ["cancel", "fork", "resume"])
async def test_a_run_outside_the_scope_is_not_changed(place: str, name: str) -> None:
    """By no action of the page."""
    page, before = page_for(place, flujos=[Flujo(pipeline(), store=place)]), client_of(place).get("his")
    assert (await posted(page, name, {"run": "his", "seq": 1})).status_code == 404
    async with http(page) as client:
        both = await client.post(f"/api/{name}?run=his", json={"run": "hers", "seq": 1}, headers=SAME_ORIGIN)
    assert both.status_code == 404
    assert client_of(place).get("his") == before
    assert len(client_of(place).list()) == 3


@pytest.mark.parametrize("value", [0, None, False, ["his"]])
async def test_a_run_is_checked_in_the_form_that_an_endpoint_reads(place: str, value: Any) -> None:
    """Values that are no texts become ids, also those that are false."""
    flujo = Flujo(pipeline(), store=place)
    await flujo.run_async(SECRET, run_id=str(value), labels={"tenant": "bob"})
    for name, body in (("cancel", {"run": value}), ("bulk", {"action": "cancel", "runs": [value]})):
        assert (await posted(page_for(place), name, body)).status_code == 404
    assert client_of(place).get(str(value)).state == "waiting"


async def test_no_new_endpoint_shows_runs_of_others(place: str) -> None:
    """The overview, the inbox, a bulk action and a new run."""
    page = page_for(place, flujos=[Flujo(pipeline(), store=place)])
    for path in ("overview?by=tenant", "questions", "questions?label=tenant:bob", "overview?label=tenant:bob"):
        shown = await got(page, f"/api/{path}")
        assert shown.status_code == 200
        assert "bob" not in shown.text
        assert "his" not in [each.get("run_id") for each in shown.json().get("questions", ())]
    for path in (f"question?token={token_of(place, 'his')}", "conversation?run=his&step=a", "now?run=hers&run=his"):
        assert (await got(page, f"/api/{path}")).status_code == 404
    assert (await posted(page, "bulk", {"action": "delete", "runs": ["hers", "his"]})).status_code == 404
    assert (await posted(page, "send", {"event": "paid", "key": "his"})).status_code == 404
    started = await posted(page, "start", {"pipeline": "p", "input": "x", "labels": {"tenant": "bob"}})
    assert client_of(place).get(started.json()["run_id"]).labels == {"tenant": "ada"}


async def test_a_question_outside_the_scope_cannot_be_answered(place: str) -> None:
    """Its token is worth nothing here, also next to a run of the scope."""
    page, token = page_for(place), token_of(place, "his")
    for body in ({"token": token, "answer": True}, {"run": "hers", "token": token, "answer": True}):
        assert (await posted(page, "answer", body)).status_code == 404
    assert client_of(place).get("his").state == "waiting"
    assert (await posted(page, "answer", {"token": token_of(place, "hers"), "answer": True})).status_code == 204


async def test_runs_of_the_scope_are_shown_and_changed(place: str) -> None:
    """As without a scope; a fork stays inside it."""
    page = page_for(place)
    assert (await got(page, "/api/records?run=hers")).json()["run"]["labels"] == {"tenant": "ada"}
    assert "the figures of ada" in (await got(page, "/api/export?run=hers")).text
    forked = (await posted(page, "fork", {"run": "hers", "seq": 1})).json()["run_id"]
    assert client_of(place).get(forked).labels == {"tenant": "ada"}
    assert (await posted(page, "cancel", {"run": "hers"})).status_code == 204


def broken(request: Any, user: Any) -> Any:
    raise KeyError(user)


async def absent(request: Any, user: Any) -> Any:
    return None


@pytest.mark.parametrize("scope", [broken, absent, lambda request, user: {"tenant": None}, lambda request, user: "ada"])
async def test_a_scope_without_labels_shows_nothing(place: str, scope: Any) -> None:
    """An error, a missing value and a value that is no text never widen it."""
    page = page_for(place, scope)
    for path in ("runs", "records?run=hers", "events", "export?run=hers"):
        answered = await got(page, f"/api/{path}")
        assert answered.status_code == 403
        assert "hers" not in answered.text
    assert (await posted(page, "cancel", {"run": "hers"})).status_code == 403
    assert client_of(place).get("hers").state == "waiting"


async def test_an_empty_scope_is_every_run(place: str) -> None:
    """For operators."""
    found = await got(page_for(place, lambda request, user: {}), "/api/runs")
    assert len(found.json()["runs"]) == 3


async def test_a_scope_is_asked_with_the_user_that_auth_returned(place: str) -> None:
    """An object with attributes, and functions may be async."""

    class User:
        name, tenant = "Ada", "ada"

    async def scope(request: Any, user: Any) -> dict[str, str]:
        return {"tenant": user.tenant}

    page = run_page(place, auth=lambda request: User(), scope=scope)
    assert [run["run_id"] for run in (await got(page, "/api/runs")).json()["runs"]] == ["hers"]


async def test_a_stream_ends_when_its_run_leaves_the_scope(place: str) -> None:
    """No later record reaches its reader."""
    page, events = page_for(place), []
    scope: dict[str, Any] = {"type": "http", "method": "GET", "path": "/api/events", "query_string": b"run=hers"}
    scope |= {"headers": [(b"host", b"localhost")], "client": ("127.0.0.1", 1), "http_version": "1.1"}

    async def receive() -> Any:
        await asyncio.sleep(60)

    async def send(message: Any) -> None:
        events.append(message.get("body", b"").decode())
        if "event: run" in events[-1]:
            await asyncio.to_thread(moved)

    def moved() -> None:
        client_of(place).set_labels("hers", {"tenant": "bob"})
        client_of(place).answer(token_of(place, "hers"), True)

    await asyncio.wait_for(page(scope, receive, send), timeout=60)
    assert "event: problem" in "".join(events)
    assert "answered" not in "".join(events)


def test_every_endpoint_is_limited_or_hidden() -> None:
    """An endpoint that nobody added to the list is 404 for users with a scope."""
    page = page_app._Page(MemoryStore(), read_only=False, content=True, flujos=(), scope=lambda request, user: {})
    names = {route.path.rpartition("/")[2] for route in page.routes() if "/api/" in getattr(route, "path", "")}
    assert names - page_app.SCOPED == set()


def test_a_scope_is_a_function() -> None:
    """Labels by themselves are no scope."""
    with pytest.raises(DeclarationError, match="scope must be a function"):
        run_page(MemoryStore(), scope={"tenant": "ada"})  # type: ignore[arg-type]


async def test_labels_of_the_list_pass_the_redactor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where contents are not shown."""
    monkeypatch.setenv("MY_API_KEY", "sk-abcdefghijklmnop")
    address = f"sqlite:///{tmp_path}/runs.db"
    await Flujo(Step("a", echo), store=address).run_async(1, labels={"key": "sk-abcdefghijklmnop", "tenant": "ada"})
    [run] = (await got(run_page(address, content=False), "/api/runs")).json()["runs"]
    assert run["labels"]["tenant"] == "ada"
    assert "sk-abcdefghijklmnop" not in json.dumps(run)


async def test_only_those_who_may_answer_do(place: str) -> None:
    """The judge gets the user and the question; an error refuses, and the question stays open."""
    asked: list[Any] = []

    async def judge(user: Any, question: Any) -> bool:
        asked.append((user, question.run_id, question.labels["tenant"], question.schema))
        return bool(question.run_id == "hers")

    def broken(user: Any, question: Any) -> bool:
        raise LookupError("no such user")

    hers, his = token_of(place, "hers"), token_of(place, "his")
    for judged in (judge, broken, lambda user, question: "yes"):
        page = run_page(place, auth=lambda request: "ada", may_answer=judged)
        refused = await posted(page, "answer", {"token": his, "answer": True})
        assert (refused.status_code, "may not answer" in refused.text) == (403, True)
    assert asked == [("ada", "his", "bob", {"type": "boolean"})]
    page = run_page(place, auth=lambda request: "ada", may_answer=judge)
    assert (await posted(page, "answer", {"token": hers, "answer": True})).status_code == 204
    assert (await posted(page, "answer", {"token": hers, "answer": True})).status_code == 409
    assert client_of(place).get("his").state == "waiting"
    with pytest.raises(DeclarationError, match="may_answer must be a function of user and question"):
        run_page(place, may_answer="ada")  # type: ignore[arg-type]
