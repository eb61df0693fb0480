"""Checks, without network, that the links of Markdown pages and generated HTML lead to existing files and headings."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).parents[1]
PAGES = (*ROOT.glob("*.md"), *(ROOT / "docs").glob("**/*.md"), *ROOT.glob("[js]*/README.md"))
_FENCED = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
_LINKS = {".md": re.compile(r"\]\(([^)\s]+)\)"), ".html": re.compile(r'<a\b[^>]*\bhref="([^"]+)"')}


def links(page: Path) -> Iterator[str]:
    text = page.read_text()
    text = _FENCED.sub("", text) if page.suffix == ".md" else text.partition("<script")[0]
    yield from _LINKS[page.suffix].findall(text)


@cache
def anchors(page: Path) -> frozenset[str]:
    """Return the fragments of a page: GitHub's names of headings, or ids."""
    text = page.read_text()
    if page.suffix == ".html":
        return frozenset(re.findall(r'\bid="([^"]+)"', text))
    headings = re.findall(r"^#+ +(.*)$", _FENCED.sub("", text), re.MULTILINE)
    return frozenset(re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings)


def problem(page: Path, link: str) -> str | None:
    address = urlsplit(link)
    if address.scheme or address.netloc:
        return None
    target = (page.parent / unquote(address.path)).resolve() if address.path else page
    if not target.exists():
        return "no such file"
    if address.fragment and target.suffix in _LINKS and address.fragment not in anchors(target):
        return "no such heading"
    return None


def main(folders: list[str]) -> int:
    pages = [*PAGES, *(page for folder in folders for page in Path(folder).resolve().rglob("*.html"))]
    problems = [f"{page}: {link}: {why}" for page in pages for link in links(page) if (why := problem(page, link))]
    print("\n".join(problems) or f"links of {len(pages)} pages are good")
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
