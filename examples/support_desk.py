"""A support desk: search, an agent with an approved tool, two web processes, two workers, one database.

`python examples/support_desk.py` starts all of it on this machine, handles one ticket and stops. With `FLUJO_STORE`
set to a Postgres URL it uses that database; `examples/deploy/docker` has the same shape in containers.
"""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage

from flujo_actors import Collection, Flujo, InMemoryRetriever, Pipeline, RunClient, Step, from_retrieval
from flujo_actors.testing import CallTool, scripted_model

STORE = os.environ.get("FLUJO_STORE", "sqlite:///runs.db")


def reply(messages: list[ModelMessage]) -> CallTool | str:
    """Answer by the messages alone: any worker can continue the run, and each has a script of its own."""
    return CallTool("refund", {"amount": 900}) if len(messages) == 1 else "Your refund is on its way."


model = scripted_model(reply, forever=True)
# model = "openai:gpt-5"     # a real model: needs OPENAI_API_KEY and the extra `openai`


class Help(Collection, name="help"):
    """Pages of the help center."""


pages = InMemoryRetriever(Help)
pages.add("Broken goods are refunded within 30 days.", id="refunds")

clerk = Agent(model, system_prompt="You answer customers from the help pages.")


@clerk.tool_plain(requires_approval=True)
async def refund(amount: int) -> str:
    """Refund an amount to the customer."""
    return f"refunded {amount}"


answer = Step.granular("answer", clerk, context_sources=[from_retrieval(Help, top_k=3)])
flujo = Flujo(Pipeline([answer], name="desk"), store=STORE, retrievers={Help: pages})


def start(*command: str, **environment: str) -> subprocess.Popen[bytes]:
    """Start a process of the desk."""
    here = Path(__file__).parent
    paths = os.pathsep.join([str(here), os.environ.get("PYTHONPATH", "")])
    settings = {**os.environ, **environment, "PYTHONPATH": paths}
    return subprocess.Popen([sys.executable, *command], env=settings, stderr=subprocess.DEVNULL)


def web(verb: str, store: str) -> str:
    """One request to a web process of its own: submit a ticket, or approve a refund of 100."""
    environment = {**os.environ, "FLUJO_STORE": store}
    return subprocess.check_output([sys.executable, __file__, verb], env=environment, text=True)


def main() -> None:
    store = os.environ.get("FLUJO_STORE") or f"sqlite:///{tempfile.mkdtemp()}/runs.db"
    workers = [
        start("-m", "flujo_actors", "worker", "support_desk:flujo", "--slots", "2", FLUJO_STORE=store) for _ in range(2)
    ]
    try:
        print(web("submit", store), end="")
        client = RunClient(store)
        while not client.questions():
            time.sleep(0.05)
        print(web("approve", store), end="")
        print(client.wait("ticket-1", timeout=120).output)
    finally:
        for worker in workers:
            worker.terminate()
            worker.wait()


def submit() -> None:
    print("submitted", flujo.submit_sync("My kettle arrived broken. I want 900 dollars.", run_id="ticket-1"))


def approve() -> None:
    client = RunClient(STORE)
    [question] = client.questions()
    print("asked:", question.tool.name, question.tool.arguments)
    client.answer(question.state_token, {"option": "approve", "arguments": {"amount": 100}}, by="ada")
    print("approved with 100 by ada")


if __name__ == "__main__":
    {"submit": submit, "approve": approve}.get(sys.argv[-1], main)()
