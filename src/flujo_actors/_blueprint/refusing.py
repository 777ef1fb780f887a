"""The error that carries findings."""

from __future__ import annotations

from ..errors import BlueprintError
from .findings import Finding
from .model import BlueprintModel


def refusal(model: BlueprintModel, at: int, message: str) -> BlueprintError:
    """The refusal of a file for what was found out while it was built."""
    line, column = model.source.place(at)
    finding = Finding(
        rule="V-A6", severity="error", file=model.source.file, line=line, column=column, message=message, at=at
    )
    return refused(model.source.file, [finding])


def refused(file: str, findings: list[Finding]) -> BlueprintError:
    """The error that carries findings; its message names the first of them."""
    more = f" (and {len(findings) - 1} more)" if len(findings) > 1 else ""
    first = str(findings[0]) if findings else "it cannot be read"
    return BlueprintError(f"{file} is refused: {first}{more}", tuple(findings))
