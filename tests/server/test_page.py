"""The page's files are served with their types and nothing else is, and they are as small as they were promised."""

from __future__ import annotations

import gzip
import re

import pytest

from launcher.server.routes.page import FOLDER

FILES = [path for path in FOLDER.rglob("*") if path.suffix in (".html", ".css", ".js") and "vendor" not in path.parts]


@pytest.mark.parametrize("address", ["/", "/runs", "/compare?jobs=a,b", "/launch", "/run/x", "/run/x/step/3"])
def test_every_view_has_an_address(idle, address):
    found = idle.get(address)
    assert found.status_code == 200
    assert found.headers["content-type"] == "text/html; charset=utf-8"
    assert '<div id="app">' in found.text


def test_a_file_is_sent_whole_and_once(idle):
    for path in FILES:
        address = f"/page/{path.relative_to(FOLDER).as_posix()}"
        found = idle.get(address)
        assert (found.content, found.headers["cache-control"]) == (path.read_bytes(), "no-cache")
        assert re.match("text/(html|css|javascript)", found.headers["content-type"])
        assert idle.get(address, headers={"If-None-Match": found.headers["etag"]}).status_code == 304
    assert idle.get("/page/js/app.js").headers["content-encoding"] == "gzip"


@pytest.mark.parametrize("name", ["../app.py", "..%2fapp.py", "js/../../app.py", "/etc/passwd", "a%00b", "js", ""])
def test_nothing_else_is_sent(idle, name):
    found = idle.get(f"/page/{name}")
    assert (found.status_code, found.headers["content-type"]) == (404, "application/problem+json")


def test_the_page_is_small_imports_what_is_there_and_has_no_script_or_style_in_html():
    for path in FILES:
        for imported in re.findall(r'from "(\.[^"]+)"', path.read_text()):
            assert (path.parent / imported).resolve() in FILES, (path, imported)
    own = [path for path in FILES if path.suffix in (".js", ".css") and path.stem != "vendor"]
    assert sum(len(path.read_text().splitlines()) for path in own) <= 3500
    assert sum(len(gzip.compress(path.read_bytes())) for path in FILES) <= 120_000
    html = (FOLDER / "index.html").read_text()
    assert not re.search(r"<style|\sstyle=|\son\w+=|<script(?![^>]*\ssrc=)", html)
