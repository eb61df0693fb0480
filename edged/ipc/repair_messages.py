"""What the children that repair models are asked and what they answer. Each step writes a new graph beside the one that
it reads, whose external data it shares."""

from __future__ import annotations

import msgspec

from edged.backends.contract import Order
from edged.store.record import Verdict
from edged.verification.shape_range import ShapeRange
from edged.vision.family import Recognition


class Lower(msgspec.Struct, frozen=True, tag=True):
    """Writes a model for older versions into the file `out`; 0 leaves a version as it is. Answered by `Lowered`."""

    path: str
    out: str
    opset: int = 0
    ir: int = 0


class Lowered(msgspec.Struct, frozen=True):
    """`by_definition`: nothing was changed but what means the same by the operators' own definitions."""

    by_definition: bool
    details: tuple[str, ...] = ()


class Prove(msgspec.Struct, frozen=True, tag=True):
    """Compares the answers of a repaired model with those of the original. Answered by `Proven`.

    The original is asked through ONNX Runtime, or, with `evaluate`, through ONNX's reference implementation, which is
    given about so many `seconds` for as many questions as it can answer in that time.
    """

    original: Order
    repaired: Order
    recognition: Recognition
    samples: tuple[str, ...] = ()
    shape_range: ShapeRange = ShapeRange()
    evaluate: bool = False
    seconds: float = 60.0


class Proven(msgspec.Struct, frozen=True):
    verdict: Verdict
    by: str
    questions: int


class FreeDims(msgspec.Struct, frozen=True, tag=True):
    """Finds what the inputs of a model really take, and writes it with inputs declared so into the file `out`, if that
    is not what they are declared as. `sizes`: whether pictures of other sizes are tried as well. Answered by `Freed`.
    """

    order: Order
    recognition: Recognition
    out: str
    dims: bool = True
    sizes: bool = False


class Freed(msgspec.Struct, frozen=True):
    """`changes` are lines "x: 10x3x32x32 -> Nx3x32x32", none where everything is declared as it is; `details` say how
    it was found, `refused` why something that was asked for was not done."""

    before: str = ""
    after: str = ""
    details: tuple[str, ...] = ()
    sized: bool = False  # whether pictures of other sizes are among it
    refused: str = ""
    figures: dict[str, float] = {}
    questions: int = 0


class Simplify(msgspec.Struct, frozen=True, tag=True):
    """Simplifies a model into the file `out`, its weights beside it in `weights` where they are too many for one file.
    Answered by `Simplified`."""

    path: str
    out: str
    weights: str


class Simplified(msgspec.Struct, frozen=True):
    """Numbers of nodes; `by` is the library with its version."""

    before: int
    after: int
    by: str
