"""What a classifier says of one picture, and its form between processes."""

from __future__ import annotations

import msgspec
import numpy as np
import numpy.typing as npt

# One class between processes of one box and one version of edged: 8 bytes, little endian.
RECORD = np.dtype([("class_id", "<i4"), ("score", "<f4")])


class Classes(msgspec.Struct, frozen=True, eq=False):
    """k classes: class_ids int32 [k], scores float32 [k] in 0..1; best first. Everything in it is finite."""

    class_ids: npt.NDArray[np.int32]
    scores: npt.NDArray[np.float32]

    @classmethod
    def empty(cls) -> Classes:
        return cls(np.empty(0, np.int32), np.empty(0, np.float32))

    def __len__(self) -> int:
        return len(self.scores)

    def pack(self) -> bytes:
        """k records of `RECORD`."""
        records = np.empty(len(self), RECORD)
        records["class_id"], records["score"] = self.class_ids, self.scores
        return records.tobytes()

    @classmethod
    def unpack(cls, packed: bytes | memoryview) -> Classes:
        """From `pack`. Copies: the bytes may lie in memory that is reused; ValueError for a torn record."""
        records = np.frombuffer(packed, RECORD)
        return cls(records["class_id"].copy(), records["score"].copy())
