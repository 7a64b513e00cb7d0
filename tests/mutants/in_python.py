"""Mutants in Python: nodes of the syntax tree, each with others in its place."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from copy import copy
from typing import Any

from tests.mutants.rules import Change, other_numbers

SWAPPED: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And,
    ast.Add: ast.Sub, ast.Sub: ast.Add,
}  # fmt: skip
EITHER_OR = (ast.Eq, ast.NotEq, ast.Is, ast.IsNot, ast.In, ast.NotIn)  # swapped is negated
OTHER_NAMES = {"min": "max", "max": "min"}
NO_SWAP = (*OTHER_NAMES, "getattr", "hasattr", "isinstance", "issubclass", "setattr")
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
NOT_RUN = ("decorator_list", "annotation", "returns", "bases")  # or run by tools and libraries
LOG, TEXTS = "logger", ("__repr__", "__str__", "__slots__", "__all__", "TYPE_CHECKING")
LOG_LINES_TO_KEEP = ("warning", "error", "exception")  # they ask for action


def changes(source: str) -> Iterator[Change]:
    """All changes of a module."""
    return _Module(source).visit(ast.parse(source), ())


class _Module:
    def __init__(self, source: str) -> None:
        self._lines = source.splitlines(keepends=True)
        self._begins = [0]
        for line in self._lines:
            self._begins.append(self._begins[-1] + len(line))

    def visit(self, node: ast.AST, above: tuple[ast.AST, ...]) -> Iterator[Change]:
        """Changes of a node and of what is in it; `above` are those that it is in."""
        if isinstance(node, ast.Assert | ast.JoinedStr) or _is_text(node) or _is_log(node):
            return
        if isinstance(node, ast.expr):
            for new in _other_expressions(node, above[-1]):
                yield self._change(node, new, above)
        if isinstance(node, ast.stmt):
            for new in _other_statements(node, above):
                yield self._change(node, new, above)
        if not isinstance(node, ast.Raise):  # whose text is for people
            for name, value in ast.iter_fields(node):
                for part in value if isinstance(value, list) else [value]:
                    if isinstance(part, ast.AST) and name not in NOT_RUN:
                        yield from self.visit(part, (*above, node))

    def _change(self, node: Any, new: ast.AST, above: tuple[ast.AST, ...]) -> Change:
        code, says, instead = ast.unparse(new), ast.unparse(node), ast.unparse(new)
        if isinstance(node, ast.Constant):  # too little to know it by
            says = ast.unparse(above[-1])
            _replace(above[-1], node, new)
            instead = ast.unparse(above[-1])
            _replace(above[-1], new, node)
        if isinstance(new, ast.expr):
            code = f"({code})"
        names = [one.name for one in above if isinstance(one, (ast.ClassDef, *FUNCTIONS))]
        begin = self._index(node.lineno, node.col_offset)
        end = self._index(node.end_lineno, node.end_col_offset)
        return Change(".".join(names), node.lineno, says, instead, begin, end, code)

    def _index(self, line: int, column: int) -> int:
        """Of a character in the file; columns count bytes."""
        return self._begins[line - 1] + len(self._lines[line - 1].encode()[:column].decode())


def _other_expressions(node: ast.expr, parent: Any) -> Iterator[ast.expr]:
    match node:
        case ast.Compare():
            for i, op in enumerate(node.ops):
                if type(op) in SWAPPED:
                    yield _with(node, ops=[*node.ops[:i], SWAPPED[type(op)](), *node.ops[i + 1 :]])
        case ast.BoolOp():
            yield _with(node, op=SWAPPED[type(node.op)]())
            for i in range(len(node.values)):
                rest = node.values[:i] + node.values[i + 1 :]
                yield rest[0] if len(rest) == 1 else _with(node, values=rest)
        case ast.BinOp(op=ast.Add() | ast.Sub()):
            if not (_is_string(node.left) or _is_string(node.right)):
                yield _with(node, op=SWAPPED[type(node.op)]())
        case ast.UnaryOp(op=ast.Not()):
            yield node.operand
        case ast.Constant(value=bool(value)):
            yield ast.Constant(not value)
        case ast.Constant(value=int(value) | float(value)) if not isinstance(parent, ast.Subscript):
            yield from map(ast.Constant, other_numbers(value))
        case ast.Call(func=ast.Name(id="min" | "max" as name)):
            yield _with(node, func=ast.Name(OTHER_NAMES[name]))
        case ast.Call(func=function) if getattr(function, "id", "") not in NO_SWAP:
            for i in range(len(node.args) - 1):
                first, second = node.args[i : i + 2]
                yield _with(node, args=[*node.args[:i], second, first, *node.args[i + 2 :]])
    is_condition = node is getattr(parent, "test", None) or node in getattr(parent, "ifs", ())
    is_either_or = isinstance(node, ast.Compare) and isinstance(node.ops[0], EITHER_OR)
    if is_condition and not (is_either_or or isinstance(node, ast.UnaryOp | ast.Constant)):
        yield ast.UnaryOp(ast.Not(), node)


def _other_statements(node: ast.stmt, above: tuple[ast.AST, ...]) -> Iterator[ast.stmt]:
    function = next((one for one in reversed(above) if isinstance(one, FUNCTIONS)), None)
    if function is None:
        return
    parent: Any = above[-1]
    match node:
        case ast.Expr(value=ast.Call() | ast.Await()):
            is_log = _is_log(node.value)
            if not is_log or node.value.func.attr in LOG_LINES_TO_KEEP:  # type: ignore[union-attr]
                yield ast.Pass()
            is_alone = isinstance(parent, ast.If) and [node] in (parent.body, parent.orelse)
            if is_alone and not is_log and function.body[-1] not in above:
                yield ast.Return()  # as if this had to be the end
        case ast.Assign(targets=targets) if function.name != "__init__":
            if all(isinstance(one, ast.Attribute | ast.Subscript) for one in targets):
                yield ast.Pass()
            if isinstance(targets[0], ast.Attribute) and not isinstance(node.value, ast.Constant):
                value = ast.BoolOp(ast.Or(), [targets[0], node.value])
                yield _with(node, value=value)  # as if the first value were the last
        case ast.AugAssign(op=op):
            yield ast.Pass()
            if type(op) in SWAPPED:
                yield _with(node, op=SWAPPED[type(op)]())
        case ast.Return():
            if parent is not function:
                yield ast.Pass()
        case ast.Delete() | ast.Raise() | ast.Break() | ast.Continue():
            yield ast.Pass()


def _with(node: Any, **fields: Any) -> Any:
    """The same node, but for these fields."""
    new = copy(node)
    vars(new).update(fields)
    return new


def _replace(parent: ast.AST, node: ast.AST, new: ast.AST) -> None:
    for name, value in ast.iter_fields(parent):
        if value is node:
            setattr(parent, name, new)
        elif isinstance(value, list):
            value[:] = [new if one is node else one for one in value]


def _is_text(node: ast.AST) -> bool:
    """Whether nothing happens here but texts, names and types."""
    target = getattr(node, "test", getattr(node, "targets", [None])[0])
    return getattr(node, "name", getattr(target, "id", "")) in TEXTS


def _is_log(node: Any) -> bool:
    """Whether it is a call of the logger's."""
    owner = getattr(getattr(node, "func", None), "value", None)
    return isinstance(node, ast.Call) and getattr(owner, "id", "") == LOG


def _is_string(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or isinstance(getattr(node, "value", None), str)
