"""What reading an ONNX file yields, as plain data: it crosses from the child that parses to the daemon that decides."""

from __future__ import annotations

import msgspec

from edged.backend.contract import Signature


class ExternalFile(msgspec.Struct, frozen=True):
    """A file beside the model that holds some of its weights; the path is relative to the model's folder.

    `problem` says why it cannot be used, and `size` is 0 where it cannot be known then.
    """

    path: str
    size: int
    problem: str = ""


class Inspection(msgspec.Struct, frozen=True):
    """What an ONNX file holds. Sizes in bytes; operator names carry their domain when it is not ONNX's own.

    `refusal` says in one line why no runtime could be asked to serve it, empty where one can. With a refusal the rest
    is for people to read: `digest` is empty where external data is not whole, datatypes may be ONNX's own names.
    """

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
    refusal: str = ""
