"""Events over HTTP: received, buffered, refused and authenticated."""

from __future__ import annotations

import hashlib
import hmac
from typing import Any

import pytest
from starlette.testclient import TestClient

from flujo_actors import Flujo, RunClient, Step, event_app, make_agent_async, run_page
from flujo_actors.stores import MemoryStore
from flujo_actors.testing import CallTool, scripted_model

TOKEN = "a long enough token"


def http(app: Any, **options: Any) -> TestClient:
    return TestClient(app, base_url="http://localhost", client=("127.0.0.1", 5000), **options)


def waiting(store: MemoryStore) -> Flujo[Any, Any, Any]:
    flujo = Flujo(Step.wait_for("paid?", "paid", schema=int), store=store)
    assert flujo.run(1, run_id="order").status == "sleeping"
    return flujo


def test_an_event_is_delivered_buffered_and_known_again() -> None:
    """The status code says which; the id makes a repetition harmless."""
    store = MemoryStore()
    flujo, client = waiting(store), http(event_app(store, auth=None))
    first = client.post("/paid?key=order", json=7, headers={"Idempotency-Key": "one"})
    assert (first.status_code, first.json()) == (200, {"id": "one", "status": "delivered"})
    again = client.post("/paid?key=order", json=7, headers={"Idempotency-Key": "one"})
    assert (again.status_code, again.json()["status"]) == (200, "duplicate")
    assert client.post("/paid?key=other", json=1).status_code == 202
    assert [result.output for result in flujo.recover()] == [7]


def test_a_wrong_event_is_refused() -> None:
    """By its name, its key, its data or its length."""
    store = MemoryStore()
    waiting(store)
    client = http(event_app(store, auth=None, events=["paid"]))
    assert client.post("/other?key=order", json=1).status_code == 404
    assert client.post("/paid", json=1).status_code == 422
    refused = client.post("/paid?key=order", json="much")
    assert refused.status_code == 422
    assert "does not fit what step 'paid?' of run 'order' waits for" in refused.json()["error"]
    assert client.post("/paid?key=order", json="x" * 2_000_000).status_code == 413
    assert client.post("/paid?key=x", content=b"{", headers={"content-type": "application/json"}).status_code == 422
    assert client.get("/paid?key=order").status_code == 405


def test_without_auth_only_this_machine_may_send() -> None:
    """A foreign peer or a forwarded request is refused."""
    store = MemoryStore()
    app = event_app(store, auth=None)
    elsewhere = TestClient(app, base_url="http://localhost", client=("10.0.0.9", 5000))
    assert elsewhere.post("/paid?key=order", json=1).status_code == 403
    assert http(app, headers={"x-forwarded-for": "10.0.0.9"}).post("/paid?key=order", json=1).status_code == 403
    assert http(app).post("/paid?key=order", content=b"1").status_code == 403
    assert list(RunClient(store, allow_blocking=True).events()) == []


def test_a_token_is_a_bearer() -> None:
    """With it the answer names the run."""
    store = MemoryStore()
    waiting(store)
    client = TestClient(event_app(store, auth=TOKEN), client=("10.0.0.9", 5000))
    assert client.post("/paid?key=order", json=1).status_code == 401
    sent = client.post("/paid?key=order", json=1, headers={"Authorization": f"Bearer {TOKEN}"})
    assert (sent.status_code, sent.json()["delivered_to"]) == (200, ["order"])


def test_a_signature_stands_for_authentication() -> None:
    """It is computed over the whole body."""

    def is_signed(request: Any, body: bytes) -> bool:
        wanted = hmac.new(b"secret", body, hashlib.sha256).hexdigest()
        return hmac.compare_digest(request.headers.get("x-signature", ""), wanted)

    store = MemoryStore()
    client = TestClient(event_app(store, auth=None, signature=is_signed), client=("10.0.0.9", 5000))
    good = hmac.new(b"secret", b"1", hashlib.sha256).hexdigest()
    assert client.post("/paid?key=order", content=b"1", headers={"x-signature": "no"}).status_code == 401
    assert client.post("/paid?key=order", content=b"1", headers={"x-signature": good}).status_code == 202


@pytest.mark.parametrize("read_only", [False, True])
def test_the_page_sends_events_and_wakes_runs_unless_it_only_reads(read_only: bool) -> None:
    """As JSON, from its own origin."""
    store = MemoryStore()
    waiting(store)
    Flujo(Step.sleep("nap", 3600), store=store).run(1, run_id="asleep")
    client = http(run_page(store, read_only=read_only), headers={"origin": "http://localhost"})
    sent = client.post("/api/send", json={"event": "paid", "key": "order", "data": 1})
    woken = client.post("/api/wake", json={"run": "asleep"})
    if read_only:
        assert (sent.status_code, woken.status_code) == (404, 404)
    else:
        assert sent.json()["delivered_to"] == ["order"]
        assert woken.json() == {"woken": True}
        assert client.post("/api/send", json={"event": "paid", "key": "", "data": 1}).status_code == 422


@pytest.mark.parametrize("read_only", [False, True])
def test_the_page_sends_messages_to_agents_unless_it_only_reads(read_only: bool) -> None:
    """An ended run or a run without an open granular step is a conflict."""
    store = MemoryStore()
    client = http(run_page(store, read_only=read_only), headers={"origin": "http://localhost"})
    answers: list[Any] = []

    def search() -> str:
        answers.append(client.post("/api/steer", json={"run": "trip", "message": "by train", "id": "m"}))
        return "found"

    agent = make_agent_async(scripted_model(CallTool("search", {}), "done"), tools=[search])
    assert Flujo(Step.granular("plan", agent), store=store).run("go", run_id="trip").success
    if read_only:
        assert answers[0].status_code == 404
    else:
        assert (answers[0].json()["id"], answers[0].json()["status"]) == ("m", "queued")
        late = client.post("/api/steer", json={"run": "trip", "message": "too late"})
        assert (late.status_code, "the message was not stored" in late.text) == (409, True)
        assert client.post("/api/steer", json={"run": "nowhere", "message": "x"}).status_code == 404
        assert client.post("/api/steer", json={"run": "trip"}).status_code == 422
