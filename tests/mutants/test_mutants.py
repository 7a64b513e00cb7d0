from __future__ import annotations

from tests.mutants.generate import accepted, mutants, mutants_of, names_of

IN_PYTHON = '''
def take(free: int, wanted=1) -> int:
    """Not 2."""
    if wanted > free and not full():
        raise ValueError(f"only {free + 1}")
    self.taken += min(wanted, 7)
    logger.info("%d", 3)
    return find(free, True)
'''
IN_LUA = """
local function take(free, wanted) -- not 2
  if wanted > free then return 0 end
  scope.taken = f(wanted, 'not')
end
"""


def names(file: str, source: str) -> list[str]:
    return [mutant.name.removeprefix(f"{file}:take: ") for mutant in mutants_of(file, source)]


def test_mutants_in_python() -> None:
    assert names("a.py", IN_PYTHON) == [
        "wanted=1 -> wanted=2",
        "wanted=1 -> wanted=0",
        "wanted > free and (not full()) -> wanted > free or not full()",
        "wanted > free and (not full()) -> not full()",
        "wanted > free and (not full()) -> wanted > free",
        "wanted > free and (not full()) -> not (wanted > free and (not full()))",
        "wanted > free -> wanted >= free",
        "not full() -> full()",
        "raise ValueError(f'only {free + 1}') -> pass",
        "self.taken += min(wanted, 7) -> pass",
        "self.taken += min(wanted, 7) -> self.taken -= min(wanted, 7)",
        "min(wanted, 7) -> max(wanted, 7)",
        "min(wanted, 7) -> min(wanted, 70)",
        "find(free, True) -> find(True, free)",
        "find(free, True) -> find(free, False)",
    ]


def test_mutants_in_lua() -> None:
    condition, assignment = "if wanted > free then return 0 end", "scope.taken = f(wanted, 'not')"
    assert names("a.lua", IN_LUA) == [
        f"{condition} -> if wanted >= free then return 0 end",
        f"{condition} -> if wanted > free then return 1 end",
        f"{condition} -> if not (wanted > free) then return 0 end",
        f"{condition} -> nothing",
        f"{assignment} -> scope.taken = f('not', wanted)",
        f"{assignment} -> if (scope.taken or 0) == 0 or scope.taken == '' then {assignment} end",
        f"{assignment} -> nothing",
    ]


def test_each_mutant_that_is_accepted_exists() -> None:
    files = {name.partition(":")[0] for name in accepted()}
    assert accepted().keys() <= {name for mutant in mutants(files) for name in names_of(mutant)}
