"""Template language: Jinja's syntax and parser, restricted to `_ALLOWED`.

Rules:

1. Other constructs are refused: calls, arithmetic beyond `+` and `-`, set, macro, include, import, `loop`.
2. No name begins with an underscore.
3. At most 64,000 characters, 2,000 nodes, 100 levels, and loops two deep.
4. Every reference is known before a run: `Parsed.references` lists the variables and fields of a text.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import TypeAlias

import attrs
import jinja2
from jinja2 import nodes

from ..._core.validators import nearest
from .template_filters import FILTERS, KNOWN_MISSPELLINGS, TESTS

MOST_CHARACTERS = 64_000
MOST_NODES = 2_000
MOST_LOOPS = 2
MOST_LEVELS = 100

EACH = "[]"
"""In the path of a reference: any item of a list."""

Step: TypeAlias = str | int

_ENVIRONMENT = jinja2.Environment(keep_trailing_newline=True)
_ALLOWED: tuple[type[nodes.Node], ...] = (
    *(nodes.Template, nodes.Output, nodes.TemplateData, nodes.If, nodes.For, nodes.Name, nodes.Const),
    *(nodes.Getattr, nodes.Getitem, nodes.Slice, nodes.List, nodes.Dict, nodes.Pair, nodes.Filter, nodes.Test),
    *(nodes.Compare, nodes.Operand, nodes.And, nodes.Or, nodes.Not, nodes.CondExpr, nodes.Concat, nodes.Add),
    *(nodes.Sub, nodes.Neg, nodes.Pos, nodes.Keyword),
)
_REFUSED = {
    nodes.Call: "calls are not part of it; use a filter, or a step that calls your function",
    nodes.Mul: "`*` is not part of it; calculate in a step",
    nodes.Div: "`/` is not part of it; calculate in a step",
    nodes.FloorDiv: "`//` is not part of it; calculate in a step",
    nodes.Mod: "`%` is not part of it; join texts with `~`",
    nodes.Pow: "`**` is not part of it; calculate in a step",
    nodes.Assign: "`set` is not part of it",
    nodes.AssignBlock: "`set` is not part of it",
    nodes.Macro: "macros are not part of it",
    nodes.CallBlock: "calls are not part of it",
    nodes.Include: "`include` is not part of it",
    nodes.Import: "`import` is not part of it",
    nodes.FromImport: "`import` is not part of it",
    nodes.Extends: "`extends` is not part of it",
    nodes.Block: "blocks are not part of it",
    nodes.FilterBlock: "`filter` blocks are not part of it; use `|`",
    nodes.With: "`with` is not part of it",
    nodes.Tuple: "write a list with brackets",
}
_CONSTANTS = (str, bool, int, float, type(None))
_MARKED = re.compile(r"\{\{|\{%|\{#")
INSIDE = re.compile(r"\{[{%].*?(?:[%}]\}|\Z)", re.DOTALL)
"""Template code with its braces."""
_TOKEN = re.compile(r"\w+|[^\w\s]")
_MOST_TOKENS = 6 * MOST_NODES


@attrs.frozen(kw_only=True)
class Fault:
    """Reason why a text is not a valid template."""

    rule: str
    message: str
    line: int = 1
    """Counted from 1 within the text."""
    wrong: str | None = None
    right: str | None = None
    """Replacement of `wrong`, if known."""


@attrs.frozen(kw_only=True)
class Reference:
    """Variable of a text, with the fields it follows."""

    root: str
    path: tuple[Step, ...] = ()
    line: int = 1
    guarded: bool = False
    """Whether the text handles its absence."""

    def __str__(self) -> str:
        return self.root + "".join(f"[{each!r}]" if isinstance(each, int) else f".{each}" for each in self.path)


@attrs.frozen(kw_only=True, eq=False, repr=False)
class Parsed:
    """A text as a tree of allowed nodes; with faults, no tree."""

    text: str
    tree: nodes.Template | None
    faults: tuple[Fault, ...] = ()
    references: tuple[Reference, ...] = ()

    @property
    def expression(self) -> nodes.Expr | None:
        """Return the text's single expression, if it is one."""
        if self.tree is None or len(self.tree.body) != 1:
            return None
        (only,) = self.tree.body
        single = isinstance(only, nodes.Output) and len(only.nodes) == 1
        found = only.nodes[0] if single and isinstance(only, nodes.Output) else None
        return None if found is None or isinstance(found, nodes.TemplateData) else found

    @property
    def constant(self) -> str | None:
        """Return the text itself, if nothing in it depends on anything."""
        if self.tree is None:
            return None
        parts = [each for one in self.tree.body for each in (one.nodes if isinstance(one, nodes.Output) else [one])]
        data = [each.data for each in parts if isinstance(each, nodes.TemplateData)]
        return "".join(data) if len(data) == len(parts) else None


def is_template(text: str) -> bool:
    """Return whether a text has anything in it that templates begin with."""
    return _MARKED.search(text) is not None


def parse_template(text: str) -> Parsed:
    """Parse the `{{ … }}` and `{% … %}` of a text."""
    if not is_template(text):
        return Parsed(text=text, tree=nodes.Template([nodes.Output([nodes.TemplateData(text)])]))
    return _parsed(text, text)


def parse_expression(text: str) -> Parsed:
    """One expression, with or without braces around it."""
    bare = text.strip()
    parsed = _parsed(text, bare if _is_braced(bare) else f"{{{{ {bare} }}}}")
    if not parsed.faults and parsed.expression is None:
        return attrs.evolve(parsed, tree=None, faults=(_fault("one expression is wanted here, not a text around it"),))
    return parsed


def _is_braced(text: str) -> bool:
    return text.startswith(("{{", "{%", "{#"))


def _parsed(text: str, source: str) -> Parsed:
    if len(source) > MOST_CHARACTERS:
        return _refused(text, f"a template has at most {MOST_CHARACTERS:,} characters, and this one {len(source):,}")
    if sum(len(_TOKEN.findall(each)) for each in INSIDE.findall(source)) > _MOST_TOKENS:
        return _refused(text, str(_TooMany()))
    try:
        tree = _ENVIRONMENT.parse(source)
        checked = _Check()
        checked.tree(tree)
    except jinja2.TemplateSyntaxError as error:
        return Parsed(text=text, tree=None, faults=(_unclosed(source) or _syntax(error),))
    except RecursionError:
        return _refused(text, "it is nested too deeply")
    except (ValueError, OverflowError, MemoryError) as error:
        return _refused(text, f"it cannot be read: {error}")
    faults = tuple(checked.faults)
    return Parsed(text=text, tree=None if faults else tree, faults=faults, references=tuple(checked.references))


def _refused(text: str, message: str) -> Parsed:
    return Parsed(text=text, tree=None, faults=(_fault(message),))


def _fault(message: str, line: int = 1) -> Fault:
    return Fault(rule="V-T6", message=f"this is not of the template language: {message}", line=line)


def _syntax(error: jinja2.TemplateSyntaxError) -> Fault:
    return _fault(str(error.message or "it cannot be read"), error.lineno)


def _unclosed(source: str) -> Fault | None:
    """Return the fault of braces closed by one brace, or none."""
    for found in _BRACES.finditer(source):
        if not found["end"].endswith("}}"):
            line = source.count("\n", 0, found.start()) + 1
            shown = " ".join(found.group().split())
            shown = shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}…"
            how = "ends with one brace" if found["end"] == "}" else "is not closed"
            return _fault(f"`{shown}` {how}: write `}}}}` at its end", line)
    return None


_BRACES = re.compile(r"\{\{(?:[^{}\"']|\"[^\"]*\"|'[^']*')*(?P<end>\}\}|\}|\Z|(?=\{\{))")
_SHOWN = 60


class _TooMany(ValueError):
    def __init__(self) -> None:
        super().__init__(f"a template has at most {MOST_NODES:,} parts")


class _Check:
    """Single walk over a tree: forbidden constructs and references."""

    def __init__(self) -> None:
        self.faults: list[Fault] = []
        self.references: list[Reference] = []
        self._nodes = 0
        self._level = 0
        self._locals: list[tuple[str, Reference | None]] = []

    def tree(self, tree: nodes.Node) -> None:
        for child in tree.iter_child_nodes():
            self._node(child, guarded=False)

    def _node(self, node: nodes.Node, *, guarded: bool) -> None:
        self._count(1)
        self._level += 1
        if self._level > MOST_LEVELS:
            raise RecursionError
        self._visit(node, guarded=guarded)
        self._level -= 1

    def _count(self, nodes_more: int) -> None:
        self._nodes += nodes_more
        if self._nodes > MOST_NODES:
            raise _TooMany

    def _visit(self, node: nodes.Node, *, guarded: bool) -> None:
        if not isinstance(node, _ALLOWED):
            self._refuse(_REFUSED.get(type(node), f"{type(node).__name__.lower()} is not part of it"), node)
            return
        match node:
            case nodes.For():
                self._loop(node)
            case nodes.Name() | nodes.Getattr() | nodes.Getitem():
                self._reference(node, guarded=guarded)
            case nodes.Filter():
                self._filter(node, guarded=guarded)
            case nodes.Test():
                self._test(node, guarded=guarded)
            case nodes.Const():
                if not isinstance(node.value, _CONSTANTS) or _is_huge(node.value):
                    self._refuse("this number is too large", node)
            case _:
                self._children(node, guarded=guarded)

    def _children(self, node: nodes.Node, *, guarded: bool = False) -> None:
        for child in node.iter_child_nodes():
            self._node(child, guarded=guarded)

    def _refuse(self, message: str, node: nodes.Node) -> None:
        self.faults.append(_fault(message, node.lineno or 1))

    # --- loops

    def _loop(self, node: nodes.For) -> None:
        if node.recursive:
            self._refuse("recursive loops are not part of it", node)
        if not isinstance(node.target, nodes.Name) or node.target.name.startswith("_"):
            self._refuse("a loop has one variable, whose name does not begin with an underscore", node)
            return
        if len(self._locals) >= MOST_LOOPS:
            self._refuse(f"loops are at most {MOST_LOOPS} deep", node)
        self._node(node.iter, guarded=False)
        of = reference_of(node.iter)
        self._locals.append((node.target.name, None if of is None else self._resolved(of)))
        for child in (*([node.test] if node.test is not None else []), *node.body):
            self._node(child, guarded=False)
        self._locals.pop()
        for child in node.else_:
            self._node(child, guarded=False)

    # --- references

    def _reference(self, node: nodes.Expr, *, guarded: bool) -> None:
        self._private(node)
        for inner in _dynamic_parts(node):
            self._node(inner, guarded=False)
        found = reference_of(node)
        if found is None:
            return
        self._count(len(found.path))
        if len(found.path) > MOST_LEVELS:
            raise RecursionError
        if found.root == "loop" and not self._is_local("loop"):
            self._refuse("`loop` is not part of it", node)
            return
        resolved = self._resolved(found)
        if resolved is not None:
            self.references.append(attrs.evolve(resolved, line=node.lineno or 1, guarded=guarded))

    def _private(self, node: nodes.Expr) -> None:
        for name in _names_in(node):
            if name.startswith("_"):
                self._refuse(f"{name[:40]!r} is private: names that begin with an underscore cannot be read", node)

    def _is_local(self, name: str) -> bool:
        return any(name == local for local, _ in self._locals)

    def _resolved(self, reference: Reference) -> Reference | None:
        """Return the reference without loop variables; None for unknown sources."""
        for local, of in reversed(self._locals):
            if local == reference.root:
                return None if of is None else attrs.evolve(of, path=(*of.path, EACH, *reference.path))
        return reference

    # --- filters and tests

    def _filter(self, node: nodes.Filter, *, guarded: bool) -> None:
        if node.node is None:
            self._refuse("`filter` blocks are not part of it; use `|`", node)
            return
        self._node(node.node, guarded=guarded or node.name == "default")
        self._called(node, "filter", sorted(FILTERS), FILTERS.get(node.name))

    def _test(self, node: nodes.Test, *, guarded: bool) -> None:
        self._node(node.node, guarded=guarded or node.name == "defined")
        self._called(node, "test", sorted(TESTS), TESTS.get(node.name))

    def _called(self, node: nodes.Filter | nodes.Test, kind: str, known: list[str], function: object) -> None:
        for argument in (*node.args, *(pair.value for pair in node.kwargs)):
            self._node(argument, guarded=False)
        if function is None:
            self.faults.append(_unknown(kind, node.name, known, node.lineno or 1))
        elif node.dyn_args is not None or node.dyn_kwargs is not None:
            self._refuse("arguments are written one by one", node)
        elif not _takes(function, node):
            self._refuse(f"the {kind} {node.name!r} does not take these arguments", node)


def _unknown(kind: str, name: str, known: list[str], line: int) -> Fault:
    right = KNOWN_MISSPELLINGS.get(name) if kind == "filter" else None
    near = right or nearest(name, known)
    hint = f"did you mean {near!r}?" if near else f"there are {', '.join(known)}"
    return Fault(rule="V-T3", message=f"there is no {kind} {name[:40]!r}: {hint}", line=line, wrong=name, right=right)


def _takes(function: object, node: nodes.Filter | nodes.Test) -> bool:
    try:
        keywords = {pair.key: None for pair in node.kwargs}
        inspect.signature(function).bind(None, None, *node.args, **keywords)  # type: ignore[arg-type]
    except TypeError:
        return False
    attribute = next((pair.value for pair in node.kwargs if pair.key == "attribute"), None)
    return attribute is None or (isinstance(attribute, nodes.Const) and _is_public_path(attribute.value))


def _is_public_path(value: object) -> bool:
    return isinstance(value, str) and bool(value) and not any(part.startswith("_") for part in value.split("."))


def _is_huge(value: object) -> bool:
    return isinstance(value, int) and abs(value) >= 2**63


def reference_of(node: nodes.Node) -> Reference | None:
    """Return the literal variable and fields of an expression."""
    path: list[Step] = []
    while not isinstance(node, nodes.Name):
        match node:
            case nodes.Getattr():
                path.append(node.attr)
                node = node.node
            case nodes.Getitem(arg=nodes.Const(value=str() | int() as key)) if not isinstance(key, bool):
                path.append(key)
                node = node.node
            case nodes.Getitem(arg=nodes.Slice()):
                path.clear()
                node = node.node
            case nodes.Getitem():
                path.append(EACH)
                node = node.node
            case _:
                return None
    return Reference(root=node.name, path=tuple(reversed(path)), line=node.lineno or 1)


def _dynamic_parts(node: nodes.Node) -> Iterator[nodes.Node]:
    """Yield a reference's bracket contents, and a base without variable."""
    while not isinstance(node, nodes.Name):
        if isinstance(node, nodes.Getitem):
            yield from node.arg.iter_child_nodes() if isinstance(node.arg, nodes.Slice) else (node.arg,)
            node = node.node
        elif isinstance(node, nodes.Getattr):
            node = node.node
        else:
            yield node
            return


def _names_in(node: nodes.Node) -> Iterator[str]:
    while True:
        match node:
            case nodes.Getattr():
                yield node.attr
                node = node.node
            case nodes.Getitem():
                if isinstance(node.arg, nodes.Const) and isinstance(node.arg.value, str):
                    yield node.arg.value
                node = node.node
            case nodes.Name():
                yield node.name
                return
            case _:
                return
