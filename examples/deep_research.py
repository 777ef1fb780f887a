"""A plan, parallel searches and a report, followed live: `python examples/deep_research.py`."""

import trio

from flujo_actors import Chunk, Flujo, Started, Step, Success, make_agent_async
from flujo_actors.testing import ScriptedAgent, scripted_model

QUESTION = "Why are there tides?"
FACTS = {
    "the moon": "The moon pulls the near side of the sea more than the far side.",
    "the sun": "The sun's effect is about half of the moon's.",
    "coasts": "Bays amplify the tide to as much as 16 meters.",
}

planner = ScriptedAgent(list(FACTS))
writer = make_agent_async(scripted_model("Tides follow the moon. ", forever=True), "Write a report from these facts.")
# planner = make_agent_async("openai:gpt-5", "List the topics to research.", list[str])     # real models
# writer = make_agent_async("openai:gpt-5", "Write a report from these facts.")


async def search(topic: str) -> str:
    """Look a topic up; replace it by your search."""
    return FACTS[topic]


async def as_prompt(facts: list[str]) -> str:
    return "\n".join(facts)


research = (
    Step("plan", planner)
    >> Step.map_over("research", Step("search", search, max_retries=2), max_concurrency=4)
    >> Step("facts", as_prompt)
    >> Step("write", writer)
)


async def main() -> None:
    async with Flujo(research).run_async(QUESTION, started=True) as run:
        async for outcome in run:
            match outcome:
                case Started(path="plan" | "research" | "write" as path):
                    print(f"{path} ...")
                case Success(path="research", step_result=step):
                    print(f"  {len(step.output)} facts")
                case Chunk(data=text):
                    print(f"  {text}")
        result = await run
    print(result.status)


if __name__ == "__main__":
    trio.run(main)
