"""What a run stores can be read by a process that has only the code, or is refused when it is written."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import attrs
import pydantic
import pytest

from flujo_actors import (
    CorruptRecord,
    Flujo,
    InvalidAnswer,
    NotPaused,
    NotSerializable,
    RunClient,
    Step,
    from_json,
    to_json,
)
from kit import preloaded
from kit.durable_places import Place

MODELS = """
import attrs
from pydantic import BaseModel
class Town(BaseModel):
    name: str
"""

PROGRAM = """
import os, sys, enum, dataclasses
from typing import Any
import attrs, models
from pydantic import BaseModel
from flujo_actors import Flujo, Pipeline, Step

class Animal(BaseModel):
    name: str
class Dog(Animal):
    pass
class Outer:
    @dataclasses.dataclass
    class Inner:
        name: str
class Color(enum.Enum):
    RED = "red"

async def bare(x): return Dog(name=x)
async def base(x) -> Animal: return Dog(name=x)
async def inside(x) -> dict[str, Any]: return {"dog": Dog(name=x), "list": [Outer.Inner(x), Color.RED]}
async def keyed(x): return {"keys": {Color.RED: x, (Color.RED, 1): x}, "sets": [{Color.RED}, frozenset([Color.RED])]}
async def elsewhere(x): return models.Town(name=x)
async def noted(x, *, context): context.dog = Dog(name=x)
steps = {name: Step(name, globals()[name]) for name in ("bare", "base", "inside", "keyed", "elsewhere", "noted")}
steps["anonymous"] = Step("anonymous", lambda x: Dog(name=x))
steps["input"] = Step("input", lambda x: x)

async def show(x, *, context): return repr((x, context))

def flujo(kind, url):
    ask = Step.human_in_the_loop("ask", "Right?")
    return Flujo(steps[kind] >> Step.parallel("p", {"ask": ask, "show": Step("show", show)}), store=url)

def told(url, kind, token):
    data = Dog(name="Lima") if kind == "input" else "Lima"
    result = flujo(kind, url).resume(token, Dog(name="A")) if token else flujo(kind, url).run(data)
    return f"{kind} {result.status} {result.state_token or result.output['ask']}"

if __name__ == "__main__":
    url, *asked = sys.argv[1:]
    for each in asked:  # in a fork each, which knows of no other kind
        kind, _, token = each.partition("=")
        if (child := os.fork()) == 0:
            print(told(url, kind, token), flush=True)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
"""

KINDS = ["bare", "base", "inside", "keyed", "elsewhere", "noted", "anonymous", "input"]


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """A program in two modules, run as a script."""
    (tmp_path / "models.py").write_text(MODELS)
    (tmp_path / "program.py").write_text(PROGRAM)
    return tmp_path


def said(folder: Path, *arguments: str) -> str:
    """Output of a Python process."""
    done = preloaded.run([sys.executable, *arguments], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def told(program: Path, *asked: str) -> dict[str, tuple[str, str]]:
    """Status, and token or answer, of each kind that the program runs, or resumes by `kind=token`."""
    lines = said(program, "program.py", f"sqlite:///{program}/runs.db", *asked).splitlines()
    return {kind: (status, rest) for kind, status, rest in (line.split(maxsplit=2) for line in lines)}


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="needs fork")
def test_a_value_that_no_annotation_names_is_read_by_the_next_process(program: Path) -> None:
    """Outputs, parts of outputs, contexts, inputs and answers, of the program's own classes and of those it imports."""
    paused = told(program, *KINDS)
    assert {kind: status for kind, (status, _) in paused.items()} == dict.fromkeys(KINDS, "paused")
    resumed = told(program, *(f"{kind}={token}" for kind, (_, token) in paused.items()))
    assert resumed == dict.fromkeys(KINDS, ("completed", "name='A'"))


LOOK = """
import sys, program
from flujo_actors import RunClient
print(type(RunClient(sys.argv[1]).state(sys.argv[2]).results[0].output).__module__)
"""


@pytest.mark.slow
def test_a_module_reads_what_was_written_when_it_was_the_script(program: Path) -> None:
    """`__main__` is stored under the name by which others import it."""
    url = f"sqlite:///{program}/runs.db"
    _, token = told(program, "base")["base"]
    assert said(program, "-c", LOOK, url, token.split(":")[0]) == "program\n"


def test_a_process_without_the_classes_sees_plain_data(program: Path) -> None:
    """A dashboard: the name of the class and its fields, at any depth, instead of an error."""
    url = f"sqlite:///{program}/runs.db"
    _, token = told(program, "inside")["inside"]
    state = RunClient(url).state(token.split(":")[0])
    output = state.outcomes["inside"].step_result.output  # type: ignore[index, union-attr]
    assert output["dog"] == {"$": "model", "type": "program.Dog", "value": {"name": "Lima"}}
    assert [each["type"] for each in output["list"]] == ["program.Outer.Inner", "program.Color"]
    assert RunClient(url).outcomes(token.split(":")[0])


def test_keys_and_members_of_unknown_classes_are_shown_as_they_are_stored(program: Path) -> None:
    """Plain data cannot be a key: the pairs, or the members, stand in a list instead."""
    url = f"sqlite:///{program}/runs.db"
    _, token = told(program, "keyed")["keyed"]
    output = RunClient(url).state(token.split(":")[0]).outcomes["keyed"].step_result.output  # type: ignore[index, union-attr]
    red = {"$": "model", "type": "program.Color", "value": "red"}
    assert output["keys"] == {"$": "dict", "value": [[red, "Lima"], [(red, 1), "Lima"]]}
    assert output["sets"] == [{"$": "set", "value": [red]}, {"$": "frozenset", "value": [red]}]


class Found(pydantic.BaseModel):
    """Stands at the top of its module."""

    name: str


def local_class() -> Any:
    """A class that no other process can find."""

    class Hidden(pydantic.BaseModel):
        name: str

    return Hidden


@pytest.mark.parametrize("where", ["output", "deep", "context"])
def test_a_value_that_nobody_else_could_read_fails_its_step(place: Place, where: str) -> None:
    """Then, and not in the next process; the feedback says what to do."""
    hidden = local_class()(name="x")

    async def make(data: Any, *, context: Any) -> Any:
        if where == "context":
            context.kept = hidden
            return None
        return hidden if where == "output" else {"deep": [hidden]}

    result = Flujo(Step("make", make), store=place.open()).run(1)
    assert result.status == "failed"
    assert "Hidden" in (result.feedback or "")
    assert "register_type" in (result.feedback or "")


def test_a_run_is_not_started_with_what_nobody_else_could_read(place: Place) -> None:
    """Its input is refused before there is a run."""
    with pytest.raises(NotSerializable, match="Hidden"):
        Flujo(Step("a", lambda data: data), store=place.open()).run(local_class()(name="x"), run_id="run")
    assert RunClient(place.open()).list() == []


def test_an_answer_that_nobody_else_could_read_is_not_taken(place: Place) -> None:
    """The run stays paused, whoever answers."""
    flujo = Flujo(Step.human_in_the_loop("ask", "?"), store=place.open())
    token = flujo.run(1).state_token
    for answer in (flujo.resume, RunClient(place.open()).answer):
        with pytest.raises(NotSerializable, match="Hidden"):
            answer(token, local_class()(name="x"))
    assert flujo.resume(token, Found(name="x")).output == Found(name="x")


def test_a_local_class_that_is_annotated_or_registered_is_stored(place: Place) -> None:
    """The next process declares the same pipeline, and knows it by that."""
    hidden = local_class()

    async def make(data: Any):  # type: ignore[no-untyped-def]
        return hidden(name="x")

    make.__annotations__["return"] = hidden
    assert Flujo(Step("make", make), store=place.open()).run(1).output == hidden(name="x")


def test_cold_runs_read_with_a_fresh_table_of_types(sqlite_place: Place) -> None:
    """What was written before in this process does not help: the class is found as another process would find it."""
    to_json(local_class()(name="x"))
    settings = {"durability": {"cold": True}}
    flujo = Flujo(Step("make", lambda data: Found(name=data)), store=sqlite_place.open(), settings=settings)
    assert flujo.run("x").output == Found(name="x")
    hidden = local_class()
    failed = Flujo(Step("make", lambda data: hidden(name=data)), store=sqlite_place.open(), settings=settings)
    assert failed.run("x").status == "failed"


def test_an_answer_is_taken_only_if_the_run_can_be_read(sqlite_place: Place) -> None:
    """What cannot be read is named, and the question waits for a process that can."""
    flujo = Flujo(
        Step("make", lambda data: Found(name=data)) >> Step.human_in_the_loop("ask", "?"), store=sqlite_place.open()
    )
    token = flujo.run("x").state_token
    sqlite_place.query("UPDATE flujo_records SET body = replace(body, 'Found', 'Lost') WHERE kind = 'settled'")
    with pytest.raises(CorruptRecord, match=r"Lost.*import the module"):
        flujo.resume(token, "yes")
    sqlite_place.query("UPDATE flujo_records SET body = replace(body, 'Lost', 'Found') WHERE kind = 'settled'")
    assert flujo.resume(token, "yes").output == "yes"


HOSTILE = [
    "os.system",
    "subprocess.Popen",
    "builtins.eval",
    "antigravity.geohash",
    "this.s",
    "flujo_actors.RunClient",
    "flujo_actors._api.flujo.Flujo",
    "flujo_actors._api.flujo.Pipeline",
    f"{__name__}.sys.flags",
    f"{__name__}.Found.__class__",
    f"{__name__}.subprocess.CompletedProcess",
    f"{__name__}.Found.model_construct",
    "..",
    "",
    "__main__",
    7,
    None,
    ["a"],
]


@pytest.mark.parametrize("name", HOSTILE, ids=str)
def test_a_hostile_name_imports_and_builds_nothing(sqlite_place: Place, name: Any) -> None:
    """Only models are built, only from modules that are loaded, and only under their own name."""
    flujo = Flujo(
        Step("make", lambda data: Found(name=data)) >> Step.human_in_the_loop("ask", "?"), store=sqlite_place.open()
    )
    token = flujo.run("x").state_token
    tag = json.dumps({"$": "model", "type": name, "value": {"name": "x"}}, separators=(",", ":"))
    [(body,)] = sqlite_place.query("SELECT body FROM flujo_records WHERE kind = 'settled'")
    parts = json.loads(body)
    parts["success"]["output"] = json.loads(tag)
    sqlite_place.query("UPDATE flujo_records SET body = %s WHERE kind = 'settled'", json.dumps(parts))
    before = set(sys.modules)
    with pytest.raises(CorruptRecord):
        flujo.resume(token, "yes")
    with pytest.raises(NotSerializable):
        from_json(tag, dict)
    assert "antigravity" not in sys.modules
    assert not {"this"} & (set(sys.modules) - before)


def test_from_json_builds_only_what_was_registered_or_written() -> None:
    """A class that is loaded is not enough for data that comes from anywhere."""
    text = to_json(Stranger(name="x")).replace("Stranger", "Unmet")
    with pytest.raises(NotSerializable, match="Unmet"):
        from_json(text, dict)


@attrs.frozen
class Stranger:
    """Written once."""

    name: str


@attrs.frozen
class Unmet:
    """Never written."""

    name: str


# --- what is said about answers -----------------------------------------------------------------------------


class City(pydantic.BaseModel):
    """What an answer shall be."""

    name: str
    people: int = 0


@attrs.frozen
class Size:
    """The same for attrs."""

    people: int


@pytest.mark.parametrize(
    ("schema", "answer"), [(City, City(name="Lima")), (Size, Size(people=3))], ids=["pydantic", "attrs"]
)
def test_a_client_takes_a_model(place: Place, schema: Any, answer: Any) -> None:
    """As the data that it stands for; the step gets the model."""
    flujo = Flujo(Step.human_in_the_loop("ask", "?", input_schema=schema), store=place.open())
    token = flujo.run(1, run_id="run").state_token
    RunClient(place.open()).answer(token or "", answer)
    assert flujo.resume("run").output == answer


@pytest.mark.parametrize(
    "schema", [City, {"type": "object", "properties": {"name": {"type": "string"}}}], ids=["model", "json"]
)
def test_a_wrong_answer_is_refused_in_one_sentence(place: Place, schema: Any) -> None:
    """It names the place, and is one line, whoever refuses it."""
    flujo = Flujo(Step.human_in_the_loop("ask", "?", input_schema=schema), store=place.open())
    token = flujo.run(1, run_id="run").state_token
    for answer in (flujo.resume, RunClient(place.open()).answer):
        for wrong in ({"name": 7}, 3, object()):
            with pytest.raises(InvalidAnswer) as caught:
                answer(token, wrong)
            assert "\n" not in str(caught.value)
            assert "'ask'" in str(caught.value)
            assert "still paused" in str(caught.value)
    assert flujo.resume(token, {"name": "Lima"}).status == "completed"


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_a_resume_says_what_is_missing(request: pytest.FixtureRequest, kind: str) -> None:
    """The answer, or the token; and the run stays paused."""
    store = None if kind == "memory" else request.getfixturevalue("sqlite_place").open()
    flujo = Flujo(Step.human_in_the_loop("ask", "Publish?"), store=store)
    token = flujo.run(1, run_id="run").state_token
    with pytest.raises(InvalidAnswer, match=r"Publish\?.*the answer is missing, call resume\(state_token, answer\)"):
        flujo.resume(token)
    with pytest.raises(NotPaused, match=r"'run' is not the state_token.*RunClient\(store\)\.get\(run_id\)"):
        flujo.resume("run", True)
    assert flujo.resume(token, "yes").output == "yes"


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_a_paused_run_that_nobody_answers_can_be_forgotten(request: pytest.FixtureRequest, kind: str) -> None:
    """With what it has done; there is nothing to answer after that."""
    store = None if kind == "memory" else request.getfixturevalue("sqlite_place").open()
    flujo = Flujo(Step.human_in_the_loop("ask", "Publish?"), store=store)
    token = flujo.run(1, run_id="run").state_token
    assert (flujo.forget("run"), flujo.forget("run")) == (True, False)
    with pytest.raises(NotPaused):
        flujo.resume(token, "yes")
