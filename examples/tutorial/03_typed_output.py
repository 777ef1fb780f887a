"""Tutorial 3, typed output: a model that returns an object. Run it: `python examples/tutorial/03_typed_output.py`."""

from typing import Literal

from pydantic import BaseModel

from flujo_actors import Flujo, Step, make_agent_async
from flujo_actors.testing import scripted_model


class Ticket(BaseModel):
    topic: Literal["refund", "question"]
    amount: float
    summary: str


model = scripted_model("""Sure! {'topic': 'refund', "amount": "39.00", summary: 'broken kettle',}""")
# model = "openai:gpt-5"     # a real model: needs OPENAI_API_KEY and the extra `openai`


def affordable(ticket: Ticket) -> str | None:
    return None if ticket.amount <= 500 else "the amount is above 500"


agent = make_agent_async(model, "Read the customer's message.", Ticket)
result = Flujo(Step("read", agent, validators=affordable, max_retries=1)).run("My kettle arrived broken.")

print(repr(result.output))
print(result.step_history[0].metadata["structured"]["stage"])
