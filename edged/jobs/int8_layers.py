"""The layers of a prepared model that int8 may compute, and the Q/DQ pairs before them.

The pairs are placed as TensorRT requires: before layers, never after them, so that following nodes can be fused;
symmetric, with zero points of zero; float32 weights with their own pair and one scale for each channel; no pair for a
bias.

Two kinds of layers stay float32. The last layers do, because their outputs become coordinates and scores. So do
depthwise convolutions, because their channels differ in range but share one scale of the input: TensorRT and ONNX
Runtime have no kernel with several. OpenVINO has one, so its second recipe quantises them too, with their own pairs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

from edged.errors import EngineUnusable
from edged.jobs.onnx_graph import FLOAT, Layers, Model, describe_kept, replace_nodes

Floats: TypeAlias = npt.NDArray[np.float32]

_FORMS = ("Conv", "ConvTranspose", "Gemm", "MatMul")  # operators that every runtime has in int8
_LEVELS = 127.0  # of each sign
_CHANNEL_AXIS = 1  # of the input of a convolution


class Value(NamedTuple):
    """A value that layers read, quantised with one scale, or, if `by_channel`, with a scale for each channel."""

    name: str
    by_channel: bool = False


class Layer(NamedTuple):
    """A node to quantise: its operator, its input, its weights, and the axis of the weights with a scale for each
    index."""

    node: str
    kind: str
    value: Value
    weights: str
    axis: int


Scales: TypeAlias = Mapping[Value, Floats]


def choose(model: Model, *, depthwise: bool) -> tuple[list[Layer], tuple[str, ...]]:
    """Return the layers to quantise, and why the other layers are not quantised. `depthwise`: also the depthwise
    convolutions."""
    layers, chosen, kept = Layers(model), list[Layer](), list[tuple[str, str]]()
    for index in sorted(layers.layers):
        node = model.graph.node[index]
        reason = "the last layer before an output" if index in layers.last else _obstacle(node, model)
        by_channel = _is_depthwise(node, model)
        if not reason and by_channel and not depthwise:
            reason = "depthwise: its channels differ too much for one scale"
        if reason:
            kept.append((node.op_type, reason))
        else:
            chosen.append(Layer(node.name, node.op_type, Value(node.input[0], by_channel), node.input[1], _axis(node)))
    return chosen, describe_kept(kept)


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
    # The factor `beta` of the bias is computed in float32, for which int8 kernels have no place.
    if node.op_type == "Gemm" and _attribute(node, "beta", 1.0) != 1.0:
        return "its bias has a factor"
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


def scales_of(largest: npt.NDArray[np.floating]) -> Floats:
    """Return the scales with which values up to `largest` in size fill int8. A range of zeros gets the scale 1."""
    with np.errstate(all="ignore"):
        scales = (largest / _LEVELS).astype(np.float32)
    return np.where(scales == 0, np.float32(1), scales)


class Pairs:
    """Adds Q/DQ pairs to a model; each value and each weight gets one pair, however many layers use it."""

    def __init__(self, model: Model, scales: Scales) -> None:
        """The scales are of the values of all layers that will be quantised."""
        self._model, self._scales = model, scales
        self._made: dict[tuple[str, bool, int], str] = {}
        self.nodes: list[onnx.NodeProto] = []  # the new nodes, in an order that ONNX accepts

    def of_input(self, layer: Layer) -> str:
        """Return the name of a layer's quantised input."""
        name, by_channel = layer.value
        known = self._made.get((name, by_channel, -1))
        scale = self._scales[layer.value] if by_channel else self._scales[layer.value].reshape(())
        return known or self._add((name, by_channel, -1), scale, _CHANNEL_AXIS)

    def of_weights(self, layer: Layer) -> str:
        """Return the name of a layer's quantised weights."""
        key = layer.weights, True, layer.axis
        return self._made.get(key) or self._add(key, self._weight_scales(layer), layer.axis)

    def _weight_scales(self, layer: Layer) -> Floats:
        array = np.abs(self._model.array(self._model.constants[layer.weights]))
        return scales_of(array.max(axis=tuple(axis for axis in range(array.ndim) if axis != layer.axis)))

    def _add(self, key: tuple[str, bool, int], scale: Floats, axis: int) -> str:
        name, new, graph = key[0], self._model.new_name, self._model.graph
        scale_name, zero = new(f"{name}.scale"), new(f"{name}.zero")
        quantised, result = new(f"{name}.int8"), new(f"{name}.dequantised")
        tensors = [
            numpy_helper.from_array(scale, scale_name),
            numpy_helper.from_array(np.zeros(scale.shape, np.int8), zero),
        ]
        graph.initializer.extend(tensors)
        self._model.constants.update({tensor.name: tensor for tensor in tensors})
        about: dict[str, Any] = {"axis": axis} if scale.ndim else {}
        self.nodes += [
            helper.make_node("QuantizeLinear", [name, scale_name, zero], [quantised], new(f"{name}.Q"), **about),
            helper.make_node("DequantizeLinear", [quantised, scale_name, zero], [result], new(f"{name}.DQ"), **about),
        ]
        self._made[key] = result
        return result


def quantise(model: Model, layers: Iterable[Layer], scales: Scales) -> None:
    """Put Q/DQ pairs before these layers of a prepared model."""
    wanted = {layer.node: layer for layer in layers}
    pairs, nodes = Pairs(model, scales), list[onnx.NodeProto]()
    for node in model.graph.node:
        if (layer := wanted.get(node.name)) is not None:
            node.input[0], node.input[1] = pairs.of_input(layer), pairs.of_weights(layer)
            nodes += pairs.nodes
            pairs.nodes = []
        nodes.append(node)
    replace_nodes(model.graph, nodes)


def check(model: Model, chosen: Collection[str]) -> None:
    """Raise EngineUnusable unless the input and weights of each chosen layer come from Q/DQ pairs with finite positive
    scales."""
    producers = {name: node for node in model.graph.node for name in node.output}
    layers = {node.name: node for node in model.graph.node}
    for name in chosen:
        for value in layers[name].input[:2]:
            pair = producers.get(value)
            if pair is None or pair.op_type != "DequantizeLinear":
                raise EngineUnusable(f"quantising left layer {name} in float32; build it in another precision")
            scales = model.array(model.constants[pair.input[1]])
            if not np.all(np.isfinite(scales)) or not np.all(scales > 0):
                raise EngineUnusable(f"layer {name} has no finite range on the calibration data; give other samples")


def add_watches(model: Model, values: Collection[Value], sampled: int) -> dict[Value, tuple[str, str]]:
    """Let a prepared model also return, for each value, the largest absolute value and about `sampled` of the absolute
    values: arrays [batch, channels] and [batch, channels, n], or [1, 1] and [1, 1, n] for a value with one scale.

    Return the names of the two outputs for each value. They are computed in the graph, so that no large value has to
    stay in memory.
    """
    graph, new = model.graph, model.new_name

    def constant(numbers: list[int]) -> str:
        name = new("watch")
        graph.initializer.append(numpy_helper.from_array(np.array(numbers, np.int64), name))
        return name

    def node(kind: str, *inputs: str, **about: Any) -> str:
        name = new("watch")
        graph.node.append(helper.make_node(kind, list(inputs), [name], name, **about))
        return name

    two, none, last, one = (constant([number]) for number in (2, 0, 2, 1))
    few, end = constant([2 * sampled]), constant([np.iinfo(np.int64).max])
    found = {}
    for value in values:
        rows = node("Abs", node("Reshape", value.name, constant([0, 0, -1] if value.by_channel else [1, 1, -1])))
        if model.opset >= 18:  # the axes are an input since then
            most = node("ReduceMax", rows, last, keepdims=0)
        else:
            most = node("ReduceMax", rows, axes=[2], keepdims=0)
        # An odd step: the width of a picture is even, so an even step would take the same columns of every row.
        size = node("Reshape", node("Size", rows), one)
        step = node("Add", node("Mul", node("Div", size, few), two), one)
        some = node("Slice", rows, none, end, last, step)
        found[value] = most, some
        graph.output.extend(helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in (most, some))
    return found


def add_shadows(model: Model, layers: Iterable[Layer], scales: Scales) -> dict[str, tuple[str, str]]:
    """Let a prepared model also return, for each layer, the squared sum of its output and of the difference that
    quantising this layer alone makes: names of two scalar outputs by the name of the layer."""
    wanted, pairs = {layer.node: layer for layer in layers}, Pairs(model, scales)
    graph, new = model.graph, model.new_name
    nodes, found = list[onnx.NodeProto](), dict[str, tuple[str, str]]()
    for node in model.graph.node:
        nodes.append(node)
        if (layer := wanted.get(node.name)) is None:
            continue
        shadow, names = onnx.NodeProto(), [new(f"{node.name}.{part}") for part in ("shadow", "error", "size", "lost")]
        shadow.CopyFrom(node)
        shadow.name = shadow.output[0] = names[0]
        shadow.input[0], shadow.input[1] = pairs.of_input(layer), pairs.of_weights(layer)
        nodes += [
            *pairs.nodes,
            shadow,
            helper.make_node("Sub", [node.output[0], names[0]], [names[1]], names[1]),
            helper.make_node("ReduceSumSquare", [node.output[0]], [names[2]], names[2], keepdims=0),
            helper.make_node("ReduceSumSquare", [names[1]], [names[3]], names[3], keepdims=0),
        ]
        pairs.nodes = []
        found[node.name] = names[2], names[3]
        graph.output.extend(helper.make_tensor_value_info(name, TensorProto.FLOAT, []) for name in names[2:])
    replace_nodes(graph, nodes)
    return found
