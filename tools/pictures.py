"""Make the pictures of README.md from a real run: `python -m tools.pictures`, which needs chromium and the Python
package playwright.

docs/up.svg shows the output of `edged up` on a terminal with 80 columns, line by line at ten times the speed.
docs/page.jpg is the page of that daemon with three cameras that show drawn scenes.
"""

from __future__ import annotations

import argparse
import html
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path

DOCS = Path(__file__).resolve().parents[1] / "docs"
_SECONDS = 55.0
_CAMERAS = (("hall", "scene:3"), ("yard", "scene:11"))
_ZONE = "zones.gate.points=[[0.05, 0.5], [0.5, 0.45], [0.55, 0.97], [0.05, 0.97]]"
_ROW, _COLUMN, _COLUMNS = 19, 8.4, 80  # pixels of a line and of a character
_FASTER = 10.0


def main() -> None:
    """Run `edged up` with an empty home folder; draw its output and take a screenshot of its page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--chromium", default=shutil.which("chromium") or shutil.which("google-chrome"))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="edp-", dir="/tmp") as home:
        environment = os.environ | {
            name: f"{home}/{name[0].lower()}" for name in ("RUNTIME_DIRECTORY", "STATE_DIRECTORY", "CACHE_DIRECTORY")
        }
        environment |= {"CONFIGURATION_DIRECTORY": home, "COLUMNS": str(_COLUMNS), "HOME": home}
        lines = _record(environment, options.chromium)
    (DOCS / "up.svg").write_text(svg(lines))


def _record(environment: dict[str, str], chromium: str) -> list[tuple[float, str]]:
    """Run `edged up` and return its lines, each with the seconds since the start."""
    lines: list[tuple[float, str]] = []
    edged = (sys.executable, "-m", "edged")
    began = time.monotonic()
    with subprocess.Popen([*edged, "up"], env=environment, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        os.set_blocking(run.stdout.fileno(), False)
        address, is_shown, more = "", False, list(_CAMERAS)
        while (now := time.monotonic() - began) < _SECONDS:
            line = run.stdout.readline().rstrip("\n")
            if found := re.search(r"(http\S+)#token=\S+", line):
                address = found[0]
                line = line.replace(found[0], f"{found[1]}#token=…")
            if line and not line.startswith("         "):  # those are for a log; a terminal shows them in one place
                lines.append((now, line))
            if address and more and now > 20:
                name, source = more.pop()
                _call(edged, environment, "cameras", "add", name, source, "shapes")
                if not more:
                    _call(edged, environment, "cameras", "set", name, _ZONE)
            if not is_shown and now > _SECONDS - 12:
                is_shown = True
                _photograph(chromium, address)
            time.sleep(0.05)
        run.send_signal(signal.SIGINT)
        os.set_blocking(run.stdout.fileno(), True)
        lines += [(now + 1, "^C"), *((now + 2, line) for line in run.stdout.read().splitlines())]
    return lines


def _call(edged: tuple[str, ...], environment: dict[str, str], *words: str) -> None:
    subprocess.run([*edged, *words], env=environment, check=True, stdout=subprocess.DEVNULL)


def _photograph(chromium: str, address: str) -> None:
    """Write docs/page.jpg after the page shows pictures of all cameras."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as tools:
        browser = tools.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport={"width": 1100, "height": 900})
        page.goto(address)
        page.wait_for_timeout(6000)  # the page's Content-Security-Policy forbids Playwright's waits
        page.screenshot(path=DOCS / "page.jpg", quality=82)
        browser.close()


def svg(lines: list[tuple[float, str]]) -> str:
    """Return an SVG of a terminal whose lines appear one after another and then stay."""
    rows = [("$ edged up", 0.0)]
    for at, line in lines:
        rows += [(part, at / _FASTER) for part in _broken(line)]
    width, height = round(_COLUMNS * _COLUMN + 32), len(rows) * _ROW + 32
    texts = [
        f'<text x="16" y="{32 + index * _ROW}" style="animation-delay:{at:.2f}s">{html.escape(text)}</text>'
        for index, (text, at) in enumerate(rows)
    ]
    style = (
        "text{font:14px ui-monospace,Menlo,Consolas,monospace;fill:#e6edf3;white-space:pre;opacity:0;"
        "animation:show .01s forwards}@keyframes show{to{opacity:1}}"
        "@media (prefers-reduced-motion:reduce){text{animation-delay:0s!important}}"
    )
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" role="img">',
            "<title>edged up: what it prints</title>",
            f'<style>{style}</style><rect width="{width}" height="{height}" rx="8" fill="#0d1117"/>',
            *texts,
            "</svg>\n",
        ]
    )


def _broken(line: str) -> list[str]:
    """Wrap a line as a terminal does."""
    return textwrap.wrap(line, _COLUMNS, drop_whitespace=True, replace_whitespace=False) or [""]


if __name__ == "__main__":
    main()
