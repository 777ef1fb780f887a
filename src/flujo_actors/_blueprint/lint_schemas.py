"""Rules about JSON Schemas: what is none, and what asks for more than it describes (V-S1)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NoReturn

from .analysis import Analysis
from .model import Entry

_MOST_LEVELS = 60


def look(analysis: Analysis) -> None:
    """Put down what is found."""
    for entry in _schemas(analysis):
        wrong = _problem(entry.value)
        if wrong is not None:
            analysis.told.tell("V-S1", entry.key, f"this is not a JSON Schema: {wrong}")
            _distrust(analysis, entry)
            continue
        for doubt in _doubts(entry.value, 0):
            analysis.told.tell("V-S1", entry.key, doubt, severity="warning")


def _distrust(analysis: Analysis, entry: Entry) -> None:
    """Nothing follows from a schema that is none."""
    for agent in analysis.model.agents.values():
        agent.broken = agent.broken or entry in agent.entries.values()
    for step in analysis.model.all_steps():
        used = step.uses
        of_agent = used is not None and used.kind == "agent" and used.name in analysis.model.agents
        step.broken = step.broken or bool(of_agent and used and analysis.model.agents[used.name].broken)


def _schemas(analysis: Analysis) -> Iterator[Entry]:
    model = analysis.model
    tables: list[object] = [model.value("context"), *(agent.entries for agent in model.agents.values())]
    for step in model.all_steps():
        tables.extend((step.entries, step.value("processing")))
    for table in tables:
        for key in ("schema", "output_schema", "input_schema"):
            entry = table.get(key) if isinstance(table, dict) else None
            if entry is not None and isinstance(entry.value, dict):
                yield entry


def _problem(schema: dict[str, object]) -> str | None:
    import jsonschema_rs  # only for files with schemas in them

    try:
        jsonschema_rs.validator_for(schema, retriever=_refuse)
    except (ValueError, jsonschema_rs.ReferencingError) as error:
        return str(getattr(error, "message", None) or error).partition("\n")[0][:200]
    return None


def _refuse(uri: str) -> NoReturn:
    raise ValueError(f"it refers to {uri[:100]}, and schemas are never fetched")


def _doubts(schema: object, level: int) -> Iterator[str]:
    if not isinstance(schema, Mapping) or level > _MOST_LEVELS:
        return
    properties = schema.get("properties")
    required = schema.get("required")
    if isinstance(properties, Mapping) and isinstance(required, list):
        missing = [name for name in required if isinstance(name, str) and name not in properties]
        if missing:
            yield f"`required` names {missing[0]!r}, which is not among `properties`"
    if schema.get("type") == "array" and "items" not in schema and "prefixItems" not in schema:
        yield "an array without `items` says nothing about what is in it"
    inner = [*(properties.values() if isinstance(properties, Mapping) else ()), schema.get("items")]
    for each in inner:
        yield from _doubts(each, level + 1)
