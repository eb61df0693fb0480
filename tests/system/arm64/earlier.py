"""Good outcomes of an interrupted run, so that a run of the same code can continue it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

import msgspec

from tests.system.arm64.suites import Outcome, Part


class Earlier:
    """The file of good outcomes. `digest` identifies the code: outcomes of other code do not count."""

    def __init__(self, file: Path, digest: str, *, is_continued: bool) -> None:
        self._file, self._digest = file, digest
        if not is_continued:
            file.unlink(missing_ok=True)

    def outcomes(self) -> dict[Part, Outcome]:
        if not self._file.exists():
            return {}
        lines = (msgspec.json.decode(line, type=tuple[str, Outcome]) for line in self._file.read_bytes().splitlines())
        return {outcome.part: outcome for digest, outcome in lines if digest == self._digest}

    def add(self, outcome: Outcome) -> None:
        """Keep the outcome of a part, if it is good."""
        if outcome.is_good:
            with self._file.open("ab") as file:
                file.write(msgspec.json.encode((self._digest, outcome)) + b"\n")


def digest_of(words: Iterable[str], folders: Iterable[Path]) -> str:
    """Return a digest of words and of the names and contents of all files in folders."""
    found = hashlib.sha256("\0".join(words).encode())
    for folder in folders:
        for file in sorted(each for each in folder.rglob("*") if each.is_file()):
            found.update(f"{file.relative_to(folder)}\0{file.stat().st_size}\0".encode())
            found.update(file.read_bytes())
    return found.hexdigest()
