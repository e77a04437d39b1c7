"""A mutation: a rule in words, the change that breaks it, and the test that notices the change.

The tables in `tests/mutations/*.txt` are kept by hand: one entry for each rule that could seem superfluous.
A line without indent names the file (or is a comment); the entries of its rules follow:

    messages for this epoch are handled once it has come
      PE._on_epoch: self._parked[0][0] <= self.epoch => self._parked[0][0] < self.epoch
      test_a_message_waits_for_its_epoch

The second line contains the place, which is a function, a class or (`module`) the whole file, the old code
and the new code. Three words stand for usual changes: `without STATEMENTS`; `never CONDITION`; `always
CONDITION`. The second line may continue in further lines; the last line is the test.

Sources and changes are compared as syntax trees: line breaks and comments do not matter. The old code must
occur in its place exactly once. So an entry whose rule has been rewritten raises an error that names the
rule, and never breaks other code.

In the old code the body `...` stands for any statements: `if self.is_resting: ...`.
"""

import ast
import difflib
import re
import textwrap
from pathlib import Path

import msgspec


class Change(msgspec.Struct, frozen=True):
    """Old code and its replacement: an expression for an expression, else statements."""

    old: str
    new: str


class Mutation(msgspec.Struct, frozen=True):
    """A rule, the change that breaks it, and the test for it (which `mutate.py` runs first)."""

    rule: str
    file: str
    place: str
    change: Change
    test: str


#: the replacements that a single word names
_WORDS = {"without": "", "never": "False", "always": "True"}
_CHANGE = re.compile(r"([\w.]+): *(.+)", re.DOTALL)
_RULE = re.compile(r"  (\S.*)\n((?: {4}.*\n)+) {4}(test_\w+)\n")


#: a node, the name of one of its fields, and the field's new value
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
            raise _misfit(mutation, f"{mutation.place!r} is there {len(found)} times")
        scope = found[0]
    return scope


def _change(mutation: Mutation, scope: ast.AST) -> None:
    """Replace the one part of the scope's tree that equals the old code."""
    parent, field, value = _fitting(mutation, scope)
    setattr(parent, field, value)
    ast.fix_missing_locations(scope)


def _fitting(mutation: Mutation, scope: ast.AST) -> _Changed:
    """Return the one part of the scope's tree that equals the old code, and its replacement."""
    try:
        codes = (mutation.change.old, mutation.change.new)
        old, new = (ast.parse(textwrap.dedent(code).strip()).body for code in codes)
    except SyntaxError as error:
        raise _misfit(mutation, f"the change is no Python: {error}") from None
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
    """Return whether two parts of syntax trees are equal."""
    if isinstance(pattern, ast.AST):
        return type(pattern) is type(found) and all(
            (field == "body" and _is_any(part)) or _is_alike(part, getattr(found, field, None))
            for field, part in ast.iter_fields(pattern)
        )
    if isinstance(pattern, list):
        return isinstance(found, list) and len(pattern) == len(found) and all(map(_is_alike, pattern, found))
    return type(pattern) is type(found) and pattern == found


def _is_any(body: object) -> bool:
    """Return whether the code is the body `...`."""
    match body:
        case [ast.Expr(ast.Constant(value))]:
            return value is ...
    return False
