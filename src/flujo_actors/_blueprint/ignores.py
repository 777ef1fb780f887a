"""Comments that silence rules: `# flujo: ignore V-A5, V-T*` for a step or an agent, `# flujo: ignore-file V-A5`.

Rules:

1. A comment stands on the first line of a step (or an agent), or above it; it holds for all that is inside.
2. `ignore-file` stands above everything else.
3. What is in a text is no comment. V-Y and V-X cannot be silenced. A comment that silences nothing is told (V-U1).
"""

from __future__ import annotations

import re

import attrs

from .findings import Finding, matches
from .model import BlueprintModel
from .nodes import Mapping, Node, Scalar, walk
from .rules import RULES
from .source import Source
from .telling import Told

_COMMENT = re.compile(r"#\s*flujo:\s*(?P<what>ignore-file|ignore)\b:?\s*(?P<rules>[^#\r\n]*)")


@attrs.define(eq=False)
class Ignore:
    """One comment, and the stretch of the text that it holds for."""

    at: int
    rules: tuple[str, ...]
    start: int
    end: int
    used: bool = False

    def silences(self, finding: Finding) -> bool:
        """Whether a finding is meant."""
        inside = self.start <= finding.at < max(self.end, self.start + 1)
        return inside and RULES[finding.rule].can_be_ignored and matches(finding.rule, self.rules)


def ignores_in(model: BlueprintModel) -> list[Ignore]:
    """The comments of a file."""
    source = model.source
    if "flujo:" not in source.text:
        return []
    texts = [(node.start, node.end) for node in walk(model.root) if isinstance(node, Scalar) and node.end > node.start]
    anchors = [(source.line_start(node.start), node) for node in _anchored(model)]
    found = []
    for match in _COMMENT.finditer(source.text):
        if not any(start <= match.start() < end for start, end in texts):
            found.append(_ignore(source, match, anchors, model.root))
    return found


def _anchored(model: BlueprintModel) -> list[Node]:
    agents: list[Node] = [agent.node for agent in model.agents.values()]
    keys: list[Node] = [agent.key for agent in model.agents.values()]
    return [*(step.node for step in model.all_steps()), *agents, *keys]


def _ignore(source: Source, match: re.Match[str], anchors: list[tuple[int, Node]], root: Mapping) -> Ignore:
    rules = tuple(part.strip() for part in re.split(r"[,\s]+", match["rules"]) if part.strip().startswith("V-"))
    if match["what"] == "ignore-file":
        at_top = match.start() < root.start or source.place(match.start())[0] == 1
        return Ignore(match.start(), rules, 0, len(source.text) + 1 if at_top else 0)
    line = source.line_start(match.start())
    alone = not source.text[line : match.start()].strip(" -")
    if alone:
        line = _next_content(source, line)
    held = [node for start, node in anchors if start == line]
    if not held:
        return Ignore(match.start(), rules, match.start(), match.start())
    return Ignore(match.start(), rules, line, max(_end(source, node) for node in held))


def _end(source: Source, node: Node) -> int:
    return node.end if not isinstance(node, Scalar) else source.line_end(node.end)


def _next_content(source: Source, line: int) -> int:
    """Where the next line begins that is neither empty nor a comment."""
    while line < len(source.text):
        text = source.text[line : source.line_end(line)].strip()
        if text and not text.startswith("#") and text != "-":
            return line
        if text == "-":
            return _next_content(source, source.next_line(line))
        following = source.next_line(line)
        if following == line:
            break
        line = following
    return line


def silenced(told: Told, model: BlueprintModel, findings: list[Finding]) -> list[Finding]:
    """The findings that no comment silences; comments that silence nothing are findings themselves."""
    comments = ignores_in(model)
    kept = []
    for finding in findings:
        mine = [each for each in comments if finding.file == told.source.file and each.silences(finding)]
        for each in mine:
            each.used = True
        if not mine:
            kept.append(finding)
    for each in comments:
        if not each.used:
            what = ", ".join(each.rules) if each.rules else "no rule"
            told.tell("V-U1", each.at, f"this comment silences nothing ({what}): remove it")
            kept.append(told.findings[-1])
    return kept
