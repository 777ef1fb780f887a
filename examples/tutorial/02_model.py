"""Tutorial 2, a model: a step that calls one. Run it: `python examples/tutorial/02_model.py`."""

import trio

from flujo_actors import Chunk, Flujo, Step, UsageLimits, make_agent_async
from flujo_actors.testing import scripted_model

model = scripted_model("We are sorry. ", "A new kettle is on its way.")
# model = "openai:gpt-5"     # a real model: needs OPENAI_API_KEY and the extra `openai`

apologize = Step("apologize", make_agent_async(model, "You answer customers in one sentence."))
promise = Step("promise", make_agent_async(model, "You promise the next action."), max_retries=2)
flujo = Flujo(apologize >> promise, usage_limits=UsageLimits(total_tokens_limit=5_000))


async def main() -> None:
    async with flujo.run_async("My kettle arrived broken.") as run:
        async for outcome in run:
            if isinstance(outcome, Chunk):
                print(outcome.data, end="", flush=True)
        result = await run
    print(f"\n{result.status}, {result.total_tokens} tokens")


trio.run(main)
