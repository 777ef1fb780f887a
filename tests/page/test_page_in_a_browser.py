"""The page as a person uses it: a real Chromium, a real server, real runs."""

from __future__ import annotations

import datetime as dt
import enum
import threading
from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Page, expect
from pydantic import BaseModel, Field
from starlette.applications import Starlette
from starlette.routing import Mount

from examples.served import served
from flujo_actors import Flujo, RunClient, Step
from flujo_actors.page import run_page
from flujo_actors.testing import CallTool, scripted_model
from page.conftest import apart, shown

pytestmark = pytest.mark.slow


def mounted(page: Any, at: str = "/runs") -> Starlette:
    return Starlette(routes=[Mount(at, page)])


def line(tab: Page, text: str) -> Any:
    return tab.locator(".line", has_text=text).first


async def write(topic: str) -> str:
    return f"All about {topic}"


async def note(text: str, *, context: Any) -> str:
    context.last, context.kept = text, "new"
    del context.gone
    return text


class Color(enum.Enum):
    RED, GREEN, BLUE = "red", "green", "blue"


Many = enum.Enum("Many", {f"n{i}": f"n{i}" for i in range(30)})


class Flat(BaseModel):
    name: str
    pieces: int = Field(ge=1)


class Nested(BaseModel):
    inner: Flat


def test_the_list_leads_to_a_run_wherever_the_page_is_mounted(tab: Page, place: str):
    """All addresses are relative: a mount and a proxy that cuts a prefix off are the same to it."""
    apart(lambda: Flujo(Step("write", write), store=place).run("tea", run_id="tea/1"))

    def cutting(app: Any) -> Any:
        async def proxy(scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] == "http":
                scope = {**scope, "path": scope["path"].removeprefix("/a/b"), "raw_path": None}
            await app(scope, receive, send)

        return proxy

    for app, at in [(mounted(run_page(place)), "/runs/"), (cutting(mounted(run_page(place))), "/a/b/runs/")]:
        with shown(tab, app) as base:
            tab.goto(base + at)
            tab.click("text=tea/1")
            expect(line(tab, "write")).to_be_visible()
            expect(tab.locator(".status")).to_contain_text("completed")


@pytest.mark.parametrize(
    ("schema", "fill", "wrong", "answer"),
    [
        (bool, lambda tab: tab.press("button:text('Yes')", "Enter"), None, True),
        (Color, lambda tab: tab.press("button:text('green')", "Enter"), None, Color.GREEN),
        (Many, lambda tab: tab.select_option(".question select", label="n17"), None, Many.n17),
        (dt.date | None, lambda tab: tab.fill(".question input", "2026-02-03"), None, dt.date(2026, 2, 3)),
        (
            Flat,
            lambda tab: (tab.fill("input[name=name]", "tea"), tab.fill("input[name=pieces]", "3")),
            lambda tab: (tab.fill("input[name=name]", "tea"), tab.fill("input[name=pieces]", "0")),
            Flat(name="tea", pieces=3),
        ),
        (
            Nested,
            lambda tab: (tab.fill("[name='inner.name']", "tea"), tab.fill("[name='inner.pieces']", "3")),
            lambda tab: (tab.fill("[name='inner.name']", "tea"), tab.fill("[name='inner.pieces']", "0")),
            Nested(inner=Flat(name="tea", pieces=3)),
        ),
    ],
    ids=["bool", "enum of 3", "enum of 30", "date or nothing", "flat model", "nested model"],
)
def test_a_question_is_answered_by_the_form_that_its_schema_makes(
    tab: Page, place: str, schema: Any, fill: Callable[[Page], Any], wrong: Any, answer: Any
):
    """A wrong answer names its place and the question stays; a right one completes the run."""
    flujo = Flujo(Step("write", write) >> Step.human_in_the_loop("approve", "Fine?", input_schema=schema), store=place)
    apart(lambda: flujo.run("tea", run_id="r"))
    with shown(tab, mounted(run_page(place, flujos=[flujo]))) as base:
        tab.goto(f"{base}/runs/#run=r")
        for attempt in filter(None, [wrong, fill]):
            attempt(tab)
            if tab.locator(".question button[type=submit]").count():
                tab.press(".question button[type=submit]", "Enter")  # a click misses a button that moves
            if attempt is wrong:
                expect(tab.locator(".question .problem")).to_contain_text("pieces")
        expect(tab.locator(".status")).to_contain_text("completed")
    assert apart(lambda: RunClient(place).wait("r", timeout=120)).output == answer


def test_an_approval_is_answered_by_its_options(tab: Page, place: str):
    """Each a button; who is asked and until when is shown."""
    approval = Step.approval(
        "pay?", "Pay 900 €?", options={"approve": "Pay", "reject": "No"}, to="finance", timeout_s=900
    )
    flujo = Flujo(Step("write", write) >> approval, store=place)
    apart(lambda: flujo.run("tea", run_id="r"))
    with shown(tab, mounted(run_page(place, flujos=[flujo]))) as base:
        tab.goto(f"{base}/runs/#run=r")
        expect(tab.locator(".question")).to_contain_text("for finance")
        expect(tab.locator(".question")).to_contain_text("until ")
        tab.get_by_role("button", name="Pay").click()
        expect(tab.locator(".status")).to_contain_text("completed")
    assert apart(lambda: RunClient(place).wait("r", timeout=120)).output == "All about tea"


def test_of_two_browsers_that_answer_at_once_one_wins_and_the_other_is_told(browser: Any, place: str):
    """The form closes, and says that somebody was faster."""
    flujo = Flujo(Step.human_in_the_loop("ask", "Fine?", input_schema=bool), store=place)
    apart(lambda: flujo.run(None, run_id="r"))
    with served(mounted(run_page(place))) as base:
        one, other = (browser.new_context().new_page() for _ in range(2))
        other.route("**/api/events*", lambda route: route.abort())  # it hears nothing of the first one
        for each in (one, other):
            each.goto(f"{base}/runs/#run=r")
            expect(each.locator(".question")).to_be_visible()
        one.click("button:text('Yes')")
        expect(one.locator(".question")).to_have_count(0)
        other.click("button:text('No')")
        expect(other.locator("[role=alert]").first).to_contain_text("answered")
        expect(other.locator(".question")).to_have_count(0)
        for each in (one, other):
            each.context.close()


def test_what_a_step_did_to_the_context_is_shown_key_by_key(tab: Page, place: str):
    """Added, changed and removed."""
    flujo = Flujo(
        Step("write", write) >> Step("note", note),
        store=place,
        initial_context_data={"kept": "old", "gone": 1, "still": 2},
    )
    apart(lambda: flujo.run("tea", run_id="r"))
    with shown(tab, mounted(run_page(place))) as base:
        tab.goto(f"{base}/runs/#run=r&step=note&tab=context")
        table = tab.locator(".diff")
        for key, kind in [("last", "added"), ("kept", "changed"), ("gone", "removed")]:
            expect(table.locator(f"tr.{kind}")).to_contain_text(key)
        expect(table).not_to_contain_text("still")


def test_retries_are_shown_with_their_errors_and_no_secret_is_sent(tab: Page, place: str, monkeypatch: Any):
    """Each attempt, its frames, the fallback; a planted key is nowhere in the traffic."""
    key = "sk-live-" + "k3y" * 9
    monkeypatch.setenv("SHOP_API_KEY", key)

    async def fetch(topic: str) -> str:
        raise ConnectionError(f"refused with {key}")

    async def leak(topic: str) -> str:
        return f"the key is {key}"

    pipeline = Step("fetch", fetch, max_retries=1, fallback=Step("remember", write)) >> Step("leak", leak)
    apart(lambda: Flujo(pipeline, store=place).run("tea", run_id="r"))
    heard: list[str] = []
    tab.on(
        "response",
        lambda answer: heard.append(answer.text()) if "/api/" in answer.url and "events" not in answer.url else None,
    )
    with shown(tab, mounted(run_page(place))) as base:
        tab.goto(f"{base}/runs/#run=r&step=fetch&tab=error")
        expect(tab.locator(".frames").first).to_contain_text("fetch")
        expect(line(tab, "remember")).to_be_visible()
        line(tab, "leak").click()
        tab.get_by_role("tab", name="output").click()
        expect(tab.locator("[role=tabpanel]")).to_contain_text("the key is")
        assert key not in tab.content()
    assert heard
    assert not [each for each in heard if key in each]


def test_turns_and_tool_calls_of_a_granular_step_are_shown(tab: Page, place: str):
    """With what the tool was called with, what it gave, and what it cost."""
    from flujo_actors import make_agent_async

    async def book(city: str) -> str:
        return f"booked {city}"

    agent = make_agent_async(scripted_model(CallTool("book", {"city": "Oslo"}), "Done."), "Travel.", tools=[book])
    apart(lambda: Flujo(Step.granular("travel", agent), store=place).run("Go", run_id="r"))
    with shown(tab, mounted(run_page(place))) as base:
        tab.goto(f"{base}/runs/#run=r")
        expect(line(tab, "book")).to_be_visible()
        line(tab, "book").click()
        expect(tab.locator(".detail")).to_contain_text("booked Oslo")
        total = apart(lambda: RunClient(place).state("r").usage)
        expect(tab.locator(".status")).to_contain_text(f"{total.input_tokens + total.output_tokens} tokens")


def test_a_run_is_cancelled_from_the_page(tab: Page, place: str):
    """Whoever works on it."""
    begun, over = threading.Event(), []

    async def wait(data: Any) -> Any:
        import anyio

        begun.set()
        await anyio.sleep_forever()

    worker = threading.Thread(target=lambda: over.append(Flujo(Step("wait", wait), store=place).run(1, run_id="r")))
    worker.start()
    assert begun.wait(120)
    with shown(tab, mounted(run_page(place))) as base:
        tab.goto(f"{base}/runs/#run=r")
        expect(line(tab, "wait")).to_have_class("line running ")
        tab.click("#cancel")
        expect(tab.locator(".status")).to_contain_text("aborted")
    worker.join(120)
    assert over[0].status == "aborted"


def test_a_fork_repeats_nothing_before_it_and_names_its_origin(tab: Page, place: str):
    """The steps before the point are taken over."""
    calls: list[str] = []

    async def first(data: str) -> str:
        calls.append("first")
        return data + "!"

    async def second(data: str) -> str:
        calls.append("second")
        return data + "?"

    flujo = Flujo(Step("first", first) >> Step("second", second), store=place)
    apart(lambda: flujo.run("tea", run_id="origin"))
    with shown(tab, mounted(run_page(place, flujos=[flujo]))) as base:
        tab.goto(f"{base}/runs/#run=origin&step=first")
        tab.click("text=Fork after this step")
        expect(tab.locator(".detail")).to_contain_text("forked from")
        expect(tab.locator(".detail")).to_contain_text("origin")
        expect(tab.locator(".status")).to_contain_text("completed")
    assert calls == ["first", "second", "second"]


def test_the_slider_shows_what_was_known_then_and_a_link_shows_it_again(tab: Page, place: str):
    """The same as `state_at`, in a fresh browser too."""
    apart(
        lambda: Flujo(Step("one", write) >> Step("two", write) >> Step("three", write), store=place).run(
            "tea", run_id="r"
        )
    )
    client = RunClient(place)
    records = apart(lambda: client.records("r"))
    with shown(tab, mounted(run_page(place))) as base:
        for seq in [each.seq for each in records][::-1]:
            tab.goto(f"{base}/runs/#run=r&seq={seq}")
            tab.reload()
            done = apart(lambda at=seq: client.state_at("r", at).outcomes)
            expect(tab.locator(".line.success")).to_have_count(len(done))


def test_two_runs_are_compared_step_by_step(tab: Page, place: str):
    """The one output that differs is found by a link."""
    flujo = Flujo(
        Step("same", lambda data: "same") >> Step("other", write, input=lambda previous, context: "x"), store=place
    )
    apart(lambda: flujo.run(1, run_id="a"))
    changed = Flujo(
        Step("same", lambda data: "same") >> Step("other", write, input=lambda previous, context: "y"), store=place
    )
    apart(lambda: changed.run(1, run_id="b"))
    with shown(tab, mounted(run_page(place))) as base:
        tab.goto(f"{base}/runs/#run=a&other=b")
        expect(tab.locator("tr.changed")).to_have_count(1)
        expect(tab.locator("tr.changed")).to_contain_text("other")


def test_thousands_of_branches_are_one_row_with_counts_and_failures_are_found(tab: Page, place: str):
    """A folded map shows its counts; the filter shows exactly what failed; the page stays small."""
    odd = {i * 200 + 17 for i in range(12)}

    async def half(number: int) -> float:
        if number in odd:
            raise ValueError(f"{number} is odd")
        return number / 2

    async def whole(number: int) -> int:
        return number

    body = Step.parallel("try", {"it": Step("half", half), "not": Step("whole", whole)}, on_branch_failure="ignore")
    apart(lambda: Flujo(Step.map_over("each", body), store=place).run(list(range(3_000)), run_id="r"))
    with shown(tab, mounted(run_page(place))) as base:
        tab.goto(f"{base}/runs/#run=r")
        expect(line(tab, "each")).to_contain_text("3,000 items")
        tab.locator(".fold").first.click()
        tab.locator("#tree").evaluate("tree => { tree.scrollTop = 40_000; }")
        expect(line(tab, "[5")).to_be_visible()
        assert tab.evaluate("document.querySelectorAll('*').length") <= 400
        tab.click("[data-filter=failed]")
        expect(tab.locator(".filters .small")).to_have_text("12 found")
        tab.fill("#search", "2017 is odd")
        expect(tab.locator(".filters .small")).to_have_text("1 found")


def test_hostile_output_stays_text(tab: Page, place: str):
    """Markup, scripts, escapes and marks that turn the reading order are shown, and do nothing."""
    hostile = "<img src=x onerror=alert(1)><script>document.title='owned'</script>\x1b[31m\u202etxt.exe ![](http://evil.example/x)"

    async def speak(data: Any) -> str:
        return hostile

    apart(lambda: Flujo(Step("<b>speak</b>", speak), store=place).run(1, run_id="<i>r</i>"))
    with shown(tab, mounted(run_page(place))) as base:
        tab.goto(f"{base}/runs/")
        tab.click(".runs a.m")
        line(tab, "speak").click()
        expect(tab.locator("[role=tabpanel]")).to_contain_text("\\x1b[31m\\u202etxt.exe")
        assert tab.locator("img, script:not([src]), .detail b, .detail i").count() == 0
        assert tab.title() != "owned"


def test_the_whole_page_is_used_by_keys(tab: Page, place: str):
    """j k h l through the tree, / to search, ? for help."""
    inner = Step.parallel("both", {"a": Step("left", write), "b": Step("right", write)})
    apart(lambda: Flujo(Step("first", write) >> inner, store=place).run("tea", run_id="r"))
    with shown(tab, mounted(run_page(place))) as base:
        tab.goto(f"{base}/runs/")
        expect(tab.locator(".runs a.m")).to_be_visible()
        tab.keyboard.press("j")
        tab.keyboard.press("Enter")
        expect(line(tab, "first")).to_be_visible()
        for key in "jj":
            tab.keyboard.press(key)
        expect(tab.locator(".line.chosen")).to_contain_text("both")
        expect(tab.locator(".line")).to_have_count(4)
        tab.keyboard.press("h")
        expect(tab.locator(".line")).to_have_count(2)
        tab.keyboard.press("l")
        expect(tab.locator(".line")).to_have_count(4)
        tab.keyboard.press("/")
        tab.keyboard.type("right")
        expect(tab.locator(".filters .small")).to_have_text("1 found")
        tab.keyboard.press("Escape")
        tab.keyboard.press("?")
        expect(tab.locator("dialog")).to_be_visible()
        tab.keyboard.press("?")
        tab.keyboard.press("u")
        expect(tab.locator(".runs")).to_be_visible()


PRESS = "key => { window.dispatchEvent(new KeyboardEvent('keydown', { key })); return document.activeElement.id; }"


def test_a_key_that_opens_a_field_focuses_it_before_the_next_frame(tab: Page, place: str):
    """Letters typed at once after `/` or `d` reach the field, also if the browser draws late."""
    approval = Step.approval("pay?", "Pay?", options={"approve": "Pay", "reject": "No"})
    apart(lambda: Flujo(approval, store=place).run("tea", run_id="r"))
    with shown(tab, mounted(run_page(place))) as base:
        tab.goto(f"{base}/runs/#run=r")
        expect(tab.locator(".question")).to_be_visible()
        assert tab.evaluate(PRESS, "/") == "search"
        assert tab.evaluate(PRESS, "d").startswith("comment-")


def test_the_text_of_a_step_grows_while_it_is_written(tab: Page, place: str):
    """In this process, piece by piece and in order; when the step has ended its output stands there."""
    more, begun = threading.Semaphore(0), threading.Event()

    async def speak(data: Any) -> Any:
        import anyio.to_thread

        begun.set()
        for number in range(30):
            await anyio.to_thread.run_sync(more.acquire)
            yield f"word{number} "

    run = threading.Thread(target=lambda: Flujo(Step("speak", speak), store=place).run(1, run_id="r"))
    run.start()
    assert begun.wait(120)
    with shown(tab, mounted(run_page(place))) as base:
        tab.goto(f"{base}/runs/#run=r&step=speak&tab=output")
        expect(tab.locator(".line.running")).to_contain_text("speak")
        expect(tab.locator(".status")).to_contain_text("running")
        expect(tab.locator(".status")).to_have_attribute("data-live", "true")
        more.release()  # the first word may come before the page listens: what is live is not kept for later
        for number in (1, 2, 3):
            more.release()
            expect(tab.locator(".live")).to_contain_text(f"word{number}")
        assert "word1 word2 word3" in tab.locator(".live").inner_text()
        more.release(26)
        expect(tab.locator(".status")).to_contain_text("completed")
        expect(tab.locator("[role=tabpanel]")).to_contain_text("word29")
    run.join(120)
