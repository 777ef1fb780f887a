"""Who may see the page, and what a browser may do with it: asked over ASGI, with every header a stranger may send."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.authentication import SimpleUser
from starlette.routing import Mount

from flujo_actors import DeclarationError, Flujo, RunClient, Step
from flujo_actors.page import HOST_APP, run_page
from flujo_actors.page import _app as page_app

pytestmark = pytest.mark.anyio

STATIC = Path(page_app.__file__).with_name("static")


@pytest.fixture
def place(tmp_path: Path) -> str:
    """A store with a run that asks something."""
    address = f"sqlite:///{tmp_path}/runs.db"
    Flujo(Step.human_in_the_loop("ask", "Fine?", input_schema=bool), store=address).run(None, run_id="r")
    return address


def client(page: Any, *, peer: str = "127.0.0.1", base: str = "http://localhost", **options: Any) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(page, client=(peer, 50_000))
    return httpx.AsyncClient(transport=transport, base_url=base, **options)


async def asked(page: Any, path: str = "/api/runs", **options: Any) -> httpx.Response:
    async with client(page, **options) as http:
        return await http.get(path)


SAME_ORIGIN = {"origin": "http://localhost"}


async def posted(
    page: Any, name: str, body: Any, headers: dict[str, str] | None = None, **options: Any
) -> httpx.Response:
    async with client(page, **options) as http:
        return await http.post(f"/api/{name}", json=body, headers=SAME_ORIGIN if headers is None else headers)


def question(place: str) -> str:
    return RunClient(place, allow_blocking=True).prompts()[0].state_token


@pytest.mark.parametrize("base", ["http://localhost", "http://127.0.0.1:8000", "http://[::1]:8000", "http://LOCALHOST"])
async def test_this_machine_is_answered(place: str, base: str):
    """By all of its own names."""
    assert (await asked(run_page(place), base=base)).status_code == 200


@pytest.mark.parametrize(
    ("peer", "base"),
    [
        ("10.0.0.7", "http://localhost"),
        ("127.0.0.1", "http://evil.example"),
        ("127.0.0.1", "http://localhost.evil.example"),
        ("127.0.0.1", "http://127.0.0.1.evil.example:80"),
        ("testclient", "http://localhost"),
        ("", "http://localhost"),
    ],
)
async def test_nobody_else_is_answered_without_auth(place: str, peer: str, base: str):
    """Neither another machine, nor a name of somebody else's that points here; they are told what to do."""
    answer = await asked(run_page(place), peer=peer, base=base)
    assert answer.status_code == 403
    assert "auth=" in answer.json()["error"]


async def test_a_token_opens_the_page_as_a_bearer_or_as_a_link_that_becomes_a_cookie(place: str):
    """The cookie is the browser's alone, and holds no token."""
    page = run_page(place, auth="s3cret-token")
    assert (await asked(page, peer="10.0.0.7")).status_code == 401
    bearer = {"authorization": "Bearer s3cret-token"}
    assert (await asked(page, peer="10.0.0.7", headers=bearer)).status_code == 200
    async with client(page, peer="10.0.0.7") as http:
        assert (await http.get("/?token=wrong")).status_code == 401
        entered = await http.get("/?token=s3cret-token")
        cookie = entered.headers["set-cookie"]
        assert (entered.status_code, entered.headers["location"]) == (303, "./")
        assert "HttpOnly" in cookie
        assert "samesite=strict" in cookie.lower()
        assert "s3cret-token" not in cookie
        assert (await http.get("/api/runs")).status_code == 200


async def test_a_function_says_who_somebody_is_and_that_is_kept_with_the_answer(place: str):
    """Sync or async; `None` is nobody."""

    async def who(request: Any) -> str | None:
        return request.headers.get("x-user")

    page = run_page(place, auth=who)
    assert (await asked(page)).status_code == 401
    token = question(place)
    headers = {**SAME_ORIGIN, "x-user": "ada"}
    assert (await posted(page, "answer", {"token": token, "answer": True}, headers)).status_code == 204
    record = next(each for each in RunClient(place, allow_blocking=True).records("r") if each.kind == "answered")
    assert json.loads(RunClient(place, allow_blocking=True).record("r", record.seq).body)["by"] == "ada"


async def test_the_application_around_the_page_may_have_seen_to_it(place: str):
    """`HOST_APP` lets everybody in whom that application lets in."""
    assert (await asked(run_page(place, auth=HOST_APP), peer="10.0.0.7", base="http://shop.example")).status_code == 200


@pytest.mark.parametrize("auth", ["", "x", " " * 40, "seven77", 5, b"token", True])
def test_an_auth_that_is_none_is_refused(place: str, auth: Any):
    """An empty token would let everybody in, a short one can be guessed."""
    with pytest.raises(DeclarationError, match="auth must be"):
        run_page(place, auth=auth)


class SignedOut:
    """A user as frameworks keep one for requests without a session."""

    is_authenticated = False
    name = "anonymous"


@pytest.mark.parametrize("user", [None, False, True, 0, 1, "", "  ", b"ada", [], {}, object(), SignedOut(), SignedOut])
@pytest.mark.parametrize("is_async", [True, False])
async def test_only_a_named_user_is_admitted(place: str, user: Any, is_async: bool):
    """A check that returns a truth value, or an empty name, admits no one."""

    async def who(_: object) -> Any:
        return user

    page = run_page(place, auth=who if is_async else lambda _: user)
    assert (await asked(page)).status_code == 401
    assert (await posted(page, "cancel", {"run": "r"})).status_code == 401
    assert RunClient(place, allow_blocking=True).get("r").status == "paused"


async def test_a_user_object_is_known_by_its_name(place: str):
    """Its name is stored with the answer."""
    page = run_page(place, auth=lambda _: SimpleUser("ada"))
    assert (await posted(page, "answer", {"token": question(place), "answer": True})).status_code == 204
    record = next(each for each in RunClient(place, allow_blocking=True).records("r") if each.kind == "answered")
    assert json.loads(RunClient(place, allow_blocking=True).record("r", record.seq).body)["by"] == "ada"


@pytest.mark.parametrize("host", ["evil@localhost", "localhost@evil", "", "["])
async def test_a_host_header_that_no_browser_sends_is_refused_without_auth(place: str, host: str):
    """A user in it does not make another name this machine's."""
    async with client(run_page(place)) as http:
        assert (await http.get("/api/runs", headers={"host": host})).status_code == 403


@pytest.mark.parametrize("header", ["x-forwarded-for", "x-real-ip", "forwarded", "x-forwarded-host", "via"])
async def test_a_forwarded_request_is_refused_without_auth(place: str, header: str):
    """Its peer may be any machine: the address comes from a header or belongs to the proxy."""
    async with client(run_page(place)) as http:
        answer = await http.get("/api/runs", headers={header: "127.0.0.1"})
    assert answer.status_code == 403
    assert "auth=" in answer.json()["error"]


@pytest.mark.parametrize(
    "body", ["[" * 100_000, '{"a":' * 3_000 + "1" + "}" * 3_000, '{"answer":' + "[" * 300 + "]" * 300 + "}"]
)
async def test_json_that_is_nested_too_deeply_is_refused(place: str, body: str):
    """Whatever the interpreter could take."""
    async with client(run_page(place)) as http:
        headers = {**SAME_ORIGIN, "content-type": "application/json"}
        answer = await http.post("/api/answer", content=body, headers=headers)
    assert answer.status_code == 422
    assert "nested too deeply" in answer.json()["error"]


def test_a_page_without_a_store_is_refused():
    """A new store in memory would show no run, ever."""
    with pytest.raises(DeclarationError, match="run_page needs a store: pass its URL"):
        run_page(None)  # type: ignore[arg-type]


def test_flujos_must_be_a_list_of_the_same_store(place: str, tmp_path: Path):
    """Each refusal says what to pass."""
    flujo, other = Flujo(Step("s", str), store=place), Flujo(Step("s", str), store=f"sqlite:///{tmp_path}/other.db")
    run_page(place, flujos=[flujo])
    for wrong in (flujo, [flujo.pipeline], "flujo"):
        with pytest.raises(DeclarationError, match=r"flujos must be a list of Flujo objects, flujos=\[flujo\]"):
            run_page(place, flujos=wrong)  # type: ignore[arg-type]
    with pytest.raises(DeclarationError, match="uses another store; pass the same store to both"):
        run_page(place, flujos=[flujo, other])
    with pytest.raises(DeclarationError, match="has no store; pass the same store to both"):
        run_page(place, flujos=[Flujo(Step("s", str))])


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"sec-fetch-site": "cross-site", "origin": "http://localhost"},
        {"sec-fetch-site": "same-site"},
        {"sec-fetch-site": "none"},
    ],
)
async def test_only_a_page_of_the_same_origin_may_change_something(place: str, headers: dict[str, str]):
    """A form of somebody else's, sent by a browser that is signed in, is refused; the question stays."""
    answer = await posted(run_page(place), "answer", {"token": question(place), "answer": True}, headers)
    assert answer.status_code == 403
    assert RunClient(place, allow_blocking=True).prompts()


async def test_what_is_no_json_or_too_long_is_refused(place: str):
    """By its type, its length, and what was really sent."""
    async with client(run_page(place)) as http:
        form = {**SAME_ORIGIN, "content-type": "application/x-www-form-urlencoded"}
        assert (await http.post("/api/answer", content=b"token=x", headers=form)).status_code == 403
        json_type = {**SAME_ORIGIN, "content-type": "application/json"}
        assert (await http.post("/api/answer", content=b"{", headers=json_type)).status_code == 422
        assert (await http.post("/api/answer", content=b"[1]", headers=json_type)).status_code == 422
        long = b'{"a": "' + b"x" * 1_100_000 + b'"}'
        assert (await http.post("/api/answer", content=long, headers=json_type)).status_code == 413
        for length in ("9" * 5_000, b"\xb2"):
            answer = await http.post("/api/answer", content=b"{}", headers={**json_type, "content-length": length})
            assert answer.status_code == 413


async def test_a_page_that_only_shows_takes_no_posts(place: str):
    """There is nothing to post to."""
    page = run_page(place, read_only=True)
    for name in ("answer", "cancel", "fork", "resume"):
        assert (await posted(page, name, {"run": "r", "token": question(place)})).status_code == 404
    assert (await asked(page)).json()["read_only"] is True


async def test_without_content_only_the_structure_is_shown(place: str):
    """No output, no question, no note."""

    async def tell(data: Any) -> str:
        raise ValueError("a private matter")

    await Flujo(Step("tell", tell), store=place).run_async("a private input", run_id="private")
    page = run_page(place, content=False)
    seen = [
        await asked(page, path) for path in ("/api/runs", "/api/records?run=private", "/api/record?run=private&seq=2")
    ]
    assert [each.status_code for each in seen] == [200, 200, 200]
    assert not [each for each in seen if "private matter" in each.text or "private input" in each.text]
    assert (await asked(page, "/api/export?run=private")).status_code == 403


async def test_every_answer_tells_the_browser_to_stay_here(place: str):
    """Whatever it is, a refusal included."""
    for path in ("/", "/static/main.js", "/api/runs", "/nowhere", "/api/records?run=none"):
        headers = (await asked(run_page(place), path)).headers
        assert "default-src 'none'" in headers["content-security-policy"], path
        assert "require-trusted-types-for 'script'" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
    assert (await asked(run_page(place), "/api/runs")).headers["cache-control"] == "no-store"


@pytest.mark.parametrize(
    "path", ["../_app.py", "..%2f_app.py", "index.html", "vendor/VENDORED.md", "", "%2e%2e/_app.py"]
)
async def test_files_come_from_a_list_and_not_from_a_path(place: str, path: str):
    """Nothing is looked for on the disk by a name from outside."""
    assert (await asked(run_page(place), f"/static/{path}")).status_code == 404


@pytest.mark.parametrize(
    ("name", "body", "status"),
    [
        ("answer", {"token": "nonsense", "answer": 1}, 409),
        ("answer", {}, 409),
        ("cancel", {"run": "none"}, 404),
        ("fork", {"run": "r", "seq": "x"}, 422),
        ("fork", {"run": "none", "seq": 1}, 404),
        ("resume", {"run": "none"}, 404),
        ("resume", {"run": "r"}, 409),
    ],
)
async def test_what_cannot_be_done_is_refused_with_a_sentence(place: str, name: str, body: Any, status: int):
    """Never with a traceback."""
    answer = await posted(run_page(place), name, body)
    assert (answer.status_code, bool(answer.json()["error"])) == (status, True)


async def test_a_wrong_answer_a_second_answer_and_a_right_one(place: str):
    """422, 204, 409."""
    page, token = run_page(place), question(place)
    assert (await posted(page, "answer", {"token": token, "answer": "perhaps"})).status_code == 422
    assert (await posted(page, "answer", {"token": token, "answer": True})).status_code == 204
    assert (await posted(page, "answer", {"token": token, "answer": True})).status_code == 409


async def test_the_list_is_paged_and_searched(place: str):
    """The next page is stable while new runs arrive."""
    flujo = Flujo(Step("one", lambda data: data), store=place)
    for i in range(7):
        await flujo.run_async(1, run_id=f"x{i}")
    page = run_page(place)
    first = (await asked(page, "/api/runs?limit=3&q=x")).json()
    await flujo.run_async(1, run_id="y-new")
    second = (await asked(page, f"/api/runs?limit=3&q=x&cursor={first['cursor']}")).json()
    assert [run["run_id"] for run in (*first["runs"], *second["runs"])] == ["x6", "x5", "x4", "x3", "x2", "x1"]
    assert first["counts"]["waiting"] == 1
    assert first["waiting"] == 1
    assert (await asked(page, "/api/runs?status=paused")).json()["runs"][0]["run_id"] == "r"


async def test_the_list_and_the_run_have_the_states_of_the_client(place: str):
    """A submitted run without a worker is blocked, with the reason; it was not abandoned by an owner."""
    await Flujo(Step("one", lambda data: data), store=place).submit(1, run_id="s", queue="gpu")
    page, reason = run_page(place), "no live worker serves queue 'gpu'"
    listed = (await asked(page, "/api/runs")).json()
    states = {run["run_id"]: (run["state"], run["reason"]) for run in listed["runs"]}
    assert states == {"r": ("waiting", None), "s": ("blocked", reason)}
    assert listed["counts"] == {"waiting": 1, "blocked": 1}
    assert [run["run_id"] for run in (await asked(page, "/api/runs?status=blocked")).json()["runs"]] == ["s"]
    assert (await asked(page, "/api/runs?status=abandoned")).json()["runs"] == []
    run = (await asked(page, "/api/records?run=s")).json()["run"]
    assert (run["state"], run["reason"]) == ("blocked", reason)


async def test_rows_come_in_pages_and_hold_what_the_fold_needs(place: str):
    """Light: seq, time, kind, path, status, latency, tokens, cost, attempts and a note."""
    got = (await asked(run_page(place), "/api/records?run=r&limit=2")).json()
    assert [row[0] for row in got["rows"]] == [1, 2]
    assert got["next"] == 2
    rest = (await asked(run_page(place), "/api/records?run=r&after=2")).json()
    assert rest["next"] is None
    paused = next(row for row in (*got["rows"], *rest["rows"]) if row[2] == "paused")
    assert (paused[3], paused[9]) == ("ask", "Fine?")
    assert rest["run"]["questions"][0]["form"]["buttons"]


async def test_the_graph_is_what_was_declared_and_holds_no_content(place: str):
    """Paths and kinds, also on a page without content; a run that is not there is none."""
    got = await asked(run_page(place, content=False), "/api/graph?run=r")
    assert [kind for _, kind in got.json()["steps"]][-1] == "question"
    assert got.json()["steps"][-1][0] == "ask"
    assert (await asked(run_page(place), "/api/graph?run=nobody")).status_code == 404


async def test_whatever_a_run_left_can_be_sent(tmp_path: Path):
    """Half a surrogate pair, what is no number, and megabytes: all of it is answered, within bounds."""

    async def strange(data: Any) -> Any:
        return {"text": "half \ud800 and \x00", "numbers": [float("nan"), float("-inf"), 10**400]}

    async def long(data: Any, *, context: Any) -> str:
        context.kept = "y" * 1_500_000
        return "x" * 2_000_000

    steps = Step("strange", strange) >> Step("long", long) >> Step("after", lambda data: "short")
    place = f"sqlite:///{tmp_path}/strange.db"
    await Flujo(steps, store=place).run_async(1, run_id="half \udc00 of an id")
    await Flujo(steps, store=place).run_async(1, run_id="r")
    page = run_page(place)
    assert len((await asked(page, "/api/runs")).json()["runs"]) == 2
    rows = (await asked(page, "/api/records?run=r")).json()["rows"]
    bodies = [await asked(page, f"/api/record?run=r&seq={row[0]}") for row in rows]
    assert {each.status_code for each in bodies} == {200}
    assert max(len(each.content) for each in bodies) <= 300_000
    assert bodies[1].json()["output"]["numbers"][:2] == ["nan", "-inf"]
    assert (await asked(page, "/api/export?run=r")).status_code == 200


async def test_a_cursor_that_is_none_and_an_answer_to_a_run_that_is_gone_are_refused(place: str):
    """With a sentence and a status that says whose fault it is."""
    assert (await asked(run_page(place), "/api/runs?cursor=garbage")).status_code == 422
    token = question(place)
    RunClient(place, allow_blocking=True).cancel("r")
    RunClient(place, allow_blocking=True).delete("r")
    assert (await posted(run_page(place), "answer", {"token": token, "answer": True})).status_code == 404


async def test_a_prefix_changes_nothing(place: str):
    """Mounted anywhere."""
    app = Starlette(routes=[Mount("/deep/down", run_page(place))])
    for path in ("/", "/static/style.css", "/api/runs"):
        assert (await asked(app, f"/deep/down{path}")).status_code == 200


def test_files_of_others_are_what_they_were():
    """As `VENDORED.md` says, byte by byte."""
    listed = dict(re.findall(r"\| `([^`]+)` \| `([0-9a-f]{64})` \|", (STATIC / "vendor/VENDORED.md").read_text()))
    found = {
        path.relative_to(STATIC / "vendor").as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in (STATIC / "vendor").rglob("*")
        if path.is_file() and path.name != "VENDORED.md"
    }
    assert found == listed


def test_the_page_is_small_and_asks_no_other_host():
    """At most 60 kB gzipped of own and vendored code, and no address in it but the one of its license."""
    import gzip

    files = [path for path in STATIC.rglob("*") if path.is_file()]
    code = [path for path in files if path.name not in ("LICENSE", "VENDORED.md")]
    assert sum(len(gzip.compress(path.read_bytes())) for path in code) <= 60_000
    own = [path for path in files if "vendor" not in path.parts and path.suffix != ".svg"]
    assert not [path.name for path in own if re.search(r"https?://", path.read_text())]


def test_a_stranger_cannot_make_the_page_slow(place: str):
    """Numbers are bounded, whatever is asked for."""
    number: Callable[..., int] = page_app._number
    assert number("9" * 400, 5, 200) == 5
    assert number("-1", 5, 200) == 5
    assert number("1000000", 5, 200) == 200
    assert number("٣", 5, 200) in (3, 5)
