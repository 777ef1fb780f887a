"""Every screen of the page with runs of a claims service: desktop and phone, light and dark."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio.to_thread
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect

from examples.served import served
from flujo_actors import Flujo, RunClient, Step
from flujo_actors.page import run_page
from page.claims import COMPLETED, FAILED, WAITING_FOR_APPROVAL, WAITING_FOR_TOOL, seeded, service, with_waits
from page.conftest import apart

pytestmark = pytest.mark.slow

SCREENS = {
    "overview": ("#page=overview", ".chart"),
    "runs": ("#", ".runs"),
    "inbox": ("#page=inbox", ".q"),
    "answered": ("#page=inbox&tab=answered", ".q"),
    "events": ("#page=overview&tab=events", ".card form, .card .field"),
    "schedules": ("#page=overview&tab=schedules", ".card .btn"),
    "limits": ("#page=overview&tab=limits", ".card"),
    "sleeping": ("#run=reminder", ".line.sleeping"),
    "context": (f"#run={COMPLETED}&tab=context&view=details", ".facts"),
    "run": (f"#run={COMPLETED}&tab=result", ".out, .line"),
    "conversation": (f"#run={COMPLETED}&step=adjust&tab=conversation", ".msg"),
    "failed": (f"#run={FAILED}", ".alert"),
    "question": (f"#run={WAITING_FOR_TOOL}", ".question"),
    "graph": (f"#run={WAITING_FOR_APPROVAL}&view=graph&step=approve", ".box, .question"),
    "compare": (f"#run={COMPLETED}&other={WAITING_FOR_APPROVAL}", ".compared"),
}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The page of a store with runs in several states."""
    place = f"sqlite:///{tmp_path_factory.mktemp('claims')}/runs.db"
    apart(lambda: seeded(place))
    apart(lambda: _waiting(place))
    with served(run_page(place, flujos=[service(place)])) as address:
        yield address


def _waiting(place: str) -> None:
    """Leave a sleeping run, a run that waits for an event, and a schedule."""
    Flujo(Step.sleep("remind", 10_800), store=place).run("x", run_id="reminder")
    Flujo(Step.wait_for("paid?", "paid", key="C-20418", timeout_s=86_400), store=place).run("x", run_id="invoice")
    service(place).schedule("nightly", cron="30 2 * * *", zone="Europe/Madrid")


@pytest.fixture
def desk(browser: Browser) -> Iterator[Page]:
    """A desktop tab."""
    yield from _tab(browser, 1280, 900)


@pytest.fixture
def phone(browser: Browser) -> Iterator[Page]:
    """A tab as wide as a phone."""
    yield from _tab(browser, 390, 844)


def _tab(browser: Browser, width: int, height: int) -> Iterator[Page]:
    context = browser.new_context(
        viewport={"width": width, "height": height}, color_scheme="light", reduced_motion="reduce", bypass_csp=True
    )
    page = context.new_page()
    page.set_default_timeout(60_000)
    wrong: list[str] = []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    yield page
    page.goto("about:blank")
    context.close()
    assert wrong == []


def opened(tab: Page, base: str, screen: str) -> None:
    """Show a screen and wait for its content."""
    address, content = SCREENS[screen]
    tab.goto("about:blank")
    tab.goto(f"{base}/{address}")
    expect(tab.locator(content).first).to_be_visible()


@pytest.mark.parametrize("width", [1280, 390])
def test_axe_finds_no_violation_on_any_screen(browser: Browser, base: str, width: int):
    """Names, roles, contrast in both color schemes; and nothing is wider than the window."""
    for tab in _tab(browser, width, 844):
        found: dict[str, list[tuple[str, str]]] = {}
        for screen in SCREENS:
            opened(tab, base, screen)
            tab.add_style_tag(content="* { transition: none !important }")  # colors change at once with the scheme
            found[screen] = _violations(tab)
            assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth"), screen
            tab.emulate_media(color_scheme="dark")  # styles alone know the scheme: names and roles stay as they are
            found[screen] += _violations(tab, runOnly=["color-contrast"])
            tab.emulate_media(color_scheme="light")
        assert {screen: each for screen, each in found.items() if each} == {}


def _violations(tab: Page, **options: Any) -> list[tuple[str, str]]:
    violations = Axe().run(tab, options={"resultTypes": ["violations"], **options}).response["violations"]
    return [(each["id"], each["nodes"][0]["html"][:200]) for each in violations]


def test_a_run_opens_at_its_output_and_a_failed_one_at_its_error(desk: Page, base: str):
    """User frames come first, those of libraries are folded, the input that failed is shown."""
    opened(desk, base, "run")
    expect(desk.locator(".detail")).to_contain_text("Dear Ms Brandt")
    expect(desk.locator(".detail")).to_contain_text("mira approved issue_payment with a change: amount")
    opened(desk, base, "failed")
    expect(desk.locator(".line.chosen")).to_contain_text("adjust")
    expect(desk.locator(".frames > :first-child")).to_contain_text("claims.py")
    expect(desk.locator(".frames details")).not_to_have_attribute("open", "")
    expect(desk.locator(".detail")).to_contain_text("Input that failed")


def test_the_conversation_has_tokens_dollars_and_passages(desk: Page, base: str):
    """Messages of user, model and tools; retrieved passages with scores; two turns compared."""
    opened(desk, base, "conversation")
    expect(desk.locator(".msg[data-role=assistant]").first).to_contain_text("1,890 tokens · $0.0092")
    tool = desk.locator(".msg[data-role=tool]", has_text="issue_payment")
    expect(tool).to_contain_text("approved by mira")
    expect(tool.locator("ins")).to_contain_text("1640.00")
    desk.get_by_role("button", name="Compare turns 2 and 3").click()
    expect(desk.locator(".dl.a").first).to_contain_text("Paid as pay_58Qd1")
    desk.goto(f"{base}/#run={COMPLETED}&step=checks/coverage&tab=conversation")
    expect(desk.locator(".msg[data-role=retrieved]")).to_contain_text("§7.1 Exclusions")


def test_waiting_time_is_a_band_and_a_drag_zooms(desk: Page, base: str):
    """Model turns and tools have bars; the axis breaks at long waits; a drag shows a part of it."""
    desk.route("**/api/records*", lambda route: route.fulfill(json=with_waits(route.fetch().json())))
    opened(desk, base, "run")
    expect(desk.locator(".gap")).to_have_count(2)
    expect(desk.locator(".line .bar.model")).to_have_count(5)
    expect(desk.locator(".line .bar.hatch")).to_have_count(2)
    axis = desk.locator(".axis > div").bounding_box()
    assert axis is not None
    before = desk.locator(".line .bar.model").first.bounding_box()
    desk.mouse.move(axis["x"] + 2, axis["y"] + 10)
    desk.mouse.down()
    desk.mouse.move(axis["x"] + axis["width"] * 0.3, axis["y"] + 10, steps=3)
    desk.mouse.up()
    expect(desk.get_by_role("button", name="Zoom off")).to_be_visible()
    after = desk.locator(".line .bar.model").first.bounding_box()
    assert before is not None
    assert after is not None
    assert after["width"] > before["width"] * 2
    desk.keyboard.press("0")
    expect(desk.get_by_role("button", name="Zoom off")).to_have_count(0)


def test_the_list_is_filtered_by_a_chip_and_two_runs_are_compared(desk: Page, base: str):
    """Short ids, states first; a label chip filters; two chosen runs are compared."""
    opened(desk, base, "runs")
    first = desk.locator(f"[data-run='{COMPLETED}']")
    expect(first.locator("td").nth(1)).to_have_text("completed")
    expect(first.locator(".copy-id")).to_have_text(COMPLETED[:6])
    desk.locator(f"[data-run='{COMPLETED}'] .chip", has_text="claim").click()
    expect(desk.locator("tbody tr[data-run]")).to_have_count(1)
    expect(desk.locator(".chip.on")).to_contain_text("C-20418")
    desk.locator(".chip.on").click()
    expect(desk.locator("tbody tr[data-run]")).to_have_count(7)
    for run_id in (COMPLETED, WAITING_FOR_APPROVAL):
        desk.locator(f"[data-run='{run_id}'] .tick").check()
    desk.locator("#compare-two").click()
    expect(desk.locator(".compared tr[data-path='letter']")).to_contain_text("only in")


def test_a_phone_shows_states_first_and_three_views_of_a_run(phone: Page, base: str):
    """Cards with the state, a bottom bar, details first where something is asked."""
    opened(phone, base, "runs")
    card = phone.locator(f".rcard[data-run='{FAILED}']")
    expect(card.locator(".st")).to_have_text("failed")
    box = card.locator(".st").bounding_box()
    assert box is not None
    assert box["x"] + box["width"] < 390
    opened(phone, base, "question")
    expect(phone.get_by_role("button", name="Approve")).to_be_in_viewport()
    phone.get_by_role("button", name="Timeline").click()
    expect(phone.locator(".line").first).to_be_visible()


def test_a_sleeping_run_shows_when_it_wakes(desk: Page, base: str):
    """In the list and on its page; its step sleeps, and is not taken for an aborted one."""
    desk.goto(f"{base}/#status=sleeping")
    expect(desk.locator("tr", has_text="reminder")).to_contain_text("wakes in 3 h")
    expect(desk.locator("tr", has_text="invoice")).to_contain_text("it waits for event 'paid' with key 'C-20418'")
    opened(desk, base, "sleeping")
    expect(desk.locator(".alert.sleeping")).to_contain_text("wakes in 3 h")
    expect(desk.locator(".line.sleeping .fact")).to_have_text("sleeps for 10800 s")
    expect(desk.locator("#wake")).to_be_visible()
    desk.goto(f"{base}/#run=invoice")
    expect(desk.locator(".line.sleeping")).to_be_visible()
    expect(desk.locator("#wake")).to_have_count(0)


def test_a_phone_shows_the_tabs_without_overlap(phone: Page, base: str):
    """Titles are whole words, buttons are below the times, and the count of the inbox stays."""
    for screen in ("overview", "schedules", "events", "limits"):
        opened(phone, base, screen)
        title = phone.locator(".title h1").bounding_box()
        assert title is not None
        assert title["height"] < 40
        expect(phone.locator(".nav .count")).to_have_text("2")
        assert phone.evaluate("document.documentElement.scrollWidth <= innerWidth")
    opened(phone, base, "schedules")
    times, pause = phone.locator(".card ol").bounding_box(), phone.locator(".card .btn").first.bounding_box()
    assert times is not None
    assert pause is not None
    assert times["y"] + times["height"] <= pause["y"]
    assert pause["x"] + pause["width"] <= 390


def test_runs_are_retried_and_deleted_with_a_preview(desk: Page, base: str):
    """The sheet names the runs that are left out before anything is changed."""
    opened(desk, base, "runs")
    for run_id in (COMPLETED, FAILED):
        desk.locator(f"[data-run='{run_id}'] .tick").check()
    desk.get_by_role("toolbar").get_by_role("button", name="Retry…").click()
    expect(desk.locator(".sheet")).to_contain_text("1 will be retried, 1 is left out.")
    desk.keyboard.press("Escape")
    expect(desk.locator(".sheet")).to_have_count(0)


def test_from_the_inbox_to_the_letter_in_four_clicks(browser: Browser, tmp_path: Path):
    """Inbox, a changed amount, approval; the run continues and its letter is shown."""
    place = f"sqlite:///{tmp_path}/runs.db"
    flujo = service(place, approved=False)
    apart(lambda: flujo.run({"text": "Pipe burst"}, run_id=COMPLETED))
    with served(run_page(place, flujos=[flujo])) as address:
        for tab in _tab(browser, 1280, 900):
            tab.goto(f"{address}/")
            tab.get_by_role("link", name="Inbox").click()
            expect(tab.locator(".quote")).to_contain_text("The burst pipe is covered by §4.2")
            tab.locator("[name=pay_on]").fill("")
            tab.locator("[name=amount]").fill("lots")
            tab.locator(".acts .primary").click()
            expect(tab.locator(".wrong")).to_contain_text("lots is not a number")
            tab.locator("[name=amount]").fill("1,640.00")
            expect(tab.locator(".changed").first).to_contain_text("was 1840.00")
            tab.get_by_role("button", name="Approve with 2 changes").click()
            expect(tab.locator(".status")).to_contain_text("completed")
            expect(tab.locator(".detail")).to_contain_text("Dear Ms Brandt")
    done = apart(lambda: RunClient(place).state(COMPLETED))
    assert done.status == "completed"


def test_a_denial_asks_for_a_reason_and_reaches_the_model(browser: Browser, tmp_path: Path):
    """The reason is required on the page, and part of the answer."""
    place = f"sqlite:///{tmp_path}/runs.db"
    flujo = service(place, approved=False)
    apart(lambda: flujo.run({"text": "Pipe burst"}, run_id=COMPLETED))
    with served(run_page(place)) as address:
        for tab in _tab(browser, 1280, 900):
            tab.goto(f"{address}/#page=inbox")
            tab.get_by_role("button", name="Deny…").click()
            tab.get_by_role("button", name="Deny", exact=True).click()
            expect(tab.locator(".problem")).to_contain_text("a reason is required")
            tab.get_by_label("Reason").fill("The carpet is not covered.")
            tab.get_by_role("button", name="Deny", exact=True).click()
            expect(tab.locator(".question")).to_have_count(0)
    answered = apart(lambda: [each for each in RunClient(place).records(COMPLETED) if each.kind == "answered"])
    body = apart(lambda: RunClient(place).record(COMPLETED, answered[0].seq).body)
    assert "The carpet is not covered." in body


def test_a_run_is_started_from_a_form(browser: Browser, tmp_path: Path):
    """The form has the fields of the first step's input; a wrong value is named."""
    place = f"sqlite:///{tmp_path}/runs.db"
    flujo = service(place, approved=False)
    with served(run_page(place, flujos=[flujo])) as address:
        for tab in _tab(browser, 1280, 900):
            tab.goto(f"{address}/")
            expect(tab.locator(".empty")).to_contain_text("No runs yet.")
            tab.locator("#start").first.click()
            sheet = tab.locator(".sheet")
            sheet.locator("[name=claim]").fill("C-7")
            sheet.locator("[name=policy]").fill("P-7")
            sheet.locator("[name=text]").fill("Pipe burst")
            sheet.get_by_role("button", name="Start").click()
            expect(sheet.locator(".wrong")).to_contain_text("claimed")
            sheet.locator("[name=claimed]").fill("12.50")
            sheet.get_by_role("button", name="Start").click()
            expect(tab.locator(".status")).to_contain_text("waiting")


SHIFTS = """
new Promise((done) => {
  let shift = 0;
  const seen = (list) => { for (const each of list.getEntries()) if (!each.hadRecentInput) shift += each.value; };
  new PerformanceObserver(seen).observe({ type: 'layout-shift', buffered: true });
  requestAnimationFrame(() => requestAnimationFrame(() => done(shift)));
})
"""


def test_live_data_shifts_no_layout(browser: Browser, tmp_path: Path):
    """A run with labels is followed from its first step to its end without a layout shift."""
    place = f"sqlite:///{tmp_path}/runs.db"
    gates = {name: threading.Event() for name in ("first", "second", "third")}
    begun = threading.Event()

    def gated(name: str) -> Step[Any, Any]:
        async def wait(data: Any) -> Any:
            begun.set()
            await anyio.to_thread.run_sync(gates[name].wait)
            return data

        return Step(name, wait)

    flujo = Flujo(gated("first") >> gated("second") >> gated("third"), store=place)
    run = threading.Thread(target=lambda: flujo.run("tea", run_id="r", labels={"tenant": "acme"}))
    run.start()
    assert begun.wait(120)
    with served(run_page(place)) as address:
        for tab in _tab(browser, 1280, 900):
            tab.goto(f"{address}/#run=r&step=first&tab=context")
            expect(tab.locator(".line.running")).to_contain_text("first")
            expect(tab.locator(".status")).to_have_attribute("data-live", "true")
            before = tab.evaluate(SHIFTS)
            for name, gate in gates.items():
                gate.set()
                expect(tab.locator(".line.success", has_text=name)).to_be_visible()
            expect(tab.locator(".status")).to_contain_text("completed")
            assert tab.evaluate(SHIFTS) - before < 0.01
    run.join(120)
