"""What became of a model's layers, for people to read: as the built engine tells, otherwise as the network asks for."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator

import msgspec

from edged.backends.contract import Composition
from edged.backends.trt.api import DATATYPES, Config, Engine, Layer, Network, Tensor, Trt, find
from edged.backends.trt.log import Log
from edged.decoding import ready

# In the inspector's words: "Row major linear FP32", "Half", "Four wide channel vectorized row major Int8 format".
_WORDS = (
    ("bf16", re.compile(r"(?i)bf16|bfloat16")),
    ("fp16", re.compile(r"(?i)fp16|half")),
    ("fp32", re.compile(r"(?i)fp32|float\b")),
    ("fp8", re.compile(r"(?i)fp8")),
    ("int8", re.compile(r"(?i)int8")),
    ("int64", re.compile(r"(?i)int64")),
    ("int32", re.compile(r"(?i)int32")),
    ("bool", re.compile(r"(?i)bool")),
)
# They move and convert; a count of precisions is about what computes.
_MOVERS = re.compile(r"(?i)reformat|no_?op|constant|cast|shuffle|identity|dequantize|quantize|signal|wait|shape|assert")
_MOST_NAMES = 5


class _End(msgspec.Struct, frozen=True):
    """One input or output of a layer in the inspector's JSON."""

    format: str = msgspec.field(name="Format/Datatype", default="")


class _Layer(msgspec.Struct, frozen=True):
    kind: str = msgspec.field(name="LayerType", default="")
    inputs: list[_End] = msgspec.field(name="Inputs", default_factory=list)
    outputs: list[_End] = msgspec.field(name="Outputs", default_factory=list)


class _Report(msgspec.Struct, frozen=True):
    """The inspector's JSON; a layer is only its name where no more was asked for when the engine was built."""

    layers: list[_Layer | str] = msgspec.field(name="Layers", default_factory=list)


def of_engine(trt: Trt, engine: Engine) -> Composition:
    """What the inspector says of a built engine; empty with a note where it cannot be understood."""
    try:
        text = engine.create_engine_inspector().get_engine_information(find(trt, "LayerInformationFormat.JSON"))
        report = msgspec.json.decode(text, type=ready(_Report))
    except Exception as error:  # the runtime's own have no common base, and nothing depends on this
        return Composition(notes=(f"the engine's layers cannot be read: {error}",))
    detailed = [layer for layer in report.layers if isinstance(layer, _Layer)]
    if not detailed:
        return Composition(notes=(f"{engine.num_layers} layers after fusion, of unknown precisions",))
    counts = Counter(_precision(layer) for layer in detailed if not _MOVERS.search(layer.kind))
    movers = len(detailed) - counts.total()
    notes = (f"{len(detailed)} layers after fusion, {movers} of which only move or convert",)
    return Composition(layers=dict(sorted(counts.items())), notes=notes)


def of_network(network: Network) -> Composition:
    """What the network asks for, where no device is here to load the engine on."""
    layers = [network.get_layer(index) for index in range(network.num_layers)]
    makers = {tensor.name: layer.type.name for layer in layers for tensor in _tensors(layer, "output")}
    counts = Counter(_asked(layer, makers) for layer in layers if not _MOVERS.search(layer.type.name))
    notes = (f"{network.num_layers} layers before fusion, as the graph asks for: the engine was not loaded here",)
    return Composition(layers=dict(sorted(counts.items())), notes=notes)


def left_to_gpu(config: Config, network: Network, log: Log, core: int) -> tuple[str, ...]:
    """What a build for DLA gives to the GPU: a line, or none."""
    layers = (network.get_layer(index) for index in range(network.num_layers))
    # The builder's messages say what it did; the other what it could not do.
    left = list(log.on_gpu) or [layer.name for layer in layers if not config.can_run_on_DLA(layer)]
    if not left:
        return ()
    names = ", ".join(left[:_MOST_NAMES]) + (", …" if len(left) > _MOST_NAMES else "")
    return (f"{len(left)} of {network.num_layers} layers run on the GPU and not on DLA core {core}: {names}"[:300],)


def _precision(layer: _Layer) -> str:
    """By what it reads: an int8 convolution may write something wider."""
    for end in (*layer.inputs, *layer.outputs):
        for name, words in _WORDS:
            if words.search(end.format):
                return name
    return "other"


def _asked(layer: Layer, makers: dict[str, str]) -> str:
    tensors = _tensors(layer, "input")
    if any(makers.get(tensor.name) == "DEQUANTIZE" for tensor in tensors):
        return "int8"
    kinds = (DATATYPES.get(t.dtype.name, t.dtype.name).lower() for t in (*tensors, *_tensors(layer, "output")))
    return next(kinds, "other")


def _tensors(layer: Layer, end: str) -> list[Tensor]:
    found: Iterable[Tensor | None] = _inputs(layer) if end == "input" else _outputs(layer)
    return [tensor for tensor in found if tensor is not None]


def _inputs(layer: Layer) -> Iterator[Tensor | None]:
    return (layer.get_input(index) for index in range(layer.num_inputs))


def _outputs(layer: Layer) -> Iterator[Tensor | None]:
    return (layer.get_output(index) for index in range(layer.num_outputs))
