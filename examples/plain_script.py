"""A plain script: no event loop and no `async`. Run it: `python examples/plain_script.py`.

An order is priced, a person is asked when it is expensive, and a hook keeps a log.
"""

from typing import Any

from flujo_actors import Flujo, Pipeline, Step, step

PRICES = {"tea": 4, "kettle": 39, "samovar": 480}


@step
def price(order: list[str]) -> int:
    """Sync functions are steps too: they run in a worker thread."""
    return sum(PRICES[item] for item in order)


def needs_approval(total: int, context: object) -> str:
    return "expensive" if total > 100 else "cheap"


@step
def confirm(total: int) -> str:
    return f"ordered for {total} coins"


@step
def decide(answer: bool) -> str:
    return "ordered, with approval" if answer else "declined"


PIPELINE = price >> Step.branch_on(
    "approval",
    needs_approval,
    {
        "cheap": confirm,
        "expensive": Pipeline.from_step(Step.human_in_the_loop("ask the boss", "May I?", input_schema=bool)) >> decide,
    },
)


def log(payload: Any) -> None:
    """Print failures and ends; a hook receives every event of a run."""
    match payload.kind:
        case "on_step_failure":
            print(f"  step {payload.step_name!r} failed")
        case "post_run":
            print(f"  run {payload.result.status}")


def order(items: list[str], *, boss_says: bool) -> str:
    """Run an order, and answer its question if there is one."""
    flujo = Flujo(PIPELINE, hooks=log)
    result = flujo.run(items)
    if result.state_token is not None:
        print(f"  the boss is asked: {result.feedback}")
        result = flujo.resume(result.state_token, boss_says)
    return result.output if result.success else f"failed: {result.feedback}"


if __name__ == "__main__":
    for items in (["tea", "kettle"], ["samovar", "tea"], ["unicorn"]):
        print(f"{items}:")
        print(f"  => {order(items, boss_says=True)}")
