"""Outcomes of an interrupted run, so that a run of the same code can continue it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

import msgspec

from tests.system.arm64.suites import Outcome, Part


class Earlier:
    """The file of outcomes. Each line has a digest of the code, and an outcome as JSON. Lines of other code are
    removed."""

    def __init__(self, file: Path, digest: str) -> None:
        self._file, self._digest = file, digest.encode()
        lines = file.read_bytes().splitlines(keepends=True) if file.exists() else []
        file.write_bytes(b"".join(line for line in lines if line.startswith(self._digest) and line.endswith(b"\n")))

    def passed(self) -> dict[Part, Outcome]:
        """Return the last outcome of each part, if it is good."""
        texts = (line.removeprefix(self._digest) for line in self._file.read_bytes().splitlines())
        outcomes = {outcome.part: outcome for outcome in (msgspec.json.decode(text, type=Outcome) for text in texts)}
        return {part: outcome for part, outcome in outcomes.items() if outcome.is_good}

    def add(self, outcome: Outcome) -> None:
        with self._file.open("ab") as file:
            file.write(self._digest + msgspec.json.encode(outcome) + b"\n")


def digest_of(words: Iterable[str], folders: Iterable[Path]) -> str:
    """Return a digest of words and of the names and contents of all files in folders."""
    found = hashlib.sha256("\0".join(words).encode())
    for folder in folders:
        for file in sorted(each for each in folder.rglob("*") if each.is_file()):
            found.update(f"{file.relative_to(folder)}\0{file.stat().st_size}\0".encode())
            found.update(file.read_bytes())
    return found.hexdigest()
