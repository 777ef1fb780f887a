"""A chat page in plain HTML, which reconnects to a running answer: `uvicorn chat_page:app --app-dir examples`.

Reload the page while it answers: the browser sends `Last-Event-ID`, and the text continues. Front ends that speak
AG-UI, such as CopilotKit, post to `/ag-ui`. `python examples/chat_page.py` is one conversation with each.
"""

import json
import os
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse
from starlette.testclient import TestClient

from flujo_actors import AsyncRunClient, Flujo, Pipeline, Step, make_agent_async
from flujo_actors.protocols.ag_ui import ag_ui_app
from flujo_actors.protocols.sse import sse_response
from flujo_actors.testing import scripted_model

# A real model: MODEL=openai:gpt-5 and OPENAI_API_KEY, with the extra `openai`.
model = os.environ.get("MODEL") or scripted_model("Goods may be returned within 30 days.", forever=True)

store = f"sqlite:///{tempfile.mkdtemp()}/runs.db"
flujo = Flujo(Pipeline([Step("reply", make_agent_async(model, "You answer customers."))], name="chat"), store=store)
runs = AsyncRunClient(store)

PAGE = """<!doctype html><meta charset="utf-8"><title>Chat</title>
<form><input name="message" autofocus placeholder="Ask"><button>Send</button></form><pre id="reply"></pre>
<script>
const reply = document.getElementById("reply");
function follow(run) {
  reply.textContent = "";
  const source = new EventSource(`/messages/${run}/events`);
  source.addEventListener("text", (event) => { reply.textContent = JSON.parse(event.data).text; });
  source.addEventListener("ended", (event) => { reply.textContent = JSON.parse(event.data).output; source.close(); });
}
document.querySelector("form").addEventListener("submit", async (event) => {
  event.preventDefault();
  const message = new FormData(event.target).get("message");
  const answer = await fetch("/messages", { method: "POST", body: JSON.stringify({ message }),
    headers: { "content-type": "application/json" } });
  const { run } = await answer.json();
  location.hash = run;
  follow(run);
});
if (location.hash) follow(location.hash.slice(1));
</script>"""


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    async with runs, flujo.worker():
        yield


app = FastAPI(lifespan=lifespan)
app.mount("/ag-ui", ag_ui_app(flujo))  # the same pipeline for AG-UI clients


@app.get("/")
async def page() -> HTMLResponse:
    return HTMLResponse(PAGE)


@app.post("/messages", status_code=202)
async def send(body: dict[str, str]) -> dict[str, str]:
    return {"run": await flujo.submit(body["message"])}


@app.get("/messages/{run_id}/events", response_model=None)
async def events(request: Request, run_id: str):
    return sse_response(request, runs, run_id)


def last_event(stream: str) -> tuple[str, dict[str, str]]:
    """The name and the data of the last event of a stream."""
    lines = stream.strip().splitlines()
    return lines[-2].removeprefix("event: "), json.loads(lines[-1].removeprefix("data: "))


def ag_ui_events(browser: TestClient, message: str) -> list[dict[str, str]]:
    """The events that an AG-UI client gets for a message."""
    request = {"threadId": "t1", "runId": "r1", "state": {}, "tools": [], "context": [], "forwardedProps": {}}
    request["messages"] = [{"id": "m1", "role": "user", "content": message}]
    stream = browser.post("/ag-ui/", json=request).text
    return [json.loads(line.removeprefix("data: ")) for line in stream.splitlines() if line.startswith("data: ")]


def main() -> None:
    with TestClient(app) as browser:
        run = browser.post("/messages", json={"message": "May I return it?"}).json()["run"]
        for lost in ({}, {"Last-Event-ID": "1"}):
            name, data = last_event(browser.get(f"/messages/{run}/events", headers=lost).text)
            print(name, "->", data["output"])
        events = ag_ui_events(browser, "May I return it?")
        text = "".join(event["delta"] for event in events if event["type"] == "TEXT_MESSAGE_CONTENT")
        print(events[0]["type"], "->", text, "->", events[-1]["type"])


if __name__ == "__main__":
    main()
