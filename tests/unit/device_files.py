"""Trees of files that describe a device: /proc, /sys, /etc and others."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from edged.device.root import Root


def tree(top: Path, files: Mapping[str, str | bytes]) -> Root:
    """Write files below `top`. The text "-> TARGET" makes a symbolic link."""
    for name, content in files.items():
        path = top / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, bytes):
            path.write_bytes(content)
        elif content.startswith("-> "):
            path.symlink_to(content.removeprefix("-> "))
        else:
            path.write_text(content)
    return Root(top)


def dpkg(**packages: str) -> dict[str, str]:
    """Return dpkg's status file with these packages installed. `_` in a name means `-`."""
    paragraphs = (
        f"Package: {name.replace('_', '-')}\nStatus: install ok installed\nVersion: {version}\n"
        for name, version in packages.items()
    )
    return {"var/lib/dpkg/status": "\n".join(paragraphs)}


class Live(Root):
    """A tree that claims to be the running system."""

    @property
    def is_live(self) -> bool:
        return True

    def _locate(self, rel: str) -> str:
        return f"{self._top}/{rel}"
