"""The inbox example, spoken to over real HTTP by the people of two tenants."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from served import served

import fastapi_inbox


@pytest.fixture
def http(tmp_path: Path) -> Iterator[httpx.Client]:
    """The example on a store of its own."""
    with (
        served(fastapi_inbox.make_app(f"sqlite:///{tmp_path}/refunds.db")) as url,
        httpx.Client(base_url=url, headers={"x-tenant": "7"}, timeout=120) as client,
    ):
        yield client


def events(response: httpx.Response) -> Iterator[tuple[str, str, Any]]:
    """Name, id and data of each event of a stream."""
    name, number = "", ""
    for line in response.iter_lines():
        field, _, value = line.partition(": ")
        name, number = (value, number) if field == "event" else (name, value if field == "id" else number)
        if field == "data":
            yield name, number, json.loads(value)


def test_a_refund_is_asked_answered_and_followed_by_its_tenant(http: httpx.Client) -> None:
    """The question comes with its schema, a rejection needs a comment, and the stream continues after a reconnect."""
    run = http.post("/refunds", json={"amount": 900}).json()["run"]
    with http.stream("GET", f"/runs/{run}/events") as response:
        for name, number, data in events(response):
            if name == "question":
                question, last = data, number
            if name == "paused":
                last = number
                break
    assert question["message"] == "Refund 900 dollars?"
    [asked] = http.get("/inbox").json()
    assert (asked["run"], asked["schema"]) == (run, question["schema"])
    refused = http.post("/answers", json={"token": asked["token"], "answer": {"option": "reject"}})
    assert (refused.status_code, "needs a comment" in refused.text) == (422, True)
    given = {"token": asked["token"], "answer": {"option": "approve", "comment": "has a receipt"}}
    assert http.post("/answers", json=given).status_code == 204
    with http.stream("GET", f"/runs/{run}/events", headers={"last-event-id": last}) as response:
        rest = list(events(response))
    assert rest[-1][0] == "ended"
    assert rest[-1][2]["output"] == "refunded 900 dollars of tenant 7"
    assert int(rest[0][1]) == int(last) + 1
    assert http.get("/inbox").json() == []


def test_a_tenant_reaches_its_own_runs_only(http: httpx.Client) -> None:
    """Lists are empty, and tokens and runs of others do not exist."""
    run = http.post("/refunds", json={"amount": 5}).json()["run"]
    while not (mine := http.get("/inbox").json()):
        pass
    other = {"x-tenant": "8"}
    assert http.get("/inbox", headers=other).json() == []
    given = {"token": mine[0]["token"], "answer": {"option": "approve"}}
    assert http.post("/answers", json=given, headers=other).status_code == 404
    assert http.get(f"/runs/{run}/events", headers=other).status_code == 404
    assert http.get("/runs/gone/events").status_code == 404
    assert http.post("/answers", json=given).status_code == 204
