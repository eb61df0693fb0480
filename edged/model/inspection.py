"""What reading an ONNX file yields, as plain data: it crosses from the child that parses to the daemon that decides."""

from __future__ import annotations

import msgspec

from edged.backend.contract import Signature


class ExternalFile(msgspec.Struct, frozen=True):
    """A file beside the model that holds some of its weights; the path is relative to the model's folder."""

    path: str
    size: int


class Inspection(msgspec.Struct, frozen=True):
    """What an ONNX file holds. Sizes in bytes; operator names carry their domain when it is not ONNX's own."""

    digest: str
    graph_digest: str
    size: int
    ir_version: int
    opsets: dict[str, int]
    producer: str
    metadata: dict[str, str]
    signature: Signature
    operators: dict[str, int]
    subgraphs: int
    functions: int
    parameters: int
    external: tuple[ExternalFile, ...]
