"""A pipeline in YAML, and its twin in Python; which of them, the first argument says."""

import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from benchmarks.protocol import now, serve
from flujo_actors import Flujo, Pipeline, Step, load_blueprint
from flujo_actors._blueprint.templates.templates import input_of

HERE = "benchmarks.contenders.ours_in_yaml"
TEMPLATE = "Hello {{ context.name | upper }}, about {{ previous_step }}: {{ context.words | join(', ') }}"


async def same(data: object) -> object:
    """What every step of the chain does."""
    return data


def in_python(size: int) -> Pipeline:
    return Pipeline([Step(f"s{number}", same) for number in range(size)])


def in_yaml(size: int) -> Pipeline:
    steps = "".join(
        f"  - {{name: s{number}, uses: 'benchmarks.contenders.ours_in_yaml:same'}}\n" for number in range(size)
    )
    file = Path(tempfile.mkdtemp()) / "pipeline.yaml"
    file.write_text(f"steps:\n{steps}")
    return load_blueprint(file, allow=["benchmarks.contenders.ours_in_yaml"])


MAKERS: dict[str, Callable[[int], Pipeline]] = {"python": in_python, "yaml": in_yaml}


def declare(make: Callable[[int], Pipeline], rounds: int) -> float:
    begun = now()
    for _ in range(rounds):
        make(20)
    return now() - begun


def twin(make: Callable[[int], Pipeline], size: int, rounds: int) -> float:
    flujo = Flujo(make(size))
    flujo.run(1)
    begun = now()
    for _ in range(rounds):
        flujo.run(1)
    return now() - begun


def render(size: int, rounds: int) -> float:
    template = input_of(TEMPLATE)
    context = {"name": "ada", "words": ["a", "b", "c"]}
    begun = now()
    for _ in range(size * rounds):
        template("tides", context)
    return now() - begun


def command(*arguments: str, cwd: str | None = None) -> float:
    """Seconds that the command takes, from its start to its end."""
    begun = now()
    subprocess.run([sys.executable, "-m", "flujo_actors", *arguments], check=True, capture_output=True, cwd=cwd)
    return now() - begun


def validate(files: int, steps: int, words: int) -> float:
    directory = tempfile.mkdtemp()
    step = "  - name: s{}\n    uses: builtins.passthrough\n    input: '{{{{ previous_step }}}} {}'\n"
    text = "steps:\n" + "".join(step.format(number, "word " * words) for number in range(steps))
    for number in range(files):
        (Path(directory) / f"p{number}.yaml").write_text(text)
    return command("validate", directory)


if __name__ == "__main__":
    make = MAKERS[sys.argv[1]]
    works = {
        "declare": lambda size, rounds: declare(make, rounds),
        "twin": lambda size, rounds: twin(make, size, rounds),
    }
    if sys.argv[1] == "yaml":
        works |= {
            "help": lambda size, rounds: command("--help"),
            "validate": lambda size, rounds: validate(1, 5, 3),
            "validate_many": lambda size, rounds: validate(100, 5, 3),
            "validate_large": lambda size, rounds: validate(1, 6_500, 15),
            "render": render,
        }
    serve(works, packages=["flujo-actors"])
