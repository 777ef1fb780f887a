"""A webhook is accepted with 202, a worker does the work, and the sender gets a signed callback.

Run it: `python examples/webhook_callback.py`. It starts the service and a receiver on loopback.
"""

import base64
import hashlib
import hmac
import http.client
import json
import tempfile
from contextlib import asynccontextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import anyio
from fastapi import FastAPI
from starlette.testclient import TestClient

from flujo_actors import Flujo, Pipeline, Step, Webhook

SECRET = "whsec_" + base64.b64encode(b"a secret of both sides").decode()
received: list[dict[str, object]] = []


class Receiver(BaseHTTPRequestHandler):
    """The sender's endpoint: it verifies the signature of Standard Webhooks."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        signed = f"{self.headers['webhook-id']}.{self.headers['webhook-timestamp']}.".encode() + body
        digest = hmac.new(base64.b64decode(SECRET.removeprefix("whsec_")), signed, hashlib.sha256).digest()
        genuine = hmac.compare_digest("v1," + base64.b64encode(digest).decode(), self.headers["webhook-signature"])
        self.send_response(http.client.NO_CONTENT if genuine else http.client.UNAUTHORIZED)
        self.end_headers()
        if genuine:
            received.append(json.loads(body))

    def log_message(self, *arguments: object) -> None:
        """Print nothing."""


async def summarize(text: str) -> str:
    return text.split(".")[0]


def service(callback: str) -> FastAPI:
    """The application: one endpoint, and a worker in the same process."""
    hook = Webhook(callback, secret=SECRET, on=("ended",), content=True, allow_private=True)
    store = f"sqlite:///{tempfile.mkdtemp()}/runs.db"
    flujo = Flujo(Pipeline([Step("summarize", summarize)], name="summaries"), store=store, webhooks=[hook])

    @asynccontextmanager
    async def worker(app: FastAPI):
        async with flujo.worker():
            yield

    app = FastAPI(lifespan=worker)

    @app.post("/documents", status_code=202)
    async def accept(document: dict[str, str]) -> dict[str, str]:
        run_id = await flujo.submit(document["text"], run_id=document["id"], if_exists="return")
        return {"run_id": run_id}

    return app


def main() -> None:
    receiver = HTTPServer(("127.0.0.1", 0), Receiver)
    Thread(target=receiver.serve_forever, daemon=True).start()
    with TestClient(service(f"http://127.0.0.1:{receiver.server_port}/done")) as web:
        for _ in range(2):  # the sender repeats its request: there is one run
            answer = web.post("/documents", json={"id": "doc-7", "text": "Tea wants hot water. The rest is taste."})
            print(answer.status_code, answer.json())
        while not received:
            anyio.run(anyio.sleep, 0.05)
    receiver.shutdown()
    receiver.server_close()
    print(received[0]["type"], received[0]["run_id"], "->", received[0]["output"])


if __name__ == "__main__":
    main()
