"""The page under attack: foreign sites, users of another tenant, forged tokens, bodies made to be slow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from flujo_actors import Flujo, RunClient, Step
from flujo_actors.page import HOST_APP, run_page

pytestmark = pytest.mark.anyio

ORIGIN = {"origin": "http://localhost"}


async def shout(text: str) -> str:
    return text.upper()


def flujo_of(place: str) -> Flujo:
    return Flujo(Step("shout", shout) >> Step.approval("ask", "Fine?"), store=place)


@pytest.fixture
def place(tmp_path: Path) -> str:
    """A store with a waiting run of each of two tenants."""
    address = f"sqlite:///{tmp_path}/runs.db"
    for tenant in ("acme", "rival"):
        flujo_of(address).run(f"a secret of {tenant}", run_id=tenant, labels={"tenant": tenant})
    return address


def scoped(place: str) -> Any:
    """The page for users of acme."""
    return run_page(place, auth=HOST_APP, scope=lambda request, user: {"tenant": "acme"}, flujos=[flujo_of(place)])


def client(page: Any, **options: Any) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(page, client=("127.0.0.1", 50_000))
    return httpx.AsyncClient(transport=transport, base_url="http://localhost", **options)


def token_of(place: str, run_id: str) -> str:
    return RunClient(place, allow_blocking=True).questions(run_id=run_id)[0].state_token


CHANGES: dict[str, dict[str, Any]] = {
    "start": {"pipeline": "shout >> ask", "input": "x"},
    "bulk": {"action": "delete", "runs": ["rival"]},
    "cancel": {"run": "rival"},
    "fork": {"run": "rival", "seq": 2},
    "resume": {"run": "rival"},
}


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize(
    "headers",
    [{}, {"origin": "http://evil.example"}, {"origin": "null"}, {"sec-fetch-site": "cross-site", **ORIGIN}],
)
async def test_a_foreign_site_changes_nothing(place: str, name: str, headers: dict[str, str]):
    """Every endpoint that changes something refuses a request of another origin."""
    before = [each.run_id for each in RunClient(place, allow_blocking=True).list()]
    async with client(run_page(place, flujos=[flujo_of(place)])) as http:
        answer = await http.post(f"/api/{name}", json=CHANGES[name], headers=headers)
        form = {**ORIGIN, "content-type": "text/plain"}
        plain = await http.post(f"/api/{name}", content=b'{"run": "rival"}', headers=form)
    assert (answer.status_code, plain.status_code) == (403, 403)
    assert [each.run_id for each in RunClient(place, allow_blocking=True).list()] == before


async def test_a_run_outside_the_scope_is_reached_by_no_endpoint(place: str):
    """By id, in a list of ids, or by the token of its question: it does not exist."""
    token = token_of(place, "rival")
    reads = [
        "records?run=rival",
        "record?run=rival&seq=1",
        "events?run=rival",
        "graph?run=rival",
        "export?run=rival",
        "conversation?run=rival&step=shout",
        "now?run=acme&run=rival",
        "compare?a=acme&b=rival",
        f"question?token={token}",
    ]
    posts: dict[str, Any] = {name: body for name, body in CHANGES.items() if name != "start"}
    posts["answer"] = {"token": token, "answer": {"option": "approve"}}
    posts["bulk"] = {"action": "cancel", "runs": ["acme", "rival"]}
    async with client(scoped(place)) as http:
        found = [await http.get(f"/api/{path}") for path in reads]
        found += [await http.post(f"/api/{name}", json=body, headers=ORIGIN) for name, body in posts.items()]
        lists = [await http.get(f"/api/{name}") for name in ("runs", "questions", "overview")]
        wide = [await http.get(f"/api/{name}?label=tenant:rival") for name in ("runs", "questions")]
    assert [each.status_code for each in found] == [404] * len(found)
    assert not [each for each in (*found, *lists, *wide) if "secret of rival" in each.text or token in each.text]
    assert [len(each.json().get("runs", each.json().get("questions"))) for each in wide] == [0, 0]
    assert {each.run_id for each in RunClient(place, allow_blocking=True).list("paused")} == {"acme", "rival"}


async def test_a_started_run_has_the_labels_of_the_scope(place: str):
    """A request cannot start a run for another tenant."""
    body = {"pipeline": "shout >> ask", "input": "x", "labels": {"tenant": "rival", "line": "home"}}
    async with client(scoped(place)) as http:
        answer = await http.post("/api/start", json=body, headers=ORIGIN)
    assert answer.status_code == 201
    started = RunClient(place, allow_blocking=True).get(answer.json()["run_id"])
    assert dict(started.labels) == {"tenant": "acme", "line": "home"}


@pytest.mark.parametrize("token", ["", "nonsense", "acme:0000000000000000:ask", "acme:" * 200, "\x00:1:2"])
async def test_a_forged_token_is_refused_with_a_sentence(place: str, token: str):
    """Neither the question nor the run is changed."""
    async with client(run_page(place)) as http:
        read = await http.get("/api/question", params={"token": token})
        answer = await http.post("/api/answer", json={"token": token, "answer": True}, headers=ORIGIN)
    for each in (read, answer):
        assert each.status_code in (404, 409)
        assert each.json()["error"]
    assert len(RunClient(place, allow_blocking=True).questions()) == 2


@pytest.mark.parametrize(
    ("name", "body"),
    [
        ("start", '{"pipeline": "shout >> ask", "input": ' + "[" * 5_000 + "]" * 5_000 + "}"),
        ("bulk", '{"action": "delete", "runs": [' + ",".join(['"x"'] * 5_000) + "]}"),
        ("bulk", '{"action": "drop", "runs": ["acme"]}'),
        ("bulk", '{"action": "delete", "runs": "acme"}'),
        ("start", '{"pipeline": "unknown", "input": 1}'),
        ("start", '{"pipeline": "shout >> ask", "input": {"a": 1}}'),
    ],
)
async def test_a_body_that_makes_no_sense_is_refused(place: str, name: str, body: str):
    """Too deep, too long, of another shape: 422, and nothing is changed."""
    async with client(run_page(place, flujos=[flujo_of(place)])) as http:
        headers = {**ORIGIN, "content-type": "application/json"}
        answer = await http.post(f"/api/{name}", content=body, headers=headers)
    assert (answer.status_code, bool(answer.json()["error"])) == (422, True)
    assert len(RunClient(place, allow_blocking=True).list()) == 2


async def test_questions_of_a_page_without_content_show_no_content(place: str):
    """Kind, options and labels remain."""
    async with client(run_page(place, content=False)) as http:
        told = await http.get("/api/questions")
        more = await http.get("/api/question", params={"token": token_of(place, "acme")})
    assert [each["message"] for each in told.json()["questions"]] == ["", ""]
    assert "secret" not in told.text + more.text
    assert told.json()["questions"][0]["options"][0]["name"] == "approve"
