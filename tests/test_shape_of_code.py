"""Bounds on the size of classes and functions, and on accesses of tests to private attributes."""

import ast
from collections.abc import Iterator

from source_trees import PRODUCT, sources

_ATTRIBUTES_MAX, _METHODS_MAX, _LINES_MAX = 40, 50, 60
#: number of accesses of tests to private attributes of other objects; this number must only fall
_REACHES = 39

#: functions that may be longer -> reason
_LONG = {
    "apps/mallob_maxsat/flips.py walk": "one hot loop that is compiled, whose steps share their local arrays",
    "mallob_py/protocol/node.py __init__": "a list of attributes, each of which its methods share",
    "mallob_py/runtime/boot.py run_rank": "the life of a rank: what is open when it fails is closed there",
}


def _classes() -> Iterator[tuple[str, ast.ClassDef]]:
    for file in sources(*PRODUCT):
        yield from ((f"{file.name} {one.name}", one) for one in file.nodes if isinstance(one, ast.ClassDef))


def _methods(one: ast.ClassDef) -> set[str]:
    """Return the names of a class's methods; a property counts once, with its setter."""
    return {each.name for each in one.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)}


def _attributes(one: ast.ClassDef) -> set[str]:
    """Return the attributes that a class's methods set; declared fields of a record do not count."""
    return {
        each.attr
        for each in ast.walk(one)
        if isinstance(each, ast.Attribute)
        and isinstance(each.ctx, ast.Store)
        and isinstance(each.value, ast.Name)
        and each.value.id == "self"
    }


def _reaches() -> list[str]:
    """Return the accesses `other._private` in tests, except for Python's modules, such as `os._exit`."""
    found = []
    for file in sources("tests"):
        for each in file.nodes:
            if (
                isinstance(each, ast.Attribute)
                and each.attr.startswith("_")
                and not each.attr.startswith("__")
            ):
                whose = ast.unparse(each.value)
                if whose not in ("self", "cls", "os", "sys"):
                    found.append(f"{file.name}:{each.lineno}: {whose}.{each.attr}")
    return found


def test_no_class_has_too_many_attributes() -> None:
    counts = {name: len(_attributes(one)) for name, one in _classes()}
    assert {name: count for name, count in counts.items() if count > _ATTRIBUTES_MAX} == {}


def test_no_class_has_too_many_methods() -> None:
    counts = {name: len(_methods(one)) for name, one in _classes()}
    assert {name: count for name, count in counts.items() if count > _METHODS_MAX} == {}


def test_the_rank_is_hands_only() -> None:
    (rank,) = (one for name, one in _classes() if name == "mallob_py/runtime/rank.py Rank")
    assert len(_attributes(rank)) <= 25


def test_no_function_is_too_long() -> None:
    lengths = {
        f"{file.name} {each.name}": each.end_lineno
        - each.lineno
        + 1
        - (ast.get_docstring(each) or "").count("\n")
        for file in sources(*PRODUCT)
        for each in file.nodes
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef) and each.end_lineno is not None
    }
    long = {name: lines for name, lines in lengths.items() if lines > _LINES_MAX}
    assert {name: lines for name, lines in long.items() if name not in _LONG} == {}
    assert set(_LONG) <= set(long), "a function that has become shorter leaves the list"


def test_tests_make_objects_by_constructors_and_use_public_doors() -> None:
    reaches = _reaches()
    assert len(reaches) <= _REACHES, "\n".join(reaches)


def test_no_exception_of_ours_can_reach_people_without_text() -> None:
    """A private exception that is raised without arguments must set its text in `__init__`, or be no
    error.
    """
    mute = []
    for file in sources("mallob_py", "apps"):
        says = {
            one.name
            for one in file.nodes
            if isinstance(one, ast.ClassDef)
            and (
                any(isinstance(each, ast.FunctionDef) and each.name == "__init__" for each in one.body)
                or "BaseException" in map(ast.unparse, one.bases)
            )
        }
        for each in file.nodes:
            if isinstance(each, ast.Raise) and each.exc is not None:
                raised = ast.unparse(each.exc).removesuffix("()")
                if raised.startswith("_") and raised.isidentifier() and raised not in says:
                    mute.append(f"{file.name}:{each.lineno}: {raised}")
    assert mute == []


def test_commands_print_no_line_on_standard_error_but_by_say() -> None:
    """Otherwise a name in the line could reverse the text or control the terminal."""
    found = [
        f"{file.name}:{each.lineno}"
        for file in sources("mallob_py/cli")
        for each in file.nodes
        if isinstance(each, ast.Call)
        and ast.unparse(each.func) == "print"
        and "sys.stderr" in [ast.unparse(key.value) for key in each.keywords]
        and ast.unparse(each).startswith("print(f'mallob-py")
    ]
    assert found == []
