"""Data of the page for its tabs: answers, differences, context, bulk actions of a filter, events, schedules."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs
import httpx
import pytest

from flujo_actors import Evaluation, Flujo, MemoryStore, Pipeline, RunClient, SqliteStore, Step, make_agent_async
from flujo_actors._api.evaluation.comparison import Comparison, Delta
from flujo_actors._api.evaluation.evaluation_results import CaseResult
from flujo_actors._api.evaluation.gates import GateResult
from flujo_actors.page import run_page
from flujo_actors.testing import scripted_model

pytestmark = pytest.mark.anyio

SAME_ORIGIN = {"origin": "http://localhost"}


@pytest.fixture
def anyio_backend() -> str:
    """The server's own library."""
    return "asyncio"


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    return MemoryStore() if request.param == "memory" else SqliteStore(tmp_path / "runs.db")


def http(page: Any) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(page, client=("127.0.0.1", 50_000))
    return httpx.AsyncClient(transport=transport, base_url="http://localhost")


async def got(page: Any, name: str, **query: Any) -> Any:
    async with http(page) as client:
        answer = await client.get(f"/api/{name}", params=query)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def posted(page: Any, name: str, body: Any) -> httpx.Response:
    async with http(page) as client:
        return await client.post(f"/api/{name}", json=body, headers=SAME_ORIGIN)


def client_of(store: Any) -> RunClient:
    return RunClient(store, allow_blocking=True)


async def text_of(data: Any, *, context: Any) -> str:
    context.topic = data
    return f"a line\nabout {data} today"


def asking() -> Pipeline:
    return Pipeline([Step("write", text_of), Step.approval("approve", "Publish?")], name="p")


async def failing(data: Any) -> Any:
    raise ValueError("on purpose")


async def test_answers_have_user_decision_and_comment(store: Any) -> None:
    """One run's answers, and the latest ones of a store."""
    flujo = Flujo(asking(), store=store)
    await flujo.run_async("tea", run_id="r", labels={"title": "Tea"})
    [question] = client_of(store).questions()
    client_of(store).answer(question.state_token, {"option": "approve", "comment": "Fine."}, by="mira")
    page = run_page(store)
    [answer] = (await got(page, "answers", run="r"))["answers"]
    assert (answer["by"], answer["decision"], answer["name"], answer["comment"]) == (
        "mira",
        "approved",
        "approve",
        "Fine.",
    )
    assert (await got(page, "answers"))["answers"] == [answer]
    assert (await got(run_page(store, content=False), "answers", run="r"))["answers"] == []


async def test_the_answers_of_a_store_have_pages(store: Any) -> None:
    """A page has the answers of sixty runs; none is lost or listed twice, and ends of sleeps are no answers."""
    flujo, client = Flujo(Step.approval("approve", "Publish?"), store=store), client_of(store)
    for number in range(63):
        await flujo.run_async("tea", run_id=f"r{number}")
    for question in client.questions(limit=100):
        client.answer(question.state_token, {"option": "approve"}, by="mira")
    await Flujo(Step.sleep("nap", 60), store=store).run_async("tea", run_id="nap")
    client.wake("nap")
    page = run_page(store)
    first = await got(page, "answers")
    rest = await got(page, "answers", cursor=first["cursor"])
    found = [each["run_id"] for each in (*first["answers"], *rest["answers"])]
    assert (sorted(found), rest["cursor"]) == (sorted(f"r{number}" for number in range(63)), None)
    assert (await got(page, "answers", run="nap"))["answers"] == []


async def test_a_sleeping_run_has_the_time_of_its_end(store: Any) -> None:
    """A person can wake it, unless it waits for an event alone."""
    await Flujo(Step.sleep("nap", 10_800), store=store).run_async("x", run_id="nap")
    await Flujo(Step.wait_for("paid?", "paid", timeout_s=60), store=store).run_async("x", run_id="event")
    found = {each["run_id"]: each for each in (await got(run_page(store), "runs"))["runs"]}
    assert found["nap"]["wakes_ms"] - found["nap"]["created_ms"] >= 10_800_000
    assert [(found[each]["state"], found[each]["can_wake"]) for each in ("nap", "event")] == [
        ("sleeping", True),
        ("sleeping", False),
    ]


async def test_the_context_of_a_run_has_values_and_changes(store: Any) -> None:
    """At its last record, and before its first step settled."""
    await Flujo(asking(), store=store).run_async("tea", run_id="r")
    page = run_page(store)
    found = await got(page, "context", run="r", at=99)
    assert found["values"]["topic"] == "tea"
    assert [(each["key"], each["kind"]) for each in found["changes"]] == [("topic", "added")]
    assert (await got(page, "context", run="r", at=1))["changes"] == []


async def test_two_outputs_are_compared_by_line_and_word(store: Any) -> None:
    """Equal lines are one part; changed lines name the words of each side."""
    flujo = Flujo(asking(), store=store)
    for topic in ("tea", "milk"):
        await flujo.run_async(topic, run_id=topic)
    page = run_page(store)
    seqs = [next(e.seq for e in client_of(store).records(run) if e.kind == "settled") for run in ("tea", "milk")]
    rows = (await got(page, "diff", a="tea", b="milk", one=seqs[0], other=seqs[1]))["rows"]
    assert rows[0] == [[["a line", True]], [["a line", True]], True]
    assert rows[1][0] == [["about ", True], ["tea", False], [" today", True]]
    assert rows[1][1] == [["about ", True], ["milk", False], [" today", True]]
    assert (await got(page, "diff", a="tea", b="milk", one="9" * 5_000, other="²"))["rows"] == [
        [[["", True]], [["", True]], True]
    ]
    assert (await got(run_page(store, content=False), "diff", a="tea", b="milk")) == {"hidden": True}


async def test_a_filter_is_previewed_and_confirmed_before_a_bulk_action(store: Any) -> None:
    """Runs that came later are left out, and a larger number than confirmed changes nothing."""
    flujo: Flujo[Any, Any, Any] = Flujo(Pipeline([Step("s", failing)], name="p"), store=store)
    for number in range(3):
        await flujo.run_async(number, run_id=f"r{number}", labels={"tenant": "ada"})
    await Flujo(asking(), store=store).run_async("tea", run_id="open", labels={"tenant": "ada"})
    page, where = run_page(store), {"label": ["tenant:ada"]}
    preview = (await posted(page, "bulk", {"action": "delete", "where": where, "dry_run": True})).json()
    assert (preview["count"], preview["sentence"]) == (3, "3 will be deleted for good, 1 is left out.")
    without = await posted(page, "bulk", {"action": "delete", "where": where})
    assert (without.status_code, "confirm the number" in without.text) == (422, True)
    confirmed = {"action": "delete", "where": where, "before_ms": preview["now_ms"]}
    fewer = await posted(page, "bulk", {**confirmed, "count": 2})
    assert (fewer.status_code, "3 runs match now, and 2 were confirmed" in fewer.text) == (422, True)
    done = (await posted(page, "bulk", {**confirmed, "count": 3})).json()
    assert (done["done"], done["sentence"]) == (3, "Deleted: 3 runs.")
    assert [each.run_id for each in client_of(store).list()] == ["open"]


async def test_a_bulk_action_of_a_filter_stays_inside_the_scope(store: Any) -> None:
    """Another tenant's runs neither count nor change, whatever the filter names."""
    flujo: Flujo[Any, Any, Any] = Flujo(Pipeline([Step("s", failing)], name="p"), store=store)
    for tenant in ("ada", "bob"):
        await flujo.run_async(1, run_id=tenant, labels={"tenant": tenant})
    page = run_page(store, auth=lambda request: "ada", scope=lambda request, user: {"tenant": user})
    preview = (await posted(page, "bulk", {"action": "delete", "where": {}, "dry_run": True})).json()
    assert preview["count"] == 1
    other = {"action": "delete", "where": {"label": ["tenant:bob"]}, "dry_run": True}
    assert (await posted(page, "bulk", other)).status_code == 422
    await posted(page, "bulk", {"action": "delete", "where": {}, "count": 9, "before_ms": preview["now_ms"]})
    assert [each.run_id for each in client_of(store).list()] == ["bob"]


async def test_questions_are_marked_with_whether_the_user_may_answer(store: Any) -> None:
    """The function that decides on answers decides on the mark, too."""
    flujo = Flujo(asking(), store=store)
    for name in ("mine", "theirs"):
        await flujo.run_async(name, run_id=name)
    page = run_page(store, may_answer=lambda user, question: question.run_id == "mine")
    found = (await got(page, "questions"))["questions"]
    assert {each["run_id"]: each["may_answer"] for each in found} == {"mine": True, "theirs": False}


async def test_the_events_tab_has_open_waits_and_stored_events(store: Any) -> None:
    """An event sent from the page is delivered to the run that waits, and one without a run is buffered."""
    flujo = Flujo(Pipeline([Step.wait_for("paid", event="paid", key="7")], name="p"), store=store)
    await flujo.submit("x", run_id="r")
    await flujo.resume_async("r")
    page = run_page(store)
    found = await got(page, "waits")
    assert [(each["event"], each["key"], each["run_id"]) for each in found["waits"]] == [("paid", "7", "r")]
    assert [each["title"] for each in found["tables"]] == ["Open waits", "Events"]
    assert (await posted(page, "send", {"event": "paid", "key": "7", "data": 1})).json()["status"] == "delivered"
    assert (await posted(page, "send", {"event": "paid", "key": "8"})).json()["status"] == "buffered"
    found = await got(page, "waits")
    assert (found["waits"], sorted(each["status"] for each in found["events"])) == ([], ["buffered", "delivered"])
    assert "send" not in await got(run_page(store, read_only=True), "waits")


async def test_a_schedule_is_paused_resumed_and_triggered(store: Any) -> None:
    """Its row has five times in its zone, and the buttons that fit its state."""
    flujo = Flujo(Pipeline([Step("write", text_of)], name="p"), store=store)
    await flujo.submit("x")
    flujo.schedule("daily", cron="0 9 * * *", zone="Europe/Madrid", input="tea")
    page = run_page(store)
    [schedule] = (await got(page, "schedules"))["schedules"]
    assert (schedule["name"], len(schedule["next"])) == ("daily", 5)
    assert (await posted(page, "schedule", {"name": "daily", "action": "pause"})).status_code == 200
    found = await got(page, "schedules")
    assert found["schedules"][0]["paused"]
    assert [each["text"] for each in found["tables"][0]["rows"][0][-1]["acts"]] == ["Resume", "Trigger"]
    run_id = (await posted(page, "schedule", {"name": "daily", "action": "trigger"})).json()["run_id"]
    assert run_id.startswith("daily!")
    assert (await posted(page, "schedule", {"name": "daily", "action": "drop"})).status_code == 422


async def test_the_conversation_has_the_system_prompt_of_a_known_pipeline(store: Any) -> None:
    """A page that knows the pipeline shows its prompt; one whose prompt has changed since does not."""

    def writes(prompt: str) -> Flujo[Any, Any, Any]:
        agent = make_agent_async(scripted_model("Tea."), prompt, name="writer")
        return Flujo(Pipeline([Step("write", agent)], name="p"), store=store)

    flujo = writes("Write about it.")
    await flujo.run_async("tea", run_id="r")

    async def system_texts(*flujos: Any) -> list[str]:
        found = await got(run_page(store, flujos=list(flujos)), "conversation", run="r", step="write")
        return [each["text"] for each in found["messages"] if each["role"] == "system"]

    assert await system_texts(flujo) == ["Write about it."]
    assert await system_texts(writes("Be brief.")) == []
    assert await system_texts() == []


def evaluated(run_id: str, *right: bool, baseline: str | None = None) -> Evaluation:
    """Return an evaluation with a case per truth; those that are false have failed."""
    cases = tuple(
        CaseResult(
            name=f"c{number}",
            run_id=f"{run_id}/c{number}",
            status="passed" if each else "failed",
            assertions={"equal": each},
            scores={"tone": 0.5 + number / 10},
            cost_usd=0.01,
        )
        for number, each in enumerate(right)
    )
    delta = Delta(
        metric="pass", n=3, before=1.0, after=2 / 3, difference=-1 / 3, low=None, high=None, verdict="unknown"
    )
    comparison = None if baseline is None else Comparison(baseline=baseline, deltas=(delta,), changed=("c1",))
    gates = (GateResult(text="pass>0.9", holds=False, measured=2 / 3, wanted=0.9),)
    return Evaluation(
        run_id=run_id, name="numbers", status="completed", cases=cases, comparison=comparison, gates=gates
    )


async def test_an_evaluation_is_a_table_of_cases_and_metrics(monkeypatch: pytest.MonkeyPatch) -> None:
    """Next to its baseline, in the order of a metric, or only the cases that changed."""
    stored = {"v1": evaluated("v1", True, True, True), "v2": evaluated("v2", True, False, True, baseline="v1")}
    monkeypatch.setattr(RunClient, "evaluation", lambda client, run_id: stored[run_id])
    store = MemoryStore()
    flujo: Flujo[Any, Any, Any] = Flujo(Pipeline([Step("s", text_of)], name="evaluation of p"), store=store)
    await flujo.run_async("x", run_id="v2")
    page = run_page(store)
    cases, metrics, gates = (await got(page, "evaluation", run="v2"))["tables"]
    assert cases["note"] == "2/3 passed · baseline v1"
    assert [(row[0]["text"], row[1]["text"], row[2]) for row in cases["rows"]] == [
        ("c0", "passed", "yes"),
        ("c1", "failed", "no (-1)"),
        ("c2", "passed", "yes"),
    ]
    assert cases["rows"][1][-1]["link"] == {"run": "v1/c1", "other": "v2/c1"}
    assert (metrics["rows"][0][0], gates["rows"][0][1]["text"]) == ("pass", "fails")
    [changed] = (await got(page, "evaluation", run="v2", only="changed"))["tables"][0]["rows"]
    assert changed[0]["text"] == "c1"
    ordered = (await got(page, "evaluation", run="v2", by="equal"))["tables"][0]["rows"]
    assert [row[0]["text"] for row in ordered] == ["c1", "c0", "c2"]
    assert (await got(page, "now", run="v2"))["runs"]["v2"] == "2/3 passed · baseline v1"


async def test_cases_of_an_evaluation_are_sorted_by_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a score or by a figure of the run; cases without a value are last."""
    cases = [
        CaseResult(name=f"c{tokens}", run_id=f"v2/c{tokens}", repeat=1 + (tokens == 9), status="passed", **facts)
        for tokens, facts in ((100, {"scores": {"tone": 9.0}}), (9, {"scores": {"tone": 10.0}}), (20, {}))
        for facts in ({**facts, "tokens": tokens, "cost_usd": tokens / 1000},)
    ]
    before = [attrs.evolve(each, run_id=f"v1/{each.name}", tokens=10, scores={"tone": 9.0}) for each in cases]
    comparison = Comparison(baseline="v1", deltas=())
    stored = {
        "v1": attrs.evolve(evaluated("v1"), cases=tuple(before)),
        "v2": attrs.evolve(evaluated("v2"), cases=tuple(cases), comparison=comparison),
    }
    monkeypatch.setattr(RunClient, "evaluation", lambda client, run_id: stored[run_id])
    store = MemoryStore()
    flujo: Flujo[Any, Any, Any] = Flujo(Pipeline([Step("s", text_of)], name="evaluation of p"), store=store)
    await flujo.run_async("x", run_id="v2")
    page = run_page(store)

    async def shown(by: str) -> list[tuple[str, str, str]]:
        found = await got(page, "evaluation", run="v2", by=by)
        assert found["metrics"] == ["tone", "Tokens", "Cost", "Time"]
        return [(row[0]["text"], row[2], row[3]) for row in found["tables"][0]["rows"]]

    nine, hundred, twenty = ("c9 #2", "10 (+1)", "9 (-1)"), ("c100 #1", "9", "100 (+90)"), ("c20 #1", "–", "20 (+10)")
    assert await shown("tone") == [hundred, nine, twenty]
    assert await shown("Tokens") == [nine, twenty, hundred]
    assert await shown("") == [hundred, nine, twenty]
    costly = attrs.evolve(cases[0], cost_usd=0.3, duration_s=0.25)
    stored["v2"] = attrs.evolve(stored["v2"], cases=(costly,))
    [row] = (await got(page, "evaluation", run="v2"))["tables"][0]["rows"]
    assert row[4:6] == ["$0.3000 (+$0.2000)", "250 ms (+250 ms)"]


async def test_a_pipeline_may_be_named_as_an_evaluation() -> None:
    """The list shows its run as any other."""
    store = MemoryStore()
    flujo: Flujo[Any, Any, Any] = Flujo(Pipeline([Step("s", text_of)], name="evaluation of p"), store=store)
    await flujo.run_async("x", run_id="r")
    assert (await got(run_page(store), "now", run="r"))["runs"] == {"r": ""}


async def test_a_kept_rehearsal_is_a_table_of_pairs(store: Any) -> None:
    """Each pair opens the recorded run and its fork side by side, at the first difference."""
    recorded = MemoryStore()
    flujo = Flujo(Step("count", len) >> Step("total", abs, rehearse="live"), store=recorded)
    for number in range(2):
        await flujo.run_async("x" * (number + 1), run_id=f"r{number}")
    changed = Flujo(Step("count", len) >> Step("total", lambda amount: amount % 2, rehearse="live"))
    rehearsal = await flujo.rehearse_async(
        ["r0", "r1", "gone"], changed=changed, models="recorded", at="total", into=store
    )
    fork = rehearsal.runs[1].rehearsed_id
    assert fork is not None
    page = run_page(store)
    [table] = (await got(page, "evaluation", run=fork))["tables"]
    assert table["note"] == "1 same · 1 different · 1 skipped"
    assert [(row[1]["text"], row[2]) for row in table["rows"]] == [
        ("same", ""),
        ("different", "step 'total' gave 0, recorded 2 (record 3)"),
        ("skipped", "there is no such run"),
    ]
    pair = table["rows"][1][-1]["link"]
    assert (pair["other"], pair["step"], table["rows"][2][-1]) == (fork, "total", None)
    found = await got(page, "compare", a=pair["run"], b=pair["other"])
    assert [(step["path"], step["same"]) for step in found["steps"]] == [("count", True), ("total", False)]
    assert {run["status"] for run in found["runs"]} == {"completed"}
    listed = await got(page, "runs")
    assert {run["pipeline"] for run in listed["runs"]} == {"rehearsal of count >> total"}
    assert len(listed["runs"]) == 2
    [hidden] = (await got(run_page(store, content=False), "evaluation", run=fork))["tables"]
    assert [row[2] for row in hidden["rows"]] == ["", "", ""]


async def test_an_evaluation_is_one_line_of_the_list(store: Any) -> None:
    """Its cases are left out, also where they fill a whole page; a search finds them."""
    cases: Flujo[Any, Any, Any] = Flujo(Pipeline([Step("s", text_of)], name="p"), store=store)
    whole: Flujo[Any, Any, Any] = Flujo(Pipeline([Step("s", text_of)], name="evaluation of p"), store=store)
    await cases.run_async("x", run_id="a/b")
    await whole.run_async("x", run_id="v1")
    for number in range(3):
        await cases.run_async("x", run_id=f"v1/c{number}")
    page = run_page(store)

    async def listed(**query: Any) -> list[str]:
        return [each["run_id"] for each in (await got(page, "runs", **query))["runs"]]

    assert await listed() == ["v1", "a/b"]
    assert await listed(limit=2) == ["v1"]
    assert sorted(await listed(q="v1/")) == ["v1/c0", "v1/c1", "v1/c2"]
