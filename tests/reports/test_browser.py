"""The pages in a real browser: nothing is asked of a network, nothing is reported as an error, a phone shows all of it.

Skipped where no chromium is installed (Debian: apt-get install chromium).
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
PHONE, DESK = 390, 1200
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine")

FRAME = """<!doctype html><body style="margin:0"><iframe id="f" style="border:0;width:{width}px;height:3000px"></iframe>
<pre id="found"></pre><script>
const frame = document.getElementById("f");
frame.onload = () => {{
  const page = frame.contentDocument.documentElement;
  const style = frame.contentWindow.getComputedStyle(page.querySelector("body"));
  const wide = [...page.querySelectorAll("main > *")].filter(each => each.getBoundingClientRect().right > {width} + 1);
  page.querySelectorAll("details").forEach(each => each.open = true);
  document.getElementById("found").textContent = JSON.stringify({{
    scroll: page.scrollWidth, wide: wide.map(each => each.outerHTML.slice(0, 80)), back: style.backgroundColor,
    ink: style.color,
    plots: [...page.querySelectorAll("svg")].filter(each => each.getBoundingClientRect().height > 50).length,
    words: page.innerText.length,
    asked: frame.contentWindow.performance.getEntriesByType("resource").map(each => each.name)}});
}};
frame.src = "{page}";
</script></body>"""


def browse(url: str, folder: Path, *more: str) -> tuple[str, str]:
    """The page as the browser has it after loading, and what it wrote to its log."""
    words = [str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
             "--hide-scrollbars", "--enable-logging=stderr", "--allow-file-access-from-files",
             f"--user-data-dir={folder / 'profile'}", "--virtual-time-budget=3000", *more, url]  # fmt: skip
    ran = subprocess.run(words, capture_output=True, text=True, timeout=200, check=True)
    return ran.stdout, ran.stderr


def measured(page: Path, folder: Path, width: int, *more: str) -> dict[str, Any]:
    frame = page.parent / f"frame-{width}.html"
    frame.write_text(FRAME.format(width=width, page=page.name))
    dom, _ = browse(frame.as_uri(), folder, "--dump-dom", "--window-size=1400,3200", *more)
    found = re.search(r'<pre id="found">(.+?)</pre>', dom)
    assert found, dom[-2000:]
    return json.loads(found[1].replace("&gt;", ">").replace("&lt;", "<").replace("&amp;", "&"))  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def pages(trained: Any) -> dict[str, Path]:
    assert trained("report", "one", "--goal", "0.5", "--out", "one.html").returncode == 0
    assert trained("compare", "one", "two", "--out", "both.html").returncode == 0
    return {name: trained.folder / f"{name}.html" for name in ("one", "both")}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["one", "both"])
def test_a_page_asks_for_nothing_and_reports_no_error(pages: dict[str, Path], name: str, tmp_path: Path) -> None:
    dom, log = browse(pages[name].as_uri(), tmp_path, "--dump-dom")
    assert "</html>" in dom and dom.count("<svg") >= 8
    assert "CONSOLE" not in log, log
    assert measured(pages[name], tmp_path, DESK)["asked"] == []
    text = pages[name].read_text()
    assert not re.search(r"(?:src|href)=\"(?!data:)|@import|url\(|<script", text)


@pytest.mark.slow
def test_a_page_that_asks_for_something_would_be_noticed(tmp_path: Path) -> None:
    page = tmp_path / "asks.html"
    page.write_text('<!doctype html><main>x</main><img src="http://127.0.0.1:9/other.png">')
    asked = measured(page, tmp_path, DESK)["asked"]
    assert asked == ["http://127.0.0.1:9/other.png"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["one", "both"])
@pytest.mark.parametrize("width", [PHONE, DESK])
def test_a_page_is_no_wider_than_its_screen(pages: dict[str, Path], name: str, width: int, tmp_path: Path) -> None:
    found = measured(pages[name], tmp_path, width)
    assert found["scroll"] <= width and found["wide"] == []
    assert found["plots"] >= 8 and found["words"] > 1000


@pytest.mark.slow
def test_a_page_is_light_or_dark_as_the_system_is(pages: dict[str, Path], tmp_path: Path) -> None:
    light = measured(pages["one"], tmp_path, DESK)
    dark = measured(pages["one"], tmp_path, DESK, "--blink-settings=preferredColorScheme=0")
    assert brightness(light["back"]) > 200 > 60 > brightness(light["ink"])
    assert brightness(dark["back"]) < 60 < 200 < brightness(dark["ink"])


def brightness(colour: str) -> float:
    return sum(map(int, re.findall(r"[0-9]+", colour)[:3])) / 3
