"""`flujo-actors validate` and `explain`: formats, exit codes, fixes, and what is left alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import click.testing
import pytest

from flujo_actors._api.cli import validate_command as checked_files
from flujo_actors._api.cli.command_group import Invocation, flujo_actors
from flujo_actors._api.cli.entry import main
from kit import preloaded

GOOD = "steps:\n  - {name: one, uses: builtins.passthrough}\n"
FIXABLE = (
    "agents:\n  clerk: {model: test, output_schema: {type: object}}\n"
    "steps:\n  # keep me\n  - name: one\n    uses: agents.clerk\n"
)
MENDED = FIXABLE + "    processing:\n      structured_output: openai_json\n"
WRONG = "steps:\n  - {name: one, uses: builtins.passthru}\n"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*arguments: str, stdin: str | bytes = "") -> Any:
    runner = click.testing.CliRunner()
    content = stdin if isinstance(stdin, bytes) else stdin.encode()
    return runner.invoke(flujo_actors(), list(arguments), input=content, obj=Invocation(), standalone_mode=False)


def code(result: Any) -> int:
    return result.return_value if result.return_value is not None else result.exit_code


def test_a_good_file_is_silence_and_zero(place: Path) -> None:
    """pipeline.yaml is what is meant where nothing is said."""
    (place / "pipeline.yaml").write_text(GOOD)
    result = run("validate")
    assert (code(result), result.stdout, result.stderr) == (0, "", "")


def test_a_finding_is_a_line_with_its_place(place: Path) -> None:
    """On stdout; how many there are, on stderr."""
    (place / "p.yaml").write_text(WRONG)
    result = run("validate", "p.yaml")
    assert code(result) == 1
    assert result.stdout == (
        "p.yaml:2:17: error V-A6 there is no built-in 'passthru': did you mean `builtins.passthrough`?\n"
    )
    assert result.stderr == "1 error\n"


@pytest.mark.parametrize(("fail_on", "expected"), [("error", 0), ("warning", 1), ("note", 1)])
def test_what_fails_can_be_chosen(place: Path, fail_on: str, expected: int) -> None:
    """Errors by default."""
    (place / "p.yaml").write_text(FIXABLE)
    assert code(run("validate", "p.yaml", "--fail-on", fail_on)) == expected


def test_json_is_one_document(place: Path) -> None:
    """With what was fixed, and which fixes are safe."""
    (place / "p.yaml").write_text(FIXABLE + "    colour: blue\n")
    said = json.loads(run("validate", "p.yaml", "--format", "json").stdout)
    assert said["schema_version"] == 1
    assert [(each["rule"], each["line"], each["fix"]) for each in said["findings"]] == [
        ("V-A8", 5, {"safe": True}),
        ("V-K1", 7, None),
    ]
    assert set(said["findings"][0]) == {"rule", "severity", "file", "line", "column", "message", "fix"}
    after = json.loads(run("validate", "p.yaml", "--fix", "--format", "json").stdout)
    assert after["fixed"] == [{"rule": "V-A8", "file": "p.yaml", "line": 5}]
    assert [each["rule"] for each in after["findings"]] == ["V-K1"]


def test_github_gets_annotations(place: Path) -> None:
    """With colons and commas escaped in what names the place."""
    (place / "a,b.yaml").write_text(WRONG)
    result = run("validate", "a,b.yaml", "--format", "github")
    assert result.stdout.startswith("::error file=a%2Cb.yaml,line=2,col=17,title=V-A6::there is no built-in")


def test_sarif_declares_every_rule_and_carries_fixes(place: Path) -> None:
    """As code scanning wants it."""
    (place / "p.yaml").write_text(FIXABLE)
    said = json.loads(run("validate", "p.yaml", "--format", "sarif").stdout)
    (only,) = said["runs"]
    assert said["version"] == "2.1.0"
    assert len(only["tool"]["driver"]["rules"]) == 42
    assert only["results"][0]["fixes"][0]["artifactChanges"][0]["replacements"]


def test_fix_writes_the_file_once_and_twice_changes_nothing(place: Path) -> None:
    """All comments stay, and so does the mode of the file."""
    file = place / "p.yaml"
    file.write_text(FIXABLE)
    file.chmod(0o640)
    first = run("validate", "p.yaml", "--fix")
    assert (code(first), file.read_text()) == (0, MENDED)
    assert file.stat().st_mode & 0o777 == 0o640
    assert code(run("validate", "p.yaml", "--fix")) == 0
    assert file.read_text() == MENDED
    assert os.listdir(place) == ["p.yaml"]


def test_a_link_stays_a_link(place: Path) -> None:
    """What it points to is written."""
    (place / "real.yaml").write_text(FIXABLE)
    (place / "link.yaml").symlink_to("real.yaml")
    assert code(run("validate", "link.yaml", "--fix")) == 0
    assert (place / "link.yaml").is_symlink()
    assert (place / "real.yaml").read_text() == MENDED


def test_a_diff_leaves_the_file_and_ends_with_one(place: Path) -> None:
    """What cannot be mended is told beside it."""
    (place / "p.yaml").write_text(FIXABLE + "  - {name: two, uses: builtins.nope}\n")
    result = run("validate", "p.yaml", "--diff")
    assert code(result) == 1
    assert "+    processing:\n+      structured_output: openai_json\n" in result.stdout
    assert "V-A6" in result.stderr
    assert "processing" not in (place / "p.yaml").read_text()
    (place / "q.yaml").write_text(MENDED)
    assert (code(run("validate", "q.yaml", "--diff")), run("validate", "q.yaml", "--diff").stdout) == (0, "")


def test_a_diff_shows_no_secret(place: Path) -> None:
    """Also where a line beside it changes."""
    (place / "p.yaml").write_text(FIXABLE + "    input: {api_key: correct-horse-battery}\n")
    result = run("validate", "p.yaml", "--diff")
    assert "correct-horse" not in result.stdout + result.stderr
    assert "[redacted]" in result.stdout


def test_unsafe_fixes_are_asked_for(place: Path) -> None:
    """A misspelt key may have been meant otherwise."""
    text = "steps:\n  - name: one\n    uses: builtins.passthrough\n    imput: a\n"
    (place / "p.yaml").write_text(text)
    assert code(run("validate", "p.yaml", "--fix")) == 1
    assert (place / "p.yaml").read_text() == text
    assert code(run("validate", "p.yaml", "--fix", "--unsafe-fixes")) == 0
    assert (place / "p.yaml").read_text() == text.replace("imput", "input")


def test_exit_non_zero_on_fix(place: Path) -> None:
    """For hooks that want to stop a commit."""
    (place / "p.yaml").write_text(FIXABLE)
    assert code(run("validate", "p.yaml", "--fix", "--exit-non-zero-on-fix")) == 1


def test_a_file_that_changed_meanwhile_is_not_written(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody's work is not overwritten."""
    file = place / "p.yaml"
    file.write_text(FIXABLE)
    checked = checked_files.CheckedFile.of("p.yaml", checked_files.ValidateOptions())
    checked.fix()
    file.write_text("steps: []\n")
    with pytest.raises(Exception, match="changed while it was looked at"):
        checked.write()
    assert file.read_text() == "steps: []\n"


def test_standard_input_is_called_so(place: Path) -> None:
    """Findings to stdout; with --fix the text to stdout and findings to stderr."""
    assert run("validate", "-", stdin=WRONG).stdout.startswith("<stdin>:2:17: error V-A6")
    result = run("validate", "-", "--fix", stdin=FIXABLE)
    assert (code(result), result.stdout) == (0, MENDED)


def test_a_missing_file_cannot_start(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 2, one line, nothing on stdout."""
    assert main(["validate", "nowhere.yaml"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "flujo-actors: nowhere.yaml cannot be read: there is no file 'nowhere.yaml'\n"


def test_rules_are_selected_and_ignored(place: Path) -> None:
    """By id, family and glob; what must not be silenced is told all the same."""
    (place / "p.yaml").write_text(FIXABLE + "    colour: blue\n    meta: {password: correct-horse}\n")

    def told(*arguments: str) -> list[str]:
        said = json.loads(run("validate", "p.yaml", "--format", "json", *arguments).stdout)
        return [each["rule"] for each in said["findings"]]

    assert told("--select", "V-A") == ["V-A8", "V-X2"]
    assert told("--ignore", "V-A8,V-K*") == ["V-X2"]
    assert told("--ignore", "V-X2") == ["V-A8", "V-K1", "V-X2"]


def test_notes_are_shown_with_v_before_or_after_the_command(place: Path) -> None:
    """Silence otherwise."""
    (place / "p.yaml").write_text("steps:\n  - {step: one, uses: builtins.passthrough}\n")
    assert run("validate", "p.yaml").stdout == ""
    assert "V-K4" in run("validate", "p.yaml", "-v").stdout
    assert "V-K4" in run("-v", "validate", "p.yaml").stdout


def test_what_flujo_toml_says_holds_below_it(place: Path) -> None:
    """What may be named, and what is told; `--allow` adds to it."""
    (place / "flujo.toml").write_text('[blueprints]\nallow = ["shop"]\n[lint]\nerror = ["V-A8"]\n')
    (place / "deep").mkdir()
    (place / "deep" / "p.yaml").write_text("steps:\n  - {name: one, uses: shop:a}\n  - {name: two, uses: till:b}\n")
    assert run("validate", "deep").stdout.count("V-X1") == 1
    assert run("validate", "deep", "--allow", "till").stdout == ""
    (place / "q.yaml").write_text(FIXABLE)
    assert code(run("validate", "q.yaml")) == 1


def test_color_is_for_those_who_ask(place: Path) -> None:
    """No escape without it."""
    (place / "p.yaml").write_text(WRONG)
    assert "\x1b" not in run("validate", "p.yaml").stdout
    assert "\x1b[31;1merror\x1b[0m" in run("validate", "p.yaml", "--color", "always").stdout


def test_validate_loads_no_runtime(place: Path) -> None:
    """Neither trio nor pydantic, and nothing of the user's."""
    (place / "p.yaml").write_text(FIXABLE)
    script = (
        "import sys\n"
        "from flujo_actors._api.cli.entry import main\n"
        "main(['validate', 'p.yaml'])\n"
        "heavy = {'trio', 'pydantic_ai', 'pydantic', 'rich', 'asyncio', 'sqlite3', 'shop'}\n"
        "sys.exit(repr(sorted(heavy & set(sys.modules))) if heavy & set(sys.modules) else 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=240, cwd=place)
    assert done.returncode == 0, done.stderr


def test_explain_says_why_with_examples(place: Path) -> None:
    """For people and as JSON; a wrong id has a suggestion."""
    said = run("explain", "V-C1").stdout
    assert "sink_to" in said
    assert "Bad:" in said
    assert "Good:" in said
    one = json.loads(run("explain", "v-a5", "--json").stdout)
    assert one["rules"][0]["id"] == "V-A5"
    assert len(json.loads(run("explain", "--all", "--json").stdout)["rules"]) == 42
    assert main(["explain", "V-A55"]) == 2


def test_watch_looks_again_until_it_is_interrupted(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A change is seen at the next look; Ctrl-C ends with what was found last."""
    file = place / "p.yaml"
    file.write_text(WRONG)
    looks = iter([lambda: (file.write_text(GOOD), os.utime(file, (1, 1))), None])

    def sleep(_: float) -> None:
        change = next(looks)
        if change is None:
            raise KeyboardInterrupt
        change()

    from flujo_actors._api.cli import validate_command

    monkeypatch.setattr(validate_command.time, "sleep", sleep)
    result = run("validate", "p.yaml", "--watch")
    assert result.stdout.count("V-A6") == 1
    assert code(result) == 0


NOT_UTF_8 = {
    "latin1.yaml": FIXABLE.replace("keep me", "caf\u00e9").encode("latin-1"),
    "utf16.yaml": FIXABLE.encode("utf-16"),
    "below/big.yml": FIXABLE.encode() + b"# " + b"x" * 1_100_000 + b"\n",
    "below/broken.yaml": b"steps: [\n",
}


def test_a_file_that_cannot_be_read_keeps_its_bytes(place: Path) -> None:
    """`--fix` of a directory writes only files with an applied fix."""
    (place / "below").mkdir()
    for name, content in NOT_UTF_8.items():
        (place / name).write_bytes(content)
    (place / "good.yaml").write_text(FIXABLE)
    result = run("validate", "--fix", ".")
    assert code(result) == 1
    assert {name: (place / name).read_bytes() for name in NOT_UTF_8} == NOT_UTF_8
    assert all(name in result.stdout for name in NOT_UTF_8)
    assert (place / "good.yaml").read_text() == MENDED


@pytest.mark.parametrize("name", NOT_UTF_8)
def test_standard_input_that_cannot_be_read_is_written_as_it_came(place: Path, name: str) -> None:
    """A filter such as `validate --fix - < old > new` loses no byte."""
    assert run("validate", "-", "--fix", stdin=NOT_UTF_8[name]).stdout_bytes == NOT_UTF_8[name]


def test_a_link_out_of_the_directory_is_not_followed(place: Path) -> None:
    """The file behind it is fixed only if it is named, not its link."""
    (place / "inside").mkdir()
    (place / "outside.yaml").write_text(FIXABLE)
    (place / "inside" / "link.yaml").symlink_to(place / "outside.yaml")
    for named in ("inside", "inside/link.yaml"):
        result = run("validate", "--fix", named)
        assert (code(result), (place / "outside.yaml").read_text()) == (1, FIXABLE)
        assert "link.yaml is a link out of its directory and was not fixed; name the file itself" in result.stderr
    assert code(run("validate", "--fix", "outside.yaml")) == 0
    assert (place / "outside.yaml").read_text() == MENDED


def test_hard_links_stay_one_file(place: Path) -> None:
    """The file is written in place, and no temporary file is left."""
    (place / "one.yaml").write_text(FIXABLE)
    os.link(place / "one.yaml", place / "two.yaml")
    assert code(run("validate", "--fix", "one.yaml")) == 0
    assert (place / "two.yaml").read_text() == MENDED
    assert sorted(os.listdir(place)) == ["one.yaml", "two.yaml"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another owner")
def test_the_owner_of_a_fixed_file_stays(place: Path) -> None:
    """Also if another user runs the command."""
    file = place / "p.yaml"
    file.write_text(FIXABLE)
    os.chown(file, 1234, 4321)
    assert code(run("validate", "--fix", "p.yaml")) == 0
    assert (file.stat().st_uid, file.stat().st_gid, file.read_text()) == (1234, 4321, MENDED)


def test_a_full_disk_leaves_the_old_file(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other files are written, the report is printed, and the error names the file."""

    def no_space(handle: int) -> None:
        raise OSError(28, "No space left on device")

    (place / "p.yaml").write_text(FIXABLE)
    monkeypatch.setattr(os, "fsync", no_space)
    result = run("validate", "--fix", "p.yaml")
    assert "p.yaml cannot be written: No space left on device" in str(result.exception)
    assert (os.listdir(place), (place / "p.yaml").read_text()) == (["p.yaml"], FIXABLE)


@pytest.mark.parametrize(
    "text",
    [
        "steps:\n  - name: a\n    uses: builtins.passthrough\n    inputs: {b: 1}\n    input: c\n",
        "steps:\n  - kind: loop\n    name: a\n    max_loop: {b: 1}\n    body: [{name: b, uses: builtins.passthrough}]\n"
        "    exit_expression: previous_step\n    max_loops: 2\n",
        "steps:\n  - kind: loop\n    name: a\n    loopz: {b: 1}\n    body: [{name: b, uses: builtins.passthrough}]\n"
        "    exit_expression: previous_step\n    max_loop: [1]\n",
    ],
)
def test_unsafe_fixes_never_trade_one_error_for_another(place: Path, text: str) -> None:
    """A renamed key whose value does not fit is left as it was."""
    (place / "p.yaml").write_text(text)
    before = json.loads(run("validate", "--format", "json", "p.yaml").stdout)["findings"]
    run("validate", "--fix", "--unsafe-fixes", "p.yaml")
    after = json.loads(run("validate", "--format", "json", "p.yaml").stdout)["findings"]
    errors = [sum(each["severity"] == "error" for each in found) for found in (before, after)]
    assert errors[1] < errors[0] or (place / "p.yaml").read_text() == text


@pytest.mark.parametrize("command", [["init", "--force"], ["schema", "-o", "pipeline.yaml"]])
def test_other_commands_replace_a_file_without_breaking_its_links(place: Path, command: list[str]) -> None:
    """Mode and hard links stay, and the content is complete."""
    (place / "pipeline.yaml").write_text("old")
    (place / "pipeline.yaml").chmod(0o600)
    os.link(place / "pipeline.yaml", place / "also.yaml")
    assert code(run(*command)) == 0
    assert (place / "also.yaml").read_text() == (place / "pipeline.yaml").read_text() != "old"
    assert (place / "pipeline.yaml").stat().st_mode & 0o777 == 0o600


def test_init_writes_nothing_through_a_link_out_of_its_directory(place: Path) -> None:
    """`init` refuses and names the file."""
    (place / "project").mkdir()
    (place / "project" / "steps.py").symlink_to(place / "other.py")
    result = run("init", "project")
    assert "steps.py is a link out of project and was not written" in str(result.exception)
    assert not (place / "other.py").exists()


def test_a_template_in_a_prompt_variable_is_reported_on_its_own_line(place: Path) -> None:
    """Not on the line of `variables`."""
    (place / "p.txt").write_text("Write.")
    (place / "p.yaml").write_text(
        "agents:\n  w:\n    model: test\n    system_prompt:\n      from_file: p.txt\n      variables:\n"
        "        most: 5\n"
        '        topic: "{{ context.topic }}"\n        author: "{{ previous_step.author }}"\n'
        "steps:\n  - {name: a, uses: agents.w}\n"
    )
    found = json.loads(run("validate", "--format", "json", "p.yaml").stdout)["findings"]
    assert [(each["rule"], each["line"]) for each in found if each["severity"] == "error"] == [("V-T6", 8), ("V-T6", 9)]


@pytest.mark.slow
@pytest.mark.parametrize("flags", [["--events"], ["--progress", "json"]])
def test_lines_for_programs_are_json_to_the_last(place: Path, flags: list[str]) -> None:
    """Also of a run that pauses: its question and its token are in them."""
    (place / "p.yaml").write_text('steps:\n  - {kind: hitl, name: ask, message: "Publish?"}\n')
    arguments = ["run", "p.yaml", "--input", "x", "--store", "sqlite:///r.db", *flags]
    done = preloaded.run([sys.executable, "-m", "flujo_actors", *arguments], capture_output=True, text=True, timeout=60)
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert (done.returncode, done.stdout) == (3, "")
    assert all(isinstance(line, dict) for line in lines)
    assert "Publish?" in done.stderr
