"""The effect of lower precisions on values: rounding to the nearest value of the type."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]


def as_fp16(array: npt.NDArray[np.generic]) -> Floats:
    """Round to float16; return float32, infinite beyond float16's range."""
    with np.errstate(over="ignore"):
        return array.astype(np.float16).astype(np.float32)


def as_bf16(array: npt.NDArray[np.generic]) -> Floats:
    """Round to bfloat16's 8 significant bits, ties to even; return float32. The input must be finite."""
    bits = np.ascontiguousarray(array, dtype=np.float32).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) & np.uint32(0xFFFF0000)
    return rounded.view(np.float32)
