"""The page's files are served with their types and nothing else is, and they are as small as they were promised."""

from __future__ import annotations

import gzip
import re

import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

from launcher.server.routes import page


@pytest.fixture
def client():
    app = FastAPI()
    app.include_router(page.router)
    return TestClient(app)


@pytest.mark.parametrize("address", ["/", "/runs", "/compare?jobs=a,b", "/launch", "/run/x", "/run/x/step/3"])
def test_every_view_has_an_address(client, address):
    found = client.get(address)
    assert found.status_code == 200
    assert found.headers["content-type"] == "text/html; charset=utf-8"
    assert '<div id="app">' in found.text


@pytest.mark.parametrize("name", sorted(page.FILES))
def test_a_file_is_sent_whole_and_once(client, name):
    found = client.get(f"/page/{name}")
    assert found.content == page.FILES[name].read_bytes()
    assert found.headers["content-type"].startswith(page.TYPES[page.FILES[name].suffix])
    tag = {"If-None-Match": found.headers["etag"]}
    assert client.get(f"/page/{name}", headers=tag).status_code == 304


@pytest.mark.parametrize(
    "name", ["vendor/package.json", "js/types.ts", "../app.py", "..%2fapp.py", "js/../../app.py", "/etc/passwd", ""]
)
def test_nothing_else_is_sent(client, name):
    assert client.get(f"/page/{name}").status_code == 404


def test_modules_import_what_is_there():
    for name, path in page.FILES.items():
        for imported in re.findall(r'from "(\.[^"]+)"', path.read_text()):
            assert (path.parent / imported).resolve() in page.FILES.values(), (name, imported)


def test_no_script_or_style_stands_in_html():
    text = page.FILES["index.html"].read_text()
    assert not re.search(r"<style|\sstyle=|\son\w+=|<script(?![^>]*\ssrc=)", text)


def test_the_page_is_small():
    own = [path for name, path in page.FILES.items() if path.suffix in (".js", ".css") and "vendor" not in name]
    assert sum(len(path.read_text().splitlines()) for path in own) <= 3500
    assert sum(len(gzip.compress(path.read_bytes())) for path in page.FILES.values()) <= 120_000
