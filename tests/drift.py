"""What lower precisions do to answers: rounding to the nearest value that they have."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]


def as_fp16(array: npt.NDArray[np.generic]) -> Floats:
    """float32 values that float16 has, infinite beyond its range."""
    with np.errstate(over="ignore"):
        return array.astype(np.float16).astype(np.float32)


def as_bf16(array: npt.NDArray[np.generic]) -> Floats:
    """float32 values with the 8 significant bits of bfloat16, ties to even; finite input."""
    bits = np.ascontiguousarray(array, dtype=np.float32).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) & np.uint32(0xFFFF0000)
    return rounded.view(np.float32)
