"""ARCHITECTURE.md names files and folders that exist."""

from __future__ import annotations

import re
from pathlib import Path

import edged

ROOT, PACKAGE = Path(__file__).parents[2], Path(edged.__file__).parent


def test_architecture_names_only_paths_that_exist() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    paths = set(re.findall(r"[\w./-]+/[\w.-]*|\w+\.(?:py|toml|md)", text)) - {"w/"}
    missing = []
    for path in sorted({path.rstrip(".") for path in paths}):
        homes = (ROOT, PACKAGE.parent, PACKAGE, PACKAGE / "api", PACKAGE / "client" / "sources")
        if not any((home / path).exists() for home in homes):
            missing.append(path)
    assert not missing, f"ARCHITECTURE.md names {missing}"
