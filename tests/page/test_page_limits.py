"""Limits on the page: rate limits, budgets of windows and queues by key as JSON data and tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from flujo_actors import (
    Flujo,
    MemoryStore,
    Pipeline,
    RateLimit,
    SqliteStore,
    Step,
    Usage,
    UsageLimits,
    make_agent_async,
)
from flujo_actors.page import run_page
from flujo_actors.testing import scripted_model

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    """The server's own library."""
    return "asyncio"


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    return MemoryStore() if request.param == "memory" else SqliteStore(tmp_path / "runs.db")


def flujo(store: Any) -> Flujo[Any, Any, Any]:
    """A pipeline with a rate limit and a budget of 1,000 tokens a day for each tenant."""
    model = scripted_model("ok", usage=Usage(input_tokens=60, output_tokens=40), forever=True)
    agent = make_agent_async(model, rate_limit=RateLimit("acme", requests_per_min=6, at_once=3))
    day = UsageLimits(total_tokens_limit=1000, request_limit=4, window="day", scope="label:tenant")
    return Flujo(Pipeline([Step("s", agent)], name="mail"), store=store, usage_limits=day)


async def got(page: Any) -> httpx.Response:
    transport = httpx.ASGITransport(page, client=("127.0.0.1", 50_000))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        return await client.get("/api/limits")


async def test_rates_and_budgets_are_data_and_tables(store: Any) -> None:
    """A budget has its amounts, its limits and the share that is used."""
    app = flujo(store)
    await app.run_async("go", labels={"tenant": "ada"})
    await app.submit("later", key="k", queue="mail")
    found = (await got(run_page(store))).json()
    assert [(each["name"], each["resource"]) for each in found["rates"]] == [("acme", "requests")]
    [budget] = found["budgets"]
    assert (budget["name"], budget["scope"], budget["window"]) == ("mail", "ada", "day")
    assert (budget["spent"]["tokens"], budget["spent"]["requests"], budget["reserved"]["tokens"]) == (100, 1, 0)
    assert budget["limits"]["total_tokens_limit"] == 1000
    assert budget["starts_at"] < budget["ends_at"]
    assert [each["keys"] for each in found["queues"]] == [{"k": 1}]
    tables = {each["title"]: each["rows"] for each in found["tables"]}
    assert [row[0] for row in tables["Rate limits"]] == ["acme"]
    assert [row[:5] for row in tables["Budgets"]] == [
        ["mail", "ada", "day", "tokens", {"text": "100 of 1,000", "share": 0.1}],
        ["mail", "ada", "day", "requests", {"text": "1 of 4", "share": 0.25}],
    ]
    assert tables["Queues by key"] == [["mail", "k", 1]]


async def test_an_empty_store_has_empty_tables(store: Any) -> None:
    """The page of a store without limits is answered as well."""
    found = (await got(run_page(store))).json()
    assert (found["rates"], found["budgets"], found["queues"]) == ([], [], [])
    assert [each["rows"] for each in found["tables"]] == [[], [], []]


async def test_users_with_a_scope_see_no_limits(store: Any) -> None:
    """Names and scope values of budgets are labels of other users' runs."""
    await flujo(store).run_async("go", labels={"tenant": "bob"})
    page = run_page(store, auth=lambda request: "ada", scope=lambda request, user: {"tenant": user})
    found = await got(page)
    assert found.status_code == 404
    assert "bob" not in found.text
