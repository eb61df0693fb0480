"""A model's identity: sha256 over the ONNX file and its external data, so that equal digests mean equal answers."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

from edged.errors import ModelRefused

_CHUNK = 1 << 20


def file_digest(path: Path) -> str:
    """sha256 of one file, hexadecimal."""
    digest = hashlib.sha256()
    try:
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK):
                digest.update(chunk)
    except OSError as error:
        raise ModelRefused(f"{path.name} cannot be read: {error.strerror}") from error
    return digest.hexdigest()


def model_digest(model: Path, external: Iterable[str], *, graph_digest: str | None = None) -> str:
    """sha256 over the model file and each external file by its relative path; hexadecimal.

    A model without external data has the digest of its file, which `sha256sum` shows as well.
    """
    graph = graph_digest or file_digest(model)
    names = sorted(set(external))
    if not names:
        return graph
    digest = hashlib.sha256(f"model\0{graph}\0".encode())
    for name in names:
        digest.update(f"external\0{name}\0{file_digest(model.parent / name)}\0".encode())
    return digest.hexdigest()
