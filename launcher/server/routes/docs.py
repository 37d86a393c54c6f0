"""What may be asked for and set: the API's documentation as a page without scripts, and all settings."""

from __future__ import annotations

import json
from functools import cache
from html import escape
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import HTMLResponse

from launcher.config.descriptions import Setting
from launcher.config.reference import groups as handbook
from launcher.server.answers import Json

router = APIRouter()


@router.get("/docs", include_in_schema=False)
def show_api(request: Request) -> HTMLResponse:
    """Every request with what it takes, what it answers, and an example."""
    schema = request.app.openapi()
    parts = [f"<h1>{escape(schema['info']['title'])} API</h1>", f"<p>{escape(schema['info']['description'])}</p>"]
    for path, operations in schema["paths"].items():
        parts += [_operation_html(schema, path, method, operation) for method, operation in operations.items()]
    head = '<!doctype html><html lang="en"><meta charset="utf-8"><title>rlrun API</title>'
    link = '<link rel="stylesheet" href="/page/app.css"><body><main>'
    return HTMLResponse(f"{head}{link}{''.join(parts)}</main></body></html>")


def _operation_html(schema: dict[str, Any], path: str, method: str, node: dict[str, Any]) -> str:
    parts = [f"<h2><code>{method.upper()} {escape(path)}</code></h2><p>{escape(node.get('description', ''))}</p>"]
    rows = [
        f"<tr><td><code>{escape(each['name'])}</code></td><td>{escape(each.get('description', ''))}</td></tr>"
        for each in node.get("parameters", ())
    ]
    parts += [f"<table>{''.join(rows)}</table>"] if rows else []
    if body := node.get("requestBody"):
        parts.append(f"<pre>{escape(json.dumps(_example_body(schema, body), indent=2))}</pre>")
    parts.append(f"<p>answers: {', '.join(node['responses'])}</p>")
    return "".join(parts)


def _example_body(schema: dict[str, Any], body: dict[str, Any]) -> dict[str, Any]:
    """The first example of each field of a body that has examples."""
    node = next(iter(body["content"].values()))["schema"]
    node = next((field for field in node.get("anyOf", ()) if "$ref" in field), node)
    properties = schema["components"]["schemas"][node["$ref"].rpartition("/")[2]]["properties"]
    return {name: field["examples"][0] for name, field in properties.items() if "examples" in field}


@router.get("/api/schema", tags=["launch"], responses={200: {"model": dict[str, Any]}})
def read_schema() -> Json:
    """The config groups with their choices, and every setting."""
    return Json(_schema())


@cache
def _schema() -> dict[str, Any]:
    """Cached, as it loads the classes of all choices."""
    groups, settings = list[dict[str, Any]](), list[dict[str, Any]]()
    for group in handbook.overview():
        found_choices = handbook.choices(group.name)
        choices = [{"name": each.name, "help": each.description, "sets": dict(each.sets)} for each in found_choices]
        groups.append({"name": group.name, "help": group.description, "default": group.default, "choices": choices})
    for target in (*(group["name"] for group in groups), *handbook.PLAIN):
        for section in handbook.sections(target):
            settings += [_setting_node(each, target, section.choices) for each in section.settings]
    return {"groups": groups, "settings": settings}


def _setting_node(of: Setting, group: str, choices: list[str]) -> dict[str, Any]:
    kind = " ".join(filter(None, (of.shape.kind, of.shape.range)))
    return {
        "name": of.name, "type": kind, "default": None if of.required else of.default, "required": of.required,
        "choices": list(of.shape.values), "help": of.description, "group": group,
        "choice": [choice.partition("=")[2] for choice in choices],
    }  # fmt: skip
