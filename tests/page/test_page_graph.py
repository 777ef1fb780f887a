"""The graph of a run: what was declared as nested boxes, live, with thousands of branches as counts."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from flujo_actors import Flujo, Step
from flujo_actors.page import run_page
from page.conftest import apart, shown

pytestmark = pytest.mark.slow

MOST_NODES = 400


async def write(topic: str) -> str:
    return f"All about {topic}"


async def same(data: Any) -> Any:
    return data


async def odd(number: int) -> int:
    if number % 100 == 17:
        raise ValueError(f"{number} is odd")
    return number


def box(tab: Page, path: str) -> Any:
    return tab.locator(f'.box[data-path="{path}"]')


def head(tab: Page, path: str) -> Any:
    return box(tab, path).locator("> .head")


def nodes(tab: Page) -> int:
    return int(tab.evaluate("document.querySelectorAll('*').length"))


def chain(names: list[str]) -> Any:
    first, *others = [Step(name, same) for name in names]
    for each in others:
        first = first >> each
    return first


def test_the_graph_shows_what_was_declared_begun_or_not(tab: Page, place: str):
    """Steps to come, a branch that was not taken and a fallback that was not needed have their boxes, too."""
    pipeline = (
        Step("write", write, fallback=Step("remember", write))
        >> Step.branch_on(
            "pick", lambda previous, context: "long", {"long": Step("essay", write), "short": Step("note", write)}
        )
        >> Step.human_in_the_loop("approve", "Fine?", input_schema=bool)
        >> Step.parallel("both", {"left": Step("l", same), "right": Step("r", same) >> Step("s", same)})
    )
    apart(lambda: Flujo(pipeline, store=place).run("tea", run_id="r"))
    with shown(tab, run_page(place)) as base:
        tab.goto(f"{base}/#run=r&view=graph")
        for path, status in [
            ("write", "success"),
            ("write/~f", "skipped"),
            ("pick/long", "success"),
            ("pick/short", "skipped"),
            ("approve", "waiting"),
            ("both", "pending"),
            ("both/right/s", "pending"),
        ]:
            expect(box(tab, path)).to_have_class(f"box {status}  ")
        expect(head(tab, "pick")).to_contain_text("took branch long")
        head(tab, "both/right/s").click()
        expect(tab.locator(".detail")).to_contain_text("It has not begun.")
        head(tab, "write").click()
        expect(tab.locator("[role=tabpanel]")).to_contain_text("All about tea")


def test_boxes_change_while_the_run_goes_on_and_a_link_shows_an_earlier_moment(tab: Page, place: str):
    """To come, at work, done: as it happens, and again by the slider."""
    gates = {"one": threading.Semaphore(0), "two": threading.Semaphore(0)}

    def waiting(name: str) -> Any:
        async def wait(data: Any) -> Any:
            import anyio.to_thread

            await anyio.to_thread.run_sync(gates[name].acquire)
            return data

        return Step(name, wait)

    run = threading.Thread(target=lambda: Flujo(waiting("one") >> waiting("two"), store=place).run(1, run_id="r"))
    run.start()
    with shown(tab, run_page(place)) as base:
        tab.goto(f"{base}/#run=r&view=graph")
        expect(box(tab, "one")).to_have_class("box running  ")
        expect(box(tab, "two")).to_have_class("box pending  ")
        gates["one"].release()
        expect(box(tab, "one")).to_have_class("box success  ")
        expect(box(tab, "two")).to_have_class("box running  ")
        gates["two"].release()
        expect(box(tab, "two")).to_have_class("box success  ")
        tab.goto(f"{base}/#run=r&view=graph&seq=2")
        expect(box(tab, "two")).to_have_class("box pending  ")
    run.join(120)


def test_a_page_opened_before_its_run_is_submitted_shows_the_run_once_it_exists(tab: Page, place: str):
    """Until then it names the missing run, without a status and without actions."""
    apart(lambda: Flujo(Step("other", same), store=place).run(1, run_id="other"))
    with shown(tab, run_page(place)) as base:
        tab.goto(f"{base}/#run=r&view=graph")
        expect(tab.get_by_role("alert").first).to_contain_text("there is no run 'r' in this store")
        expect(tab.get_by_role("status")).to_have_text("")
        expect(tab.locator("#cancel")).to_have_count(0)
        apart(lambda: Flujo(Step("one", same) >> Step("two", same), store=place).run(1, run_id="r"))
        expect(box(tab, "two")).to_have_class("box success  ")
        expect(tab.get_by_role("status")).to_have_text("completed")
        expect(tab.get_by_role("alert")).to_have_count(0)


def test_thousands_of_items_are_one_body_with_counts(tab: Page, place: str):
    """Each step of the body says how its items stand; those that failed are named first and lead to the step itself."""
    body = Step("half", same) >> Step("check", odd, fallback=Step("guess", same))
    apart(lambda: Flujo(Step.map_over("each", body), store=place).run(list(range(1_200)), run_id="r"))
    tries = Step.parallel("try", {"it": Step("check", odd), "not": Step("same", same)}, on_branch_failure="ignore")
    apart(lambda: Flujo(Step.map_over("each", tries), store=place).run(list(range(800)), run_id="s"))
    with shown(tab, run_page(place)) as base:
        tab.goto(f"{base}/#run=r&view=graph")
        expect(head(tab, "each")).to_contain_text("1,200 items ✓ 1,200")
        expect(head(tab, "each/~i/half")).to_contain_text("✓ 1,200")
        expect(head(tab, "each/~i/check/~f")).to_contain_text("guess ✓ 12")
        assert nodes(tab) <= MOST_NODES
        tab.goto(f"{base}/#run=s&view=graph")
        expect(head(tab, "each/~i/it")).to_contain_text("✓ 792")
        expect(head(tab, "each/~i/it")).to_contain_text("✗ 8")
        expect(head(tab, "each/~i/not")).to_contain_text("✓ 800")  # boxes move until the last record is there
        head(tab, "each/~i/it").click()
        expect(tab.locator(".steps li").first).to_contain_text("each[17]/it")
        expect(tab.locator(".steps li.failure")).to_have_count(8)
        tab.locator(".steps a").first.click()
        expect(tab.locator("[role=tabpanel]")).to_contain_text("17 is odd")
        expect(box(tab, "each/~i/it")).to_have_class("box failure chosen ")


def test_hundreds_of_branches_and_steps_are_shown_in_parts(tab: Page, place: str):
    """A wide stage is folded with counts; a long chain shows the part where something happens."""
    wide = Step.parallel("wide", {f"b{i}": Step(f"b{i}", same) for i in range(1_000)})
    pipeline = chain([f"s{i}" for i in range(60)]) >> wide >> Step.human_in_the_loop("ask", "Fine?")
    apart(lambda: Flujo(pipeline, store=place).run("tea", run_id="r"))
    with shown(tab, run_page(place)) as base:
        tab.goto(f"{base}/#run=r&view=graph&step=ask")
        expect(box(tab, "ask")).to_be_visible()
        expect(head(tab, "wide")).to_contain_text("1,000 items ✓ 1,000")
        assert nodes(tab) <= MOST_NODES
        expect(tab.locator(".more")).to_have_text("… 46 earlier")
        tab.locator(".more").click()
        expect(box(tab, "s35")).to_be_visible()
        tab.locator(".more", has_text="more").click()
        head(tab, "wide").locator(".fold").click()
        expect(box(tab, "wide/b0")).to_be_visible()
        expect(box(tab, "wide/b16")).to_have_count(0)
        tab.locator(".more", has_text="984 more").click()
        expect(box(tab, "wide/b16")).to_be_visible()
        assert nodes(tab) <= MOST_NODES


def test_the_graph_is_used_by_keys_and_is_a_tree_to_who_cannot_see_it(tab: Page, place: str):
    """v to come and go, j k through the boxes, h l to fold; roles, levels and what is chosen are told."""
    inner = Step.parallel("both", {"a": Step("left", write), "b": Step("right", write)})
    steps = Step("first", write) >> inner >> chain([f"s{i}" for i in range(30)])
    apart(lambda: Flujo(steps, store=place).run("tea", run_id="r"))
    with shown(tab, run_page(place)) as base:
        tab.goto(f"{base}/#run=r")
        expect(tab.locator(".line").first).to_be_visible()
        with tab.expect_response(lambda response: "graph?" in response.url):
            tab.keyboard.press("v")
        # As declared, once that has come; until then branches stand in the order in which they ended.
        expect(tab.locator('.box[data-path^="both/"]').first).to_have_attribute("data-path", "both/a")
        for key in "jjj":
            tab.keyboard.press(key)
        expect(box(tab, "both/a")).to_have_attribute("aria-selected", "true")
        expect(box(tab, "both/a")).to_have_attribute("aria-level", "2")
        active = tab.locator("#graph").get_attribute("aria-activedescendant")
        assert active == box(tab, "both/a").get_attribute("id")
        tab.keyboard.press("k")
        tab.keyboard.press("h")
        expect(box(tab, "both/a")).to_have_count(0)
        expect(box(tab, "both")).to_have_attribute("aria-expanded", "false")
        tab.keyboard.press("l")
        expect(box(tab, "both/b")).to_be_visible()
        tab.locator("#graph").focus()
        for _ in range(40):
            tab.keyboard.press("ArrowDown")
        expect(tab.locator(".more.chosen")).to_contain_text("16 more")
        tab.keyboard.press("Enter")
        expect(box(tab, "s29")).to_be_visible()
        tab.keyboard.press("v")
        expect(tab.locator("#tree")).to_be_visible()


def test_a_search_and_a_filter_leave_in_the_light_what_is_wanted(tab: Page, place: str):
    """What is not found steps back; what is around it stays."""
    pipeline = Step("first", write) >> Step.parallel("both", {"a": Step("left", write), "b": Step("right", write)})
    apart(lambda: Flujo(pipeline, store=place).run("tea", run_id="r"))
    with shown(tab, run_page(place)) as base:
        tab.goto(f"{base}/#run=r&view=graph")
        tab.fill("#search", "left")
        expect(tab.locator(".box.dim")).to_have_count(2)
        expect(tab.locator('.box.dim[data-path="both/a"], .box.dim[data-path="both"]')).to_have_count(0)


def test_a_run_whose_declaration_cannot_be_read_is_drawn_from_what_happened(tab: Page, place: str):
    """The records know which steps there were, and which ran side by side."""
    pipeline = Step("first", write) >> Step.parallel("both", {"a": Step("left", write), "b": Step("right", write)})
    apart(lambda: Flujo(pipeline, store=place).run("tea", run_id="r"))
    tab.route("**/api/graph*", lambda route: route.fulfill(json={"steps": []}))
    with shown(tab, run_page(place)) as base:
        tab.goto(f"{base}/#run=r&view=graph")
        expect(box(tab, "both/b")).to_have_class("box success  ")
        expect(tab.locator(".across > .box")).to_have_count(2)


def test_names_of_steps_stay_text_in_the_graph_and_no_content_is_needed(tab: Page, place: str):
    """Markup in a name is shown as it is; a page without content draws the same boxes."""
    apart(
        lambda: Flujo(Step("<img src=x onerror=alert(1)>", write) >> Step("a/b~\u202e", write), store=place).run(
            "tea", run_id="r"
        )
    )
    with shown(tab, run_page(place, content=False)) as base:
        tab.goto(f"{base}/#run=r&view=graph")
        expect(tab.locator(".box")).to_have_count(2)
        expect(tab.locator(".box").first).to_contain_text("<img src=x onerror=alert(1)>")
        expect(tab.locator(".box").last).to_contain_text("a/b~\\u202e")
        assert tab.locator("img").count() == 0
