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
from typer.testing import CliRunner

from launcher.cli.main import app

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
PHONE = 390  # pixels
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


def measure(page: Path, folder: Path, width: int, *more: str) -> dict[str, Any]:
    """What the browser finds of the page in a frame of that width; fails where it reports an error of the page."""
    frame = page.parent / f"frame-{width}.html"
    frame.write_text(FRAME.format(width=width, page=page.name))
    words = [str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
             "--hide-scrollbars", "--enable-logging=stderr", "--allow-file-access-from-files",
             f"--user-data-dir={folder / 'profile'}", "--virtual-time-budget=3000", "--dump-dom",
             "--window-size=1400,3200", *more, frame.as_uri()]  # fmt: skip
    ran = subprocess.run(words, capture_output=True, text=True, timeout=600, check=True)
    assert "CONSOLE" not in ran.stderr, ran.stderr
    found = re.search(r'<pre id="found">(.+?)</pre>', ran.stdout)
    assert found, ran.stdout[-2000:]
    return json.loads(found[1].replace("&gt;", ">").replace("&lt;", "<").replace("&amp;", "&"))  # type: ignore[no-any-return]


@pytest.mark.slow
def test_a_page_asks_for_nothing_and_fits_a_phone_in_light_and_dark(
    trained: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(trained.folder)
    assert CliRunner().invoke(app, ["report", "one", "--goal", "0.5", "--out", "report.html"]).exit_code == 0
    for scheme in ([], ["--blink-settings=preferredColorScheme=0"]):
        found = measure(trained.folder / "report.html", tmp_path, PHONE, *scheme)
        assert found["asked"] == [] and found["scroll"] <= PHONE and found["wide"] == []
        assert found["plots"] >= 8 and found["words"] > 1000
        low, high = sorted((found["back"], found["ink"]), key=brightness)
        assert brightness(low) < 60 < 200 < brightness(high) and (low == found["back"]) == bool(scheme)


def brightness(colour: str) -> float:
    return sum(map(int, re.findall(r"[0-9]+", colour)[:3])) / 3
