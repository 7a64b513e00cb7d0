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
