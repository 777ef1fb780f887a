"""A plan, parallel searches and a report, followed live: `python examples/deep_research.py`.

The run is in `research.db`: `flujo-actors page --store sqlite:///research.db` shows it in a browser while it runs.
"""

import os

import trio

from flujo_actors import Chunk, Flujo, Pipeline, Started, Step, Success, make_agent_async
from flujo_actors.testing import ScriptedAgent, scripted_model

QUESTION = "Why are there tides?"
FACTS = {
    "the moon": "The moon pulls the near side of the sea more than the far side.",
    "the sun": "The sun's effect is about half of the moon's.",
    "coasts": "Bays amplify the tide to as much as 16 meters.",
}

# A real model: MODEL=openai:gpt-5 and OPENAI_API_KEY, with the extra `openai`.
model = os.environ.get("MODEL")
planner = make_agent_async(model, "List the topics to research.", list[str]) if model else ScriptedAgent(list(FACTS))
script = scripted_model("Tides follow the moon. ", forever=True)
writer = make_agent_async(model or script, "Write a report from these facts.")


async def search(topic: str) -> str:
    """Look a topic up; replace it by your search."""
    return FACTS.get(topic, f"Nothing is known about {topic}.")


async def as_prompt(facts: list[str]) -> str:
    return "\n".join(facts)


research = Pipeline(
    [
        Step("plan", planner),
        Step.map_over("research", Step("search", search, max_retries=2), max_concurrency=4),
        Step("facts", as_prompt),
        Step("write", writer),
    ],
    name="deep research",
)


async def main() -> None:
    flujo = Flujo(research, store="sqlite:///research.db", labels={"title": QUESTION})
    async with flujo.run_async(QUESTION, started=True) as run:
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
