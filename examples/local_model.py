"""A model on your own machine, behind the wire format of OpenAI: `python examples/local_model.py`.

A stub replaces the server, unless `OPENAI_BASE_URL` has its address. With Ollama:
`OPENAI_BASE_URL=http://127.0.0.1:11434/v1 MODEL=llama3.2 python examples/local_model.py`
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from flujo_actors import Flujo, Step, UsageLimits, make_agent_async
from flujo_actors.testing.wire import ProviderStub, Text


@contextmanager
def local_server() -> Iterator[None]:
    """Your server, or a stub with one answer. A local server takes any key."""
    os.environ.setdefault("OPENAI_API_KEY", "unused")
    if "OPENAI_BASE_URL" in os.environ:
        yield
        return
    with ProviderStub([Text("Kettles boil water.")]) as stub:
        os.environ["OPENAI_BASE_URL"] = stub.openai_url
        yield


def main() -> None:
    with local_server():
        agent = make_agent_async(f"openai-chat:{os.environ.get('MODEL', 'llama3.2')}", "Answer in one sentence.")
        limits = UsageLimits(total_tokens_limit=10_000)  # tokens: a local model has no price
        result = Flujo(Step("ask", agent, timeout_s=60), usage_limits=limits).run("What do kettles do?")
    print(result.output)


if __name__ == "__main__":
    main()
