"""Mutants in Python: nodes of the syntax tree, each with others in its place."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from copy import copy
from itertools import accumulate, pairwise
from typing import Any

from lab.mutants.rules import Change, other_numbers

SWAPPED: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And,
    ast.Add: ast.Sub, ast.Sub: ast.Add,
}  # fmt: skip
EITHER_OR = (ast.Eq, ast.NotEq, ast.Is, ast.IsNot, ast.In, ast.NotIn)  # swapped is negated
OTHER_NAMES = {"min": "max", "max": "min"}
NO_SWAP = (*OTHER_NAMES, "getattr", "hasattr", "isinstance", "issubclass", "setattr")
UNITS = {"_s": 1000, "_S": 1000, "_ms": 0.001}
"""By the end of a name: what turns its value into the other unit."""
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
NOT_RUN = ("decorator_list", "annotation", "returns", "bases")  # or run by tools and libraries
TEXTS = ("__repr__", "__str__", "__slots__", "__all__", "TYPE_CHECKING")
LOG_LINES_TO_KEEP = ("warning", "error", "exception")  # they ask for action


def changes(source: str) -> Iterator[Change]:
    code = source.encode()  # of which the tree counts the columns
    lines = list(accumulate(map(len, code.splitlines(keepends=True)), initial=0))

    def span_of(node: Any) -> tuple[int, int]:
        begin = lines[node.lineno - 1] + node.col_offset
        end = lines[node.end_lineno - 1] + node.end_col_offset
        return len(code[:begin].decode()), len(code[:end].decode())

    for node, above in _walk(ast.parse(source), ()):
        start, end = span_of(node)
        function = ".".join(
            one.name for one in above if isinstance(one, (ast.ClassDef, *FUNCTIONS))
        )
        for new in (*_other_statements(node, above), *_other_expressions(node, above[-1])):
            says, instead = ast.unparse(node), ast.unparse(new)
            text = f"({instead})" if isinstance(new, ast.expr) else instead
            if isinstance(node, ast.Constant):  # too little to know it by
                shown = _parameter(node, above[-1]) or above[-1]
                says, instead = ast.unparse(shown), ast.unparse(_replace(shown, node, new))
                _replace(shown, new, node)
            yield Change(function, node.lineno, says, instead, start, end, text)
        if (after := _next_effect(node, above)) is not None:
            first, second = ast.unparse(node), ast.unparse(after)
            begin, last = span_of(after)
            text = source[begin:last] + source[end:begin] + source[start:end]
            says, instead = f"{first}; {second}", f"{second}; {first}"
            yield Change(function, node.lineno, says, instead, start, last, text)


def _walk(node: Any, above: tuple[ast.AST, ...]) -> Iterator[tuple[Any, tuple[Any, ...]]]:
    """All expressions and statements that can go wrong, each with those that it is in."""
    if isinstance(node, ast.Assert | ast.JoinedStr) or _is_text(node):
        return
    if isinstance(node, ast.expr | ast.stmt):
        yield node, above
    if not isinstance(node, ast.Raise):  # it has a text
        for name, value in ast.iter_fields(node):
            for part in value if isinstance(value, list) else [value]:
                if isinstance(part, ast.AST) and name not in NOT_RUN:
                    yield from _walk(part, (*above, node))


def _other_expressions(node: Any, parent: Any) -> Iterator[ast.expr]:
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
            named = node.keywords
            for i, (one, other) in enumerate(pairwise(named)):
                if one.arg and other.arg:
                    swapped = [_with(one, value=other.value), _with(other, value=one.value)]
                    yield _with(node, keywords=[*named[:i], *swapped, *named[i + 2 :]])
        case ast.Name(id=name, ctx=ast.Load()) | ast.Attribute(attr=name, ctx=ast.Load()):
            for ending, factor in UNITS.items():
                if name.endswith(ending) and not isinstance(parent, ast.Call | ast.Attribute):
                    yield ast.BinOp(ast.Constant(factor), ast.Mult(), node)
    is_condition = node is getattr(parent, "test", None) or node in getattr(parent, "ifs", ())
    is_either_or = isinstance(node, ast.Compare) and isinstance(node.ops[0], EITHER_OR)
    if is_condition and not (is_either_or or isinstance(node, ast.UnaryOp | ast.Constant)):
        yield ast.UnaryOp(ast.Not(), node)


def _other_statements(node: Any, above: tuple[Any, ...]) -> Iterator[ast.stmt]:
    function = next((one for one in reversed(above) if isinstance(one, FUNCTIONS)), None)
    parent = above[-1]
    match node:
        case _ if function is None:
            return
        case ast.Expr(value=ast.Call() | ast.Await()):
            yield ast.Pass()
            is_alone = isinstance(parent, ast.If) and [node] in (parent.body, parent.orelse)
            if is_alone and function.body[-1] not in above:
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
        case ast.Return() if parent is not function:
            yield ast.Pass()
        case ast.Delete() | ast.Raise() | ast.Break() | ast.Continue():
            yield ast.Pass()


def _next_effect(node: Any, above: tuple[Any, ...]) -> ast.stmt | None:
    """The statement after this one, if both have effects whose order may matter."""
    if not (isinstance(node, ast.stmt) and any(isinstance(one, FUNCTIONS) for one in above)):
        return None
    blocks = [part for _, part in ast.iter_fields(above[-1]) if isinstance(part, list)]
    block = next((part for part in blocks if node in part), [node])
    after = next(iter(block[block.index(node) + 1 :]), None)
    if not (_has_effect(node) and _has_effect(after)):
        return None
    if not isinstance(node, ast.Assign) or not isinstance(after, ast.Assign):
        return after
    pair = ((node, ast.unparse(after)), (after, ast.unparse(node)))
    depend = any(ast.unparse(name) in other for one, other in pair for name in one.targets)
    return after if depend else None


def _has_effect(node: Any) -> bool:
    match node:
        case ast.Expr(value=ast.Call() | ast.Await()):
            return not _is_text(node) and not _is_text(node.value)
        case ast.Assign(targets=targets):
            return all(isinstance(one, ast.Attribute | ast.Subscript) for one in targets)
        case ast.AugAssign(target=target):
            return isinstance(target, ast.Attribute | ast.Subscript)
    return isinstance(node, ast.Delete)


def _with(node: Any, **fields: Any) -> Any:
    """A copy of the node, except for these fields."""
    new = copy(node)
    vars(new).update(fields)
    return new


def _replace(parent: ast.AST, node: ast.AST, new: ast.AST) -> ast.AST:
    for name, value in ast.iter_fields(parent):
        if value is node:
            setattr(parent, name, new)
        elif isinstance(value, list):
            value[:] = [new if one is node else one for one in value]
    return parent


def _parameter(default: ast.expr, parent: Any) -> ast.keyword | None:
    """The parameter of a function that has this default."""
    if not isinstance(parent, ast.arguments):
        return None
    positional = [*parent.posonlyargs, *parent.args]
    names = (*positional[len(positional) - len(parent.defaults) :], *parent.kwonlyargs)
    values = (*parent.defaults, *parent.kw_defaults)
    return ast.keyword(names[values.index(default)].arg, default)


def _is_text(node: Any) -> bool:
    """Whether nothing happens here but texts and types. A log line that asks for action does."""
    match node:
        case ast.Call(func=ast.Attribute(value=ast.Name(id="logger"))):
            return True
        case ast.keyword(arg="strict" | "usedforsecurity"):
            return True
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id="logger"), attr=level))):
            return level not in LOG_LINES_TO_KEEP
        case ast.If(test=ast.Name(id=name)) | ast.Assign(targets=[ast.Name(id=name)]):
            return name in TEXTS
    return getattr(node, "name", "") in TEXTS


def _is_string(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or isinstance(getattr(node, "value", None), str)
