"""Tutorial 5, a person approves. Run it: `python examples/tutorial/05_approval.py`."""

from flujo_actors import Flujo, RunClient, Step


async def pay(amount: int) -> str:
    return f"paid {amount}"


approve = Step.approval("approve", lambda amount, context: f"Refund {amount} dollars?", to="ada")
store = "sqlite:///desk.db"
flujo = Flujo(approve >> Step("pay", pay), store=store)

paused = flujo.run(39, run_id="refund-1")
print(paused.status, "-", paused.feedback)

[question] = RunClient(store).questions(to="ada")
print(question.kind, question.run_id, question.step)

done = flujo.resume(question.state_token, "approve")
print(done.status, "-", done.output)

second = flujo.run(900, run_id="refund-2")
rejected = flujo.resume(second.state_token, {"option": "reject", "comment": "no receipt"})
print(rejected.status, "-", rejected.feedback)
