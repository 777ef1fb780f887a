"""Environments of peers, without making one: `subprocess` is replaced."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from benchmarks.driver import benchmark
from benchmarks.environments import NotInstalled, python_of
from benchmarks.roster import LOCAL, PEERS, Contender

from benchmarks import environments

PEER = Contender("a peer", ("-m", "peer"), ("peer==1.0",))


class Installer:
    """Stands in for `subprocess.run`: remembers what it was asked to do."""

    def __init__(self, complaints: str = "", *, hangs: bool = False) -> None:
        self.commands: list[list[str]] = []
        self._complaints, self._hangs = complaints, hangs

    def __call__(self, command: list[str], *, timeout: float, **_: Any) -> "subprocess.CompletedProcess[str]":
        if self._hangs:
            raise subprocess.TimeoutExpired(command, timeout)
        self.commands.append(command)
        if "venv" in command:
            Path(command[-1]).mkdir(parents=True)
        failed = bool(self._complaints) and "install" in command
        return subprocess.CompletedProcess(command, int(failed), stderr=self._complaints)


@pytest.fixture
def installer(monkeypatch: pytest.MonkeyPatch) -> Installer:
    installer = Installer()
    monkeypatch.setattr(environments.subprocess, "run", installer)
    return installer


def test_an_environment_is_made_once(installer: Installer, tmp_path: Path) -> None:
    """The second time there is nothing to do."""
    python = python_of(PEER, place=tmp_path)
    assert python.startswith(str(tmp_path / "peer-1.0"))
    assert installer.commands[-1][-1] == "peer==1.0"
    made = len(installer.commands)
    assert python_of(PEER, place=tmp_path) == python
    assert len(installer.commands) == made


def test_an_environment_with_other_versions_is_made_anew(installer: Installer, tmp_path: Path) -> None:
    """Changed pins are never measured with what was there before."""
    python_of(PEER, place=tmp_path)
    python_of(Contender("a peer", ("-m", "peer"), ("peer==2.0",)), place=tmp_path)
    assert installer.commands[-1][-1] == "peer==2.0"


def test_what_pip_complained_about_is_the_reason(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """One line of it; and what failed counts as not there."""
    complaints = "WARNING: slow\nERROR: No matching distribution found for peer==1.0\nhint: look again\n"
    monkeypatch.setattr(environments.subprocess, "run", Installer(complaints))
    for _ in range(2):
        with pytest.raises(NotInstalled, match=r"^ERROR: No matching distribution found for peer==1\.0$"):
            python_of(PEER, place=tmp_path)


def test_an_install_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It has its time, and the benchmark goes on without the peer."""
    monkeypatch.setattr(environments.subprocess, "run", Installer(hangs=True))
    monkeypatch.setattr(environments, "PLACE", tmp_path)
    with pytest.raises(NotInstalled, match="longer than 300 s"):
        python_of(PEER, place=tmp_path)


def test_a_peer_that_cannot_be_installed_is_listed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With the reason, in the place of its figures."""

    def refuse(contender: Contender) -> str:
        raise NotInstalled("ERROR: no such package")

    monkeypatch.setattr("benchmarks.driver.python_of", refuse)
    assert benchmark([PEER], []).absent == {"a peer": "ERROR: no such package"}


def test_peers_are_pinned_and_we_need_nothing() -> None:
    """Every requirement of a peer names its version; what runs in our environment has none."""
    assert all("==" in requirement for peer in PEERS for requirement in peer.requirements)
    assert all(peer.requirements for peer in PEERS)
    assert {python_of(contender) for contender in LOCAL} == {sys.executable}
