"""Versions of installed Debian packages, from `/var/lib/dpkg/status` (format: deb-control(5))."""

from __future__ import annotations

import re
from collections.abc import Iterable

from edged.device.root import Root

STATUS = "var/lib/dpkg/status"
_LIMIT = 32 << 20  # bytes; a desktop's is a few MB


def versions(root: Root, names: Iterable[str]) -> dict[str, str]:
    """Package -> version as dpkg writes it (`10.3.0.30-1+cuda12.5`), for the installed ones of `names`."""
    text = root.read(STATUS, _LIMIT) or ""
    found = {}
    for name in names:
        # Searching for the name beats parsing thousands of paragraphs about other packages.
        for match in re.finditer(rf"^Package: {re.escape(name)}$", text, re.MULTILINE):
            end = text.find("\n\n", match.end())
            version = _installed_version(text[match.end() : end if end >= 0 else len(text)])
            if version:
                found[name] = version
    return found


def upstream(version: str) -> str:
    """The version without Debian's epoch and revision: `2:1.3.29735-1~22.04` -> `1.3.29735`."""
    without_epoch = version.partition(":")[2] or version
    return without_epoch.rpartition("-")[0] or without_epoch


def _installed_version(paragraph: str) -> str | None:
    fields = dict(re.findall(r"^(Status|Version): (\S.*)$", paragraph, re.MULTILINE))
    # A package that was removed but not purged keeps its paragraph.
    return fields.get("Version") if fields.get("Status", "").endswith(" installed") else None
