"""Approvals: decided, deferred, escalated and ended by time, through the front door and in every store."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
import trio

from flujo_actors import (
    AlreadyAnswered,
    ApprovalTimeout,
    Decision,
    DeclarationError,
    Expired,
    Flujo,
    InvalidAnswer,
    MemoryStore,
    Option,
    PostgresStore,
    Rejected,
    RunClient,
    SqliteStore,
    Step,
)
from kit.other_processes import forked
from kit.postgres_server import session_server


class Wall:
    """A wall clock that stands still until it is told to go on."""

    def __init__(self) -> None:
        self.seconds = 1_000_000.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def wall() -> Wall:
    return Wall()


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def store(request: pytest.FixtureRequest, wall: Wall, tmp_path: Path) -> Iterator[Any]:
    made: Any
    match request.param:
        case "memory":
            made = MemoryStore(wall=wall)
        case "sqlite":
            made = SqliteStore(tmp_path / "runs.db", wall=wall)
        case _:
            made = PostgresStore(session_server().fresh_url(), wall=wall)
    yield made
    made.close()


async def told_no(data: Any) -> str:
    return f"no {data}"


async def later(data: Any) -> str:
    return f"later {data}"


async def ship(data: Any) -> str:
    return f"shipped {data}"


def paying(**options: Any) -> Any:
    return Step.approval("pay?", "Pay 900 €?", **options) >> Step("ship", ship)


def result_named(result: Any, name: str) -> Any:
    return next(each for each in result.step_history if each.name == name)


# --- decisions ----------------------------------------------------------------------------------------------


def test_what_is_approved_passes_on(store: Any) -> None:
    """A1: the incoming data is the output, and the decision says who made it."""
    flujo = Flujo(paying(to="finance"), store=store)
    paused = flujo.run("tea")
    assert (paused.status, paused.feedback) == ("paused", "Pay 900 €?")
    result = flujo.resume(paused.state_token, Decision("approve", by="ada", comment="fine"))
    assert result.output == "shipped tea"
    assert result_named(result, "pay?").output == "tea"
    assert result_named(result, "pay?").metadata["decision"] == Decision("approve", "ada", "fine")


@pytest.mark.parametrize("answer", ["reject", False, Decision("reject", by="ada")])
def test_what_is_rejected_goes_another_way(store: Any, answer: Any) -> None:
    """A2: the output of that way is the step's."""
    flujo = Flujo(paying(on_rejection=told_no), store=store)
    result = flujo.resume(flujo.run("tea").state_token, answer)
    assert (result.status, result.output) == ("completed", "shipped no tea")


def test_a_rejection_without_a_way_is_a_failure() -> None:
    """6.2: it says who and why, and a fallback may act."""
    flujo = Flujo(paying())
    result = flujo.resume(flujo.run("tea").state_token, Decision("reject", by="ada", comment="too dear"))
    assert result.status == "failed"
    assert isinstance(result.error, Rejected)
    assert "ada: too dear" in (result.feedback or "")
    flujo = Flujo(paying(fallback=later))
    assert flujo.resume(flujo.run("tea").state_token, False).output == "shipped later tea"


def test_a_rejection_can_be_asked_about() -> None:
    """The way after a no gets the data, and the decision if it asks for it by name."""

    async def apologize(data: str, *, decision: Decision) -> str:
        return f"{data}: {decision.comment}"

    flujo = Flujo(paying(on_rejection=apologize))
    assert flujo.resume(flujo.run("tea").state_token, Decision("reject", comment="no")).output == "shipped tea: no"


def test_other_options_have_a_kind() -> None:
    """6.2: `edit` approves."""
    options = {"edit": Option("edit", "Edit first", kind="approve"), "reject": "No"}
    flujo = Flujo(paying(options=options))
    result = flujo.resume(flujo.run("tea").state_token, "edit")
    assert result_named(result, "pay?").metadata["decision"].option == "edit"


def test_an_answer_that_is_no_option_is_refused(store: Any) -> None:
    """A4: with the three that there are, and the run still waits."""
    flujo, client = Flujo(paying(), store=store), RunClient(store)
    token = flujo.run("tea").state_token
    for answer in (flujo.resume, client.answer):
        with pytest.raises(InvalidAnswer, match="'approve', 'reject', 'defer'"):
            answer(token, "perhaps")
    assert client.list("paused")
    client.answer(token, "approve")
    assert [each.output for each in flujo.recover()] == ["shipped tea"]


def test_the_second_answer_comes_too_late(store: Any) -> None:
    """A9."""
    flujo, client = Flujo(paying(), store=store), RunClient(store)
    token = flujo.run("tea").state_token
    client.answer(token, True)
    for answer in (flujo.resume, client.answer):
        with pytest.raises(AlreadyAnswered):
            answer(token, "reject")


def test_whoever_decides_is_shown_what_there_is_to_know(store: Any, wall: Wall) -> None:
    """6.7: step, addressee, options, deadline, level and deferrals."""
    Flujo(paying(to="finance", timeout_s=60, metadata={"amount": 900}), store=store).run("tea")
    [prompt] = RunClient(store).prompts()
    assert (prompt.step, prompt.to, prompt.level, prompt.deferrals) == ("pay?", "finance", 0, 0)
    assert [option.name for option in prompt.options] == ["approve", "reject", "defer"]
    assert prompt.due_at == wall() + 60
    assert prompt.metadata == {"amount": 900}


# --- time ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sweep", ["recover", "expire"])
def test_nobody_answered_in_time(store: Any, wall: Wall, sweep: str) -> None:
    """A3: "fail" fails, and "reject" goes the way of a rejection."""
    failing = Flujo(paying(timeout_s=60), store=store)
    run_id = failing.run("tea").run_id
    wall.seconds += 61
    if sweep == "expire":
        assert RunClient(store).expire() == [run_id]
        assert RunClient(store).expire() == []
    [result] = failing.recover()
    assert result.status == "failed"
    assert isinstance(result.error, ApprovalTimeout)
    rejecting = Flujo(paying(timeout_s=60, on_timeout="reject", on_rejection=told_no), store=store)
    rejecting.run("tea")
    wall.seconds += 61
    assert [each.output for each in rejecting.recover()] == ["shipped no tea"]


def test_time_can_approve(store: Any, wall: Wall) -> None:
    """6.5: silence is a yes where it is declared so."""
    flujo = Flujo(paying(timeout_s=60, on_timeout="approve"), store=store)
    flujo.run("tea")
    wall.seconds += 60
    assert [each.output for each in flujo.recover()] == ["shipped tea"]


def test_what_was_answered_in_time_does_not_expire(store: Any, wall: Wall) -> None:
    """A5: answered at 59, swept at 61."""
    flujo, client = Flujo(paying(timeout_s=60), store=store), RunClient(store)
    token = flujo.run("tea").state_token
    wall.seconds += 59
    client.answer(token, "approve")
    wall.seconds += 2
    assert client.expire() == []
    assert [each.output for each in flujo.recover()] == ["shipped tea"]


def test_a_question_without_a_time_waits(store: Any, wall: Wall) -> None:
    """A6: after a year it still does."""
    flujo = Flujo(paying(), store=store)
    flujo.run("tea")
    wall.seconds += 365 * 86400
    assert RunClient(store).expire() == []
    assert flujo.recover() == []
    assert RunClient(store).list("paused")


def test_nothing_fires_before_its_time(store: Any, wall: Wall) -> None:
    """A7."""
    flujo = Flujo(paying(timeout_s=60), store=store)
    flujo.run("tea")
    wall.seconds += 59
    assert flujo.recover() == []


@pytest.mark.parametrize("swept", [True, False])
def test_an_answer_after_the_deadline_is_refused(store: Any, wall: Wall, swept: bool) -> None:
    """6.4: whether somebody has swept or not."""
    flujo, client = Flujo(paying(timeout_s=60), store=store), RunClient(store)
    token = flujo.run("tea").state_token
    wall.seconds += 60
    if swept:
        client.expire()
    for answer in (flujo.resume, client.answer):
        with pytest.raises(Expired):
            answer(token, "approve")


def test_only_what_is_due_fires(store: Any, wall: Wall) -> None:
    """A8: of two branches one, and the run stays paused; the other one can still be answered."""
    slow = Step.approval("slow?", "Slow?", timeout_s=600)
    quick = Step.approval("quick?", "Quick?", timeout_s=60, on_timeout=later)
    flujo = Flujo(Step.parallel("both", {"slow": slow, "quick": quick}), store=store)
    Flujo(paying(), store=store).run("another")  # so that the keys of runs and of questions differ
    run_id = flujo.run("tea").run_id
    wall.seconds += 61
    assert RunClient(store).expire() == [run_id]
    [result] = flujo.recover()
    assert result.status == "paused"
    assert flujo.recover() == []
    [prompt] = [each for each in RunClient(store).prompts() if each.run_id == run_id]
    assert prompt.step == "slow?"
    assert flujo.resume(prompt.state_token, True).output == {"slow": "tea", "quick": "later tea"}


def test_a_step_may_stand_for_the_answer(store: Any, wall: Wall) -> None:
    """A10: its output passes on."""
    flujo = Flujo(paying(timeout_s=60, on_timeout=later), store=store)
    flujo.run("tea")
    wall.seconds += 61
    assert [each.output for each in flujo.recover()] == ["shipped later tea"]


def test_a_question_is_escalated(store: Any, wall: Wall) -> None:
    """6.5: with its own token, addressee, level and clock."""
    boss = Step.approval("boss?", "Boss, pay?", to="boss", timeout_s=100)
    flujo, client = Flujo(paying(to="clerk", timeout_s=60, on_timeout=boss), store=store), RunClient(store)
    first = flujo.run("tea").state_token
    wall.seconds += 61
    [result] = flujo.recover()
    [prompt] = client.prompts()
    assert (prompt.to, prompt.level, prompt.due_at) == ("boss", 1, wall() + 100)
    assert prompt.state_token == result.state_token != first
    result = flujo.resume(prompt.state_token, Decision("approve", by="boss"))
    assert result.output == "shipped tea"
    assert result_named(result, "pay?").metadata["decision"].by == "boss"


def test_a_question_is_put_off(store: Any, wall: Wall) -> None:
    """6.6: another token, its full time from that moment, and only so often."""
    flujo, client = Flujo(paying(timeout_s=60, max_deferrals=2), store=store), RunClient(store)
    first = flujo.run("tea").state_token
    wall.seconds += 50
    client.answer(first, "defer")
    [prompt] = client.prompts()
    assert (prompt.deferrals, prompt.due_at, prompt.state_token != first) == (1, wall() + 60, True)
    wall.seconds += 50
    again = flujo.resume(prompt.state_token, "defer")
    assert (again.status, again.state_token not in (first, prompt.state_token)) == ("paused", True)
    with pytest.raises(InvalidAnswer, match="max_deferrals is 2"):
        client.answer(again.state_token, "defer")
    for token in (first, prompt.state_token):
        with pytest.raises(AlreadyAnswered):
            client.answer(token, "approve")
    wall.seconds += 59
    assert flujo.resume(again.state_token, "approve").output == "shipped tea"
    wall.seconds += 500
    with pytest.raises(AlreadyAnswered):
        client.answer(first, "approve")


def test_of_answer_and_timeout_exactly_one_wins(store: Any, wall: Wall) -> None:
    """6.4: at the moment of the deadline, many times over."""
    flujo, client = Flujo(paying(timeout_s=60, on_timeout=later), store=store), RunClient(store)
    for _ in range(8):
        run = flujo.run("tea")
        wall.seconds += 60 - 1e-6
        answered: list[str] = []

        def answer(token: Any = run.state_token, told: list[str] = answered) -> None:
            try:
                client.answer(token, "approve")
            except (Expired, AlreadyAnswered):
                return
            told.append("answer")

        thread = threading.Thread(target=answer)
        thread.start()
        wall.seconds += 2e-6
        fired = client.expire()
        thread.join()
        assert bool(answered) != (run.run_id in fired)
        [result] = flujo.recover()
        assert result.output == ("shipped tea" if answered else "shipped later tea")


def test_deferring_lives_in_memory_too() -> None:
    """Without a store, a question is put off and answered in the process that asked it."""
    flujo = Flujo(paying())
    first = flujo.run("tea")
    again = flujo.resume(first.state_token, "defer")
    assert (again.status, again.state_token != first.state_token) == ("paused", True)
    assert flujo.resume(again.state_token, "approve").output == "shipped tea"


def test_deadlines_hold_in_memory_too() -> None:
    """Without a store, the process that asked fires them."""
    flujo = Flujo(paying(timeout_s=0.05, on_timeout=later))

    async def main() -> list[Any]:
        paused = await flujo.run_async("tea")
        await trio.sleep(0.06)
        with pytest.raises(Expired):
            await flujo.resume_async(paused.state_token, "approve")
        return list(await flujo.recover_async())

    assert [each.output for each in trio.run(main)] == ["shipped later tea"]


# --- recovering ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
def test_a_program_fires_what_is_due_while_it_lives(backend: str, tmp_path: Path) -> None:
    """6.4: `recovering()` sleeps until the next deadline, on either library."""
    done: list[Any] = []

    async def finished(data: Any) -> Any:
        done.append(data)
        return data

    pipeline = Step.approval("pay?", "Pay?", timeout_s=0.15, on_timeout="approve") >> Step("finish", finished)
    flujo = Flujo(pipeline, store=f"sqlite:///{tmp_path / 'runs.db'}")

    async def main() -> None:
        await flujo.run_async("tea")
        async with flujo.recovering(every_s=0.1):
            with anyio.fail_after(120):
                while not done:
                    await anyio.sleep(0.02)

    anyio.run(main, backend=backend)
    assert done == ["tea"]


def test_a_block_is_entered_once() -> None:
    """Each block has its own background."""

    async def main() -> None:
        block = Flujo(paying()).recovering()
        async with block:
            with pytest.raises(RuntimeError, match="entered already"):
                await block.__aenter__()

    trio.run(main)


@pytest.mark.slow
@pytest.mark.parametrize("place", ["sqlite", "postgres"])
def test_a_deadline_outlives_the_process_that_asked(place: str, tmp_path: Path) -> None:
    """The one that asked is killed; another one, which never saw the run, fires it."""
    url = f"sqlite:///{tmp_path / 'runs.db'}" if place == "sqlite" else session_server().fresh_url()

    def asked() -> None:
        Flujo(paying(timeout_s=0.2, on_timeout=later), store=url).run("tea", run_id="r")
        os.kill(os.getpid(), signal.SIGKILL)

    assert os.waitstatus_to_exitcode(os.waitpid(forked(asked), 0)[1]) == -signal.SIGKILL
    flujo = Flujo(paying(timeout_s=0.2, on_timeout=later), store=url)
    results: list[Any] = []
    deadline = trio_deadline(120)
    while not results and deadline():
        results = [each for each in flujo.recover() if each.status != "paused"]
    assert [each.output for each in results] == ["shipped later tea"]


def trio_deadline(seconds: float) -> Callable[[], bool]:
    """Whether so many seconds have not passed."""
    import time

    until = time.monotonic() + seconds
    return lambda: time.monotonic() < until


# --- declarations -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"timeout_s": 0}, "timeout_s"),
        ({"timeout_s": -1}, "timeout_s"),
        ({"on_timeout": "wait"}, "on_timeout"),
        ({"on_timeout": "reject", "options": {"approve": "Yes"}}, "no option rejects"),
        ({"options": {"perhaps": "Perhaps"}}, "kind"),
        ({"options": {}}, "approve"),
        ({"max_deferrals": -1}, "max_deferrals"),
        ({"on_rejection": 3}, "on_rejection"),
        ({"to": 3}, "to must be"),
        ({"timeout": 3}, "timeout"),
    ],
)
def test_an_approval_that_cannot_work_is_refused(options: dict[str, Any], said: str) -> None:
    """A11, and what else can be written wrongly."""
    with pytest.raises(DeclarationError, match=said):
        paying(**options)


def test_a_store_that_knows_no_deadlines_says_so() -> None:
    """A third-party store without the new methods does all the rest."""

    class Older:
        def __init__(self) -> None:
            self._store = MemoryStore()

        def __getattr__(self, name: str) -> Any:
            if name in ("expire", "next_due_s", "defer"):
                raise AttributeError(name)
            return getattr(self._store, name)

    with pytest.raises(DeclarationError, match=r"Older cannot keep deadlines.*`expire`"):
        Flujo(paying(timeout_s=60), store=Older())
    flujo = Flujo(paying(), store=Older())
    assert flujo.resume(flujo.run("tea").state_token, True).output == "shipped tea"
    assert flujo.recover() == []
