"""A project for each test."""

from __future__ import annotations

from pathlib import Path

import pytest
from blueprint_kit import make_project

from flujo_actors._blueprint.parser.project import Project


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return make_project(tmp_path)
