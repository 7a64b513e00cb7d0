"""How scripts are put together from their files."""

import re

import pytest

from semaphore_middleware.link.scripts import assembled

TEXT = "local a = @number(one) -- of @number(two)\nreturn @number(three)\n"


def test_comments_are_left_alone_and_an_unknown_word_names_its_place() -> None:
    numbers = {"one": "1", "three": "3"}
    words = {"number": numbers}

    def known(what: str, name: str) -> str:
        return words[what][name]

    whole = assembled(TEXT, known, str, "p:lua/f.lua")
    assert whole == "local a = 1 -- of @number(two)\nreturn 3\n"
    del numbers["three"]
    problem = re.escape("p:lua/f.lua:2: @number(three) stands for nothing")
    with pytest.raises(ValueError, match=problem):
        assembled(TEXT, known, str, "p:lua/f.lua")


@pytest.mark.parametrize(
    ("texts", "lines"), [([], ""), (["f()", "g()"], "  a = f() or a\n  a = g() or a\n")]
)
def test_the_line_of_a_word_with_several_texts_is_written_for_each(
    texts: list[str], lines: str
) -> None:
    text = "do\n  a = @hook(each) or a\nend\n"
    assert assembled(text, lambda *_: texts, str, "p:lua/f.lua") == f"do\n{lines}end\n"
