"""A blueprint with what promotion adds to it, as a text: what each step is structured by."""

from __future__ import annotations

from .analysis import Analysis
from .edits import changed_data
from .findings import Change
from .model import StepModel
from .shapes import type_of
from .yaml_dump import dumped


def promoted_text(analysis: Analysis) -> str:
    """The file with `processing` written out for every structured step; comments are not part of it."""
    changes = [change for step in analysis.model.all_steps() for change in _promotion(analysis, step)]
    return dumped(changed_data(analysis.model.root, changes))


def _promotion(analysis: Analysis, step: StepModel) -> list[Change]:
    schema = analysis.flow.schema_of(step)
    if schema is None or type_of(schema) == "string":
        return []
    said = step.value("processing")
    own = {key: entry.value for key, entry in said.items()} if isinstance(said, dict) else {}
    switches = {"structured_output": "auto", **own, "schema": dict(schema)}
    return [Change(kind="set", node=step.node, key="processing", value=switches)]
