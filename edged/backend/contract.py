"""What a backend must do. Everything above this room knows a runtime only through these types.

    build(order, out, tell)   one-shot child     model file  ->  files in an empty directory
    open(order)               engine host        those files ->  Session
    session.infer(...)        engine host        named arrays -> named arrays

A backend is stateless; a session has one owner, which calls it from one thread at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal, Protocol, TypeAlias

import msgspec

from edged.backend.artefact import Artefact
from edged.tensors import Array, TensorSpec

# The optimisation that is not one: the model as it was written. What such an engine answers is the reference that
# every other engine is compared with.
UNOPTIMISED = "none"


# How hard a build tries: a builder that failed for want of memory or time is asked for less. An engine of less effort
# is as valid and perhaps slower; measuring tells.
Effort: TypeAlias = Literal["full", "reduced", "least"]


class Recipe(msgspec.Struct, frozen=True, order=True):
    """What to build for a model: by which backend, for which device, in which form.

    `optimization` is the backend's name of a level. `threads` is the number of CPU threads of one inference, 0 for
    the runtime's own choice.
    """

    backend: str
    device: str = "cpu"
    precision: str = "fp32"
    optimization: str = "all"
    threads: int = 0

    @property
    def is_reference(self) -> bool:
        return self.optimization == UNOPTIMISED

    def parts(self) -> dict[str, str]:
        """The named parts that a recipe adds to an engine's key."""
        return {f"recipe.{name}": str(getattr(self, name)) for name in self.__struct_fields__}


class Signature(msgspec.Struct, frozen=True):
    """A model's inputs and outputs as the ONNX file declares them, in its order."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]


class Order(msgspec.Struct, frozen=True):
    """One engine of one model. `artefact` is None before it is built, and for a reference engine always."""

    model: str  # path of the ONNX file
    signature: Signature
    recipe: Recipe
    artefact: Artefact | None = None
    external: tuple[str, ...] = ()  # files beside the model that hold some of its weights, by relative path
    digest: str = ""  # of the model and those files; what is on disk may have been replaced since
    effort: Effort = "full"


class Session(Protocol):
    """An opened engine."""

    def infer(self, inputs: Mapping[str, Array], outputs: Sequence[str] | None = None) -> dict[str, Array]:
        """Runs once. Arrays are C-contiguous and of the signature's dtypes; every input is given.

        Returns the requested outputs (all if None) as arrays that the caller may keep until the next call.
        Raises EngineUnusable with the runtime's reason on one line.
        """

    def close(self) -> None:
        """Frees everything; the session is not used again."""


class Backend(Protocol):
    """A runtime that can build and open engines."""

    name: str

    def version(self) -> str:
        """The version of the runtime that this process really loaded, as its package names it."""

    def build(self, order: Order, out: Path, tell: Callable[[float], None]) -> None:
        """Writes the engine's files into the empty directory `out`; EngineUnusable when the runtime refuses.

        Where the runtime says how far it is, `tell` is told, from 0 to 1.
        """

    def open(self, order: Order) -> Session:
        """Opens an engine, reading only what its record vouches for; EngineUnusable or EngineDamaged."""

    def check(self, model: Path) -> None:
        """Whether the runtime takes the model at all; EngineUnusable with the reason when it does not."""


def one_line(error: BaseException, limit: int = 400) -> str:
    """A runtime's message without line breaks and paths of its own sources, short enough to read."""
    text = " ".join(str(error).split())
    return text if len(text) <= limit else text[: limit - 1] + "…"
