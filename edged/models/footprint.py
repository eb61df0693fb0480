"""What a model takes at least, as plain data."""

from __future__ import annotations

import msgspec


class Footprint(msgspec.Struct, frozen=True):
    """Bytes: of all weights, and of the largest tensor of a size that is known, which `tensor` names."""

    weights: int = 0
    largest: int = 0
    tensor: str = ""

    @property
    def least(self) -> int:
        """What running it takes, at the very least."""
        return self.weights + self.largest
