"""Deploys: programs started in another way, steps that were told other things, and runs of earlier versions."""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai import Agent
from pydantic_ai.models.test import TestModel

from flujo_actors import FingerprintMismatch, Flujo, MemoryStore, Pipeline, RunClient, Step
from flujo_actors._core.outcomes import RunId
from flujo_actors._core.records.records import Record
from flujo_actors._core.step_paths import StepPath, conversation, tried, unit
from flujo_actors._durable.fingerprint import Fingerprint, form_of, is_same, read_fingerprint
from flujo_actors._durable.pipeline_diff import changes_between, steps_done
from kit import preloaded

APP = """
import dataclasses, functools, sys
from flujo_actors import Flujo, Step

@dataclasses.dataclass
class Note:
    text: str = ""

async def make(x) -> Note: return Note(str(x))
def question(data, context): return f"{data.text}?"
def choose(data, context): return "a"
async def publish(answer: str) -> str: return answer

pipeline = (
    Step("make", make)
    >> Step.human_in_the_loop("ask", question)
    >> Step.branch_on("choose", choose, {"a": Step("publish", functools.partial(publish), input=lambda x, context: x)})
)
flujo = Flujo(pipeline, context_model=Note, store=sys.argv[1])
if __name__ == "__main__":
    print(flujo.run(1).state_token if len(sys.argv) == 2 else flujo.resume(sys.argv[2], "yes").output)
"""
IMPORTED = "import sys; from {module} import flujo; print(flujo.resume(sys.argv[2], 'yes').output)"


def answer_of(*command: str, folder: Path) -> str:
    return preloaded.run(
        [sys.executable, *command], cwd=folder, capture_output=True, text=True, check=True
    ).stdout.strip()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("started", "resumed"),
    [
        (("app.py",), ("-c", IMPORTED.format(module="app"))),
        (("-m", "app"), ("-c", IMPORTED.format(module="app"))),
        (("-m", "shop.app"), ("-c", IMPORTED.format(module="shop.app"))),
        (("shop/app.py",), ("-c", IMPORTED.format(module="shop.app"))),
        (("shop/app.py",), ("-m", "shop.app")),
        (("-m", "shop"), ("-c", IMPORTED.format(module="shop.__main__"))),
        (("-c", "import sys; from app import flujo; print(flujo.run(1).state_token)"), ("app.py",)),
    ],
    ids=["script", "-m", "-m in a package", "script in a package", "script and -m", "__main__.py", "the other way"],
)
def test_a_program_is_the_same_however_it_was_started(
    tmp_path: Path, started: tuple[str, ...], resumed: tuple[str, ...]
) -> None:
    """A run of `python app.py` is finished by a worker that imports `app`, its functions and types alike."""
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop/__init__.py").touch()
    for place in ("app.py", "shop/app.py", "shop/__main__.py"):
        (tmp_path / place).write_text(APP)
    url = f"sqlite:///{tmp_path}/runs.db"
    token = answer_of(*started, url, folder=tmp_path)
    assert answer_of(*resumed, url, token, folder=tmp_path) == "yes"


# --- what a step was told ---


async def one(data: Any) -> Any:
    return data


def agent(model: str = "m1", prompt: str = "Be kind.", tools: tuple[Any, ...] = ()) -> Agent:
    return Agent(TestModel(model_name=model, call_tools=[]), system_prompt=prompt, tools=tools)


def look_up(name: str) -> str:
    """Look something up."""
    return name


def told(ask: Agent, **config: Any) -> Pipeline:
    return Step("think", ask, **config) >> Step.human_in_the_loop("ask", "Fine?") >> Step("end", one)


@pytest.mark.parametrize(
    "changed",
    [
        told(agent(prompt="Be strict.")),
        told(agent(model="m2")),
        told(agent(tools=(look_up,))),
        told(agent(), input="Write it in verse."),
    ],
    ids=["prompt", "model", "tools", "input"],
)
def test_how_a_step_that_is_done_was_told_to_work_may_change_in_compat(changed: Pipeline) -> None:
    """It will not work again; strict says what changed all the same."""
    store = MemoryStore()
    token = Flujo(told(agent()), store=store).run("x", run_id="run").state_token or ""
    with pytest.raises(FingerprintMismatch, match="of step 'think' changed"):
        Flujo(changed, store=store).resume(token, "yes")
    assert Flujo(changed, store=store).resume(token, "yes", mode="compat").output == "yes"


def test_a_question_that_was_answered_may_not_change() -> None:
    """A yes to one question is no yes to another."""
    store = MemoryStore()

    def paying(question: str) -> Flujo:
        asked = Step.human_in_the_loop("pay", question) >> Step.human_in_the_loop("then", "And then?")
        return Flujo(asked, store=store)

    first = paying("Pay 10?").run(1, run_id="run")
    second = paying("Pay 10?").resume(first.state_token or "", "yes")
    with pytest.raises(FingerprintMismatch, match="the message of step 'pay' changed"):
        paying("Pay 20?").resume(second.state_token or "", "yes", mode="compat")


@pytest.mark.parametrize("by", ["answer", "client"])
def test_an_answer_to_a_question_that_reads_otherwise_now_is_not_taken(by: str) -> None:
    """Whoever said yes to ten never said yes to nine thousand; the question stays open for whoever asks it."""
    store = MemoryStore()

    def paying(question: str) -> Flujo:
        return Flujo(Step.human_in_the_loop("pay", question) >> Step("after", lambda answer: answer), store=store)

    token = paying("Pay 10?").run(1, run_id="run").state_token or ""
    if by == "client":
        RunClient(store).answer(token, "yes")
    arguments = ("run",) if by == "client" else (token, "yes")
    with pytest.raises(FingerprintMismatch, match=r"the message of step 'pay' changed.*mode=\"force\""):
        paying("Pay 9000?").resume(*arguments, mode="compat")
    assert paying("Pay 10?").resume(*arguments).output == "yes"


def test_a_question_is_as_good_as_done_until_it_is_withdrawn() -> None:
    """What was asked in an attempt that was given up is asked again anyway; a question about a unit is its own."""
    asked = [_record("started", "p"), _record("paused", "p/ask"), _record("answered", "p/ask")]
    assert steps_done(asked) == {"p/ask"}
    assert steps_done([*asked, _record("settled", tried(StepPath("p")))]) == {tried(StepPath("p"))}
    assert steps_done([_record("paused", unit(conversation(StepPath("g"), 0, 0), "1:pay"))]) == set()


def _record(kind: Any, path: str) -> Record:
    return Record(kind=kind, path=StepPath(path), body="{}")


# --- expressions ---


def over(number: int, data: int, context: Any) -> bool:
    return data > number


def positive(data: int, context: Any) -> bool:
    return data > 0


def loop(until: Any) -> Step:
    return Step.loop_until("loop", Step("body", one), until)


def branch(select: Any) -> Step:
    return Step.branch_on("branch", select, {"a": Step("x", one)})


@pytest.mark.parametrize(
    ("before", "after", "fact"),
    [
        (loop(lambda data, context: data > 1), loop(lambda data, context: data > 2), "until"),
        (loop(functools.partial(over, 1)), loop(functools.partial(over, 2)), "until"),
        (loop(functools.partial(over, 1)), loop(positive), "until"),
        (branch(lambda data, context: "a"), branch(lambda data, context: "b"), "select"),
        (Step.map_over("m", Step("x", one), items=[1]), Step.map_over("m", Step("x", one), items=[2]), "items"),
        (Step("a", one, input="Write"), Step("a", one, input="Read"), "input"),
        (Step("a", one, input={"to": "Ada"}), Step("a", one, input={"to": "Bo"}), "input"),
        (Step("a", one), Step("a", one, input="Read"), "input"),
        (
            Step("a", one, input=lambda data, context: [x for x in data if x in {1, 2}]),
            Step("a", one, input=lambda data, context: [x for x in data if x in {1, 3}]),
            "input",
        ),
        (
            Step.human_in_the_loop("q", lambda data, context: "Pay?"),
            Step.human_in_the_loop("q", lambda data, context: "Pay now?"),
            "message",
        ),
    ],
    ids=["lambda", "partial", "function", "select", "items", "text", "data", "new", "nested", "question"],
)
def test_the_text_of_what_decides_between_steps_counts(before: Any, after: Any, fact: str) -> None:
    """A changed condition does not go unnoticed."""
    assert any(sentence.startswith(f"the {fact} of step ") for sentence in changes(before, after))
    assert changes(before, before) == changes(after, after) == []


def changes(before: Any, after: Any) -> list[str]:
    old, new = (Fingerprint.of(Pipeline.from_step(each)) for each in (before, after))
    stored = json.loads(json.dumps(old.data()))
    return changes_between(read_fingerprint(stored), new.steps, [], mode="strict")


def test_the_same_expressions_declared_again_are_the_same() -> None:
    """Another process makes them anew; what is not plain data counts by its type, not by its address."""

    def declared() -> Pipeline:
        return (
            loop(lambda data, context: data in {"a", "b", "c"})
            >> Step("given", one, input={"who": object(), "what": [1, (2, 3)], 4: "four"})
            >> Step("partly", one, input=functools.partial(lambda prefix, data, context: prefix, "x"))
            >> Step.map_over("all", Step("x", one), items=range(3))
        )

    assert changes(declared(), declared()) == []


def test_what_a_step_does_is_known_by_name_alone() -> None:
    """A mended function goes on with the runs of the one that failed."""

    def with_work(work: Callable[[Any], Any]) -> Step:
        return Step("work", work)

    assert changes(with_work(lambda data: 1 / 0), with_work(lambda data: data)) == []


def test_code_of_another_version_of_python_is_not_compared() -> None:
    """It is other for the same text."""
    assert is_same("app.<lambda> cpython-311:aaaa", "app.<lambda> cpython-312:bbbb")
    assert not is_same("app.<lambda> cpython-311:aaaa", "app.<lambda> cpython-311:bbbb")
    assert not is_same("app.<lambda> cpython-311:aaaa", "app.over")
    assert not is_same("app.f", "snapp.f")
    assert is_same("app.f", "shop.app.f")
    assert not is_same("agent writer", "agent reader")


# --- earlier versions ---

EARLIER = {
    "facts": [
        {"kind": "step", "agent": "{module}.one"},
        {"kind": "loop", "max_loops": 5},
        {"kind": "question", "message": "c4b5c8de9d00"},
    ],
    "steps": [["a", 0], ["loop", 1], ["loop/~i", 0], ["ask", 2]],
}


@pytest.mark.parametrize("module", [__name__, "__main__"])
@pytest.mark.parametrize("listed", [False, True], ids=["shared facts", "facts of every step"])
def test_runs_of_earlier_versions_go_on(module: str, listed: bool) -> None:
    """What they did not write down is not compared; what they did, is."""
    pipeline = Step("a", one, input="x") >> loop(lambda data, context: True) >> Step.human_in_the_loop("ask", "Fine?")
    store = MemoryStore()
    token = Flujo(pipeline, store=store).run(1, run_id="run").state_token or ""
    _rewrite_fingerprint(store, _earlier(module, listed))
    changed = Step("b", one) >> loop(lambda data, context: True) >> Step.human_in_the_loop("ask", "Fine?")
    with pytest.raises(FingerprintMismatch, match="step 'a'"):
        Flujo(changed, store=store).resume(token, "yes")
    assert Flujo(pipeline, store=store).resume(token, "yes").output == "yes"


def _earlier(module: str, listed: bool) -> Any:
    data = json.loads(json.dumps(EARLIER).replace("{module}", module))
    assert form_of(data) == 1
    return [[path, data["facts"][place]] for path, place in data["steps"]] if listed else data


def _rewrite_fingerprint(store: MemoryStore, fingerprint: Any) -> None:
    """As if an earlier version had admitted the run."""
    records = store._runs[RunId("run")].records
    body = {**json.loads(records[0].body), "fingerprint": fingerprint}
    object.__setattr__(records[0], "body", json.dumps(body))
