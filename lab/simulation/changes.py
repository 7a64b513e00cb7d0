"""The code without a rule: changes to the statement that has the rule's marker."""

from __future__ import annotations

import ast
import builtins
import keyword
import re
from collections.abc import Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from lab.mutants.in_lua import TOKEN, blanked, compiles, depths_of

IN_PYTHON = {*dir(builtins), *keyword.kwlist}
IN_LUA = {"and", "or", "not", "true", "false", "nil", "math", "min", "max", "huge"}
HEADS = ("if", "elseif", "while")
LONGEST = 30  # lines of a statement in Lua


class UnfitError(Exception):
    """A change no longer fits the code, so its effect proves nothing."""


@dataclass(frozen=True)
class Change:
    """A change of a statement: one of these."""

    drop: bool = False
    """The statement is deleted."""
    condition: str = ""
    """The new condition of the `if`, `elif`, `elseif` or `while`."""
    value: str = ""
    """The expression that the statement assigns, returns or calls instead."""
    without: int = 0
    """The operand to remove from the `and` or `or` of its condition, or if it has none, value."""

    def in_python(self, source: str, line: int) -> ast.Module:
        """The module, with the statement at this line changed."""
        self._check_names(source, IN_PYTHON)
        tree = ast.parse(source)
        block, i = _statement_in_python(tree, line)
        if self.drop:
            block[i] = ast.copy_location(ast.Pass(), block[i])
        else:
            is_head = isinstance(block[i], ast.If | ast.While)
            part = "test" if self.condition or (self.without and is_head) else "value"
            setattr(block[i], part, self._expression(getattr(block[i], part, None)))
        return tree

    def _expression(self, old: Any) -> ast.expr:
        """The expression that replaces this one."""
        if old and (text := self.condition or self.value):
            return ast.parse(text, mode="eval").body
        if not isinstance(old, ast.BoolOp) or self.without > len(old.values):
            raise UnfitError("the statement has no such part")
        del old.values[self.without - 1]
        return old if len(old.values) > 1 else old.values[0]

    def in_lua(self, source: str, line: int) -> str:
        """The file's text, with the statement at this line changed."""
        self._check_names(source, IN_LUA)
        tokens = part = _statement_in_lua(source, line)
        instead = self.condition or self.value
        if not self.drop:
            is_head = tokens[0][0] in HEADS
            of_head = self.condition or (self.without and is_head)
            part = _condition(tokens) if of_head else _value(tokens, is_head)
        if self.without:
            instead = self._operands(source, part)
        changed = source[: part[0].start()] + instead + source[part[-1].end() :]
        if not compiles(changed):
            raise UnfitError("the file does not compile")
        return changed

    def _operands(self, source: str, tokens: Tokens) -> str:
        """The text of all operands except one."""
        word = "or" if _find(tokens, "or") else "and"
        ends = [-1, *_find(tokens, word), len(tokens)]
        spans = [(tokens[a + 1].start(), tokens[b - 1].end()) for a, b in pairwise(ends)]
        if len(spans) == 1 or self.without > len(spans) or _find(tokens, ","):
            raise UnfitError("the statement has no such part")
        del spans[self.without - 1]
        return f" {word} ".join(source[begin:end] for begin, end in spans)

    def _check_names(self, source: str, words: Set[str]) -> None:
        """All names must exist: otherwise any change would fail, and prove nothing."""
        text = re.sub(r"""(["']).*?\1""", "", self.condition or self.value)
        known = words | {*re.findall(r"\w+", source)}
        if gone := {*re.findall(r"\b[A-Za-z_]\w*", text)} - known:
            raise UnfitError(f"the file does not name {', '.join(sorted(gone))}")


# Python -----------------------------------------------------------------------------------------


def _statement_in_python(node: ast.AST, line: int) -> tuple[list[Any], int]:
    """The innermost with this line, or whose head has it: the block that it is in, and where."""
    for _, block in ast.iter_fields(node):
        for i, part in enumerate(block if isinstance(block, list) else []):
            if getattr(part, "lineno", line) <= line <= getattr(part, "end_lineno", line):
                with suppress(UnfitError):
                    return _statement_in_python(part, line)
                if isinstance(part, ast.stmt):
                    return block, i
    raise UnfitError("there is no statement")


# Lua --------------------------------------------------------------------------------------------

Tokens = Sequence[re.Match[str]]


def _statement_in_lua(source: str, line: int) -> Tokens:
    """The fewest lines from this one on without which the rest compiles."""
    lines = source.splitlines(keepends=True)
    begin = len("".join(lines[: line - 1]))
    for last in range(line, min(line + LONGEST, len(lines))):
        end = len("".join(lines[:last]))
        if compiles(source[:begin] + source[end:]):
            return list(TOKEN.finditer(blanked(source), begin, end))
    raise UnfitError("the statement has no end")


def _condition(tokens: Tokens) -> Tokens:
    if tokens[0][0] not in HEADS:
        raise UnfitError("the statement has no condition")
    return tokens[1 : _find(tokens, "then", "do")[0]]


def _value(tokens: Tokens, has_head: bool) -> Tokens:
    """What is assigned or returned, or the call; also in an `if` of one line."""
    begin = _find(tokens, "then")[0] + 1 if has_head else 0
    inner = tokens[begin : len(tokens) - has_head]
    return inner[(_find(inner, "=", "return") or [-1])[0] + 1 :]


def _find(tokens: Tokens, *words: str) -> list[int]:
    """The positions of these words outside of brackets."""
    texts = [token[0] for token in tokens]
    depths = zip(texts, depths_of(texts), strict=True)
    return [i for i, (text, depth) in enumerate(depths) if text in words and not depth]
