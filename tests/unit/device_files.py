"""Recorded trees of device files for tests."""

from __future__ import annotations

from pathlib import Path

from edged.device.root import Root


def write(top: Path, name: str, text: str = "") -> None:
    path = top / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


class Live(Root):
    """A recorded tree that passes for the running system."""

    @property
    def is_live(self) -> bool:
        return True

    def _locate(self, rel: str) -> str:
        return f"{self._top}/{rel}"
