"""Generates small bugs in the source of a module. Pure: source goes in, changed sources come out.

Each mutant differs from its module in one place. The operators are those that reviewers ask for: a comparison flipped,
a limit off by one, a statement dropped, a field taken for its neighbour, a condition negated.

Code whose change no test can or should notice is left out: docstrings, annotations, assertions, imports, texts of
errors and logs, and declarations of constants and fields.
"""

from __future__ import annotations

import ast
import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterator

Change: TypeAlias = tuple[str, ast.AST]
"""The name of an operator, and the node that replaces the present one."""

COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
}
FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef
OWN_EFFECT = ast.AugAssign | ast.Delete | ast.Continue | ast.Break | ast.Raise
SWAPPED_CALLS = {"min": "max", "max": "min", "any": "all", "all": "any"}
TEXTS = {"info", "debug", "warning", "error", "exception", "describe"}
"""Calls whose arguments are words for people."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One generated bug."""

    module: str
    """Dotted name of the module."""
    line: int
    """Line of the changed statement, counted from 1."""
    place: str
    """Qualified name of the function."""
    operator: str
    before: str
    """The changed statement or expression on one line, as it is."""
    after: str
    """The same, as the mutant has it; empty if it is dropped."""
    tree: ast.Module = field(repr=False, compare=False)
    """The module as it is. Never changed."""
    node: ast.AST = field(repr=False, compare=False)
    """The node of ``tree`` that the bug replaces."""
    replacement: ast.AST = field(repr=False, compare=False)

    @property
    def key(self) -> str:
        """Identifies the mutant as long as the changed code stays as it is, wherever it moves in its file."""
        return f"{self.module}:{self.place}: {self.before} -> {self.after or '(dropped)'}"

    def source(self) -> str:
        """Returns the module's whole source with the bug."""
        replacement = ast.fix_missing_locations(ast.copy_location(self.replacement, self.node))
        return ast.unparse(copy.deepcopy(self.tree, {id(self.node): replacement}))


def mutants_of(module: str, source: str) -> Iterator[Mutant]:
    """Yields all mutants of a module, in the order of its lines."""
    tree = ast.parse(source)
    fields = _sibling_fields(tree)
    for place, function in _functions(tree, ""):
        begins = place.endswith("__init__")  # without an assignment there, everything fails at once
        for node in (node for statement in _statements(function) for node in _changeable(statement)):
            for operator, changed in () if begins and isinstance(node, ast.Assign) else _changes(node, fields):
                yield Mutant(
                    module=module,
                    line=node.lineno,
                    place=place,
                    operator=operator,
                    before=_one_line(node),
                    after="" if isinstance(changed, ast.Pass) else _one_line(changed),
                    tree=tree,
                    node=node,
                    replacement=changed,
                )


def _one_line(node: ast.AST) -> str:
    text = ast.unparse(node).splitlines()
    return text[0] if len(text) == 1 else f"{text[0]} ..."


def _functions(node: ast.AST, prefix: str) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Yields all functions and methods with their qualified names; nested functions belong to their outer one."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef):
            yield from _functions(child, f"{prefix}{child.name}.")
        elif isinstance(child, FUNCTIONS) and child.name not in ("__repr__", "__str__"):
            yield f"{prefix}{child.name}", child


def _statements(node: ast.AST) -> Iterator[ast.stmt]:
    """Yields the statements of a function at all depths, without its docstring."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt) and not _is_text(child):
            yield child
        yield from _statements(child)


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _changeable(statement: ast.stmt) -> Iterator[ast.stmt | ast.expr]:
    """Yields the statement and its expressions that may change, not those of the statements inside it."""
    if isinstance(statement, ast.Assert | ast.Import | ast.ImportFrom | FUNCTIONS):
        return
    if isinstance(statement, ast.If) and ast.unparse(statement.test).endswith("TYPE_CHECKING"):
        return
    yield statement
    if isinstance(statement, ast.Raise):
        return  # the words of an error
    for name, value in ast.iter_fields(statement):
        if name == "annotation":
            continue
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, ast.expr):
                yield from _expressions(each)


def _expressions(node: ast.AST) -> Iterator[ast.expr]:
    if isinstance(node, ast.JoinedStr | ast.Lambda):
        return
    if isinstance(node, ast.Call) and _name_of(node.func) in TEXTS:
        return
    if isinstance(node, ast.expr):
        yield node
    if _is_negative(node):
        return  # -1 is one number
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.expr | ast.comprehension | ast.keyword):
            yield from _expressions(child)


def _changes(node: ast.AST, fields: dict[str, tuple[str, ...]]) -> Iterator[Change]:
    if isinstance(node, ast.stmt):
        yield from _dropped(node)
    elif isinstance(node, ast.Compare) and len(node.ops) == 1:
        for other in COMPARISONS[type(node.ops[0])]:
            yield "comparison", ast.Compare(left=node.left, ops=[other()], comparators=node.comparators)
    elif isinstance(node, ast.BoolOp):
        other_op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        yield "connective", ast.BoolOp(op=other_op, values=node.values)
        for index in range(len(node.values)):
            kept = [value for at, value in enumerate(node.values) if at != index]
            yield "term-dropped", kept[0] if len(kept) == 1 else ast.BoolOp(op=node.op, values=kept)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield "negation", node.operand
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub):
        if isinstance(node.right, ast.Constant) and node.right.value == 1:
            yield "off-by-one", node.left
        elif not isinstance(node.left, ast.JoinedStr | ast.Tuple | ast.List):
            swapped = ast.Sub() if isinstance(node.op, ast.Add) else ast.Add()
            yield "arithmetic", ast.BinOp(left=node.left, op=swapped, right=node.right)
    elif isinstance(node, ast.UnaryOp) and _is_negative(node):
        yield (
            "off-by-one",
            ast.Constant(value=1 - ast.literal_eval(node.operand)),
        )
    elif isinstance(node, ast.Constant) and type(node.value) is int:
        yield "off-by-one", ast.Constant(value=node.value + 1)
    elif isinstance(node, ast.Constant) and type(node.value) is bool:
        yield "constant", ast.Constant(value=not node.value)
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in SWAPPED_CALLS:
        func = ast.Name(id=SWAPPED_CALLS[node.func.id], ctx=ast.Load())
        yield "bound", ast.Call(func=func, args=node.args, keywords=node.keywords)
    elif isinstance(node, ast.IfExp):
        yield "choice", ast.IfExp(test=node.test, body=node.orelse, orelse=node.body)
    elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
        for other_name in fields.get(node.attr, ()):
            yield "field", ast.Attribute(value=node.value, attr=other_name, ctx=node.ctx)


def _is_negative(node: ast.AST) -> bool:
    if not isinstance(node, ast.UnaryOp) or not isinstance(node.op, ast.USub):
        return False
    return isinstance(node.operand, ast.Constant) and type(node.operand.value) is int


def _dropped(node: ast.stmt) -> Iterator[Change]:
    """Drops a statement that has an effect of its own, or the test in front of others."""
    if _has_own_effect(node):
        yield "statement", ast.Pass()
    elif isinstance(node, ast.If):
        negated = ast.If(test=ast.UnaryOp(op=ast.Not(), operand=node.test), body=node.body, orelse=node.orelse)
        if not isinstance(node.test, ast.Compare | ast.BoolOp):
            yield "condition", negated
        if isinstance(node.body[-1], ast.Return | ast.Continue | ast.Raise) and not node.orelse:
            yield "guard", ast.Pass()


def _has_own_effect(node: ast.stmt) -> bool:
    if isinstance(node, ast.Expr):
        call = node.value.value if isinstance(node.value, ast.Await) else node.value
        return isinstance(call, ast.Call) and _name_of(call.func) not in TEXTS
    if isinstance(node, ast.Assign):
        return all(isinstance(each, ast.Attribute | ast.Subscript) for each in node.targets)
    return isinstance(node, OWN_EFFECT)


def _name_of(func: ast.expr) -> str:
    if isinstance(func, ast.Attribute):
        return func.attr
    return func.id if isinstance(func, ast.Name) else ""


def _sibling_fields(tree: ast.Module) -> dict[str, tuple[str, ...]]:
    """Returns, for each field of a class, the one field of the same class and annotation that comes next.

    Only pairs whose names share their last word are confused by people: ``leader_epoch`` and ``partition_epoch``.
    """
    found: dict[str, tuple[str, ...]] = {}
    for owner in ast.walk(tree):
        if not isinstance(owner, ast.ClassDef):
            continue
        alike: dict[tuple[str, str], list[str]] = {}
        for each in owner.body:
            if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
                name = each.target.id
                alike.setdefault((name.rsplit("_", 1)[-1], ast.unparse(each.annotation)), []).append(name)
        for names in alike.values():
            for name, following in zip(names, [*names[1:], names[0]], strict=True):
                if name != following:
                    found.setdefault(name, (following,))
    return found
