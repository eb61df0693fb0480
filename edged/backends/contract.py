"""What a backend must do. All other folders know a runtime only through these types.

    build(order, out, ...)    one-shot child     model file  ->  files in an empty directory
    open(order)               engine host        those files ->  Session
    session.infer(...)        engine host        named arrays -> named arrays

A backend is stateless, and its module has it as `BACKEND`; a session has one owner, which calls it from one thread at a
time. Children and hosts are confined (`edged.confinement`): a backend starts no program and opens no connection.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from pathlib import Path
from typing import Literal, Protocol, TypeAlias, runtime_checkable

import msgspec
import numpy as np

from edged.backends.artefact import Artefact
from edged.tensors import Array, TensorSpec

# The optimisation that is not one: the model as it was written. What such an engine answers is the reference that
# every other engine is compared with.
UNOPTIMISED = "none"

# Numbers of a model's nodes by operator, for each execution provider that runs them; without operators if a runtime
# only tells the provider.
Nodes: TypeAlias = dict[str, dict[str, int]]


# How hard a build tries: a builder that failed for want of memory or time is asked for less. An engine of less effort
# is as valid and perhaps slower; measuring tells.
Effort: TypeAlias = Literal["full", "reduced", "least"]


class Recipe(msgspec.Struct, frozen=True, order=True):
    """What to build for a model: by which backend, for which device, in which form.

    `optimization` is the backend's name of a level. `threads` is the number of CPU threads of one inference, 0 for
    the runtime's own choice. `profile` is the range of shapes that it must take, as `edged.backends.profile` writes it;
    empty if the backend needs none. `options` are the backend's own, as it writes them. `calibration` is the digest
    of what the ranges of an int8 engine are measured on.
    """

    backend: str
    device: str = "cpu"
    precision: str = "fp32"
    optimization: str = "all"
    threads: int = 0
    profile: str = ""
    options: str = ""
    calibration: str = ""

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


class Composition(msgspec.Struct, frozen=True):
    """What a runtime made of a model, as far as it reports it. For people to read; only `fallback` has consequences.

    `layers` and `nodes` are counts: of layers by the precision that they compute in, and for each execution provider
    of the model's nodes by operator. `fallback` says in a line each what does not run on the recipe's device although
    it should: such an engine serves, and an alarm is raised. `kept` says what was left in float32, and why. `notes` may
    hold anything else worth reading.
    """

    layers: dict[str, int] = {}
    nodes: Nodes = {}
    fallback: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


class Parallelism(msgspec.Struct, frozen=True, order=True):
    """How an opened engine uses the CPU: `instances` inferences at the same time, each on `threads` threads (0: the
    recipe's number). On other devices there is one instance."""

    instances: int = 1
    threads: int = 0

    def __str__(self) -> str:
        return f"{self.instances}x{self.threads or 'all'}"


ONE_INSTANCE = Parallelism()


class Order(msgspec.Struct, frozen=True):
    """One engine of one model. `artefact` is None before it is built, and for a reference engine always.

    For builders that can use them: `capability` is the compute capability ("8.6") to build for if that is not the
    device's own, `timings` the path of a file that keeps what was measured of this device between builds; it need not
    exist.
    """

    model: str  # path of the ONNX file
    signature: Signature
    recipe: Recipe
    artefact: Artefact | None = None
    external: tuple[str, ...] = ()  # files next to the model that hold some of its weights, by relative path
    digest: str = ""  # of the model and those files; what is on disk may have been replaced since
    effort: Effort = "full"
    capability: str = ""
    timings: str = ""
    parallelism: Parallelism = ONE_INSTANCE  # how to open it

    @property
    def threads(self) -> int:
        """The CPU threads of one inference, 0 for the runtime's own choice."""
        return self.parallelism.threads or self.recipe.threads


# The first opset that has an operator, by domain ("ai.onnx" for ONNX's own) and name.
Operators: TypeAlias = dict[str, dict[str, int]]


class Session(Protocol):
    """An opened engine."""

    def infer(self, inputs: Mapping[str, Array], outputs: Sequence[str] | None = None) -> dict[str, Array]:
        """Runs once. Arrays are C-contiguous and of the signature's dtypes; every input is given.

        Returns the requested outputs (all if None) as arrays that the caller may keep until the next call.
        Raises EngineUnusable with the runtime's reason on one line.
        """

    def close(self) -> None:
        """Frees everything; the session is not used again."""


@runtime_checkable
class Placed(Protocol):
    """A session that tells where its nodes run, as it was opened: to compare with what was recorded of the build."""

    def nodes(self) -> Nodes:
        """Empty if the runtime does not report it."""


@runtime_checkable
class Stoppable(Session, Protocol):
    """A session whose inference can be ended while it runs. Both calls may come from any thread; `host/engine.py` sees
    to it that a stop reaches the right inference."""

    def stop(self) -> None:
        """The inference that runs ends as soon as the runtime looks up, with EngineUnusable; so does the next one if
        none has begun."""

    def go_on(self) -> None:
        """No inference runs, and the next one is to."""


@runtime_checkable
class Replicable(Session, Protocol):
    """A session whose engine can run several inferences at the same time."""

    def replica(self) -> Session:
        """Another session of the same opened engine, with the same weights, for another thread. Each is closed."""


@runtime_checkable
class Staging(Session, Protocol):
    """A session that takes the next inputs to its device while it still works on the current ones: two owners, one
    thread that stages and one that infers. `infer` stays, for callers that do one thing after the other.
    """

    def array(self, shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> Array:
        """Zeroes that are staged where they are, without a copy on the host. They live as long as the session.

        What was staged from it must have been inferred before it is written again.
        """

    def stage(self, inputs: Mapping[str, Array]) -> object:
        """Takes inputs, as `infer` does, for one call of `infer_staged`, which must come. They may be reused at once.

        One set of inputs may be staged while another is inferred; a further call waits. Raises as `infer` does.
        """

    def infer_staged(self, staged: object, outputs: Sequence[str] | None = None) -> dict[str, Array]:
        """As `infer`, of inputs that were staged."""


class Graph(Protocol):
    """A model's graph, as a builder looks at it."""

    def nodes(self) -> Sequence[tuple[str, str]]:
        """Name and operator of every node but constants, also of those inside other nodes."""

    def layers(self, precision: str) -> tuple[dict[str, int], tuple[str, ...]]:
        """The number of layers by the precision that they compute in, and a note if none has the one asked for."""

    def shape_work(self) -> frozenset[str]:
        """Names of the nodes that compute with shapes alone."""


class Graphs(Protocol):
    """Reads and rewrites model files for builders. Implemented by `edged.jobs.engine_graph`: only jobs import the onnx
    package. All raise EngineUnusable for a file that cannot be read.
    """

    def read(self, path: Path) -> Graph: ...

    def write_named(self, source: Path, out: Path) -> Graph:
        """Writes the model as `out`, every node with a name of its own and no initializer among the inputs."""

    def with_inputs(self, source: Path, inputs: Set[str]) -> bytes:
        """The model without other inputs than these."""


class Backend(Protocol):
    """A runtime that can build and open engines."""

    name: str
    # Precisions that `build` must be given a graph of (`jobs/precision.py`); it converts to the others itself.
    in_graph: frozenset[str]

    def version(self) -> str:
        """The version of the runtime that this process really loaded, as its package names it."""

    def build(
        self, order: Order, out: Path, report: Callable[[float], None], graphs: Callable[[], Graphs]
    ) -> Composition:
        """Writes the engine's files into the directory `out`, which has none yet; EngineUnusable if the runtime
        refuses.

        `report` receives the finished fraction, 0 to 1, if the runtime reports it. `graphs` imports the onnx package,
        which most builds do not need. Unsuitable if no attempt would do better,
        OutOfSpace if the disk is full.
        """

    def open(self, order: Order) -> Session:
        """Opens an engine, reading only what its record vouches for; EngineUnusable or EngineDamaged."""

    def check(self, model: Path) -> None:
        """Whether the runtime takes the model at all; EngineUnusable with the reason when it does not."""

    def operators(self) -> Operators | None:
        """What operators the runtime has; None if it does not report it."""

    def trial(self, order: Order) -> Session | None:
        """Opens a model as it was written, with nothing built, as the order's recipe wants it. None if that is all
        that can be tried before an engine is built; NotTaken or another EngineUnusable if the runtime refuses."""


def one_line(error: BaseException, limit: int = 400) -> str:
    """A runtime's message without line breaks and paths of its own sources, short enough to read."""
    text = " ".join(str(error).split())
    return text if len(text) <= limit else text[: limit - 1] + "…"


# ONNX Runtime with the model as it was written: it needs no build.
REFERENCE = Recipe("onnxruntime", optimization=UNOPTIMISED)
