"""Live updates of the page, and its tabs, in a real Chromium."""

from __future__ import annotations

import threading
from typing import Any

import anyio.to_thread
import httpx
import pytest
from playwright.sync_api import Page, expect

from examples.served import served
from flujo_actors import Flujo, Pipeline, RunClient, Step, make_agent_async
from flujo_actors.page import run_page
from flujo_actors.testing import CallTool, scripted_model
from page.conftest import apart, shown

pytestmark = pytest.mark.slow


async def write(topic: str) -> str:
    return f"All about {topic}"


async def failing(data: Any) -> Any:
    raise ValueError("on purpose")


def asking(place: str) -> Flujo[Any, Any, Any]:
    return Flujo(Pipeline([Step("write", write), Step.approval("approve", "Publish?")], name="asks"), store=place)


def started(flujo: Flujo[Any, Any, Any], run_id: str) -> None:
    apart(lambda: flujo.run("tea", run_id=run_id))


def test_a_new_run_leaves_focus_and_rows_of_the_list_in_place(tab: Page, place: str) -> None:
    """The row of a run stays the same element, with its focus and its check mark."""
    flujo: Flujo[Any, Any, Any] = Flujo(Step("write", write), store=place)
    started(flujo, "old")
    with shown(tab, run_page(place)) as base:
        tab.goto(f"{base}/")
        row = tab.locator("tr[data-run='old']")
        row.locator(".tick").check()
        row.locator("a.m").focus()
        row.evaluate("row => { window.oldRow = row; }")
        started(flujo, "new")
        expect(tab.locator("tbody tr[data-run]")).to_have_count(2)
        expect(tab.locator("tbody tr[data-run]").first).to_have_attribute("data-run", "new")
        expect(row.locator("a.m")).to_be_focused()
        expect(row.locator(".tick")).to_be_checked()
        assert row.evaluate("row => row === window.oldRow")
        apart(lambda: RunClient(place, allow_blocking=True).delete("new"))
        expect(tab.locator("tbody tr[data-run]")).to_have_count(1)
        expect(row.locator("a.m")).to_be_focused()


def test_the_stream_of_the_list_begins_with_an_event(place: str) -> None:
    """A page that loaded its list before the stream began misses no change."""
    started(Flujo(Step("write", write), store=place), "r")
    with served(run_page(place)) as base, httpx.stream("GET", f"{base}/api/events", timeout=120) as answer:
        assert next(line for line in answer.iter_lines() if line.startswith("event:")) == "event: runs"


def test_a_new_question_leaves_a_typed_comment_in_place(tab: Page, place: str) -> None:
    """Text, cursor and focus of the comment stay while the inbox grows."""
    flujo = asking(place)
    started(flujo, "first")
    with shown(tab, run_page(place)) as base:
        tab.goto(f"{base}/#page=inbox")
        comment = tab.locator("textarea")
        comment.fill("Not yet: a page is missing")
        comment.evaluate("box => { box.setSelectionRange(4, 7); window.box = box; }")
        started(flujo, "second")
        expect(tab.locator(".q")).to_have_count(2)
        expect(comment).to_be_focused()
        expect(comment).to_have_value("Not yet: a page is missing")
        assert comment.evaluate("box => [box === window.box, box.selectionStart, box.selectionEnd]") == [True, 4, 7]


def test_a_new_step_leaves_the_other_lines_of_the_tree_in_place(tab: Page, place: str) -> None:
    """The line of a step is one element from its start to the end of the run."""
    flujo = asking(place)
    started(flujo, "r")
    with shown(tab, run_page(place, flujos=[flujo])) as base:
        tab.goto(f"{base}/#run=r")
        line = tab.locator(".line[data-path=write]")
        line.evaluate("line => { window.line = line; }")
        tab.get_by_role("button", name="Approve").click()
        expect(tab.locator(".toast")).to_have_text("Answered.")  # first: it is shown for some seconds only
        expect(tab.locator(".status")).to_contain_text("completed")
        assert line.evaluate("line => line === window.line")


def test_the_inbox_has_a_tab_of_given_answers(tab: Page, place: str) -> None:
    """User, decision, step and comment; a link leads to the run."""
    flujo = asking(place)
    started(flujo, "r")
    [question] = apart(lambda: RunClient(place).questions())
    apart(lambda: RunClient(place).answer(question.state_token, {"option": "reject", "comment": "No."}, by="mira"))
    with shown(tab, run_page(place)) as base:
        tab.goto(f"{base}/#page=inbox")
        tab.get_by_role("button", name="Answered").click()
        expect(tab.locator(".q")).to_contain_text("mira rejected approve: “No.”")
        tab.locator(".q").click()
        expect(tab.locator(".status")).to_be_visible()


def test_a_question_of_others_is_marked_and_has_no_buttons(tab: Page, place: str) -> None:
    """The count of the inbox has the user's own questions only."""
    flujo = asking(place)
    for name in ("mine", "theirs"):
        started(flujo, name)
    page = run_page(place, may_answer=lambda user, question: question.run_id == "mine")
    with shown(tab, page) as base:
        tab.goto(f"{base}/#page=inbox")
        expect(tab.locator(".inbox aside").first).to_contain_text("You may answer")
        expect(tab.locator(".nav .count")).to_have_text("1")
        tab.locator(".q", has_text="theirs").click()
        expect(tab.locator(".question")).to_contain_text("You may not answer this question.")
        expect(tab.locator(".question .acts")).to_have_count(0)


def test_all_runs_of_a_filter_are_deleted_after_their_count(tab: Page, place: str) -> None:
    """More runs than the list has loaded: the sheet shows their number before the action."""
    flujo: Flujo[Any, Any, Any] = Flujo(Pipeline([Step("s", failing)], name="p"), store=place)
    apart(lambda: [flujo.run(number, run_id=f"r{number:03}") for number in range(103)])
    with shown(tab, run_page(place)) as base:
        tab.goto(f"{base}/#pipeline=p")
        tab.get_by_role("checkbox", name="Choose all").check()
        tab.get_by_role("button", name="Choose all that match").click()
        tab.get_by_role("toolbar").get_by_role("button", name="Delete…").click()
        expect(tab.locator(".sheet")).to_contain_text("103 will be deleted for good.")
        tab.locator(".sheet button[type=submit]").click()
        expect(tab.locator(".toast")).to_have_text("Deleted: 103 runs.")
        expect(tab.locator("tbody tr[data-run]")).to_have_count(0)


def test_an_event_is_sent_from_its_tab(tab: Page, place: str) -> None:
    """The open wait is in a table; the form sends its event, and the table has the event."""
    flujo = Flujo(Pipeline([Step.wait_for("paid", event="paid", key="7")], name="p"), store=place)
    apart(lambda: flujo.submit_sync("x", run_id="r"))
    apart(lambda: flujo.resume("r"))
    with shown(tab, run_page(place, flujos=[flujo])) as base:
        tab.goto(f"{base}/#page=overview")
        tab.get_by_role("button", name="Events").click()
        expect(tab.locator(".card", has_text="Open waits").locator("tbody tr")).to_contain_text("paid")
        tab.locator("[name=event]").fill("paid")
        tab.locator("[name=key]").fill("7")
        tab.locator("[name=data]").fill('{"amount": 3}')
        tab.get_by_role("button", name="Send").click()
        expect(tab.locator(".toast")).to_have_text("Event delivered.")
        expect(tab.locator(".card", has_text="Reason").locator("tbody tr")).to_contain_text("delivered")


def test_a_sleeping_run_is_woken(tab: Page, place: str) -> None:
    """The button is there while the run sleeps."""
    flujo = Flujo(Pipeline([Step.sleep("rest", 86_400), Step("write", write)], name="p"), store=place)
    apart(lambda: flujo.submit_sync("tea", run_id="r"))
    apart(lambda: flujo.resume("r"))
    with shown(tab, run_page(place, flujos=[flujo])) as base:
        tab.goto(f"{base}/#run=r")
        expect(tab.locator(".status")).to_contain_text("sleeping")
        tab.locator("#wake").click()
        expect(tab.locator(".status")).to_contain_text("completed")
        expect(tab.locator("#wake")).to_have_count(0)


def test_a_long_message_is_folded_until_it_is_shown_in_full(tab: Page, place: str) -> None:
    """More than twelve lines; the button shows all of them, and folds them again."""
    reply = "\n".join(f"line {number}" for number in range(40))
    flujo = Flujo(Step("write", make_agent_async(scripted_model(reply))), store=place)
    started(flujo, "r")
    with shown(tab, run_page(place)) as base:
        tab.goto(f"{base}/#run=r&step=write&tab=conversation")
        text = tab.locator(".msg[data-role=assistant] .text")
        expect(text).to_have_class("text long")
        tab.get_by_role("button", name="Show all").click()
        expect(text).to_have_class("text")
        tab.get_by_role("button", name="Show less").click()
        expect(text).to_have_class("text long")


def test_the_graph_of_a_phone_is_as_wide_as_its_screen(tab: Page, place: str) -> None:
    """Three parallel branches fit next to each other at full size, and their edges join."""
    branches = {name: Step(name, write) for name in ("a", "b", "c")}
    flujo: Flujo[Any, Any, Any] = Flujo(Step("first", write) >> Step.parallel("three", branches), store=place)
    started(flujo, "r")
    tab.set_viewport_size({"width": 375, "height": 780})
    with shown(tab, run_page(place)) as base:
        tab.goto(f"{base}/#run=r&view=graph")
        expect(tab.locator(".box")).to_have_count(5)
        expect(tab.locator(".edges path.past")).to_have_count(1)
        boxes = [each.bounding_box() for each in tab.locator(".box").all()]
        assert all(each is not None and each["x"] >= 0 and each["x"] + each["width"] <= 375 for each in boxes)
        joined = tab.locator(".edges path.past").get_attribute("d")
        assert joined is not None
        assert joined.count("V") == 3


def test_a_running_agent_is_sent_a_message(tab: Page, place: str) -> None:
    """The box is below the conversation of a running agent, and is empty once the message is accepted."""
    begun, gate = threading.Event(), threading.Event()

    async def look(city: str) -> str:
        """Look something up."""
        begun.set()
        await anyio.to_thread.run_sync(gate.wait)
        return "found"

    agent = make_agent_async(scripted_model(CallTool("look", {"city": "Oslo"}), "Done."), tools=[look], name="guide")
    flujo = Flujo(Pipeline([Step.granular("guide", agent)], name="p"), store=place)
    run = threading.Thread(target=lambda: flujo.run("go", run_id="r"))
    run.start()
    try:
        assert begun.wait(120)
        with shown(tab, run_page(place)) as base:
            tab.goto(f"{base}/#run=r&step=guide&tab=conversation")
            box = tab.get_by_label("Message to the agent")
            box.fill("Look at Bergen, too.")
            tab.get_by_role("button", name="Send").click()
            expect(box).to_have_value("")
            gate.set()
            expect(tab.locator(".status")).to_contain_text("completed")
    finally:
        gate.set()
        run.join(120)
    kinds = [each.kind for each in apart(lambda: RunClient(place, allow_blocking=True).records("r"))]
    assert "steered" in kinds
