"""The list of mutations fits the sources: each breaks one rule at exactly one place."""

import ast
import functools
import os
import subprocess
from pathlib import Path

import mutate
import mutations
import pytest
from mutations import Mutation, change_of, table

from mallob_py.runtime.processes import python

_ROOT = Path(__file__).resolve().parents[2]


_SOURCE = """
class Fair:
    def of(self, jobs):
        # whoever waits
        if jobs and not self.is_over:
            self.tell(
                jobs,  # all of them
            )
        elif jobs > 1:
            self.wait()
        return min(jobs, 1)

    def tell(self, jobs):
        self.wait()
        self.wait()
"""


def _changed(change: str, place: str = "Fair.of", source: str = _SOURCE) -> str:
    return mutations.apply(Mutation("a rule", "a file", place, change_of(change), "a test"), source)


@functools.cache
def _module(file: str) -> ast.Module:
    return ast.parse((_ROOT / file).read_text())


@pytest.mark.parametrize("mutation", mutations.MUTATIONS, ids=lambda mutation: mutation.rule)
def test_each_mutation_applies_exactly_once_and_changes_something(mutation: Mutation) -> None:
    mutations.check(mutation, _module(mutation.file))
    assert mutation.change.old.split() != mutation.change.new.split()


def test_each_mutation_names_a_test_that_is_there() -> None:
    places = mutate.test_places(_ROOT)
    assert {mutation.test for mutation in mutations.MUTATIONS} <= set(places)


def test_no_rule_is_listed_twice() -> None:
    changes = [(mutation.file, mutation.place, mutation.change) for mutation in mutations.MUTATIONS]
    assert len(set(changes)) == len(changes)
    assert len({mutation.rule for mutation in mutations.MUTATIONS}) == len(changes)


def test_a_condition_is_made_to_hold_always_or_never() -> None:
    assert "if jobs and (not True):" in _changed("always self.is_over")
    assert "elif False:" in _changed("never jobs > 1")


def test_code_is_found_however_its_lines_are_broken_and_whatever_comments_say() -> None:
    assert "self.tell" not in _changed("without self.tell(jobs)")
    assert "return jobs" in _changed("min( jobs,\n 1 ) => jobs")


def test_what_loses_its_last_statement_does_nothing() -> None:
    compile(_changed("without self.wait()"), "a file", "exec")


def test_a_body_of_dots_stands_for_any_statements() -> None:
    changed = _changed("without if self.is_bad: ...", "", "if self.is_bad:\n    x = 1\n    y = 2\nz = 3\n")
    assert changed == "z = 3\n"


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ("without self.rest()", "Fair.of"),
        ("without self.wait()", "Fair.tell"),
        ("never jobs < 1", "Fair.of"),
        ("never jobs > 1", "Fair.tell"),
        ("never jobs > 1", "Fair.off"),
        ("never jobs > > 1", "Fair.of"),
    ],
    ids=["gone", "twice", "gone", "in another function", "no such function", "no Python"],
)
def test_a_mutation_that_does_not_fit_exactly_once_is_refused_by_name(change: str, place: str) -> None:
    with pytest.raises(ValueError, match="a file: 'a rule'"):
        _changed(change, place)


def test_a_table_names_the_file_once_for_many_rules() -> None:
    rules = """
# of all
a.py
  first
    module: without
      x = 1
      y = 2
    test_first
  second
    A.b: x < 1
    => x < 2
    test_second

b.py
  third
    c: never x
    test_third
"""
    assert [(one.rule, one.file, one.place, one.test) for one in table(rules)] == [
        ("first", "a.py", "", "test_first"),
        ("second", "a.py", "A.b", "test_second"),
        ("third", "b.py", "c", "test_third"),
    ]
    first, second, third = (one.change for one in table(rules))
    assert [line.strip() for line in first.old.strip().split("\n")] == ["x = 1", "y = 2"]
    assert not first.new
    assert (second.old.strip(), second.new.strip()) == ("x < 1", "x < 2")
    assert (third.old, third.new) == ("x", "False")


@pytest.mark.parametrize("entry", ["c: never x", "test_it", "c never x\n    test_it", "c: x\n    test_it"])
def test_an_entry_that_lacks_something_is_refused(entry: str) -> None:
    with pytest.raises(ValueError, match=r"lacks|neither"):
        table(f"a.py\n  a rule\n    {entry}\n")


class _Chance(mutate.Runner):
    """A fake runner: the n-th run of the first test fails if `first_fails[n]`; the second test fails in all
    mutated folders.
    """

    def __init__(self, *, first_fails: tuple[bool, ...]) -> None:
        super().__init__()
        self._first_fails = list(first_fails)

    def run(self, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
        failed = []
        wants_first = "--deselect=tests/a.py::test_first" not in arguments
        if wants_first and "tests/a.py::test_second" not in arguments and self._first_fails.pop(0):
            failed.append("FAILED tests/a.py::test_first - assert 1 == 2")
        elif "tests/a.py::test_first" not in arguments and folder.name != "unchanged":
            failed.append("FAILED tests/a.py::test_second - assert 3 == 4")
        return subprocess.CompletedProcess(arguments, int(bool(failed)), "\n".join(failed))


@pytest.mark.parametrize(
    ("first_fails", "noticed_by"),
    [
        ((True, False, True), "test_first"),
        ((True, False, False), "test_second"),
        ((True, True, True), "test_second"),
    ],
    ids=["each time with the mutation", "once with it", "without it as well"],
)
def test_a_test_that_fails_by_chance_has_noticed_nothing(
    tmp_path: Path, first_fails: tuple[bool, ...], noticed_by: str
) -> None:
    judge = mutate.Judge(tmp_path, _Chance(first_fails=first_fails), fuzz_s=0)
    assert judge.notice(tmp_path / "mutation_0", "tests/a.py") == f"tests/a.py::{noticed_by}"


class _Unreadable(mutate.Runner):
    """A runner by which one file cannot be read, and the tests of all other files pass."""

    def run(self, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
        is_read = "--ignore=tests/a.py" not in arguments
        return subprocess.CompletedProcess(arguments, int(is_read), "ERROR tests/a.py" if is_read else "")


def test_a_file_that_cannot_be_read_is_left_out(tmp_path: Path) -> None:
    judge = mutate.Judge(tmp_path, _Unreadable(), fuzz_s=0)
    assert judge.notice(tmp_path / "mutation_0", "tests") is None


def test_all_tests_can_be_read_with_the_few_plugins_of_a_campaign() -> None:
    environment = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    command = [*python(), *mutate.PYTEST, "--collect-only", "tests/api", "tests/service", "tests/kit"]
    done = subprocess.run(command, cwd=_ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
