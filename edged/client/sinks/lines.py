"""Results as lines of JSON."""

from __future__ import annotations

import os
import sys
from typing import BinaryIO

import msgspec

from edged.client.result import Result
from edged.client.sinks.sink import Answered, Sink


class JsonLines(Sink):
    """Appends a JSON object per result to a file, or to standard output for None, and flushes each line.

    OSError if the file cannot be opened; BrokenPipeError if the reader of the pipe has gone.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        self.name = "standard output" if path is None else os.fspath(path)
        self._file: BinaryIO | None = None if path is None else open(path, "ab")  # noqa: SIM115 - closed by `close`

    def on_answer(self, answered: Answered) -> None:
        line = encode(answered.result)
        if self._file is not None:
            self._file.write(line + b"\n")
            self._file.flush()
        else:
            sys.stdout.write(line.decode() + "\n")
            sys.stdout.flush()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


def encode(result: Result) -> bytes:
    return msgspec.json.encode(line(result))


def line(result: Result) -> dict[str, object]:
    """Return Roboflow's inference JSON with camera, number and age of the frame, skips and error; `classes` of a
    classifier."""
    error = None
    if result.error is not None:
        error = {"code": result.error[0], "message": result.error[1]}
        if result.error_code is not None:
            error["reason"] = result.error_code.value
    return {
        "camera": result.camera,
        "model": result.model,
        "sequence": result.sequence,
        "captured_unix_ns": result.captured_unix_ns,
        "age_ms": result.age_ms,
        "skipped": result.skipped,
        "skips": msgspec.to_builtins(result.skips),
        "error": error,
        **({"classes": msgspec.to_builtins(result.classes)} if result.classes else {}),
        **result.json(),
    }
