"""Mutants in Lua: lines, each with others in its place, of those that still compile."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from itertools import accumulate, pairwise
from typing import Any

from lupa.lua51 import LuaRuntime

from lab.mutants.rules import Change, other_numbers

SWAPPED = {
    "<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "~=", "~=": "==", "+": "-", "-": "+",
    "and": "or", "or": "and", "not": "not not", "true": "false", "false": "true",
    "math.min": "math.max", "math.max": "math.min",
}  # fmt: skip
STRING_OR_COMMENT = re.compile(r"""'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"|--.*""")
TOKEN = re.compile(r"[A-Za-z_][\w.:]*|\d+(?:\.\d+)?|[<>=~]=|\.\.+|'+|\S")
FUNCTION = re.compile(r"(?:local )?function ([\w.]+)")
CONDITION = re.compile(r"\b(?:if|elseif|while) (.+?) (?:then|do)\b")
EITHER_OR = re.compile(r"not \S+|[^()]+ [=~]= [^()]+")  # swapped is negated
ASSIGNMENT = re.compile(r"(\w+(?:\.\w+|\[\w+\])+) = (.+)")
DROPPED = re.compile(r"(?!local |function |end|else|for |until |repeat|if .*(?<! end)$)[a-z]")
EFFECT = re.compile(r"(?:[\w.]+(?:\[\w+\])?(?:, [\w.]+)* = |[\w.:]+\()(?!.*\bfunction\b)")
NO_CALL = {"math.min", "math.max", "if", "and", "or", "not", "return", "=", "(", ","}
EDGES = {"if", "elseif", "while", "return", "then", "do", "end", "and", "or", "=", ",", ";"}


def changes(source: str) -> Iterator[Change]:
    begin, functions = 0, list[tuple[int, str]]()  # those around a line, with their columns
    above: tuple[int, int, int, str] | None = None  # if the line before has an effect: where, what
    for number, line in enumerate(source.splitlines(), 1):
        code = blanked(line).rstrip()
        column = len(code) - len(code.lstrip())
        start, end = begin + column, begin + len(code)
        says, code = line[column : len(code)], code[column:]
        begin += len(line) + 1
        while code and functions and functions[-1][0] >= column:
            functions.pop()
        names = ".".join(name for _, name in functions)
        for instead in _others(says, code, column > 2 * len(functions)):
            mutant = source[:start] + instead + source[end:]
            if compiles(mutant):
                yield Change(names, number, says, instead, start, end, instead)
        has_effect = EFFECT.match(code)
        if above and above[0] == column and has_effect and _may_depend(above[3], says):
            _, first, first_end, first_says = above
            swapped = says + source[first_end:start] + first_says
            mutant = source[:first] + swapped + source[end:]
            if compiles(mutant):
                pair = f"{first_says}; {says}", f"{says}; {first_says}"
                yield Change(names, number - 1, *pair, first, end, swapped)
        above = (column, start, end, says) if has_effect else None
        if function := FUNCTION.match(code):
            functions.append((column, function[1]))


def _may_depend(one: str, other: str) -> bool:
    """False for two assignments of which neither names what the other sets."""
    targets = [code.partition(" = ")[0::2] for code in (one, other)]
    if not all(value for _, value in targets):
        return True
    return any(
        re.search(rf"\b{re.escape(name)}\b", text)
        for (names, _), text in zip(targets, (other, one), strict=True)
        for name in names.split(", ")
    )


def blanked(code: str) -> str:
    """The code with its texts and comments blanked out."""
    return STRING_OR_COMMENT.sub(
        lambda found: (" " if found[0].startswith("-") else "'") * len(found[0]), code
    )


def compiles(source: str) -> bool:
    """Whether the text of a file does, whatever it includes and its records name."""
    code = re.sub(r"@(include|policies)\(.*?\)", "", source)
    code = re.sub(r"@hook\(.*?\)", "_()", code)  # a statement, or part of one
    return bool(_lua()(re.sub(r"@[\w.]*\(.*?\)", "_", code)))


@cache
def _lua() -> Any:
    return LuaRuntime().eval("function(text) return loadstring(text) ~= nil end")


def _others(line: str, code: str, is_nested: bool) -> Iterator[str]:
    """What the line may be by mistake; `code` is the line with its texts blanked out."""
    for begin, end, instead in _changes(line, code):
        yield line[:begin] + instead + line[end:]
    if assignment := ASSIGNMENT.fullmatch(code):
        target = assignment[1]  # as if the first value were the last
        yield f"if ({target} or 0) == 0 or {target} == '' then {line} end"
    if DROPPED.match(code) and (is_nested or not code.startswith("return")):
        yield ""


def _changes(line: str, code: str) -> Iterator[tuple[int, int, str]]:
    """Changes within a line: from where to where, and what instead."""
    tokens = list(TOKEN.finditer(code))
    texts = [token[0] for token in tokens]
    for i, (token, text) in enumerate(zip(tokens, texts, strict=True)):
        before = texts[i - 1] if i else ""
        is_sign = text in "+-" and not re.search(r"[\w)\]']$|^$", before)
        if text in SWAPPED and not is_sign:
            yield *token.span(), SWAPPED[text]
        if text in ("and", "or") and 0 < i < len(tokens) - 1:
            yield tokens[_end_of_operand(texts, i, -1)].start(), tokens[i + 1].start(), ""
            yield tokens[i - 1].end(), tokens[_end_of_operand(texts, i, 1)].end(), ""
        if text[0].isdigit() and before != "[":
            for number in other_numbers(float(text) if "." in text else int(text)):
                yield *token.span(), repr(number)
        is_list = text == "{" and " = " not in code[token.start() :]
        if (
            (is_list or text == "(")
            and before not in NO_CALL
            and "function" not in texts[max(0, i - 2) : i]
        ):
            arguments = [(tokens[a].start(), tokens[b].end()) for a, b in _arguments(texts, i)]
            skipped = before == "redis.call"  # the command
            for (begin, middle), (other, end) in pairwise(arguments[skipped:]):
                yield begin, end, line[other:end] + line[middle:other] + line[begin:middle]
    for condition in CONDITION.finditer(code):
        if not EITHER_OR.fullmatch(condition[1]):
            yield *condition.span(1), f"not ({line[slice(*condition.span(1))]})"


def _end_of_operand(texts: list[str], i: int, step: int) -> int:
    """The last token of the operand before or after this one."""
    depths = depths_of(texts)
    end = i + step
    while 0 <= end < len(texts) and depths[end] >= depths[i]:
        if depths[end] == depths[i] and texts[end] in EDGES:
            break
        end += step
    return end - step


def _arguments(texts: list[str], i: int) -> Iterator[tuple[int, int]]:
    """First and last tokens of the arguments after this bracket; none if it stays open."""
    depths = depths_of(texts)
    inside = [j for j in range(i + 1, len(texts)) if depths[j] <= depths[i]][:1]
    commas = [j for j in range(i, *inside) if (texts[j], depths[j]) == (",", depths[i] + 1)]
    for before, after in pairwise([i, *commas, *inside] if inside else []):
        yield before + 1, after - 1


def depths_of(texts: list[str]) -> list[int]:
    """How deep in brackets each token is; a bracket itself is where it stands."""
    changes = [(text in ("(", "[", "{")) - (text in (")", "]", "}")) for text in texts]
    return [
        depth - max(0, change) for depth, change in zip(accumulate(changes), changes, strict=True)
    ]
