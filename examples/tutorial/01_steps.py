"""Tutorial 1, steps: two functions in sequence. Run it: `python examples/tutorial/01_steps.py`."""

from flujo_actors import Flujo, Step


def clean(message: str) -> str:
    return " ".join(message.split())


async def open_ticket(message: str) -> dict[str, str]:
    return {"id": "T-1", "message": message}


pipeline = Step("clean", clean, timeout_s=5) >> Step("open ticket", open_ticket, max_retries=2)
result = Flujo(pipeline).run("  My kettle   arrived broken. ")

print(result.status, result.output)
for step in result.step_history:
    print(step.name, step.attempts, step.output)

failed = Flujo(pipeline).run(None)
print(failed.status, "-", failed.feedback)
