"""Write the end of docs/configuration.md, which is generated from the configuration's schema."""

from __future__ import annotations

from pathlib import Path

from edged.config.template import reference

_ROOT = Path(__file__).parents[1]
_PAGE = _ROOT / "docs" / "configuration.md"


def main() -> None:
    lines = list(reference())
    text, begin, _ = _PAGE.read_text().partition(lines[0])
    if not begin:
        raise SystemExit(f"{_PAGE.name} has no table that begins with {lines[0]!r}; restore it")
    _PAGE.write_text(text + "\n".join(lines))


if __name__ == "__main__":
    main()
