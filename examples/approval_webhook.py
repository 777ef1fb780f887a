"""An approval in a chat application: a signed message with two buttons, and a signed callback that answers the run.

Run it: `python examples/approval_webhook.py`. Messages and signatures have the shape of Slack's. A stub on loopback is
the chat application here; with Slack, `post_message` calls `chat.postMessage`, and `/clicks` is the request URL.
"""

import base64
import hashlib
import hmac
import json
import tempfile
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from typing import Any
from urllib.parse import parse_qs, urlencode

import anyio
from fastapi import FastAPI, HTTPException, Request
from starlette.testclient import TestClient

from flujo_actors import AlreadyAnswered, AsyncRunClient, Flujo, NotPaused, Pipeline, RunClient, Step, Webhook

SECRET = "whsec_" + base64.b64encode(b"of the messages to the bot").decode()  # from the environment in production
SIGNING_SECRET = b"of the chat application"
MAY_APPROVE = {"ada"}
FIVE_MINUTES = 300.0


async def pay(amount: int) -> str:
    return f"paid {amount}"


approve = Step.approval("approve", lambda amount, context: f"Pay {amount} dollars?", to="#finance")
pipeline = Pipeline([approve, Step("pay", pay)], name="invoices")

# --- the message: a worker sends the question, the bot shows it with buttons --------------------------------------

shown: list[dict[str, Any]] = []


def post_message(question: Mapping[str, Any]) -> None:
    """Show a question in its channel; each button has the token of the question."""
    buttons = [{"type": "button", "action_id": option, "value": question["token"]} for option in ("approve", "reject")]
    shown.append({"channel": question["to"], "text": question["message"], "buttons": buttons})


class Bot(BaseHTTPRequestHandler):
    """Receiver of the messages: it verifies the signature of Standard Webhooks."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        signed = f"{self.headers['webhook-id']}.{self.headers['webhook-timestamp']}.".encode() + body
        digest = hmac.new(base64.b64decode(SECRET.removeprefix("whsec_")), signed, hashlib.sha256).digest()
        genuine = hmac.compare_digest("v1," + base64.b64encode(digest).decode(), self.headers["webhook-signature"])
        self.send_response(HTTPStatus.NO_CONTENT if genuine else HTTPStatus.UNAUTHORIZED)
        self.end_headers()
        if genuine:
            post_message(json.loads(body))

    def log_message(self, *arguments: object) -> None:
        """Print nothing."""


# --- the callback: a click answers the run ------------------------------------------------------------------------


def signature(timestamp: str, body: bytes) -> str:
    """Slack's signature of a request."""
    return "v0=" + hmac.new(SIGNING_SECRET, b"v0:" + timestamp.encode() + b":" + body, hashlib.sha256).hexdigest()


def clicked(headers: Mapping[str, str], body: bytes) -> tuple[str, str, str]:
    """User, option and token of a click; an unsigned or old request is refused."""
    timestamp = headers.get("x-slack-request-timestamp", "0")
    if not hmac.compare_digest(signature(timestamp, body), headers.get("x-slack-signature", "")):
        raise HTTPException(401, "wrong signature")
    if abs(time.time() - float(timestamp)) > FIVE_MINUTES:
        raise HTTPException(401, "too old")
    payload = json.loads(parse_qs(body.decode())["payload"][0])
    [action] = payload["actions"]
    return payload["user"]["name"], action["action_id"], action["value"]


def service(bot: str, store: str) -> FastAPI:
    """The web application, with a worker; in production a worker is a process of its own."""
    hook = Webhook(bot, secret=SECRET, on=("question",), content=True, allow_private=True)
    flujo, runs = Flujo(pipeline, store=store, webhooks=[hook]), AsyncRunClient(store)

    @asynccontextmanager
    async def worker(app: FastAPI) -> AsyncIterator[None]:
        async with runs, flujo.worker():
            yield

    app = FastAPI(lifespan=worker)

    @app.post("/invoices", status_code=202)
    async def submit(invoice: dict[str, Any]) -> dict[str, str]:
        return {"run_id": await flujo.submit(invoice["amount"], run_id=invoice["id"], if_exists="return")}

    @app.post("/clicks")
    async def click(request: Request) -> str:
        user, option, token = clicked(request.headers, await request.body())
        if user not in MAY_APPROVE:
            return f"{user} may not approve."
        try:
            await runs.answer(token, {"option": option}, by=user)
        except (AlreadyAnswered, NotPaused):
            return "The question is closed."
        return f"{user}: {option}."

    return app


# --- one invoice --------------------------------------------------------------------------------------------------


def click(web: TestClient, user: str, option: str, sign: bool = True) -> str:
    """Click a button, as the chat application reports it."""
    [button] = [each for each in shown[0]["buttons"] if each["action_id"] == option]
    body = urlencode({"payload": json.dumps({"user": {"name": user}, "actions": [button]})}).encode()
    now = str(int(time.time()))
    headers = {"x-slack-request-timestamp": now, "x-slack-signature": signature(now, body) if sign else "v0=guess"}
    answer = web.post("/clicks", content=body, headers=headers)
    return f"{answer.status_code} {answer.json()}"


def main() -> None:
    store = f"sqlite:///{tempfile.mkdtemp()}/runs.db"
    bot = HTTPServer(("127.0.0.1", 0), Bot)
    Thread(target=bot.serve_forever, daemon=True).start()
    with TestClient(service(f"http://127.0.0.1:{bot.server_port}/questions", store)) as web:
        web.post("/invoices", json={"id": "invoice-7", "amount": 900})
        while not shown:
            anyio.run(anyio.sleep, 0.05)
        print(shown[0]["channel"], "reads:", shown[0]["text"])
        print("a forged click:", click(web, "ada", "approve", sign=False))
        print("a click of bob:", click(web, "bob", "approve"))
        print("a click of ada:", click(web, "ada", "approve"))
        result = RunClient(store).wait("invoice-7", timeout=120)
        print("the next click:", click(web, "ada", "reject"))
    bot.shutdown()
    bot.server_close()
    print(result.status, "-", result.output)


if __name__ == "__main__":
    main()
