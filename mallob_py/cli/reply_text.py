"""Replies for people: compact JSON, single answers in a few lines, and tables of many answers."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from mallob_py.cli.values import printable

_WIDTH = 100
_INDENT = "  "
#: fields of a result that `answer_lines` omits, or does not show in a line of their own
_SAID = frozenset(("resultcode", "resultstring", "outcome", "solution"))


def json_text(value: Any) -> str:
    """Return JSON with a key per line; lists of numbers or short words fill lines of 100 columns.

    JSON that is nested too deeply for that is one line.
    """
    try:
        return _json_text(value, "")
    except RecursionError:
        return json.dumps(value)


def _json_text(value: Any, indent: str) -> str:
    inner = indent + _INDENT
    if isinstance(value, dict) and value:
        fields = (f"{inner}{json.dumps(key)}: {_json_text(field, inner)}" for key, field in value.items())
        return "{\n" + ",\n".join(fields) + f"\n{indent}}}"
    if not isinstance(value, list) or not value:
        return json.dumps(value)
    if any(isinstance(item, dict | list) for item in value):
        return "[\n" + ",\n".join(f"{inner}{_json_text(item, inner)}" for item in value) + f"\n{indent}]"
    return _filled([json.dumps(item) for item in value], indent)


def _filled(texts: Sequence[str], indent: str) -> str:
    """Return a list of items on one line if they fit, else on filled lines."""
    if len(indent) + sum(map(len, texts)) + 2 * len(texts) <= _WIDTH:
        return f"[{', '.join(texts)}]"
    lines, line = [], indent + _INDENT
    for position, text in enumerate(texts, 1):
        if line.strip() and len(line) + len(text) >= _WIDTH:
            lines.append(line.rstrip())
            line = indent + _INDENT
        line += text + (", " if position < len(texts) else "")
    return "\n".join(["[", *lines, line, f"{indent}]"])


def answer_lines(reply: Mapping[str, Any]) -> list[str]:
    """Return a reply's result as text: a line with outcome and time, then a line per field."""
    result, stats = reply["result"], reply["stats"]
    outcome = result.get("outcome", "result")
    ended = "" if outcome == "result" else f" ({outcome})"
    workers = stats["max_volume"]
    time_s = stats["time"]["processing"]
    head = f"{result['resultstring']}{ended} in {time_s:.3g} s, {workers} worker{'s' * (workers != 1)}"
    fields = {key: value for key, value in result.items() if key not in _SAID}
    if result.get("solution"):
        fields["solution"] = result["solution"]
    width = max(map(len, fields), default=0)
    texts = [f"{key:<{width}}  {it if isinstance(it, str) else json.dumps(it)}" for key, it in fields.items()]
    return [head, *(printable(text) for text in texts)]


def answer_table(rows: Iterable[tuple[Mapping[str, Any], str, Mapping[str, Any]]]) -> str:
    """Return a table of (settings, USER.NAME, reply): a column per setting, then answer, time and job."""
    from mallob_py.text_table import format_table  # imported late, because only several replies need it

    rows = list(rows)
    keys = list(dict.fromkeys(key for settings, _, _ in rows for key in settings))
    header = [*keys, "answer", "value", "seconds", "job"]
    cells = [[*(_cell(s.get(key)) for key in keys), *_answer_cells(reply), job] for s, job, reply in rows]
    return format_table(header, cells)


def _cell(value: Any) -> str | int | float | None:
    if isinstance(value, bool) or not isinstance(value, str | int | float | None):
        return json.dumps(value)
    return value


def _answer_cells(reply: Mapping[str, Any]) -> Sequence[str | int | float | None]:
    if "error" in reply:
        return "ERROR", printable(str(reply["error"].get("message"))), None
    result = reply["result"]
    outcome = result.get("outcome", "result")
    answer = result["resultstring"] if outcome == "result" else outcome
    return answer, _cell(result.get("value")), reply["stats"]["time"]["processing"]
