"""A model on your own machine, behind the wire format of OpenAI: `python examples/local_model.py`.

A stub replaces the server. With Ollama, vLLM or llama.cpp only the address changes: `http://127.0.0.1:11434/v1`.
"""

import os

from flujo_actors import Flujo, Step, UsageLimits, make_agent_async
from flujo_actors.testing.wire import ProviderStub, Text


def main() -> None:
    with ProviderStub([Text("Kettles boil water.")]) as server:
        os.environ.update(OPENAI_BASE_URL=server.openai_url, OPENAI_API_KEY="unused")
        agent = make_agent_async("openai-chat:llama3.2", "Answer in one sentence.")
        limits = UsageLimits(total_tokens_limit=10_000)  # tokens: a local model has no price
        result = Flujo(Step("ask", agent, timeout_s=60), usage_limits=limits).run("What do kettles do?")
    print(result.output)


if __name__ == "__main__":
    main()
