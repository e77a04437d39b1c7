"""The description of the interface, made from the table of routes: for programs and for people."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from mallob_py import __version__


@dataclass(frozen=True, slots=True)
class Parameter:
    """In the query, unless its name stands in the path."""

    name: str
    type: str
    text: str


@dataclass(frozen=True, slots=True)
class Operation:
    """One row: what can be done, and what comes back. `body` and `answers` are by content type."""

    method: str
    path: str
    summary: str
    answers: dict[str, Any]
    parameters: tuple[Parameter, ...] = ()
    body: dict[str, Any] = field(default_factory=dict)
    status: int = 200
    is_open: bool = False


ERROR_SCHEMA = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["field", "message"],
            "properties": {"field": {"type": "string"}, "message": {"type": "string"}},
        }
    },
}


def document(operations: Sequence[Operation], types: Sequence[type]) -> dict[str, Any]:
    """OpenAPI 3.1. In the operations, a type stands for its schema."""
    schemas, components = msgspec.json.schema_components(types, ref_template="#/components/schemas/{name}")
    schema_of: dict[Any, Any] = dict(zip(types, schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for operation in operations:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _described(operation, schema_of)
    return {
        "openapi": "3.1.0",
        "info": {"title": "mallob-py", "version": __version__},
        "paths": paths,
        "components": {
            "schemas": {**components, "Error": ERROR_SCHEMA},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"token": []}],
    }


def _described(operation: Operation, schema_of: dict[Any, Any]) -> dict[str, Any]:
    def content(by_type: dict[str, Any]) -> dict[str, Any]:
        return {
            kind: {"schema": schema if isinstance(schema, dict) else schema_of[schema]}
            for kind, schema in by_type.items()
        }

    error = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    described: dict[str, Any] = {
        "summary": operation.summary,
        "responses": {
            str(operation.status): {"description": "Done.", "content": content(operation.answers)},
            "default": {"description": "What is wrong.", "content": error},
        },
    }
    if operation.parameters:
        described["parameters"] = [
            {
                "name": one.name,
                "in": "path" if f"{{{one.name}}}" in operation.path else "query",
                "required": f"{{{one.name}}}" in operation.path,
                "description": one.text,
                "schema": {"type": one.type},
            }
            for one in operation.parameters
        ]
    if operation.body:
        described["requestBody"] = {"required": True, "content": content(operation.body)}
    if operation.is_open:
        described["security"] = []
    return described


def readable(operations: Sequence[Operation]) -> str:
    """The same as a page."""
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8><title>mallob-py: HTTP interface</title>",
        '<meta name=viewport content="width=device-width, initial-scale=1">',
        '<meta name=color-scheme content="light dark">',
        "<h1>mallob-py: HTTP interface</h1>",
        "<p>Send the token as <code>Authorization: Bearer TOKEN</code>. What goes wrong is answered by "
        '<code>{"error": {"field": ..., "message": ...}}</code>. '
        'For programs: <a href="openapi.json">openapi.json</a>.</p>',
    ]
    for one in operations:
        title = f"{one.method} {one.path}"
        parts.append(f"<h2><code>{html.escape(title)}</code></h2><p>{html.escape(one.summary)}</p>")
        if one.body:
            parts.append(f"<p>Body: {html.escape(' or '.join(one.body))}</p>")
        if one.parameters:
            rows = (
                f"<li><code>{html.escape(parameter.name)}</code>: {html.escape(parameter.text)}</li>"
                for parameter in one.parameters
            )
            parts.append(f"<ul>{''.join(rows)}</ul>")
        parts.append(f"<p>Answer {one.status}: {html.escape(' or '.join(one.answers))}</p>")
    return "\n".join(parts)
