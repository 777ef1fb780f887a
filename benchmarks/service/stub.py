"""The provider, in a process of its own: prints its URL and serves until its standard input closes."""

import sys

from benchmarks.service.support import REPLY, TO_DRAFT, TO_FEEL, TO_TRIAGE
from flujo_actors.testing.wire import Json, ProviderStub, Reply, Request, Text, ToolCall


def answer(request: Request) -> Reply:
    """A triage, a sentiment, a question for the order, and then the reply: four answers for each ticket."""
    if TO_TRIAGE in request.text:
        return Json({"category": "howto", "risk": "low", "summary": "wants to open a parcel"})
    if TO_FEEL in request.text:
        return Text("neutral")
    assert TO_DRAFT in request.text
    asked_the_shop = any(message.role == "tool" for message in request.messages)
    return Text(REPLY) if asked_the_shop else ToolCall("order_status", {"order_id": "A-1"})


if __name__ == "__main__":
    with ProviderStub(answer) as stub:
        print(stub.openai_url, flush=True)
        sys.stdin.read()
