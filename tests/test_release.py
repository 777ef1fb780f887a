"""A release can be checked by a program, and its metadata agree with one another."""

from __future__ import annotations

import re
import runpy
import shutil
import sys
import tomllib
import warnings
from pathlib import Path
from typing import Any

import pytest
import yaml

import flujo_actors
from flujo_actors import FlujoDeprecationWarning
from flujo_actors._core.lazy_exports import warn_deprecated

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


@pytest.fixture
def check() -> dict[str, Any]:
    """Names of the script behind `make release-check`."""
    return runpy.run_path(str(ROOT / ".ci" / "release_check.py"))["main"].__globals__


def test_the_version_is_that_of_the_metadata() -> None:
    """A program can report the version that it runs on."""
    assert flujo_actors.__version__ == PROJECT["version"]


def test_the_project_has_every_field_that_an_index_shows() -> None:
    """Addresses, authors, license, audience, topic, system and Pythons."""
    assert {"Homepage", "Documentation", "Repository", "Changelog", "Issues"} <= PROJECT["urls"].keys()
    assert PROJECT["authors"]
    assert PROJECT["license"] == "MIT AND BSD-3-Clause"  # the run page has files of lit-html
    groups = {line.partition(" :: ")[0] for line in PROJECT["classifiers"]}
    assert {"Intended Audience", "Topic", "Operating System", "Typing"} <= groups
    assert "Programming Language :: Python :: 3.14" in PROJECT["classifiers"]


def test_dependencies_of_users_are_for_every_python() -> None:
    """No dependency is left out by a marker on a newer Python, and one library repairs JSON."""
    assert [line for line in PROJECT["dependencies"] if ";" in line] == []
    assert [line for line in PROJECT["dependencies"] if "repair" in line] == ["json-repair>=0.60.1,<1"]


def test_every_supported_python_is_in_classifiers_matrix_and_workflow() -> None:
    """Three lists of versions that must not disagree."""
    classified = re.findall(r"Python :: (3\.\d+)", " ".join(PROJECT["classifiers"]))
    matrix = runpy.run_path(str(ROOT / ".ci" / "matrix.py"))["SUPPORTED"]
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "check.yml").read_text(encoding="utf-8"))
    assert classified == list(matrix) == workflow["jobs"]["test"]["strategy"]["matrix"]["python"]


def test_the_address_of_the_repository_is_written_in_one_place(check: dict[str, Any]) -> None:
    """Other files either repeat the address of pyproject.toml exactly or have none."""
    assert check["citation"](PROJECT) is None
    assert check["citation"]({**PROJECT, "version": "9.9"}) == "it lacks ['version: 9.9']"


MOVED = {"Repository": "https://github.com/acme/pipelines", "Documentation": "https://docs.acme.example"}
"""Another owner, name and site."""


@pytest.fixture
def addresses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Names of the script behind `make addresses`, with documents of its own."""
    names = runpy.run_path(str(ROOT / ".ci" / "addresses.py"))["main"].__globals__
    for document in (*names["DOCUMENTS"], "pyproject.toml"):
        (tmp_path / document).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / document, tmp_path / document)
    monkeypatch.setitem(names, "ROOT", tmp_path)
    return names


def test_documents_have_the_addresses_of_the_project(addresses: dict[str, Any]) -> None:
    """Today there is nothing to write."""
    with pytest.raises(SystemExit) as done:
        addresses["main"]("--check")
    assert done.value.code == 0


def test_documents_follow_the_addresses_of_the_project(addresses: dict[str, Any], tmp_path: Path) -> None:
    """`make addresses` writes new ones into each, as often as they change; until then the check names the documents."""
    project = tmp_path / "pyproject.toml"
    text, now = project.read_text(encoding="utf-8"), {name: PROJECT["urls"][name] for name in MOVED}
    for new in (MOVED, {name: f"{url}2" for name, url in MOVED.items()}):
        for name, url in new.items():
            text = text.replace(f'{name} = "{now[name]}"', f'{name} = "{url}"')
        project.write_text(text, encoding="utf-8")
        with pytest.raises(SystemExit, match=r"make addresses: README\.md, CITATION\.cff, docs/llms\.txt, docs/exa"):
            addresses["main"]("--check")
        addresses["main"]()
        for document in addresses["DOCUMENTS"]:
            found = (tmp_path / document).read_text(encoding="utf-8")
            assert [url for url in now.values() if re.search(rf"{re.escape(url)}(?!\w)", found)] == []
        now = new
    with pytest.raises(SystemExit) as done:
        addresses["main"]("--check")
    assert done.value.code == 0


def test_a_document_without_an_address_is_named(addresses: dict[str, Any], tmp_path: Path) -> None:
    """Such as one whose address was changed by hand."""
    (tmp_path / "docs" / "llms.txt").write_text("https://github.com/other/one\n", encoding="utf-8")
    with pytest.raises(SystemExit, match=r"make addresses: docs/llms\.txt$"):
        addresses["main"]("--check")


def test_links_of_the_readme_work_in_a_package_index(check: dict[str, Any]) -> None:
    """Each is absolute, and each to a file of the repository names one that exists; the page is short."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    project = re.escape(PROJECT["urls"]["Repository"].removeprefix("https://github.com/"))
    files = re.findall(rf"{project}/(?:blob/|tree/|)main/([\w./-]+)", text)
    assert check["readme"](PROJECT["version"]) is None
    assert len(files) > 10
    assert [name for name in files if not (ROOT / name).exists()] == []
    assert text.count("\n") <= 150


def test_a_tag_of_another_version_is_refused(check: dict[str, Any]) -> None:
    """The first line of the check compares tag and version."""
    [(title, tag), *_] = check["checks"](PROJECT, "v9.9")
    assert title == "the tag is the version"
    assert tag() == f"v9.9 is not v{PROJECT['version']}"


def test_a_tag_needs_a_dated_section_and_no_file_of_changes(
    check: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a tag the section may be unreleased."""
    monkeypatch.setitem(check, "ROOT", tmp_path)
    (tmp_path / "changes").mkdir()
    (tmp_path / "changes" / "README.md").touch()
    (tmp_path / "CHANGELOG.md").write_text("## [Unreleased] - 9.9\n", encoding="utf-8")
    assert check["changelog"]("9.9", "") is None
    assert check["changelog"]("9.8", "") == "there is no section 9.8"
    assert "has no date" in check["changelog"]("9.9", "v9.9")
    (tmp_path / "CHANGELOG.md").write_text("## [9.9] - 2026-11-18\n", encoding="utf-8")
    assert check["changelog"]("9.9", "v9.9") is None
    (tmp_path / "changes" / "+thing.added.md").touch()
    assert check["changelog"]("9.9", "v9.9") == "make changelog: +thing.added.md"


def test_every_version_after_the_first_adds_its_stores(
    check: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of each database, with the version in its name."""
    monkeypatch.setitem(check, "ROOT", tmp_path)
    (files := tmp_path / "tests" / "stores" / "corpus").mkdir(parents=True)
    assert check["corpus"]("0.1.0") is None
    assert check["corpus"]("0.2.0") == "no *-0.2.0.sqlite and .sql"
    (files / "sqlite-12-0.2.0.sqlite").touch()
    assert check["corpus"]("0.2.0") == "no *-0.2.0.sql"
    (files / "postgres-13-0.2.0.sql").touch()
    assert check["corpus"]("0.2.0") is None


def test_a_failed_command_names_its_tests_and_keeps_its_output(
    check: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A person finds the failed test behind any amount of output."""
    monkeypatch.setitem(check, "LOG", log := tmp_path / "build" / "release.log")
    program = "print('FAILED tests/test_a.py::test_b - boom'); print('x' * 5000); raise SystemExit(3)"
    problem = check["command"](sys.executable, "-c", program)
    assert problem.splitlines()[:2] == [f"exit 3, whole output in {log}", "FAILED tests/test_a.py::test_b - boom"]
    assert "x" * 5000 in log.read_text(encoding="utf-8")
    assert check["command"](sys.executable, "-c", "print('FAILED tests/test_a.py::test_b')") is None


def test_every_extra_of_users_is_installed_by_the_check(check: dict[str, Any]) -> None:
    """The others are of contributors."""
    assert {*check["EXTRAS"], "dev", "dev-evals", "docs", "release"} == PROJECT["optional-dependencies"].keys()


@pytest.mark.parametrize(("size", "problem", "left"), [(10, None, 0), (30, None, 1), (50, "50 bytes", 1)])
def test_a_wheel_over_its_goal_is_left_for_a_person(
    check: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, problem: str | None, left: int
) -> None:
    """One over the limit fails."""
    for name, value in {"DIST": tmp_path, "GOAL_OF_THE_WHEEL": 20, "LARGEST_WHEEL": 40}.items():
        monkeypatch.setitem(check, name, value)
    (tmp_path / "x.whl").write_bytes(b"." * size)
    assert check["wheel_size"]() == problem
    assert len(check["over_goal"]()) == left


def jobs_of(workflow: Path) -> dict[str, Any]:
    """The jobs of a workflow that have steps of their own."""
    jobs = yaml.safe_load(workflow.read_text(encoding="utf-8"))["jobs"]
    return {name: job for name, job in jobs.items() if "uses" not in job}


def test_a_release_is_published_after_all_checks() -> None:
    """A tag starts the jobs of the main branch, too: all tests on every Python, both ends, evaluations, audit."""
    check, release = (yaml.safe_load(each.read_text(encoding="utf-8")) for each in WORKFLOWS)
    assert "workflow_call" in check[True]  # YAML reads the key `on` as true
    called = [name for name, job in release["jobs"].items() if job.get("uses") == "./.github/workflows/check.yml"]
    assert {*called, "build"} == set(release["jobs"]["publish"]["needs"])
    assert called


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_calls_targets_of_the_makefile(workflow: Path) -> None:
    """CI of the repository runs nothing that a developer cannot run."""
    commands = [step["run"] for job in jobs_of(workflow).values() for step in job["steps"] if "run" in step]
    words = {word for line in commands if line.startswith("make ") for word in line.split()[1:]}
    targets = {word for word in words if re.fullmatch(r"[a-z-]+", word)}
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    known = {word for line in re.findall(r"^([a-z][a-z -]*):", makefile, re.MULTILINE) for word in line.split()}
    assert targets
    assert targets - known == set()


def test_actions_of_others_are_pinned_by_commit() -> None:
    """A tag can be moved, a commit cannot; dependabot renews commit and comment."""
    for workflow in WORKFLOWS:
        for used in re.findall(r"uses: (?!\./)(.+)", workflow.read_text(encoding="utf-8")):
            assert re.fullmatch(r"[\w/-]+@[0-9a-f]{40}  # v\d+\.\d+\.\d+", used)


def test_workflows_have_no_more_rights_than_they_need() -> None:
    """Each reads the repository by default; only publishing may write."""
    for workflow in WORKFLOWS:
        assert yaml.safe_load(workflow.read_text(encoding="utf-8"))["permissions"] == {"contents": "read"}


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_keep_no_credentials_and_run_no_text_of_others(workflow: Path) -> None:
    """The name of a branch or tag reaches a shell as a variable, and no token stays in the checkout."""
    jobs = jobs_of(workflow)
    steps = [step for job in jobs.values() for step in job["steps"]]
    assert [step["run"] for step in steps if "${{ github." in step.get("run", "")] == []
    checkouts = [step for step in steps if step.get("uses", "").startswith("actions/checkout@")]
    assert [step.get("with") for step in checkouts] == [{"persist-credentials": False}] * len(checkouts)
    assert [name for name, job in jobs.items() if "timeout-minutes" not in job] == []


def test_workflows_install_only_packages_of_their_system() -> None:
    """The runners' distribution has chromium as a snap only, so installing it would end the job."""
    for workflow in WORKFLOWS:
        for packages in re.findall(r"apt-get install -y -qq (.+)", workflow.read_text(encoding="utf-8")):
            assert packages.split() == ["pgbouncer"]


def test_a_deprecated_name_warns_its_caller() -> None:
    """The warning names the replacement and the release, and points at the caller's line."""

    def old() -> None:
        warn_deprecated("old()", instead="new()", removed_in="0.3")

    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        old()
    [warning] = seen
    assert warning.category is FlujoDeprecationWarning
    assert str(warning.message) == "old() is deprecated and will be removed in 0.3; use new()"
    assert warning.filename == __file__
