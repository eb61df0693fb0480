"""Chooses which layers of a prepared model are computed in int8, and adds Q/DQ pairs before these layers.

A Q/DQ pair is a QuantizeLinear node followed by a DequantizeLinear node. The first recipe places pairs as TensorRT
requires: before layers and never after them, so that following nodes can be fused. Weights are stored in float32 and
have a separate symmetric pair, with one scale for each channel. A bias has no pair. Inputs are symmetric, with one
scale and a zero point of zero. The last layers stay float32, because their outputs become coordinates and scores.
Depthwise convolutions stay float32 too, because their channels differ in range but share one scale.

The second recipe is for OpenVINO, which has more kernels. Here the inputs of layers are asymmetric, so values that are
rarely negative, as after an activation, get twice as many levels. Depthwise convolutions are quantised too: their
inputs have a separate pair with a scale for each channel.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

from edged.errors import EngineUnusable
from edged.jobs.int8_pictures import EIGHT_BITS
from edged.jobs.onnx_graph import FLOAT, Layers, Model, describe_kept, replace_nodes, sort_nodes

Floats: TypeAlias = npt.NDArray[np.float32]

_FORMS = ("Conv", "ConvTranspose", "Gemm", "MatMul")  # operators that every runtime has in int8
_UNSIGNED = 255.0
_CHANNEL_AXIS = 1  # of the input of a convolution
# OpenVINO 2026.4 fuses these nodes into a matrix product that precedes them. If the product has no bias and the result
# is quantised again, the kernel for int8 results is wrong, for some batch sizes and numbers of threads.
_FUSED = frozenset(
    ("Clip", "Div", "Flatten", "Identity", "LeakyRelu", "Mul", "PRelu", "Relu", "Reshape", "Squeeze", "Transpose")
) | {"Unsqueeze"}


class Value(NamedTuple):
    """A value that layers read. It is quantised with one scale, or with a scale for each channel if `by_channel`."""

    name: str
    by_channel: bool = False


class Layer(NamedTuple):
    """A node to quantise. `node` is its name, `kind` its operator, `value` its input, `weights` the name of its
    weights. Each index on the axis `axis` of the weights has a separate scale."""

    node: str
    kind: str
    value: Value
    weights: str
    axis: int


class Scale(NamedTuple):
    """Scales and zero points of an input: arrays of the same shape, [1] or [channels]."""

    scale: Floats
    zero: npt.NDArray[np.int8] | npt.NDArray[np.uint8]


Scales: TypeAlias = Mapping[Value, Scale]
Corrections: TypeAlias = Mapping[str, Floats]  # values to add to the bias of a layer, by the layer's name


NONE: Corrections = {}


class Shadow(NamedTuple):
    """Names of the outputs that `add_shadows` adds for one layer. `size`: the sum of the squares of the layer's output.
    `lost`: the sum of the squares of the change that quantising makes. `mean`: the mean of (exact - quantised) in each
    channel; empty for a layer that can have no bias."""

    size: str
    lost: str
    mean: str = ""


def choose(model: Model, *, depthwise: bool) -> tuple[list[Layer], tuple[str, ...]]:
    """Return the layers to quantise, and the reasons why other layers are not quantised. `depthwise`: whether to
    quantise depthwise convolutions too."""
    layers, chosen, kept = Layers(model), list[Layer](), list[tuple[str, str]]()
    quantised: set[str] = set()  # inputs of chosen layers, and values from which only fused nodes compute such an input
    for index in reversed(range(len(model.graph.node))):
        if index not in layers.layers:
            _follow(model.graph.node[index], quantised)
            continue
        node = model.graph.node[index]
        reason = "the last layer before an output" if index in layers.last else _obstacle(node, model)
        by_channel = _is_depthwise(node, model)
        if not reason and by_channel and not depthwise:
            reason = "depthwise: its channels differ too much for one scale"
        if not reason and _has_no_bias(node) and not quantised.isdisjoint(node.output):
            reason = "it has no bias and precedes another int8 layer; runtimes compute this wrongly"
        if reason:
            kept.append((node.op_type, reason))
        else:
            chosen.append(Layer(node.name, node.op_type, Value(node.input[0], by_channel), node.input[1], _axis(node)))
            quantised.add(node.input[0])
    return chosen[::-1], describe_kept(kept[::-1])


def _follow(node: onnx.NodeProto, quantised: set[str]) -> None:
    """If an output of a node is in `quantised`, and runtimes fuse the node into the node before it, add the inputs of
    the node to `quantised`."""
    if node.op_type in _FUSED and not quantised.isdisjoint(node.output):
        quantised.update(node.input)


def _has_no_bias(node: onnx.NodeProto) -> bool:
    """Whether a layer is a matrix product without a bias. Every MatMul counts as such a product. A bias after a MatMul
    is a separate Add node, and `_follow` stops at an Add, so the MatMul can still be quantised."""
    return node.op_type == "MatMul" or (node.op_type == "Gemm" and not any(node.input[2:]))


def _obstacle(node: onnx.NodeProto, model: Model) -> str:
    """Return why a layer cannot be quantised; empty if it can."""
    if node.op_type not in _FORMS:
        return "runtimes have no int8 kernel for it"
    weights = model.constants.get(node.input[1])
    if weights is None or weights.data_type != FLOAT or node.input[0] in model.constants:
        return "its weights are not constant"
    if model.types.get(node.input[0]) != FLOAT:
        return "the type of its input is not known"
    if node.op_type == "MatMul" and len(weights.dims) != 2:
        return "its weights are not a matrix"
    # int8 kernels cannot apply the float32 factor `beta` of the bias.
    if node.op_type == "Gemm" and _attribute(node, "beta", 1.0) != 1.0:
        return "its attribute 'beta' scales the bias"
    return ""


def _is_depthwise(node: onnx.NodeProto, model: Model) -> bool:
    weights = model.constants.get(node.input[1])
    if weights is None or len(weights.dims) < 3:
        return False
    return weights.dims[1] == 1 and _attribute(node, "group", 1) > 1


def _axis(node: onnx.NodeProto) -> int:
    """Return the axis of a layer's weights that has an index for each channel of the output."""
    if node.op_type == "Conv":
        return 0
    return 0 if node.op_type == "Gemm" and _attribute(node, "transB", 0) else 1


def _attribute(node: onnx.NodeProto, name: str, default: float) -> float:
    values = [helper.get_attribute_value(attribute) for attribute in node.attribute if attribute.name == name]
    return float(values[0]) if values else default


def symmetric(largest: npt.NDArray[np.floating], levels: float = EIGHT_BITS) -> Scale:
    """Return the scales that map values from -`largest` to `largest` to integers from -`levels` to `levels`. A range of
    zeros gets the scale 1."""
    with np.errstate(all="ignore"):
        scales = (largest / levels).astype(np.float32)
    return Scale(np.where(scales == 0, np.float32(1), scales), np.zeros(scales.shape, np.int8))


def asymmetric(least: npt.NDArray[np.floating], most: npt.NDArray[np.floating]) -> Scale:
    """Return the scales and zero points that map a range to uint8: from `least` to `most`, extended to contain zero."""
    least, most = np.minimum(least, 0), np.maximum(most, 0)
    with np.errstate(all="ignore"):
        scales = ((most - least) / _UNSIGNED).astype(np.float32)
        scales = np.where(scales == 0, np.float32(1), scales)
        zeros = np.nan_to_num(np.round(-least / scales))
    return Scale(scales, np.clip(zeros, 0, _UNSIGNED).astype(np.uint8))


class Pairs:
    """Adds Q/DQ pairs to a model. Each value and each weight gets one pair, even if several layers use it."""

    def __init__(self, model: Model, scales: Scales, levels: float) -> None:
        """`scales`: for the inputs of all layers to quantise. `levels`: the largest int8 value of a weight."""
        self._model, self._scales, self._levels = model, scales, levels
        self._made: dict[tuple[str, bool, int], str] = {}
        self.nodes: list[onnx.NodeProto] = []  # the new nodes, in an order that ONNX accepts

    def of_input(self, layer: Layer) -> str:
        """Return the name of a layer's quantised input."""
        name, by_channel = layer.value
        known, (scale, zero) = self._made.get((name, by_channel, -1)), self._scales[layer.value]
        found = Scale(scale, zero) if by_channel else Scale(scale.reshape(()), zero.reshape(()))
        return known or self._add((name, by_channel, -1), found, _CHANNEL_AXIS)

    def of_weights(self, layer: Layer) -> str:
        """Return the name of a layer's quantised weights."""
        key = layer.weights, True, layer.axis
        return self._made.get(key) or self._add(key, self._weight_scales(layer), layer.axis)

    def _weight_scales(self, layer: Layer) -> Scale:
        array = np.abs(self._model.array(self._model.constants[layer.weights]))
        largest = array.max(axis=tuple(axis for axis in range(array.ndim) if axis != layer.axis))
        return symmetric(largest, self._levels)

    def _add(self, key: tuple[str, bool, int], values: Scale, axis: int) -> str:
        name, new, graph = key[0], self._model.new_name, self._model.graph
        scale_name, zero = new(f"{name}.scale"), new(f"{name}.zero")
        quantised, result = new(f"{name}.int8"), new(f"{name}.dequantised")
        tensors = [numpy_helper.from_array(values.scale, scale_name), numpy_helper.from_array(values.zero, zero)]
        graph.initializer.extend(tensors)
        self._model.constants.update({tensor.name: tensor for tensor in tensors})
        about: dict[str, Any] = {"axis": axis} if values.scale.ndim else {}
        self.nodes += [
            helper.make_node("QuantizeLinear", [name, scale_name, zero], [quantised], new(f"{name}.Q"), **about),
            helper.make_node("DequantizeLinear", [quantised, scale_name, zero], [result], new(f"{name}.DQ"), **about),
        ]
        self._made[key] = result
        return result


def quantise(
    model: Model,
    layers: Iterable[Layer],
    scales: Scales,
    corrections: Corrections = NONE,
    levels: float = EIGHT_BITS,
) -> None:
    """Put Q/DQ pairs before `layers` of a prepared model, and add `corrections` to the biases of these layers."""
    wanted = {layer.node: layer for layer in layers}
    pairs, nodes = Pairs(model, scales, levels), list[onnx.NodeProto]()
    for node in model.graph.node:
        if (layer := wanted.get(node.name)) is not None:
            node.input[0], node.input[1] = pairs.of_input(layer), pairs.of_weights(layer)
            nodes += pairs.nodes
            pairs.nodes = []
            if (more := corrections.get(node.name)) is not None:
                _correct(model, node, more)
        nodes.append(node)
    replace_nodes(model.graph, nodes)


def _correct(model: Model, node: onnx.NodeProto, more: Floats) -> None:
    """Add values to a layer's bias. Do nothing if it can have no bias, or has one that is no constant vector."""
    name = node.input[2] if len(node.input) > 2 else ""
    if node.op_type == "MatMul" or (name and name not in model.constants):
        return
    bias = model.array(model.constants[name]) if name else np.zeros(1, np.float32)
    if bias.ndim > 1:  # Gemm allows a matrix
        return
    tensor = numpy_helper.from_array((bias + more).astype(np.float32), model.new_name(f"{node.name}.bias"))
    model.graph.initializer.append(tensor)
    model.constants[tensor.name] = tensor
    del node.input[2:]
    node.input.append(tensor.name)


def check(model: Model, chosen: Collection[str]) -> None:
    """Raise EngineUnusable unless the input and weights of each chosen layer come from Q/DQ pairs with finite positive
    scales."""
    producers = {name: node for node in model.graph.node for name in node.output}
    layers = {node.name: node for node in model.graph.node}
    for name in chosen:
        for value in layers[name].input[:2]:
            pair = producers.get(value)
            if pair is None or pair.op_type != "DequantizeLinear":
                raise EngineUnusable(f"layer {name} was not quantised; build the engine in another precision")
            scales = model.array(model.constants[pair.input[1]])
            if not np.all(np.isfinite(scales)) or not np.all(scales > 0):
                raise EngineUnusable(
                    f"layer {name} has no finite range of values on the calibration data; give other samples"
                )


class _Appendix:
    """Appends nodes and constants to a model, with new names."""

    def __init__(self, model: Model) -> None:
        self._graph, self._new, self._has_axes_input = model.graph, model.new_name, model.opset >= 18

    def constant(self, *numbers: int) -> str:
        name = self._new("watch")
        self._graph.initializer.append(numpy_helper.from_array(np.array(numbers, np.int64), name))
        return name

    def add(self, kind: str, *inputs: str, **about: Any) -> str:
        name = self._new("watch")
        self._graph.node.append(helper.make_node(kind, list(inputs), [name], name, **about))
        return name

    def reduce(self, kind: str, source: str, *axes: int) -> str:
        """Append a reduction such as ReduceMax. Since opset 18, its axes are an input instead of an attribute."""
        if self._has_axes_input or kind == "ReduceSum":
            return self.add(kind, source, self.constant(*axes), keepdims=0)
        return self.add(kind, source, axes=list(axes), keepdims=0)

    def output(self, name: str) -> str:
        self._graph.output.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, None))
        return name


class Watch(NamedTuple):
    """Names of the outputs that `add_watches` adds for one value. Output `least` has the least element of the value,
    `most` the largest element, both [batch, channels]. Output `some` has the absolute values of some elements,
    [batch, channels, n]. Batch and channels are 1 for a value with one scale."""

    least: str
    most: str
    some: str


def add_watches(model: Model, values: Collection[Value], sampled: int) -> dict[Value, Watch]:
    """Make a prepared model also return the least and largest element of each value, and the absolute values of about
    `sampled` elements. The graph computes them, so that no large value must stay in memory."""
    more = _Appendix(model)
    two, zero, last, one = (more.constant(number) for number in (2, 0, 2, 1))
    few, end = more.constant(2 * sampled), more.constant(np.iinfo(np.int64).max)
    found = {}
    for value in values:
        shape = more.constant(*((0, 0, -1) if value.by_channel else (1, 1, -1)))
        rows = more.add("Reshape", value.name, shape)
        # The step is odd: the width of a picture is even, so an even step would take the same columns of every row.
        size = more.add("Reshape", more.add("Size", rows), one)
        step = more.add("Add", more.add("Mul", more.add("Div", size, few), two), one)
        some = more.add("Abs", more.add("Slice", rows, zero, end, last, step))
        ends = (more.reduce(kind, rows, 2) for kind in ("ReduceMin", "ReduceMax"))
        found[value] = Watch(*map(more.output, (*ends, some)))
    return found


def add_shadows(model: Model, layers: Iterable[Layer], scales: Scales, levels: float = EIGHT_BITS) -> dict[str, Shadow]:
    """Make a prepared model also compute each layer with a quantised input and weights. Everything else stays float32.
    Return a mapping from the names of layers to the names of the new outputs."""
    wanted, pairs, more = {layer.node: layer for layer in layers}, Pairs(model, scales, levels), _Appendix(model)
    shape, found = more.constant(0, 0, -1), dict[str, Shadow]()
    for node in [node for node in model.graph.node if node.name in wanted]:
        layer, shadow = wanted[node.name], onnx.NodeProto.FromString(node.SerializeToString())
        shadow.name = shadow.output[0] = model.new_name(f"{node.name}.shadow")
        shadow.input[0], shadow.input[1] = pairs.of_input(layer), pairs.of_weights(layer)
        model.graph.node.append(shadow)
        error = more.add("Sub", node.output[0], shadow.output[0])
        sums = (more.add("ReduceSumSquare", value, keepdims=0) for value in (node.output[0], error))
        has_bias = layer.kind != "MatMul"
        means = (more.reduce("ReduceMean", more.add("Reshape", error, shape), 0, 2),) if has_bias else ()
        found[node.name] = Shadow(*map(more.output, (*sums, *means)))
    model.graph.node.extend(pairs.nodes)
    sort_nodes(model.graph)
    return found
