"""A budget of requests a day for each tenant: runs beyond it sleep until midnight.

The store's clock is moved by the program, so it ends at once. No network is needed.
"""

import datetime as dt
from collections.abc import Sequence

from flujo_actors import Flujo, MemoryStore, Pipeline, RunClient, Step, UsageLimits, make_agent_async
from flujo_actors.testing import scripted_model

NOON = dt.datetime(2026, 11, 17, 12, tzinfo=dt.UTC).timestamp()
ORDERS = (("1", "acme"), ("2", "acme"), ("3", "acme"), ("4", "globex"))


class Clock:
    """Wall clock of the store."""

    now = NOON

    def __call__(self) -> float:
        return self.now


def show(client: RunClient, title: str, orders: Sequence[tuple[str, str]] = ORDERS) -> None:
    """Print the state of each order and the budgets of today."""
    print(title)
    for order, tenant in orders:
        print(f"  order {order} of {tenant}: {client.get(f'order-{order}').state}")
    for budget in client.budgets():
        print(f"  {budget.scope}: {budget.spent.requests:g} of {budget.limits.request_limit} requests")


def main() -> None:
    """Run four orders of two tenants, at two requests a day for each."""
    clock = Clock()
    store = MemoryStore(wall=clock)
    writer = make_agent_async(scripted_model("Thank you for the order.", forever=True))
    day = UsageLimits(request_limit=2, window="day", zone="Europe/Madrid", scope="label:tenant", when_reached="wait")
    flujo = Flujo(Pipeline([Step("confirm", writer)], name="orders"), store=store, usage_limits=day)
    client = RunClient(store)
    for order, tenant in ORDERS:
        flujo.run(f"order {order}", run_id=f"order-{order}", labels={"tenant": tenant})
    show(client, "At noon")
    clock.now += 12 * 3600
    flujo.recover()
    show(client, "After midnight")


if __name__ == "__main__":
    main()
