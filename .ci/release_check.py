"""Verifies a release as far as a program can and lists the rest for a person: `make release-check`.

Rules:
1. Every line of RELEASING.md that can be verified is verified here, and its failure ends the check with exit code 1.
2. The artifacts in `dist/` are the ones that were verified: wheel, sdist, SBOM and license report.
3. Nothing is published, tagged or pushed.
"""

from __future__ import annotations

import atexit
import functools
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import venv
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
DIST = ROOT / "dist"
LOG = ROOT / "build" / "release-check.log"
"""Whole output of the commands that failed."""
FAILED_TEST = re.compile(r"^(?:FAILED|ERROR) \S+::.*$", re.MULTILINE)
GOAL_OF_THE_WHEEL = 1_200_000
LARGEST_WHEEL = 1_600_000
"""A larger wheel fails the check. One between goal and limit is left for a person: decision 22 has the reasons."""

NEEDED_IN_SDIST = (
    "Makefile",
    "constraints.txt",
    ".importlinter",
    "mkdocs.yml",
    "RELEASING.md",
    ".ci/run",
    "tests/conftest.py",
)
COMPATIBLE = re.compile(
    r"MIT|BSD|Apache|ISC|PSF|Python Software Foundation|MPL|Mozilla|Unlicense|HPND|CC0|Zlib|LGPL|Artistic",
    re.IGNORECASE,
)
"""Licenses of dependencies that an MIT project may require; the LGPL is that of psycopg, which is an extra."""

WORKER = "import sys; from flujo_actors._api.cli.entry import main; sys.exit(main(['worker', '--help']))"
EXTRAS = {
    "openai": "import pydantic_ai.models.openai",
    "anthropic": "import pydantic_ai.models.anthropic",
    "postgres": "from flujo_actors.stores import PostgresStore; PostgresStore('postgresql://localhost/flujo')",
    "otel": "import opentelemetry.sdk, flujo_actors.telemetry.otel",
    "retrieval": "import numpy",
    "blueprints": "from flujo_actors import Pipeline, Step, dump_blueprint as d; d(Pipeline([Step.sleep('wait', 1)]))",
    "cli": WORKER,
    "page": "import flujo_actors.page, flujo_actors.protocols.sse",
    "ag-ui": "import flujo_actors.protocols.ag_ui",
    "mcp": "import flujo_actors.protocols.mcp",
    "evals": "import pydantic_evals",
    "fleet": f"import procrastinate; {WORKER}",
    "temporal": f"import temporalio; {WORKER}",
    "ray": f"import ray; {WORKER}",
    "dbos": f"import dbos; {WORKER}",
}
"""Extras of users, each with a program that needs it."""

PYRIGHT = {"include": ["programs"], "typeCheckingMode": "standard", "enableTypeIgnoreComments": True}
"""As in pyproject.toml, which is out of sight there."""

FIRST = "0.1.0"
"""Version whose stores in the corpus have no version in their names."""
LICENSE_LENGTH = 80
"""A package may give the whole text of its license; its beginning is its name."""

PERSON = (
    "make audit has no known vulnerability",
    "the addresses of [project.urls] exist and belong to the project",
    "the package index has the project as a trusted publisher (workflow release.yml, environment pypi)",
    "the section of this version in CHANGELOG.md reads well for a user",
    "the site looks right: make site, then open build/docs/site/index.html",
    "git tag -s v{version} && git push origin v{version}",
)


def main(tag: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    version = project["version"]
    failed = []
    LOG.unlink(missing_ok=True)
    for title, check in checks(project, tag):
        problem = attempt(check)
        print(f"{'FAILED' if problem else 'ok'}: {title}{f': {problem}' if problem else ''}", flush=True)
        failed += [title] if problem else []
    left = [*over_goal(), *(line.format(version=version) for line in PERSON)]
    print("\nLeft for a person:", *(f"- {line}" for line in left), sep="\n")
    sys.exit(1 if failed else 0)


def checks(project: dict, tag: str) -> Iterator[tuple[str, Callable[[], str | None]]]:
    """Titles and checks, in the order of RELEASING.md; a check returns its problem or None."""
    version = project["version"]
    yield "the tag is the version", lambda: None if tag in ("", f"v{version}") else f"{tag} is not v{version}"
    yield "CITATION.cff has the version and the addresses", lambda: citation(project)
    yield "CHANGELOG.md has a section for the version", lambda: changelog(version, tag)
    yield "README.md has the version, and its links are absolute", lambda: readme(version)
    yield (
        "documents have the addresses of [project.urls]",
        lambda: command(sys.executable, ".ci/addresses.py", "--check"),
    )
    yield "tests/stores/corpus has the stores of the version", lambda: corpus(version)
    yield "the working tree is committed", committed
    yield "sdist and wheel build, twice with equal bytes", built_twice
    yield "twine accepts both", lambda: command(sys.executable, "-m", "twine", "check", "--strict", *artifacts())
    yield f"the wheel has at most {LARGEST_WHEEL / 1e6:g} MB (goal: {GOAL_OF_THE_WHEEL / 1e6:g})", wheel_size
    yield "the sdist is complete; `make demo` and `make test-fast` work in it", sdist_contents
    yield "the wheel installs in an empty environment and runs", installed
    yield f"the wheel installs with each of {len(EXTRAS)} extras, and a program of each runs", extras
    yield "mypy and pyright accept programs that use the installed wheel", typed
    yield "licenses are compatible, report in dist/licenses.md", licenses
    yield "SBOM in dist/sbom.json", bill_of_materials


def attempt(check: Callable[[], str | None]) -> str | None:
    try:
        return check()
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        return f"{type(error).__name__}: {error}"


def command(*words: str, **options: object) -> str | None:
    """Run a command; if it fails, keep its output in a file and return failed tests and the ends of its output."""
    options = {"cwd": ROOT, **options}
    done = subprocess.run(words, capture_output=True, text=True, **options)  # type: ignore[call-overload]
    if done.returncode == 0:
        return None
    LOG.parent.mkdir(exist_ok=True)
    with LOG.open("a", encoding="utf-8") as log:
        log.write(f"$ {' '.join(words)}\n{done.stdout}\n{done.stderr}\n")
    tests = FAILED_TEST.findall(done.stdout)[:20]
    ends = [text.strip()[-600:] for text in (done.stdout, done.stderr)]
    return "\n".join(filter(None, [f"exit {done.returncode}, whole output in {LOG}", *tests, *ends]))


# --- documents ---


def citation(project: dict) -> str | None:
    text = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    urls = project["urls"]
    wanted = (
        f"version: {project['version']}",
        f"repository-code: {urls['Repository']}",
        f"url: {urls['Documentation']}",
    )
    missing = [line for line in wanted if f"\n{line}\n" not in text]
    return f"it lacks {missing}" if missing else None


def changelog(version: str, tag: str) -> str | None:
    """Look for the section of the version; a tag needs its date and no file left in changes/."""
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    if not re.search(rf"^## \[(Unreleased\] - {re.escape(version)}$|{re.escape(version)}\])", text, re.MULTILINE):
        return f"there is no section {version}"
    if tag and not re.search(rf"^## \[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d$", text, re.MULTILINE):
        return f"the section has no date: a tag needs `## [{version}] - YYYY-MM-DD`"
    left = [path.name for path in (ROOT / "changes").glob("*.*.md")]
    return f"make changelog: {', '.join(left)}" if tag and left else None


def readme(version: str) -> str | None:
    """Look for relative links, and for a status of another version."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    if (status := re.search(r"^(\d+\.\d+\.\d+), Python", text, re.MULTILINE)) and status[1] != version:
        return f"its status is {status[1]}"
    relative = re.findall(r"\]\((?!https?://|#|mailto:)([^)\s]+)\)", text)
    return f"relative: {', '.join(relative[:5])}" if relative else None


def corpus(version: str) -> str | None:
    """Look for a SQLite file and a Postgres dump of the version; those of the first have no version in their names."""
    files = ROOT / "tests" / "stores" / "corpus"
    missing = [kind for kind in (".sqlite", ".sql") if not list(files.glob(f"*-{version}{kind}"))]
    return f"no *-{version}{' and '.join(missing)}" if missing and version != FIRST else None


def committed() -> str | None:
    if not (ROOT / ".git").exists():
        return None
    changed = subprocess.run(
        ["git", "status", "--porcelain"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    return f"{len(changed.splitlines())} files differ" if changed else None


# --- artifacts ---


def artifacts() -> list[str]:
    return [str(path) for path in sorted(DIST.glob("flujo_actors-*"))]


def built_twice() -> str | None:
    shutil.rmtree(DIST, ignore_errors=True)
    if problem := build(DIST):
        return problem
    with tempfile.TemporaryDirectory() as second:
        if problem := build(Path(second)):
            return problem
        other = [name for name in os.listdir(DIST) if digest(DIST / name) != digest(Path(second, name))]
    return f"other bytes in {', '.join(other)}" if other else None


def build(place: Path) -> str | None:
    environment = {**os.environ, "SOURCE_DATE_EPOCH": commit_time()}
    return command(sys.executable, "-m", "build", "--no-isolation", "--outdir", str(place), env=environment)


def commit_time() -> str:
    if not (ROOT / ".git").exists():
        return "1577836800"
    found = subprocess.run(["git", "log", "-1", "--format=%ct"], cwd=ROOT, capture_output=True, text=True, check=True)
    return found.stdout.strip()


def digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def wheel() -> Path:
    (found,) = DIST.glob("*.whl")
    return found


def wheel_size() -> str | None:
    size = wheel().stat().st_size
    return None if size <= LARGEST_WHEEL else f"{size:,} bytes"


def over_goal() -> list[str]:
    """Return the line about a wheel that is larger than its goal."""
    size = sum(path.stat().st_size for path in DIST.glob("*.whl"))
    text = f"accept a wheel of {size:,} bytes, over the goal of {GOAL_OF_THE_WHEEL:,} (docs/decisions/22)"
    return [text] if size > GOAL_OF_THE_WHEEL else []


def sdist_contents() -> str | None:
    (archive,) = DIST.glob("*.tar.gz")
    with tarfile.open(archive) as file:
        names = {name.partition("/")[2] for name in file.getnames()}
    if missing := [name for name in NEEDED_IN_SDIST if name not in names]:
        return f"it lacks {missing}"
    with tempfile.TemporaryDirectory() as place:
        shutil.unpack_archive(archive, place, filter="data")
        (unpacked,) = Path(place).iterdir()
        return command("make", "demo", "test-fast", f"PYTHON={sys.executable}", cwd=unpacked)


def installed() -> str | None:
    with zipfile.ZipFile(wheel()) as file:
        if not any(name.endswith("licenses/src/flujo_actors/page/static/vendor/LICENSE") for name in file.namelist()):
            return "the license of the vendored files is missing"
    return command(sys.executable, str(ROOT / ".ci" / "wheel.py"))


def extras() -> str | None:
    found = {extra: problem for extra, program in EXTRAS.items() if (problem := with_extra(extra, program))}
    return "; ".join(f"{extra}: {problem}" for extra, problem in found.items()) or None


def with_extra(extra: str, program: str) -> str | None:
    """Install the wheel with an extra in an empty environment, and run a program there."""
    with tempfile.TemporaryDirectory() as place:
        venv.create(place, with_pip=False, symlinks=True)
        python = str(Path(place, "bin", "python"))
        wanted = f"flujo-actors[{extra}] @ {wheel().resolve().as_uri()}"
        problem = command(sys.executable, "-m", "uv", "pip", "install", "--quiet", "--python", python, wanted)
        return problem or command(python, "-I", "-c", program, cwd=place)


def typed() -> str | None:
    """Check the programs of tests/typing outside of the sources, against the wheel and its dependencies."""
    with tempfile.TemporaryDirectory() as place:
        programs = shutil.copytree(ROOT / "tests" / "typing", Path(place, "programs"))
        mypy = (sys.executable, "-m", "mypy", "--strict", "--python-executable", user_environment(), str(programs))
        Path(place, "pyrightconfig.json").write_text(json.dumps(PYRIGHT), encoding="utf-8")
        pyright = (sys.executable, "-m", "basedpyright", "--pythonpath", user_environment())
        return command(*mypy, cwd=place) or command(*pyright, cwd=place)


# --- dependencies ---


@functools.cache
def user_environment(*extras: str) -> str:
    """Install the wheel with its pinned dependencies and those of extras alone; return the interpreter."""
    place = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, place)
    venv.create(place, with_pip=False, symlinks=True)
    python = str(place / "bin" / "python")
    wanted = f"flujo-actors[{','.join(extras)}] @ {wheel().resolve().as_uri()}"
    pinned = ("--constraint", str(ROOT / "build" / "versions.txt"), wanted)
    if problem := command(sys.executable, "-m", "uv", "pip", "install", "--quiet", "--python", python, *pinned):
        raise ValueError(problem)
    return python


def environment_of_extras() -> str:
    """Install all extras but `evals`, which pins another pydantic-ai; return the interpreter."""
    return user_environment(*sorted(EXTRAS.keys() - {"evals"}))


def licenses() -> str | None:
    report = (sys.executable, "-m", "piplicenses", "--python", environment_of_extras(), "--from=mixed")
    found = subprocess.run([*report, "--format=json"], capture_output=True, text=True, check=True).stdout
    rows = [
        (each["Name"], each["Version"], " ".join(each["License"].split())[:LICENSE_LENGTH])
        for each in json.loads(found)
    ]
    table = [("Name", "Version", "License"), ("---",) * 3, *rows]
    lines = "".join(f"| {' | '.join(row)} |\n" for row in table)
    (DIST / "licenses.md").write_text(lines, encoding="utf-8")
    wrong = [f"{name} ({license_})" for name, _, license_ in rows if not COMPATIBLE.search(license_)]
    return f"look at {', '.join(wrong)}" if wrong else None


def bill_of_materials() -> str | None:
    return command(
        sys.executable, "-m", "cyclonedx_py", "environment", environment_of_extras(),
        "--output-reproducible", "--output-format", "JSON", "--output-file", str(DIST / "sbom.json"),
    )  # fmt: skip


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "")
