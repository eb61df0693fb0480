"""Uploads of models to the daemon on a full disk."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from edged.api.grpc.upload import receive_upload
from edged.errors import OutOfSpace
from edged.proto import operations_pb2 as pb


async def test_receive_upload_on_a_full_disk_is_refused(small_disk: Path) -> None:
    async def parts() -> AsyncIterator[pb.AddModelRequest]:
        yield pb.AddModelRequest(header=pb.ModelHeader(name="m"))
        yield pb.AddModelRequest(file=pb.ModelFile(path="model.onnx", size=4 << 20))
        for _ in range(4):
            yield pb.AddModelRequest(chunk=bytes(1 << 20))

    with pytest.raises(OutOfSpace, match="the upload"):
        await receive_upload(parts(), small_disk, {})
