"""What an engine of a model is held to: how far its answers may be from the reference's."""

from __future__ import annotations

import hashlib

import msgspec

from edged.model.model import Model


class Tolerance(msgspec.Struct, frozen=True):
    """How far an engine may be from the reference. All figures are the worst over outputs and samples."""

    cosine: float  # at least: cosine of the angle between the flattened outputs
    relative_l2: float  # at most: norm of the difference over norm of the reference
    element: float  # of its row's or column's largest value: an element farther off than this is an outlier
    outliers: float  # at most: share of elements that are outliers
    unequal: float  # at most: share of elements that differ, for integers, booleans and strings
    finite: float = 1.0  # at least: share of elements that are finite, infinite or no number as in the reference


# Reassociated sums move float32 answers by about 1e-6; halves by about 1e-3. Far above that something is wrong.
TOLERANCES = {
    "fp32": Tolerance(cosine=0.99999, relative_l2=2e-3, element=5e-3, outliers=0.002, unequal=0.001),
    "fp16": Tolerance(cosine=0.999, relative_l2=3e-2, element=5e-2, outliers=0.01, unequal=0.01),
    "bf16": Tolerance(cosine=0.995, relative_l2=1e-1, element=1e-1, outliers=0.02, unequal=0.02),
    "int8": Tolerance(cosine=0.98, relative_l2=2e-1, element=2e-1, outliers=0.05, unequal=0.05),
}


class Standard(msgspec.Struct, frozen=True):
    """What one engine of a model is held to. A verdict that was reached by another standard is out of date."""

    tolerance: Tolerance
    golden: str  # names the golden questions: the model and everything else they are made from

    @classmethod
    def of(cls, model: Model, precision: str) -> Standard:
        """The standard for engines of a model in a precision."""
        return cls(TOLERANCES[precision], model.digest)

    @property
    def digest(self) -> str:
        """12 hexadecimal digits over all of it."""
        return hashlib.sha256(msgspec.json.encode(self)).hexdigest()[:12]
