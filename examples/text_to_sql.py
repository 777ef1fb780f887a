"""A question becomes SQL, which a validator checks on the database: `python examples/text_to_sql.py`."""

import os
import sqlite3

from flujo_actors import Flujo, LoopGuard, Step, make_agent_async
from flujo_actors.testing import scripted_model

SCHEMA = "CREATE TABLE orders (customer TEXT, total REAL, day TEXT)"

# A real model: MODEL=openai:gpt-5 and OPENAI_API_KEY, with the extra `openai`.
model = os.environ.get("MODEL") or scripted_model(
    "SELECT customer, SUM(amount) FROM orders GROUP BY customer",
    "DROP TABLE orders",
    "SELECT customer, SUM(total) FROM orders GROUP BY customer ORDER BY 2 DESC",
)


def database() -> sqlite3.Connection:
    """A read-only copy of the shop, small enough for a test."""
    shop = sqlite3.connect(":memory:", check_same_thread=False)
    shop.execute(SCHEMA)
    shop.executemany(
        "INSERT INTO orders VALUES (?, ?, ?)", [("Ada", 9.5, "mon"), ("Bob", 4.0, "mon"), ("Ada", 3.5, "tue")]
    )
    shop.execute("PRAGMA query_only = ON")
    return shop


SHOP = database()


def executes(query: str) -> str | None:
    """Refuse a query that is no SELECT, or that the database refuses."""
    if not query.lstrip().upper().startswith("SELECT"):
        return "write a SELECT, nothing else"
    try:
        SHOP.execute(f"EXPLAIN {query}")
    except sqlite3.Error as error:
        return f"the database refuses the query: {error}"
    return None


def rows(query: str) -> list[tuple[object, ...]]:
    return SHOP.execute(query).fetchall()


write = Step.granular(
    "write SQL",
    make_agent_async(model, f"Write one SQLite query. Schema: {SCHEMA}"),
    guard=LoopGuard(then=("hint", "fail")),
    validators=executes,
    max_retries=3,
)
flujo = Flujo(write >> Step("execute", rows))


def main() -> None:
    result = flujo.run("Who spent how much?")
    written, _ = result.step_history
    print(written.attempts, "attempts:", written.output)
    print(result.output)


if __name__ == "__main__":
    main()
