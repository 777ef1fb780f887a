"""Options that Python and blueprints share: approvals, queues, compensations, context sources, tools with approval."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import yaml

from flujo_actors import (
    BlueprintError,
    Collection,
    DeclarationError,
    Flujo,
    InMemoryRetriever,
    MemoryStore,
    NotExportable,
    Option,
    Pipeline,
    RunClient,
    Step,
    dump_blueprint,
    from_literal,
    from_retrieval,
    from_state,
    lint,
    load_blueprint,
    make_agent_async,
)
from flujo_actors._blueprint.parser.json_schema import blueprint_schema
from flujo_actors._durable.fingerprint import Fingerprint


class ParityPapers(Collection, name="papers"):
    """A collection that blueprints name."""

    tenant: str


async def work(data: str) -> str:
    return data.upper()


async def refuse(data: str) -> str:
    raise ValueError("no")


async def undo(done: Any) -> None:
    UNDONE.append(done.output)


async def note(failure: Any) -> None:
    NOTED.append(failure.step_name if hasattr(failure, "step_name") else str(failure))


def pay(amount: int) -> str:
    """Pay an amount."""
    return f"paid {amount}"


UNDONE: list[Any] = []
NOTED: list[str] = []
ME = __name__

EVERYTHING = f"""
version: "1"
name: parity
labels: {{tenant: "7"}}
agents:
  clerk:
    model: test
    tools: [{{uses: "{ME}:pay", requires_approval: true}}]
steps:
  - name: work
    uses: "{ME}:work"
    runs_on: gpu
    compensate: "{ME}:undo"
    on_failure: "{ME}:note"
  - name: ask
    kind: approval
    message: "Publish {{{{ previous_step }}}}?"
    to: editors
    options: {{publish: {{label: "Yes", kind: approve}}, drop: {{label: "No", kind: reject}}, reject: Later}}
    timeout_s: 60
    on_timeout:
      - {{name: remind, uses: "{ME}:work"}}
      - {{name: again, uses: "{ME}:work"}}
    max_deferrals: 1
    comment_required: true
    metadata: {{amount: 900, links: [a, b]}}
    on_rejection: [{{name: archive, uses: "{ME}:work"}}]
  - name: write
    uses: agents.clerk
    context_sources:
      - literal: Be brief.
      - state: user.name
      - retrieval: {{collection: "{ME}:ParityPapers", query: actors, top_k: 3, filters: {{tenant: "7"}}}}
  - name: last
    uses: "{ME}:work"
    on_failure: [{{name: one, uses: "{ME}:work"}}, {{name: two, uses: "{ME}:work"}}]
"""


def declared() -> Pipeline:
    """The same pipeline in Python."""
    agent = make_agent_async("test", name="clerk", tools=[_tool()])
    return Pipeline(
        (
            Step("work", work, runs_on="gpu", compensate=undo, on_failure=note),
            Step.approval(
                "ask",
                "Publish?",
                [
                    Option("publish", "Yes", kind="approve"),
                    Option("drop", "No", kind="reject"),
                    Option("reject", "Later"),
                ],
                to="editors",
                timeout_s=60,
                on_timeout=Step("remind", work) >> Step("again", work),
                max_deferrals=1,
                comment_required=True,
                metadata={"amount": 900, "links": ["a", "b"]},
                on_rejection=Step("archive", work),
            ),
            Step(
                "write",
                agent,
                context_sources=[
                    from_literal("Be brief."),
                    from_state("user.name"),
                    from_retrieval(ParityPapers, query="actors", top_k=3, filters={"tenant": "7"}),
                ],
            ),
            Step("last", work, on_failure=Step("one", work) >> Step("two", work)),
        ),
        name="parity",
        labels={"tenant": "7"},
    )


def _tool() -> Any:
    from pydantic_ai import Tool

    return Tool(pay, requires_approval=True)


@pytest.fixture(autouse=True)
def _in_a_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blueprints are files of the current directory."""
    monkeypatch.chdir(tmp_path)


def written(text: str) -> str:
    Path("pipeline.yaml").write_text(text)
    return "pipeline.yaml"


def loaded(text: str) -> Pipeline:
    return load_blueprint(written(text), allow=[ME])


def findings(text: str) -> list[str]:
    return [f"{found.rule}: {found.message}" for found in lint(written(text), allow=[ME, "x"])]


def test_a_blueprint_has_the_options_of_python() -> None:
    """Loaded, dumped and loaded again it has the same fingerprint."""
    pipeline = loaded(EVERYTHING)
    steps = {step.name: step for step in pipeline.steps}
    assert (steps["work"].runs_on, steps["ask"].kind, steps["ask"].to) == ("gpu", "approval", "editors")
    assert [option.kind for option in steps["ask"].options] == ["approve", "reject", "reject"]
    again = loaded(dump_blueprint(pipeline))
    [asked] = [step for step in again.steps if step.name == "ask"]
    assert (asked.comment_required, asked.metadata) == (True, {"amount": 900, "links": ["a", "b"]})
    assert Fingerprint.of(again).digest() == Fingerprint.of(pipeline).digest()
    assert dump_blueprint(again) == dump_blueprint(pipeline)


def test_a_pipeline_of_python_is_dumped_with_them() -> None:
    """The dumped text has its fingerprint."""
    pipeline = declared()
    text = dump_blueprint(pipeline)
    assert Fingerprint.of(loaded(text)).digest() == Fingerprint.of(pipeline).digest()
    assert "requires_approval: true" in text
    assert f"compensate: {ME}:undo" in text


def test_schema_and_linter_know_the_keys() -> None:
    """No finding, and the JSON Schema accepts the file."""
    jsonschema_rs.validator_for(blueprint_schema()).validate(yaml.safe_load(EVERYTHING))
    assert [each for each in findings(EVERYTHING) if each.startswith(("V-K", "V-A", "V-N"))] == []


def test_an_approval_of_a_blueprint_waits_and_goes_its_way() -> None:
    """A rejection runs its own steps."""
    text = f"""
version: "1"
steps:
  - {{name: work, uses: "{ME}:work"}}
  - name: ask
    kind: approval
    message: "Publish {{{{ previous_step }}}}?"
    on_rejection: [{{name: archive, uses: "{ME}:work", input: "archived"}}]
"""
    flujo = Flujo(loaded(text), store=(store := MemoryStore()))
    paused = flujo.run("tea")
    [question] = RunClient(store).questions()
    assert (question.message, question.kind) == ("Publish TEA?", "approval")
    assert flujo.resume(paused.state_token, False).output == "ARCHIVED"


def test_a_compensation_of_a_blueprint_undoes_its_step() -> None:
    """After a later failure, once; the failure handler is called, too."""
    text = f"""
version: "1"
steps:
  - {{name: work, uses: "{ME}:work", compensate: "{ME}:undo"}}
  - {{name: refuse, uses: "{ME}:refuse", on_failure: "{ME}:note"}}
"""
    UNDONE.clear()
    NOTED.clear()
    assert Flujo(loaded(text)).run("tea").status == "failed"
    assert (UNDONE, len(NOTED)) == (["TEA"], 1)


def test_the_collection_of_a_source_is_given_by_the_flujo() -> None:
    """Without a retriever for it, the pipeline is refused when it is built."""
    text = f"""
version: "1"
agents: {{clerk: {{model: test}}}}
steps:
  - name: write
    uses: agents.clerk
    context_sources: [{{retrieval: {{collection: "{ME}:ParityPapers"}}}}]
"""
    with pytest.raises(DeclarationError, match="ParityPapers"):
        Flujo(loaded(text))
    assert (
        Flujo(loaded(text), retrievers={ParityPapers: InMemoryRetriever(ParityPapers)}).run("actors").status
        == "completed"
    )


@pytest.mark.parametrize(
    ("step", "reason"),
    [
        ("{name: a, kind: aproval, message: hi}", "did you mean `approval`"),
        ("{name: a, kind: approval, message: hi, on_timeout: reject}", "needs `timeout_s`"),
        ("{name: a, kind: approval, message: hi, on_timeout: maybe, timeout_s: 1}", "on_timeout"),
        ("{name: a, kind: approval}", "message"),
        ("{name: a, uses: 'x.y:z', deps: 1}", "`deps` can only be set in Python"),
        ("{name: a, uses: 'x.y:z', compensate: 7}", "compensate"),
        ("{name: a, uses: 'x.y:z', context_sources: [{retrieval: {query: x}}]}", "collection"),
    ],
)
def test_wrong_options_are_findings(step: str, reason: str) -> None:
    """With the nearest name, or the reason."""
    found = findings(f'version: "1"\nsteps:\n  - {step}\n')
    assert any(reason in each for each in found), found


def test_names_must_be_allowed() -> None:
    """Also those of compensations, tools and collections."""
    with pytest.raises(BlueprintError, match="allow"):
        load_blueprint(written(EVERYTHING), allow=["other"])


def test_options_that_only_python_has_are_named() -> None:
    """A blueprint cannot hold several handlers, or a compensation by tool."""
    with pytest.raises(NotExportable, match="more than one failure handler"):
        dump_blueprint(Pipeline.from_step(Step("a", work, on_failure=[note, note])))
    with pytest.raises(DeclarationError, match="on_timeout needs timeout_s"):
        Step.approval("a", "May I?", on_timeout="reject")
