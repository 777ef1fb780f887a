"""What a reader of a run must be able to rely on: totals, bounds, calls under way, long values, and nothing twice."""

from __future__ import annotations

import threading
from decimal import Decimal
from typing import Annotated, Any

import pytest
from playwright.sync_api import Page, expect
from pydantic import BaseModel, Field

from flujo_actors import Flujo, RunClient, Step, make_agent_async
from flujo_actors.page import run_page
from flujo_actors.testing import CallTool, scripted_model
from page.conftest import apart, shown
from page.test_page_in_a_browser import line, mounted, write

pytestmark = pytest.mark.slow


def test_a_number_is_answered_within_its_bounds(tab: Page, place: str):
    """A number beyond them is refused with its place, by the form or by the server, and the question stays."""
    schema = Annotated[int, Field(ge=1, le=5)]
    flujo = Flujo(Step.human_in_the_loop("ask", "How many?", input_schema=schema), store=place)
    apart(lambda: flujo.run("tea", run_id="r"))
    with shown(tab, mounted(run_page(place, flujos=[flujo]))) as base:
        tab.goto(f"{base}/runs/#run=r")
        for answer in ("9", "3"):
            tab.fill(".question input", answer)
            tab.click(".question button[type=submit]")
            if answer == "9":
                expect(tab.locator(".question .problem")).to_contain_text("5")
                expect(tab.locator(".status")).to_contain_text("waiting")
        expect(tab.locator(".status")).to_contain_text("completed")
    assert apart(lambda: RunClient(place).wait("r", timeout=120)).output == 3


class Address(BaseModel):
    city: str


class Refund(BaseModel):
    amount: Decimal
    address: Address
    parts: dict[str, int] = {}


def test_a_nested_answer_is_given_by_fields(tab: Page, place: str):
    """A decimal keeps its digits, nested values find their place, and only what no field can hold is JSON."""
    flujo = Flujo(Step.human_in_the_loop("ask", "How much?", input_schema=Refund), store=place)
    apart(lambda: flujo.run("tea", run_id="r"))
    with shown(tab, mounted(run_page(place, flujos=[flujo]))) as base:
        tab.goto(f"{base}/runs/#run=r")
        tab.get_by_label("Amount").fill("12.50")
        tab.get_by_label("City").fill("Oslo")
        tab.locator(".question textarea.json").fill('{"tea": 2}')
        tab.click(".question button[type=submit]")
        expect(tab.locator(".status")).to_contain_text("completed")
    answer = apart(lambda: RunClient(place).wait("r", timeout=120)).output
    assert Refund.model_validate(answer) == Refund(
        amount=Decimal("12.50"), address=Address(city="Oslo"), parts={"tea": 2}
    )


def test_a_tool_call_under_way_is_shown_as_such(tab: Page, place: str):
    """With what it was called with; when it has come back it has its result."""
    begun, go = threading.Event(), threading.Event()

    async def book(city: str) -> str:
        import anyio.to_thread

        begun.set()
        await anyio.to_thread.run_sync(go.wait)
        return f"booked {city}"

    agent = make_agent_async(scripted_model(CallTool("book", {"city": "Oslo"}), "Done."), "Travel.", tools=[book])
    run = threading.Thread(target=lambda: Flujo(Step.granular("travel", agent), store=place).run("Go", run_id="r"))
    run.start()
    assert begun.wait(120)
    with shown(tab, mounted(run_page(place))) as base:
        tab.goto(f"{base}/runs/#run=r")
        expect(line(tab, "book")).to_contain_text("in flight")
        expect(line(tab, "book")).to_contain_text("Oslo")
        go.set()
        expect(tab.locator(".status")).to_contain_text("completed")
        expect(line(tab, "book")).not_to_contain_text("in flight")
        line(tab, "book").click()
        expect(tab.locator(".detail")).to_contain_text("booked Oslo")
    run.join(120)


PRICED = {"usage": {"prices": {"scripted": {"input_usd": 3.0, "output_usd": 15.0}}}}


SHOWN = "[runPage.outline().tokens, runPage.outline().cost]"


def test_totals_are_those_of_the_run_while_it_goes_on_and_after(tab: Page, place: str):
    """Tokens and dollars of all steps, of failed attempts too, as `RunClient.state` has them."""
    go, waits = threading.Event(), threading.Event()

    async def wait(text: str) -> str:
        import anyio.to_thread

        waits.set()
        await anyio.to_thread.run_sync(go.wait)
        return text

    def agent(name: str) -> Any:
        return make_agent_async(scripted_model("Nine words are what this says, more or less."), "You write.", name=name)

    pipeline = Step.parallel("both", {"a": Step("a", agent("a")), "b": Step("b", agent("b"))}) >> Step("wait", wait)
    flujo = Flujo(pipeline >> Step("last", agent("c")), store=place, settings=PRICED)
    run = threading.Thread(target=lambda: flujo.run("Go", run_id="r"))
    run.start()
    assert waits.wait(120)

    def totals() -> tuple[int, float]:
        used = RunClient(place).state("r").usage
        return used.input_tokens + used.output_tokens, pytest.approx(used.cost_usd)

    with shown(tab, mounted(run_page(place))) as base:
        tab.goto(f"{base}/runs/#run=r")
        expect(line(tab, "wait")).to_be_visible()
        live = apart(totals)
        assert (live[0] > 0, live[1] != 0) == (True, True)
        expect(tab.locator(".status")).to_contain_text(f"{live[0]} tokens")
        assert tuple(tab.evaluate(SHOWN)) == live
        go.set()
        expect(tab.locator(".status")).to_contain_text("completed")
        assert tuple(tab.evaluate(SHOWN)) == apart(totals) != live
    run.join(120)


def test_a_megabyte_is_not_loaded_until_it_is_asked_for(tab: Page, place: str):
    """Neither with the tree nor with the step: what changed of the context is shown, and led to."""

    async def fill(data: Any, *, context: Any) -> str:
        context.small = "changed"
        context.large = "x" * 1_000_000
        return "y" * 1_000_000

    flujo = Flujo(Step("fill", fill) >> Step("next", write), store=place, initial_context_data={"small": "old"})
    apart(lambda: flujo.run("Go", run_id="r"))
    sizes: list[int] = []
    tab.on("response", lambda answer: sizes.append(int(answer.headers.get("content-length") or 0)))
    with shown(tab, mounted(run_page(place))) as base:
        tab.goto(f"{base}/runs/#run=r")
        line(tab, "fill").click()
        expect(tab.locator("[role=tabpanel]")).to_contain_text("characters: download")
        tab.get_by_role("tab", name="context").click()
        expect(tab.locator(".diff")).to_contain_text("small changed")
        expect(tab.locator(".diff")).to_contain_text("large added")
        assert max(sizes) < 600_000
        assert sum(sizes) < 1_000_000
        tab.get_by_role("tab", name="output").click()
        with tab.expect_download() as asked:
            tab.get_by_text("characters: download").click()
        assert len(asked.value.path().read_bytes()) > 1_000_000


def test_f_shows_what_failed_and_c_compares(tab: Page, place: str):
    """Without a mouse."""

    async def fails(text: str) -> str:
        raise ValueError("on purpose")

    both = Step.parallel("both", {"good": Step("good", write), "bad": Step("bad", fails)})
    apart(lambda: Flujo(Step("first", write) >> both, store=place).run("tea", run_id="r"))
    apart(lambda: Flujo(Step("first", write), store=place).run("milk", run_id="other"))
    with shown(tab, mounted(run_page(place))) as base:
        tab.goto(f"{base}/runs/#run=r")
        expect(line(tab, "first")).to_be_visible()
        tab.keyboard.press("f")
        expect(line(tab, "bad")).to_be_visible()
        expect(tab.locator(".line", has_text="first")).to_have_count(0)
        tab.keyboard.press("f")
        expect(line(tab, "first")).to_be_visible()
        tab.keyboard.press("c")  # a search field for the other run
        expect(tab.locator("#other")).to_be_focused()
        tab.keyboard.type("oth")
        expect(tab.locator(".sheet [data-run]")).to_have_count(1)
        tab.keyboard.press("Enter")
        expect(tab.locator(".compared tr.changed")).to_contain_text("first")
