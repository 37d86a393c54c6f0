"""Whether the server lives, and the API as a page that needs no script."""

from __future__ import annotations

import html
import json
from typing import Any

from fastapi import APIRouter, Request
from pydantic import BaseModel
from starlette.responses import HTMLResponse

from launcher import __version__
from launcher.server.services import UsesServices

router = APIRouter(tags=["server"])


class Health(BaseModel):
    version: str
    jobs: int


@router.get("/healthz")
def tell_health(services: UsesServices) -> Health:
    """It answers, and has read its folders."""
    return Health(version=__version__, jobs=len(services.jobs.every()))


@router.get("/docs", include_in_schema=False)
def show_api(request: Request) -> HTMLResponse:
    """Every request with what it takes, what it answers, and an example."""
    schema = request.app.openapi()
    parts = [f"<h1>{_text(schema['info']['title'])} API</h1>", f"<p>{_text(schema['info']['description'])}</p>"]
    for path, operations in schema["paths"].items():
        parts += [_operation(schema, path, method, one) for method, one in operations.items()]
    head = '<!doctype html><html lang="en"><meta charset="utf-8"><title>rlrun API</title>'
    link = '<link rel="stylesheet" href="/page/app.css"><body><main>'
    return HTMLResponse(f"{head}{link}{''.join(parts)}</main></body></html>")


def _operation(schema: dict[str, Any], path: str, method: str, one: dict[str, Any]) -> str:
    parts = [f"<h2><code>{method.upper()} {_text(path)}</code></h2><p>{_text(one.get('description', ''))}</p>"]
    rows = [
        f"<tr><td><code>{_text(each['name'])}</code></td><td>{_text(each.get('description', ''))}</td></tr>"
        for each in one.get("parameters", ())
    ]
    parts += [f"<table>{''.join(rows)}</table>"] if rows else []
    if body := one.get("requestBody"):
        parts.append(f"<pre>{_text(json.dumps(_example(schema, body), indent=2))}</pre>")
    parts.append(f"<p>answers: {', '.join(one['responses'])}</p>")
    return "".join(parts)


def _example(schema: dict[str, Any], body: dict[str, Any]) -> dict[str, Any]:
    """The fields of a body that have an example, each with its first."""
    found = next(iter(body["content"].values()))["schema"]
    found = next((each for each in found.get("anyOf", ()) if "$ref" in each), found)
    properties = schema["components"]["schemas"][found["$ref"].rpartition("/")[2]]["properties"]
    return {name: each["examples"][0] for name, each in properties.items() if "examples" in each}


def _text(text: str) -> str:
    return html.escape(text)
