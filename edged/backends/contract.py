"""The interface of a backend, which wraps one runtime. All other folders use a runtime only through these types.

    build(order, out, ...)    one-shot child     model file  ->  files in an empty directory
    open(order)               engine host        those files ->  Session
    session.infer(...)        engine host        named arrays -> named arrays

A backend must be stateless; its module exports it as `BACKEND`. A session has one owner, which calls the session from
one thread at a time. Child processes and engine hosts are confined (`edged.confinement`), so a backend must not start
programs or open connections.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set
from pathlib import Path
from typing import Literal, Protocol, TypeAlias, runtime_checkable

import msgspec
import numpy as np

from edged.backends.artefact import Artefact
from edged.tensors import Array, TensorSpec

# The optimisation level of the reference engine, which runs the model unchanged. edged compares the answers of every
# other engine with the answers of the reference engine.
UNOPTIMISED = "none"

# Maps each execution provider to the nodes that it runs: a mapping from operators to numbers of nodes. The inner
# mapping is empty if a runtime reports only the provider.
Nodes: TypeAlias = dict[str, dict[str, int]]


# `Recipe.options` of int8 engines whose activations have zero points. In these engines, activations before depthwise
# convolutions also have a scale for each channel.
INT8_ASYMMETRIC = "asymmetric"

# How hard a build tries. After two failed builds, each further one is requested with less effort. Its engine is equally
# valid, but may be slower.
Effort: TypeAlias = Literal["full", "reduced", "least"]


class Recipe(msgspec.Struct, frozen=True, order=True):
    """How to build an engine for a model: the backend, the device, and the options.

    `device` is, for example, "cpu" or "cuda:0". `optimization` is the backend's name of an optimisation level.
    `threads` is the number of CPU threads of one inference; with 0 the runtime chooses. `profile` is the range of
    shapes that the engine must accept, as `edged.backends.profile` writes it; empty if the backend needs no range.
    `options` has other options, in the backend's own format. `calibration` is the digest of the data that an int8
    engine is calibrated with; empty for other engines.
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
        """Return the parts of an engine's key that come from the recipe, as a mapping from "recipe.FIELD" to a text."""
        return {f"recipe.{name}": str(getattr(self, name)) for name in self.__struct_fields__}


class Signature(msgspec.Struct, frozen=True):
    """A model's inputs and outputs as the ONNX file declares them, in the order of the file."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]


class Composition(msgspec.Struct, frozen=True):
    """What a built engine consists of, as far as the runtime reports it. Only `fallback` and `nodes` have effects; the
    other fields are for people to read.

    `layers` maps each precision to the number of layers that compute in it. Each line of `fallback` names a part of the
    model that should run on the recipe's device, but does not. An engine with such parts serves, but edged raises an
    alarm. Each line of `kept` names nodes that stay in float32, with the reason. `notes` are further remarks.
    """

    layers: dict[str, int] = {}
    nodes: Nodes = {}
    fallback: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


class Parallelism(msgspec.Struct, frozen=True, order=True):
    """How an opened engine uses the CPU: `instances` inferences run at the same time, each on `threads` threads (0: the
    recipe's number). On devices other than the CPU, `instances` is 1."""

    instances: int = 1
    threads: int = 0

    def __str__(self) -> str:
        return f"{self.instances}x{self.threads or 'all'}"


ONE_INSTANCE = Parallelism()


class Order(msgspec.Struct, frozen=True):
    """A request to build or open an engine of a model. `artefact` is None before the engine is built, and always for a
    reference engine.

    Two fields are for backends that time kernels. `capability` is the CUDA compute capability to build for, such as
    "8.6"; empty to build for the recipe's device. `timings` is the path of a file that keeps kernel timings of this
    device between builds; the file need not exist.
    """

    model: str  # path of the ONNX file
    signature: Signature
    recipe: Recipe
    artefact: Artefact | None = None
    external: tuple[str, ...] = ()  # paths of the files with external weights, relative to the folder of the model
    digest: str = ""  # of the model and its external files, as planned; the files on disk may have changed since then
    effort: Effort = "full"
    capability: str = ""
    timings: str = ""
    parallelism: Parallelism = ONE_INSTANCE  # for opening; builds ignore it

    @property
    def threads(self) -> int:
        """The number of CPU threads of one inference; with 0 the runtime chooses."""
        return self.parallelism.threads or self.recipe.threads


# Maps each domain ("ai.onnx" for the default domain) to its operators, with the first opset that has each operator.
Operators: TypeAlias = dict[str, dict[str, int]]


class Session(Protocol):
    """An opened engine."""

    def infer(self, inputs: Mapping[str, Array], outputs: Sequence[str] | None = None) -> dict[str, Array]:
        """Run one inference. `inputs` maps the name of each input to a C-contiguous array with the signature's dtype.

        Returns the requested outputs (all if None) as arrays that stay valid until the next call. Raises EngineUnusable
        with the runtime's reason on one line, or InvalidInput if the engine does not accept the inputs.
        """

    def close(self) -> None:
        """Free everything; the session must not be used again."""


@runtime_checkable
class Placed(Protocol):
    """A session that reports where its nodes run. edged compares the report with the record of the build."""

    def nodes(self) -> Nodes:
        """Return the placement of the nodes; empty if the runtime does not report the placement."""


@runtime_checkable
class Stoppable(Session, Protocol):
    """A session whose inference can be stopped while it runs. Any thread may call both methods; `host/engine.py`
    ensures that a stop reaches the right inference."""

    def stop(self) -> None:
        """Make the running inference raise EngineUnusable. Without a running inference, the next inference raises this
        error. The inference ends when the runtime next checks for a stop."""

    def go_on(self) -> None:
        """Allow inferences again after a stop. Call it while no inference runs."""


@runtime_checkable
class Replicable(Session, Protocol):
    """A session whose engine can run several inferences at the same time."""

    def replica(self) -> Session:
        """Return a session for another thread, with the same engine and weights. Each session must be closed."""


@runtime_checkable
class Staging(Session, Protocol):
    """A session that can copy the inputs of the next inference to its device while an inference runs. One thread stages
    (copies) inputs, and another thread infers. A caller with a single thread can use `infer` instead."""

    def array(self, shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> Array:
        """Return a zeroed array that can be staged without a copy on the host. The array lives as long as the session.

        Write to a staged array again only after the inference that uses it has ended.
        """

    def stage(self, inputs: Mapping[str, Array]) -> object:
        """Start to copy inputs to the device, and return a handle for exactly one call of `infer_staged`. `inputs` are
        as for `infer`. After this call the caller may change the arrays, except those from `array`.

        One set of inputs may be staged while another is inferred. A further call of `stage` waits for the inference to
        end. Raises the errors of `infer`.
        """

    def infer_staged(self, staged: object, outputs: Sequence[str] | None = None) -> dict[str, Array]:
        """Run one inference on inputs that `stage` copied; otherwise like `infer`."""


class Graph(Protocol):
    """A model's graph, as builders read it."""

    def nodes(self) -> Sequence[tuple[str, str]]:
        """Return the name and operator of every node except constants. Nodes of subgraphs are included."""

    def layers(self, precision: str) -> tuple[dict[str, int], tuple[str, ...]]:
        """Return a mapping from each precision to the number of layers that compute in it. Also return a note if no
        layer has `precision`."""

    def shape_work(self) -> frozenset[str]:
        """Return the names of the nodes that only compute with the sizes of tensors."""


class Graphs(Protocol):
    """Reads and rewrites model files for builders. Only `edged.jobs` may import the onnx package, so backends use this
    interface of `edged.jobs.engine_graph`. All methods raise EngineUnusable if a file cannot be read."""

    def read(self, path: Path) -> Graph: ...

    def write_named(self, source: Path, out: Path) -> Graph:
        """Write the model to `out`, with a unique name for every node and without initializers among the inputs."""

    def with_inputs(self, source: Path, inputs: Set[str]) -> bytes:
        """Return the serialised model with only the inputs in `inputs`, so that all initializers are constants."""


class Backend(Protocol):
    """A runtime that can build and open engines."""

    name: str
    # For these precisions (fp16, int8), the caller of `build` converts the graph first (`jobs/precision.py`). For all
    # other precisions, the backend itself converts the model.
    converted_in_graph: frozenset[str]

    def version(self) -> str:
        """Return the version of the runtime that this process has loaded, in the form that its package uses."""

    def build(
        self, order: Order, out: Path, report: Callable[[float], None], graphs: Callable[[], Graphs]
    ) -> Composition:
        """Write the engine's files into the empty directory `out`.

        `report` receives the finished fraction, 0 to 1, if the runtime reports it. Call `graphs` only if needed,
        because the call imports the onnx package. Raises EngineUnusable if the runtime refuses the model, Unsuitable if
        another attempt would not help, OutOfSpace if the disk is full.
        """

    def open(self, order: Order) -> Session:
        """Open an engine. Raises EngineDamaged if the engine's files do not match their record. Raises EngineUnusable
        if the engine cannot be opened for another reason."""

    def check(self, model: Path) -> None:
        """Raise EngineUnusable, with the reason, if the runtime does not accept the model. This method must be quick:
        `jobs/runtimes.py` calls it dozens of times, with models of one node, to find the opsets of the runtime."""

    def operators(self) -> Operators | None:
        """Return the operators that the runtime has; None if it does not report them. Then admission skips the check of
        operators."""

    def trial(self, order: Order) -> Session | None:
        """Try whether the runtime accepts the model with the order's recipe, without storing an engine. Returns a
        session, or None if the backend can run only built engines. Raises NotTaken or another EngineUnusable if the
        runtime refuses the model."""


def one_line(error: BaseException, limit: int = 400) -> str:
    """Return a runtime's message on one line of at most `limit` characters."""
    text = " ".join(str(error).split())
    return text if len(text) <= limit else text[: limit - 1] + "…"


def counted(operators: Counter[str], most: int | None = None) -> str:
    """Return the counts of the `most` most frequent operators as text: `2 NonMaxSuppression, 1 Loop`."""
    ordered = sorted(operators.items(), key=lambda item: (-item[1], item[0]))
    named = ", ".join(f"{count} {operator or 'nodes'}" for operator, count in ordered[:most])
    return named if most is None or len(ordered) <= most else f"{named}, …"


# The recipe of the reference engine: ONNX Runtime runs the model unchanged, without a build.
REFERENCE = Recipe("onnxruntime", optimization=UNOPTIMISED)
