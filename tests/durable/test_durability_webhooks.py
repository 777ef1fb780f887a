"""Webhooks: stored with the change that they report, delivered by workers to a real receiver."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
import signal
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import attrs
import pytest
import trio
import trio.testing

from flujo_actors import DeclarationError, Flujo, MemoryStore, RunClient, Step, Webhook
from flujo_actors._api.cli.entry import main
from flujo_actors._durable.operations import webhooks
from flujo_actors._durable.operations.webhooks import DELAYS_S, WebhookSender, posted
from kit.other_processes import KILLED, in_another_process

SECRET = "whsec_" + base64.b64encode(b"a key of the receiver").decode()


async def echo(data: Any) -> Any:
    return data


class Receiver:
    """A server on this machine that keeps what it got, and answers as it is told."""

    def __init__(self) -> None:
        self.got: list[tuple[dict[str, str], bytes]] = []
        self.statuses: list[int | str] = []
        self.holds = threading.Event()
        self.holds.set()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                receiver.got.append(({name.lower(): value for name, value in self.headers.items()}, body))
                receiver.holds.wait(30)
                status = receiver.statuses.pop(0) if receiver.statuses else 204
                if isinstance(status, str):
                    self.wfile.write(f"HTTP/1.1 {status} OK\r\n\r\n".encode())
                    return
                self.send_response(status)
                self.send_header("location", "http://127.0.0.1:1/elsewhere")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}/hooks?key=private"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))

    def __enter__(self) -> Receiver:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.holds.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    @property
    def bodies(self) -> list[dict[str, Any]]:
        return [json.loads(body) for _, body in self.got]


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """A receiver on this machine."""
    with Receiver() as receiver:
        yield receiver


class Clock:
    """A wall clock that tests move."""

    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def stored(request: pytest.FixtureRequest) -> Any:
    """An empty store of each kind, and its clock."""
    clock = Clock()
    if request.param == "memory":
        return MemoryStore(wall=clock), clock
    return request.getfixturevalue(f"{request.param}_place").open(wall=clock), clock


def hook(receiver: Receiver, **options: Any) -> Webhook:
    return Webhook(receiver.url, secret=SECRET, **{"allow_private": True, **options})


async def delivered(flujo: Flujo[Any, Any, Any]) -> None:
    """Let a worker execute and deliver all that is due."""
    async with flujo.worker(once=True) as worker:
        await worker.stopped()


def sender(store: Any, flujo: Flujo[Any, Any, Any]) -> WebhookSender:
    assert flujo._webhooks is not None
    return flujo._webhooks.sender(store, owner="w", redact=str)


def test_a_question_and_the_end_are_reported_and_signed(stored: Any, receiver: Receiver) -> None:
    """With the labels, token and schema; texts of users only with `content`."""
    store, _ = stored
    asking = Step.approval("boss", "Pay 900?", to="ada") >> Step("pay", echo)
    flujo = Flujo(asking, store=store, webhooks=[hook(receiver)])
    flujo.submit_sync(900, run_id="r", labels={"tenant": "7"})
    trio.run(delivered, flujo)
    [question] = receiver.bodies
    [asked] = RunClient(store).questions()
    assert set(question) == {*("type", "id", "run_id", "pipeline", "labels", "state", "token", "to", "schema", "at")}
    assert (question["type"], question["run_id"], question["labels"]) == ("question", "r", {"tenant": "7"})
    assert (question["token"], question["schema"], question["to"]) == (asked.state_token, asked.schema, "ada")
    headers, body = receiver.got[0]
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    key = base64.b64decode(SECRET.removeprefix("whsec_"))
    digest = base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
    assert headers["webhook-signature"] == f"v1,{digest}"
    assert headers["webhook-id"] == question["id"]
    RunClient(store).answer(asked.state_token, True)
    trio.run(delivered, flujo)
    ended = receiver.bodies[-1]
    assert (ended["type"], ended["state"], "output" in ended) == ("ended", "completed", False)
    listed = RunClient(store).webhooks()
    assert [(each.event, each.status) for each in listed] == [("ended", "delivered"), ("question", "delivered")]
    assert "private" not in str(listed) + str(question)
    assert SECRET not in repr(flujo._webhooks)
    assert RunClient(store).delete("r")
    assert RunClient(store).webhooks() == []


@pytest.mark.parametrize("here", [True, False])
def test_a_deferred_question_is_reported_again(stored: Any, receiver: Receiver, here: bool) -> None:
    """Its token is another; a client without the pipeline defers it, too."""
    store, _ = stored
    one = hook(receiver, content=True)
    flujo = Flujo(Step.approval("boss", "Pay 900?", to="ada"), store=store, webhooks=[one])
    token = str(flujo.run(900, run_id="r", labels={"tenant": "7"}).state_token)
    if here:
        flujo.resume(token, "defer")
    else:
        RunClient(store).answer(token, "defer")
    trio.run(sender(store, flujo).flush)
    first, again = sorted(receiver.bodies, key=lambda body: body["token"] != token)
    [asked] = RunClient(store).questions()
    assert (first["token"], again["token"]) == (token, asked.state_token)
    assert first["id"] != again["id"]
    same = ("type", "run_id", "pipeline", "labels", "state", "to", "schema", "message")
    assert [first[name] for name in same] == [again[name] for name in same]
    assert again["schema"] == asked.schema
    assert flujo.resume(again["token"], "approve").status == "completed"


def test_a_run_that_sleeps_asks_no_question(receiver: Receiver) -> None:
    """A wait for a time is no question."""
    store = MemoryStore()
    flujo = Flujo(Step.sleep("nap", 60.0), store=store, webhooks=[hook(receiver)])
    flujo.run(1, run_id="r")
    assert (RunClient(store).get("r").state, RunClient(store).webhooks()) == ("sleeping", [])


def test_content_events_and_labels_are_chosen(receiver: Receiver) -> None:
    """By each webhook for itself."""
    store = MemoryStore()
    wanted = hook(receiver, on=("ended",), labels={"tenant": "7"}, content=True)
    flujo = Flujo(Step.human_in_the_loop("ok", "Go?") >> Step("a", echo), store=store, webhooks=[wanted])
    for run_id, tenant in (("r", "7"), ("s", "8")):
        token = flujo.run(1, run_id=run_id, labels={"tenant": tenant}).state_token
        flujo.resume(str(token), {"paid": tenant})
    trio.run(delivered, flujo)
    [told] = receiver.bodies
    assert (told["run_id"], told["output"]) == ("r", {"paid": "7"})


def test_a_message_is_sent_again_until_it_is_taken(stored: Any, receiver: Receiver) -> None:
    """By the schedule, on the clock of the store, under the same id; redirects are refused."""
    store, clock = stored
    receiver.statuses = [500, 302]
    flujo = Flujo(Step("a", echo), store=store, webhooks=[hook(receiver, on=("ended",))])
    flujo.run(1, run_id="r")
    sends = sender(store, flujo)
    for delay, error in ((5.0, "status 500"), (30.0, "status 302")):
        trio.run(sends.flush)
        [info] = RunClient(store).webhooks()
        assert (info.status, info.error, info.next_at) == ("pending", error, clock.now + delay)
        before = len(receiver.got)
        clock.now += delay - 1
        trio.run(sends.flush)
        assert len(receiver.got) == before
        clock.now += 1
    trio.run(sends.flush)
    assert [info.status for info in RunClient(store).webhooks()] == ["delivered"]
    assert len({headers["webhook-id"] for headers, _ in receiver.got}) == 1
    assert len(receiver.got) == 3


@pytest.mark.parametrize("status", ["9" * 5_000, "20", "x"])
def test_a_response_without_a_status_is_a_failed_delivery(stored: Any, receiver: Receiver, status: str) -> None:
    """The message is sent again; other messages of the worker are not affected."""
    store, clock = stored
    receiver.statuses = [status]
    flujo = Flujo(Step("a", echo), store=store, webhooks=[hook(receiver, on=("ended",))])
    flujo.run(1, run_id="r")
    sends = sender(store, flujo)
    trio.run(sends.flush)
    [info] = RunClient(store).webhooks()
    assert (info.status, info.error) == ("pending", "DeliveryError: the response is not HTTP")
    clock.now += DELAYS_S[0]
    trio.run(sends.flush)
    assert [info.status for info in RunClient(store).webhooks()] == ["delivered"]


def test_a_message_fails_after_a_day_and_is_retried_by_hand(stored: Any, receiver: Receiver) -> None:
    """It is listed with its error; a list by status finds it."""
    store, clock = stored
    receiver.statuses = [404] * (len(DELAYS_S) + 1)
    flujo = Flujo(Step("a", echo), store=store, webhooks=[hook(receiver, on=("ended",))])
    flujo.run(1, run_id="r")
    sends = sender(store, flujo)
    for delay in (*DELAYS_S, 0.0):
        trio.run(sends.flush)
        clock.now += delay
    client = RunClient(store)
    [info] = client.webhooks(status="failed")
    assert (info.attempts, info.error, info.next_at) == (len(DELAYS_S) + 1, "status 404", None)
    assert 24 * 3600 < sum(DELAYS_S) < 27 * 3600
    assert (client.retry_webhooks(["other"]), client.retry_webhooks([info.id])) == (0, 1)
    trio.run(sends.flush)
    assert [each.status for each in client.webhooks(run_id="r")] == ["delivered"]


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "localhost", "[::1]", "10.0.0.1", "169.254.169.254", "[::ffff:10.0.0.1]"]
)
def test_private_addresses_are_refused(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before a connection is made; the name is resolved at each delivery."""

    async def connected(address: str, port: int) -> Any:
        raise AssertionError("a connection was made")

    monkeypatch.setattr(webhooks, "_connected", connected)
    private = Webhook(f"http://{host}:9/", secret="s")
    with pytest.raises(webhooks.DeliveryError, match="which is not public"):
        trio.run(posted, private, b"", {})
    monkeypatch.setattr(webhooks, "_is_public", lambda address: True)
    with pytest.raises(AssertionError, match="a connection was made"):
        trio.run(posted, private, b"", {})


@pytest.mark.slow
def test_a_slow_receiver_delays_no_run(receiver: Receiver) -> None:
    """Runs are executed while it holds the line, and a silent one is an error after ten seconds."""
    store = MemoryStore()
    flujo = Flujo(Step("a", echo), store=store, webhooks=[hook(receiver, on=("ended",))])
    receiver.holds.clear()

    async def serve() -> None:
        async with flujo.worker():
            for number in range(5):
                run_id = await flujo.submit(number)
                result = await trio.to_thread.run_sync(RunClient(store).wait, run_id, 60)
                assert result.status == "completed"
            while not receiver.got:
                await trio.sleep(0.01)

    trio.run(serve)
    assert {each.status for each in RunClient(store).webhooks()} == {"pending"}


def test_a_silent_receiver_is_an_error(
    receiver: Receiver, autojump_clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After ten seconds, whatever it sends until then."""

    async def silent(*_: object) -> int:
        await trio.sleep_forever()
        raise AssertionError

    monkeypatch.setattr(webhooks, "posted", silent)
    store = MemoryStore()
    flujo = Flujo(Step("a", echo), store=store, webhooks=[hook(receiver, on=("ended",))])
    flujo.run(1)
    trio.run(sender(store, flujo).flush, clock=trio.testing.MockClock(autojump_threshold=0.05))
    assert [each.error for each in RunClient(store).webhooks()] == ["no answer within 10 s"]


def test_a_run_that_a_client_ends_is_reported(stored: Any, receiver: Receiver) -> None:
    """Without its pipeline, and so without content; a run that never began, too."""
    store, _ = stored
    one = hook(receiver, on=("ended",), labels={"tenant": "7"}, content=True)
    flujo = Flujo(Step.human_in_the_loop("ok", "Go?"), store=store, webhooks=[one])
    flujo.run(1, run_id="r", labels={"tenant": "7"})
    flujo.submit_sync(1, run_id="s", labels={"tenant": "7"})
    flujo.run(1, run_id="t")
    for run_id in ("r", "s", "t"):
        RunClient(store).cancel(run_id, "wrong button")
    trio.run(sender(store, flujo).flush)
    assert {(each["run_id"], each["type"], each["state"]) for each in receiver.bodies} == {
        ("r", "ended", "aborted"),
        ("s", "ended", "aborted"),
    }
    assert "output" not in receiver.bodies[0]


@pytest.mark.slow
def test_a_death_between_commit_and_delivery_loses_nothing(sqlite_place: Any, receiver: Receiver) -> None:
    """The message is stored with the end; another worker delivers it."""
    one = hook(receiver, on=("ended",))

    def dies() -> None:
        store = sqlite_place.open()
        flujo = Flujo(Step("a", echo), store=store, webhooks=[one])
        flujo.run(1, run_id="r")
        [claimed] = store.claim_messages([one.key], owner="dead", for_s=0.0, limit=5)
        assert claimed.run_id == "r"
        os.kill(os.getpid(), signal.SIGKILL)

    assert in_another_process(dies) == KILLED
    flujo = Flujo(Step("a", echo), store=sqlite_place.open(), webhooks=[one])
    trio.run(delivered, flujo)
    assert [each["run_id"] for each in receiver.bodies] == ["r"]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"url": "ftp://x/"}, "url must be an address like"),
        ({"url": "http://x:99999999/"}, "url must be an address like"),
        ({"url": "https://me:pw@example.org/"}, "must not contain a user or a password"),
        ({"secret": ""}, "secret must be a non-empty text"),
        ({"secret": "whsec_***"}, "is not base64"),
        ({"on": ("questions",)}, "on takes 'question' and 'ended'"),
        ({"labels": {"a b": "x"}}, "'a b' is no name"),
    ],
)
def test_a_webhook_that_cannot_work_is_refused(options: dict[str, Any], why: str) -> None:
    """When it is declared, without its secret in the text."""
    given = {"url": "https://example.org/", "secret": "hush", **options}
    with pytest.raises(DeclarationError, match=why) as refused:
        Webhook(given.pop("url"), **given)
    assert "hush" not in str(refused.value)
    assert ":pw" not in str(refused.value)


def test_webhooks_need_a_store() -> None:
    """Their messages are stored with the runs."""
    with pytest.raises(DeclarationError, match="webhooks need a store"):
        Flujo(Step("a", echo), webhooks=[Webhook("https://example.org/", secret="s")])
    with pytest.raises(DeclarationError, match="must be a list of Webhook"):
        Flujo(Step("a", echo), store=MemoryStore(), webhooks=["https://example.org/"])  # type: ignore[list-item]


def test_the_command_lists_and_retries_messages(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], receiver: Receiver
) -> None:
    """For people and for programs."""
    url = f"sqlite:///{tmp_path}/runs.db"
    monkeypatch.setenv("FLUJO_STORE", url)
    flujo = Flujo(Step("a", echo), store=url, webhooks=[hook(receiver, on=("ended",))])
    flujo.run(1, run_id="r")
    assert main(["webhooks"]) == 0
    assert "pending  ended  r" in " ".join(capsys.readouterr().out.split(" ")).replace("   ", "  ")
    assert main(["webhooks", "list", "--json"]) == 0
    [told] = json.loads(capsys.readouterr().out)["webhooks"]
    assert (told["status"], told["run_id"], "private" in told["url"]) == ("pending", "r", False)
    assert main(["webhooks", "retry"]) == 0
    assert "0 messages" in capsys.readouterr().err
    assert attrs.fields_dict(Webhook)["secret"].repr is False
