"""A conversation that a person steers while it runs. Run it: `python examples/steered_agent.py`.

The agent looks for a journey. While its tool works, a person sends a message for the next turn, and one for the end.
The second run continues the stored conversation. No model is called: its answers are scripted.
"""

from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, UserPromptPart

from flujo_actors import Flujo, MemoryStore, RunClient, Step
from flujo_actors.testing import CallTool, scripted_model

STORE = MemoryStore()


def texts(messages: list[ModelMessage]) -> list[str]:
    """Return the user's messages of a conversation."""
    parts = [part for message in messages for part in message.parts]
    return [str(part.content) for part in parts if isinstance(part, UserPromptPart)]


def answer(messages: list[ModelMessage]) -> object:
    """Return the answer of a model: first a search, then a sentence about the last message."""
    said = texts(messages)
    print(f"  the model reads: {' / '.join(said)}")
    return CallTool("search", {"city": "Lima"}) if said == ["A journey to Lima"] else f"Noted: {said[-1]}."


def traveler() -> Agent[None, str]:
    """Return the agent; while its tool works, a person sends messages."""
    agent = Agent(scripted_model(answer, forever=True), name="traveler")

    @agent.tool_plain
    def search(city: str) -> str:
        client = RunClient(STORE)
        client.steer("trip", "By train, please")
        client.steer("trip", "And a hotel", when="when_done")
        return f"3 journeys to {city}"

    return agent


def main() -> None:
    flujo = Flujo(Step.granular("plan", traveler(), conversation="trip-7"), store=STORE)
    print("the first run:")
    print(f"  => {flujo.run('A journey to Lima', run_id='trip').output}")
    print("the second run:")
    print(f"  => {flujo.run('What was it about?').output}")


if __name__ == "__main__":
    main()
