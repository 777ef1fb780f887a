"""Waits in blueprints: `kind: sleep` and `kind: wait_for`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flujo_actors import Flujo, Pipeline, RunClient, Step, dump_blueprint, load_blueprint
from flujo_actors._blueprint.diagrams import drawing_of_pipeline
from flujo_actors.errors import BlueprintError
from flujo_actors.stores import MemoryStore

FILE = """
version: "1"
name: order
steps:
  - name: nap
    kind: sleep
    seconds: "{{ context.pause }}"
  - name: paid
    kind: wait_for
    event: paid
    key: "order-{{ previous_step }}"
    schema: {type: integer}
    timeout_s: 3600
    on_timeout: none
"""


@pytest.fixture
def load(tmp_path: Path) -> Callable[[str], Pipeline]:
    """Load a blueprint from its text."""

    def loaded(text: str) -> Pipeline:
        (tmp_path / "pipeline.yaml").write_text(text, encoding="utf-8")
        return load_blueprint(tmp_path / "pipeline.yaml")

    return loaded


def test_a_blueprint_sleeps_and_waits_for_an_event(load: Callable[[str], Pipeline]) -> None:
    """Time and key are templates."""
    now = [1000.0]
    store = MemoryStore(wall=lambda: now[0])
    flujo = Flujo(load(FILE), store=store, initial_context_data={"pause": 60})
    assert flujo.run("7", run_id="run").wakes_at == 1060
    now[0] += 61
    assert [result.status for result in flujo.recover()] == ["sleeping"]
    client = RunClient(store, allow_blocking=True)
    assert client.send("paid", key="order-7", data=3).status == "delivered"
    assert [result.output for result in flujo.recover()] == [3]


def test_waits_are_written_as_they_were_read(load: Callable[[str], Pipeline]) -> None:
    """Also those of Python, as far as they are no functions."""
    text = dump_blueprint(load(FILE))
    assert dump_blueprint(load(text)) == text
    made = Pipeline([Step.sleep("nap", 5), Step.wait_for("paid", "paid", key="7", timeout_s=2, on_timeout="none")])
    again = load(dump_blueprint(made))
    [nap, paid] = again.steps
    assert (nap.seconds, paid.event, paid.key, paid.deadline_s, paid.on_timeout) == (5, "paid", "7", 2, "none")  # type: ignore[union-attr]


def test_steps_replace_an_event_that_does_not_arrive(load: Callable[[str], Pipeline]) -> None:
    """They get the input of the wait."""
    late = "    on_timeout:\n      - {name: late, uses: builtins.passthrough}\n"
    pipeline = load(FILE.replace("    on_timeout: none\n", late))
    assert "late" in dump_blueprint(pipeline)
    now = [1000.0]
    flujo = Flujo(pipeline, store=MemoryStore(wall=lambda: now[0]), initial_context_data={"pause": 0})
    flujo.run("7", run_id="run")
    now[0] += 3601
    assert [result.output for result in flujo.recover()] == ["7"]


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        ("", "give either seconds or until"),
        ("\n    seconds: -1", "seconds must be a finite number >= 0, not -1"),
        ("\n    until: 2026-01-01T09:00", "until has no time zone"),
        ("\n    seconds: soon", "no number of seconds"),
    ],
    ids=["none", "negative", "naive", "text"],
)
def test_an_impossible_sleep_is_refused(load: Callable[[str], Pipeline], keys: str, text: str) -> None:
    """The finding names the step."""
    with pytest.raises(BlueprintError, match=text):
        load(f'version: "1"\nsteps:\n  - name: nap\n    kind: sleep{keys}\n')


def test_a_drawing_has_a_clock_and_an_envelope() -> None:
    """So that a reader sees where a run waits."""
    steps: list[Any] = [Step.sleep("nap", 5), Step.wait_for("paid", "paid")]
    assert [box.detail for box in drawing_of_pipeline(Pipeline(steps)).boxes] == ["⏲ 5", "✉ paid"]
