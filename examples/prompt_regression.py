"""Catch a prompt regression before deploy, offline: `python examples/prompt_regression.py`.

An agent has answered refund requests in production; its runs are stored. Two new prompts are rehearsed on those runs.
Models are asked, tools answer from the record, and no refund is paid. Gates decide whether a prompt may be deployed.
"""

import os

from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from flujo_actors import Flujo, MemoryStore, Pipeline, Rehearsal, Step

ORDERS = {"tea": 12, "cup": 30, "pot": 80, "kettle": 140}

DEPLOYED = "Look the order up. Refund at most 100; a larger order goes to a person."
POLITE = "Look the order up. Be kind. Refund at most 100; a larger order goes to a person."
GENEROUS = "Look the order up. Be kind and refund it."

paid: list[tuple[str, int]] = []
"""Refunds that were paid: the effect that a rehearsal must not have."""


def respond(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """Follow the prompt, as a model would: this one needs no network."""
    results = [str(part.content) for message in messages for part in message.parts if part.part_kind == "tool-return"]
    request = next(str(part.content) for part in messages[0].parts if part.part_kind == "user-prompt")
    order = request.split()[-1]
    if not results:
        return ModelResponse(parts=[ToolCallPart("look_up", {"order": order})])
    price = int(results[0])
    if len(results) == 2:
        return ModelResponse(parts=[TextPart(f"{order}: refunded {price}")])
    if price > 100 and "at most 100" in (info.instructions or ""):
        return ModelResponse(parts=[TextPart(f"{order}: a person decides")])
    return ModelResponse(parts=[ToolCallPart("refund", {"order": order, "amount": price})])


# A real model: MODEL=openai:gpt-5 and OPENAI_API_KEY, with the extra `openai`.
model = os.environ.get("MODEL") or FunctionModel(respond)


def app(prompt: str, store: MemoryStore | None = None) -> Flujo[str, str]:
    """Return the refund service with a prompt."""
    agent = Agent(model, name="refunds", instructions=prompt)

    @agent.tool_plain
    def look_up(order: str) -> int:
        """Return the price of an order."""
        return ORDERS[order]

    @agent.tool_plain
    def refund(order: str, amount: int) -> str:
        """Pay an order back."""
        paid.append((order, amount))
        return "paid"

    return Flujo(Pipeline([Step.granular("answer", agent)], name="refunds"), store=store)


def rehearsed(deployed: Flujo[str, str], prompt: str) -> Rehearsal:
    """Return the stored runs with another prompt, within a budget of a dollar."""
    return deployed.rehearse(
        [f"refund {order}" for order in ORDERS],
        changed=app(prompt),
        max_cost_usd=1.0,
        gates=["diverged==0", "same>=0.9", "tokens<=1.2x"],
    )


def main() -> None:
    deployed = app(DEPLOYED, MemoryStore())
    for order in ORDERS:
        print(deployed.run(f"Please refund {order}", run_id=f"refund {order}").output)
    before = len(paid)
    for name, prompt in (("polite", POLITE), ("generous", GENEROUS)):
        rehearsal = rehearsed(deployed, prompt)
        print(f"\n{name}: {rehearsal.counts['same']} of {len(rehearsal.runs)} runs are the same")
        for run in rehearsal.runs:
            if run.verdict != "same":
                print(f"  {run.run_id} {run.verdict}: {run.reason}")
        for gate in rehearsal.gates:
            print(f"  {'ok  ' if gate.holds else 'FAIL'} {gate.text}")
        print("  deploy it" if rehearsal.passed else "  keep the deployed prompt")
    print(f"\nrefunds paid by the rehearsals: {len(paid) - before}")


if __name__ == "__main__":
    main()
