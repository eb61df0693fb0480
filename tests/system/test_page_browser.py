"""The page in a headless Chromium, on a desktop and a phone: its content, without console errors, also after a restart.

Needs the Python package playwright and a chromium: `make test-page`.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from edged.demo.daemon_process import free_port
from tests.integration.page_box import PageBox

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: make test-page")
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(240),
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed"),
]

WIDTHS = (1100, 390)
_WAIT_MS = 60_000


class Browser:
    """A page at a width in pixels, and the problems on its console."""

    def __init__(self, chromium: Any, width: int, address: str) -> None:
        self.width = width
        self.page = chromium.new_page(viewport={"width": width, "height": 900})
        self.problems: list[str] = []
        self.page.on("console", lambda line: line.type in ("error", "warning") and self.problems.append(line.text))
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.page.goto(address)

    def shows(self, selector: str, text: str) -> None:
        """Wait until an element has the text. The page's policy forbids playwright's `wait_for_function`."""
        self.page.locator(selector, has_text=text).first.wait_for(timeout=_WAIT_MS)

    def fits(self) -> bool:
        """Return True if the page is not wider than the window."""
        return all(self.page.locator(name).first.bounding_box()["width"] <= self.width for name in ("body", "main"))

    def focused(self) -> str:
        return str(self.page.locator(":focus").first.inner_text(timeout=5000))


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with playwright.sync_playwright() as tools:
        browser = tools.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def box() -> Iterator[PageBox]:
    with PageBox() as found:
        found.streaming()
        yield found


@pytest.mark.parametrize("width", WIDTHS)
def test_page_has_health_cameras_models_and_the_box(chromium: Any, box: PageBox, width: int) -> None:
    browser = Browser(chromium, width, box.url)
    browser.shows("#cameras .camera", "hall")
    browser.shows("#cameras .camera", "frames/s")
    browser.shows("#models tr", "shapes")
    browser.shows("#version", "edged ")
    browser.page.locator("#cameras .camera img").first.wait_for(timeout=_WAIT_MS)
    assert not browser.page.locator("#offline").is_visible()
    assert browser.fits()
    assert browser.problems == []


@pytest.mark.parametrize("width", WIDTHS)
def test_camera_opens_and_closes_by_the_keyboard(chromium: Any, box: PageBox, width: int) -> None:
    browser = Browser(chromium, width, box.url)
    browser.shows("#cameras .camera", "hall")
    for _ in range(20):
        browser.page.keyboard.press("Tab")
        if browser.focused().startswith("hall"):
            break
    assert browser.focused().startswith("hall")
    browser.page.keyboard.press("Enter")
    browser.shows("#camera-title", "Camera hall")
    assert browser.page.locator("#camera").is_visible()
    browser.page.keyboard.press("Escape")
    browser.page.locator("#camera").wait_for(state="hidden", timeout=_WAIT_MS)
    assert browser.focused().startswith("hall")
    assert browser.problems == []


def test_open_page_continues_after_a_restart(chromium: Any) -> None:
    with PageBox(f"127.0.0.1:{free_port()}") as box:
        browser = Browser(chromium, WIDTHS[0], box.url)
        browser.shows("#cameras .camera", "hall")
        assert box.stop() == 0
        browser.page.locator("#offline").wait_for(state="visible", timeout=_WAIT_MS)
        box.start()
        browser.page.locator("#offline").wait_for(state="hidden", timeout=_WAIT_MS)
        browser.shows("#cameras .camera", "frames/s")
    # The browser itself reports failed requests.
    assert [each for each in browser.problems if "net::" not in each and "Failed to load" not in each] == []


def test_box_without_cameras_says_what_to_do(chromium: Any) -> None:
    with PageBox(cameras="") as box:
        browser = Browser(chromium, WIDTHS[1], box.url)
        browser.shows("#no-cameras", "No camera yet")
        assert browser.fits()
        assert browser.problems == []
