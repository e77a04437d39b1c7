"""Mutations: each is a rule in words, a change that breaks the rule, and a test that notices the change.

The tables in `tests/mutations/*.txt` are written by people: one entry for each rule that could seem needless.
A line without indent names a source file (or is a comment); the entries of the file's rules follow:

    messages for this epoch are handled once it has come
      PE._on_epoch: self._parked[0][0] <= self.epoch => self._parked[0][0] < self.epoch
      test_a_message_waits_for_its_epoch

The second line contains the place (a function, a class, or `module` for the whole file), the old code and the
new code. Three words stand for common changes: `without STATEMENTS`; `never CONDITION`; `always CONDITION`.
The second line may continue on further lines; the last line is the test.

Sources and changes are compared as syntax trees: line breaks and comments do not matter. The old code must
occur in its place exactly once. So if a rule's code has been rewritten, its entry raises an error that names
the rule, and never breaks other code.

In the old code the body `...` stands for any statements: `if self.is_resting: ...`.
"""

import ast
import difflib
import re
import textwrap
from pathlib import Path

import msgspec


class Change(msgspec.Struct, frozen=True):
    """Old code and its replacement: either both are expressions, or both are statements."""

    old: str
    new: str


class Mutation(msgspec.Struct, frozen=True):
    """A rule, a change that breaks the rule, and a test that notices it (`mutate.py` runs it first)."""

    rule: str
    file: str
    place: str
    change: Change
    test: str


#: word for a common change -> replacement of the old code
_WORDS = {"without": "", "never": "False", "always": "True"}
_CHANGE = re.compile(r"([\w.]+): *(.+)", re.DOTALL)
_RULE = re.compile(r"  (\S.*)\n((?: {4}.*\n)+) {4}(test_\w+)\n")


#: a node, the name of one of the node's fields, and the field's new value
_Changed = tuple[ast.AST, str, object]


def change_of(text: str) -> Change:
    """Parse a change: `OLD => NEW`, or one of the three words and the old code.

    Raises ValueError for any other text.
    """
    word, _, rest = text.replace("\n", " \n", 1).partition(" ")
    if word in _WORDS:
        return Change(rest, _WORDS[word])
    old, arrow, new = text.partition("=>")
    if not arrow:
        raise ValueError(f"{text!r} has neither an arrow, =>, nor one of: {', '.join(_WORDS)}")
    return Change(old, new)


def table(text: str) -> tuple[Mutation, ...]:
    """Parse a table of mutations. Raises ValueError with the line of an invalid entry."""
    found, file, at = list[Mutation](), "", 0
    while at < len(text):
        line = text[at : text.index("\n", at)]
        if line.startswith("  "):
            rule = _RULE.match(text, at)
            change = _CHANGE.match(rule[2].strip()) if rule else None
            if rule is None or change is None:
                raise ValueError(f"{file}: {line.strip()!r} lacks a place with its change, or a test")
            place = "" if change[1] == "module" else change[1]
            found.append(Mutation(rule[1], file, place, change_of(change[2]), rule[3]))
            at = rule.end()
            continue
        if line and not line.startswith("#"):
            file = line
        at += len(line) + 1
    return tuple(found)


#: the mutations of all tables
MUTATIONS = tuple(
    mutation
    for file in sorted((Path(__file__).resolve().parents[1] / "tests/mutations").glob("*.txt"))
    for mutation in table(file.read_text())
)


def apply(mutation: Mutation, source: str) -> str:
    """Return the changed source, without its comments.

    Raises ValueError, naming the rule, if the place does not exist or does not contain the old code exactly
    once.
    """
    module = ast.parse(source)
    _change(mutation, _scope(mutation, module))
    return ast.unparse(module) + "\n"


def check(mutation: Mutation, module: ast.Module) -> None:
    """Raise ValueError, naming the rule, if the change does not fit the module exactly once."""
    _fitting(mutation, _scope(mutation, module))


def describe(mutation: Mutation, source: str) -> str:
    """Return the change as lines of a diff."""
    scope = _scope(mutation, ast.parse(source))
    old = ast.unparse(scope).splitlines()
    _change(mutation, scope)
    lines = difflib.unified_diff(old, ast.unparse(scope).splitlines(), n=1, lineterm="")
    shown = [line for line in lines if not line.startswith(("---", "+++", "@@"))]
    return "\n".join((f"{mutation.file} {mutation.place}", *shown))


def _scope(mutation: Mutation, module: ast.Module) -> ast.AST:
    scope: ast.AST = module
    for name in mutation.place.split(".") if mutation.place else ():
        found = [node for node in ast.iter_child_nodes(scope) if getattr(node, "name", None) == name]
        if len(found) != 1:
            raise _misfit(mutation, f"the place {mutation.place!r} exists {len(found)} times")
        scope = found[0]
    return scope


def _change(mutation: Mutation, scope: ast.AST) -> None:
    """Replace the only part of the scope's tree that equals the old code."""
    parent, field, value = _fitting(mutation, scope)
    setattr(parent, field, value)
    ast.fix_missing_locations(scope)


def _fitting(mutation: Mutation, scope: ast.AST) -> _Changed:
    """Find the only part of the scope's tree that equals the old code; return it with its replacement."""
    try:
        codes = (mutation.change.old, mutation.change.new)
        old, new = (ast.parse(textwrap.dedent(code).strip()).body for code in codes)
    except SyntaxError as error:
        raise _misfit(mutation, f"the change is not valid Python: {error}") from None
    if len(old) == len(new) == 1 and isinstance(old[0], ast.Expr) and isinstance(new[0], ast.Expr):
        changes = _changed_expressions(scope, old[0].value, new[0].value)
    else:
        changes = _changed_statements(scope, old, new)
    if len(changes) != 1:
        raise _misfit(mutation, f"the old code is in {mutation.place or 'the module'} {len(changes)} times")
    return changes[0]


def _misfit(mutation: Mutation, what: str) -> ValueError:
    return ValueError(f"{mutation.file}: {mutation.rule!r}: {what}")


def _changed_expressions(scope: ast.AST, old: ast.expr, new: ast.expr) -> list[_Changed]:
    changes: list[_Changed] = []
    for parent in ast.walk(scope):
        for field, value in ast.iter_fields(parent):
            if not isinstance(value, list):
                if _is_alike(old, value):
                    changes.append((parent, field, new))
                continue
            for at, item in enumerate(value):
                if _is_alike(old, item):
                    changes.append((parent, field, [*value[:at], new, *value[at + 1 :]]))
    return changes


def _changed_statements(scope: ast.AST, old: list[ast.stmt], new: list[ast.stmt]) -> list[_Changed]:
    changes: list[_Changed] = []
    for parent in ast.walk(scope):
        for field, value in ast.iter_fields(parent):
            if not (isinstance(value, list) and value and isinstance(value[0], ast.stmt)):
                continue
            for at in range(len(value) - len(old) + 1):
                if all(map(_is_alike, old, value[at:])):
                    left = [*value[:at], *new, *value[at + len(old) :]]
                    changes.append((parent, field, left or ([ast.Pass()] if field != "orelse" else [])))
    return changes


def _is_alike(pattern: object, found: object) -> bool:
    """Tell whether a part of a syntax tree equals a pattern."""
    if isinstance(pattern, ast.AST):
        return type(pattern) is type(found) and all(
            (field == "body" and _is_any(part)) or _is_alike(part, getattr(found, field, None))
            for field, part in ast.iter_fields(pattern)
        )
    if isinstance(pattern, list):
        return isinstance(found, list) and len(pattern) == len(found) and all(map(_is_alike, pattern, found))
    return type(pattern) is type(found) and pattern == found


def _is_any(body: object) -> bool:
    """Tell whether the code is the body `...`."""
    match body:
        case [ast.Expr(ast.Constant(value))]:
            return value is ...
    return False
