"""A mutation: a rule in words, the change that breaks it, and the test that notices it.

Sources and changes are compared as syntax trees: how lines are broken and what comments say does not matter.
A change is looked for in one place, a function or class (`LocalWorkers.adopt`) or the whole module (""), and
must fit there exactly once. So an entry whose rule has been rewritten is an error that names it, and never
breaks something else.

In the old code the body `...` stands for any statements: `if self.is_resting: ...`.
"""

from __future__ import annotations

import ast
import difflib
import textwrap

import msgspec


class Change(msgspec.Struct, frozen=True):
    """Old code and what stands there instead: an expression for an expression, else statements."""

    old: str
    new: str


class Mutation(msgspec.Struct, frozen=True):
    """A rule, how to break it, and the test that is there for it (`mutate.py` tries that one first)."""

    rule: str
    file: str
    place: str
    change: Change
    test: str


def instead_of(old: str, new: str) -> Change:
    """Other code in place of the old."""
    return Change(old, new)


def without(statements: str) -> Change:
    """These statements are left out."""
    return Change(statements, "")


def always(condition: str) -> Change:
    """The condition holds whatever comes."""
    return Change(condition, "True")


def never(condition: str) -> Change:
    """The condition never holds."""
    return Change(condition, "False")


def apply(mutation: Mutation, source: str) -> str:
    """The changed source, without its comments.

    Raises ValueError, naming the rule, if the place is not there or the old code is not there exactly once.
    """
    module = ast.parse(source)
    _change(mutation, _scope(mutation, module))
    return ast.unparse(module) + "\n"


def describe(mutation: Mutation, source: str) -> str:
    """The change as a reader of the protocol sees it: lines of a diff."""
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
    """Change the one part of the scope's tree that fits the old code."""
    try:
        old, new = (
            ast.parse(textwrap.dedent(code)).body for code in (mutation.change.old, mutation.change.new)
        )
    except SyntaxError as error:
        raise _misfit(mutation, f"the change is no Python: {error}") from None
    if len(old) == len(new) == 1 and isinstance(old[0], ast.Expr) and isinstance(new[0], ast.Expr):
        changes = _changed_expressions(scope, old[0].value, new[0].value)
    else:
        changes = _changed_statements(scope, old, new)
    if len(changes) != 1:
        raise _misfit(mutation, f"the old code is in {mutation.place or 'the module'} {len(changes)} times")
    parent, field, value = changes[0]
    setattr(parent, field, value)
    ast.fix_missing_locations(scope)


def _misfit(mutation: Mutation, what: str) -> ValueError:
    return ValueError(f"{mutation.file}: {mutation.rule!r}: {what}")


#: a node, the name of one of its fields, and what this field is to be
_Changed = tuple[ast.AST, str, object]


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
    """Whether two parts of syntax trees say the same."""
    if isinstance(pattern, ast.AST):
        return type(pattern) is type(found) and all(
            (field == "body" and _is_any(part)) or _is_alike(part, getattr(found, field, None))
            for field, part in ast.iter_fields(pattern)
        )
    if isinstance(pattern, list):
        return isinstance(found, list) and len(pattern) == len(found) and all(map(_is_alike, pattern, found))
    return type(pattern) is type(found) and pattern == found


def _is_any(body: object) -> bool:
    """The body `...`."""
    match body:
        case [ast.Expr(ast.Constant(value))]:
            return value is ...
    return False
