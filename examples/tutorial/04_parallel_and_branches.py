"""Tutorial 4, parallel steps and branches. Run it: `python examples/tutorial/04_parallel_and_branches.py`."""

from typing import Any

from flujo_actors import Flujo, Step


async def customer(ticket: dict[str, Any]) -> str:
    return "Ada"


async def orders(ticket: dict[str, Any]) -> list[int]:
    return [39, 4]


async def refund(found: dict[str, Any]) -> str:
    return f"refund {max(found['orders'])} to {found['customer']}"


async def reply(found: dict[str, Any]) -> str:
    return f"write to {found['customer']}"


def topic(found: dict[str, Any], context: object, *, run_input: dict[str, Any]) -> str:
    return str(run_input["topic"])


look_up = Step.parallel("look up", {"customer": Step("customer", customer), "orders": Step("orders", orders)})
decide = Step.branch_on("decide", topic, {"refund": Step("refund", refund)}, default=Step("reply", reply))
desk = look_up >> decide

print(Flujo(desk).run({"topic": "refund"}).output)
print(Flujo(desk).run({"topic": "question"}).output)

many = Step.map_over("tickets", Step.sequence("ticket", look_up >> Step("reply", reply)), max_concurrency=2)
print(Flujo(many).run([{"topic": "question"}, {"topic": "question"}]).output)
