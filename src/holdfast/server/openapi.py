"""The OpenAPI file and a page to read it by, made from the table of operations."""

from __future__ import annotations

from functools import cache
from html import escape
from typing import Any, cast

import msgspec

import holdfast
from holdfast.server.limits import Limits
from holdfast.wire.operations import OPERATIONS, Operation
from holdfast.wire.problems import MEDIA_TYPE, Problem

_REF = "#/components/schemas/{name}"
_ERRORS = {
    400: "Something is wrong with the request; `field` names it.",
    401: "No key, or not a valid one.",
    403: "The key does not allow this.",
    404: "No such queue, topic, group, message, redrive or report.",
    408: "The request did not come in time.",
    409: "The lease is lost, or things are not in the state that this needs.",
    413: "The body is larger than this server takes.",
    415: "The body is not application/json.",
    429: "Too many wait or watch already.",
    431: "The request line and headers are larger than this server takes.",
    500: "The store failed, or the server has a fault. Nothing is half done.",
    503: "The store cannot be reached now, or too many connections are open; try again.",
    507: "The store is full.",
}
_OTHERS = [
    ("/", "the dashboard"),
    ("/events", "Server-Sent Events: id, event, data; a ping every 15 s; resumes by Last-Event-ID"),
    ("/metrics", "Prometheus"),
    ("/health/live", "200 while the process lives"),
    ("/health/ready", "200 when the store answers; else 503 and why"),
    ("/openapi.json", "this, for programs"),
]


def openapi(limits: Limits) -> dict[str, Any]:
    asks = [operation.ask for operation in OPERATIONS]
    answers = [operation.answer for operation in OPERATIONS]
    _, schemas = msgspec.json.schema_components([*asks, *answers, Problem], ref_template=_REF)
    paths: dict[str, Any] = {}
    for operation in OPERATIONS:
        described = _operation(operation, schemas)
        paths.setdefault("/v1" + operation.path, {})[operation.method.lower()] = described
    _tidy(schemas)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Holdfast",
            "version": holdfast.__version__,
            "description": "A durable message queue that does not let go of a message until "
            "somebody has finished it. Times are milliseconds since 1970 by the store's clock, but "
            "`at` of a message to be stored is in seconds since 1970; lengths of time are seconds. "
            f" A body has at most {limits.body_bytes} bytes, a long "
            f"poll lasts at most {limits.wait_seconds:g} seconds.",
        },
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"key": []}],
    }


def _operation(operation: Operation, schemas: dict[str, Any]) -> dict[str, Any]:
    schema = schemas[operation.ask.__name__]
    fields: dict[str, Any] = schema.get("properties", {})
    required: list[str] = schema.get("required", [])
    in_query = operation.method in ("GET", "DELETE")
    described: dict[str, Any] = {
        "operationId": operation.name,
        "summary": operation.summary,
        "tags": [operation.service],
        "description": f"Needs the right: {_right(operation)}.",
        "parameters": [
            _parameter(name, fields[name], "path", required=True) for name in operation.in_path
        ],
        "responses": _responses(operation),
    }
    rest = {name: field for name, field in fields.items() if name not in operation.in_path}
    if in_query:
        described["parameters"] += [
            _parameter(name, field, "query", required=name in required)
            for name, field in rest.items()
        ]
    else:
        needed = [name for name in required if name in rest]
        body: dict[str, Any] = {"type": "object", "properties": rest}
        body["additionalProperties"] = False
        if needed:
            body["required"] = needed
        described["requestBody"] = {
            "required": bool(needed),
            "content": {"application/json": {"schema": body}},
        }
    return described


def _right(operation: Operation) -> str:
    return operation.right or "none, only a key"


def _parameter(name: str, schema: Any, where: str, *, required: bool) -> dict[str, Any]:
    described: dict[str, Any] = {
        "name": name,
        "in": where,
        "required": required,
        "schema": _not_null(schema),
    }
    if "description" in schema:
        described["description"] = schema["description"]
    return described


def _not_null(schema: Any) -> Any:
    """In a path or a query there is no null: what is not there is left out."""
    kinds = [kind for kind in schema.get("anyOf", []) if kind.get("type") != "null"]
    if not kinds:
        return schema
    rest = {key: value for key, value in schema.items() if key not in ("anyOf", "default")}
    return {**rest, **kinds[0]} if len(kinds) == 1 else {**rest, "anyOf": kinds}


def _responses(operation: Operation) -> dict[str, Any]:
    ok = {"$ref": _REF.format(name=operation.answer.__name__)}
    responses: dict[str, Any] = {
        str(operation.status): {
            "description": "Done.",
            "content": {"application/json": {"schema": ok}},
        }
    }
    for status, text in _ERRORS.items():
        responses[str(status)] = {
            "description": text,
            "content": {MEDIA_TYPE: {"schema": {"$ref": _REF.format(name="Problem")}}},
        }
    return responses


def _tidy(schemas: dict[str, Any]) -> None:
    """Only what is still referred to: asks are written out where they are used."""
    wanted = {operation.answer.__name__ for operation in OPERATIONS} | {"Problem"}
    for operation in OPERATIONS:
        wanted |= _refs(schemas[operation.ask.__name__])
    todo = list(wanted)
    while todo:
        for name in _refs(schemas[todo.pop()]) - wanted:
            wanted.add(name)
            todo.append(name)
    for name in set(schemas) - wanted:
        del schemas[name]


def _refs(schema: Any) -> set[str]:
    found: set[str] = set()
    if isinstance(schema, dict):
        for key, value in cast("dict[str, Any]", schema).items():
            found |= {str(value).rsplit("/", 1)[-1]} if key == "$ref" else _refs(value)
    elif isinstance(schema, list):
        for value in cast("list[Any]", schema):
            found |= _refs(value)
    return found


@cache
def docs_page() -> bytes:
    """Every operation with its fields, on one page that needs nothing from anywhere."""
    spec = openapi(Limits())
    parts = [_HEAD]
    for operation in OPERATIONS:
        described = spec["paths"]["/v1" + operation.path][operation.method.lower()]
        parts.append(_section(operation, described))
    parts.append("<h2>Beside these</h2><table>")
    parts += [f"<tr><td><code>GET {path}</code></td><td>{text}</td></tr>" for path, text in _OTHERS]
    parts.append("</table><h2>Documents</h2>")
    for name, schema in sorted(spec["components"]["schemas"].items()):
        about = escape(schema.get("description", ""))
        parts.append(f"<h3 id='{name}'>{name}</h3><p>{about}</p>{_rows(schema)}")
    parts.append("</main>")
    return "".join(parts).encode()


def _section(operation: Operation, described: dict[str, Any]) -> str:
    given = {p["name"]: p["schema"] for p in described["parameters"]}
    body = described.get("requestBody", {}).get("content", {}).get("application/json", {})
    given |= body.get("schema", {}).get("properties", {})
    answer = operation.answer.__name__
    return (
        f"<h3 id='{operation.name}'><b>{operation.method}</b> <code>/v1{escape(operation.path)}"
        f"</code></h3><p>{escape(operation.summary)} Needs <i>{_right(operation)}</i>. gRPC: "
        f"{operation.service}.{operation.name}. Answers {operation.status} "
        f"<a href='#{answer}'>{answer}</a>.</p>{_rows({'properties': given})}"
    )


def _rows(schema: dict[str, Any]) -> str:
    rows = [
        f"<tr><td><code>{name}</code></td><td>{escape(_kind(field))}</td>"
        f"<td>{escape(field.get('description', ''))}</td></tr>"
        for name, field in schema.get("properties", {}).items()
    ]
    return f"<table>{''.join(rows)}</table>" if rows else ""


def _kind(field: dict[str, Any]) -> str:
    if "anyOf" in field:
        return " or ".join(_kind(kind) for kind in field["anyOf"])
    if "$ref" in field:
        return field["$ref"].rsplit("/", 1)[-1]
    if "enum" in field:
        return ", ".join(map(str, field["enum"]))
    if field.get("type") == "array":
        return f"list of {_kind(field.get('items', {}))}"
    limits = [f"{key} {field[key]}" for key in ("minimum", "maximum", "maxLength") if key in field]
    return " ".join([str(field.get("type", "any JSON")), *limits])


_HEAD = """<!doctype html><html lang="en"><meta charset="utf-8"><title>Holdfast API</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>body{font:16px/1.5 system-ui,sans-serif;margin:0;background:#fff;color:#1c1e21}
main{max-width:60rem;margin:auto;padding:1rem}table{border-collapse:collapse;margin:.3rem 0 1.2rem}
td{border-top:1px solid #ddd;padding:.15rem .8rem .15rem 0;vertical-align:top}h3{margin-bottom:0}
h3 b{color:#0a6}code{font-size:.92em}@media(prefers-color-scheme:dark){body{background:#16181c;
color:#e4e6ea}td{border-color:#333}a{color:#8bf}}</style><main><h1>Holdfast API</h1>
<p>The same as <a href="/openapi.json">/openapi.json</a>. Times are milliseconds since 1970 by the
store's clock, but <code>at</code> of a message to be stored is in seconds since
1970; lengths of time are seconds; errors are RFC 9457 problems that name the field.</p>"""
