"""Converts a model to int8: inputs and weights of layers pass through Q/DQ pairs, everything else stays float32.

The model is converted with several estimates of the values' ranges. Each result is compared with float32 on pictures
that are not used for calibration, and the best estimate is used. Then the biases are corrected by the mean error of
int8 in each channel (Nagel et al., Data-free quantization through weight equalization and bias correction, 2019), if
this makes the answers better. If the answers are still too wrong, the most harmed layers return to float32.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import onnx.version_converter
from onnx import helper

from edged.backends.contract import one_line
from edged.backends.ort import quantize as ort_quantize
from edged.backends.ort.quantize import Runner
from edged.errors import EngineUnusable, Unsuitable
from edged.formatting import many
from edged.jobs import int8_layers, int8_ranges, int8_repair
from edged.jobs.int8_layers import Corrections, Layer, Scales, Value
from edged.jobs.int8_pictures import Comparison, Outcome, Way
from edged.jobs.int8_ranges import ESTIMATES, LARGEST, Range
from edged.jobs.onnx_graph import LAYERS, QUANTISED, Model, describe_kept, keep_inputs, replace_nodes
from edged.jobs.onnx_walk import ONNX_DOMAINS
from edged.tensors import Array

_OPSET, _IR_VERSION = 13, 7  # the first versions whose QuantizeLinear takes a scale for each channel
_KEPT, _KEPT_BYTES = 16, 64 << 20  # calibration inputs that stay in memory
_NAMED = 20  # layers that a note names
_FUNCTIONS = frozenset(("Gelu", "HardSwish", "Mish", "Swish"))  # activations that ONNX defines as functions
_STAND_IN = "Softsign"  # ONNX Runtime has a kernel for it, and folds it into no other node
_PLAIN = Way()


def to_int8(
    source: Path, out: Path, calibration: Iterable[Mapping[str, Array]], way: Way = _PLAIN
) -> tuple[bool, tuple[str, ...], tuple[str, ...]]:
    """Write the model in int8 as `out`. Write nothing if the model is quantised already.

    Returns whether a file was written, which layers stay in float32 and why, and notes. Raises Unsuitable or
    EngineUnusable if the model cannot be converted.
    """
    model = Model.read(source)
    if any(node.op_type in QUANTISED for node in model.graph.node):
        return False, (), ("the model is quantised already",)
    with tempfile.TemporaryDirectory(prefix=".quantise-", dir=out.parent) as folder:
        work = Path(folder)
        prepared, notes = prepare(model, work)
        layers, kept = int8_layers.choose(Model.read(prepared), depthwise=way.asymmetric)
        if not layers:
            raise Unsuitable(f"{source.name} has no layer that int8 would speed up; build it in another precision")
        made = _Conversion(prepared, layers, work, way)
        made.measure(_checked(model, calibration))
        if way.comparison is not None and way.comparison.samples:
            made.improve(way.comparison)
        result = made.write(made.layers)
        int8_layers.check(result, [layer.node for layer in made.layers])
        _restore_header(result.proto, model.proto)
        result.write(out)
    return True, (*kept, *made.kept), (*notes, *made.notes)


class _Conversion:
    """The conversion of one prepared model. `layers`: the layers to quantise. `kept`: lines about repaired layers."""

    def __init__(self, prepared: Path, layers: Sequence[Layer], work: Path, way: Way) -> None:
        self.layers, self.kept, self.notes = list(layers), tuple[str, ...](), list[str]()
        self._prepared, self._work, self._way = prepared, work, way
        self._scales: Scales = {}
        self._corrections: Corrections = {}
        self._ranges: dict[Value, Range] = {}
        self._kept: list[Mapping[str, Array]] = []

    def measure(self, calibration: Iterable[Mapping[str, Array]]) -> None:
        """Measure the ranges of the layers' inputs, and choose scales that cover the largest values. Raises Unsuitable
        without calibration data, and EngineUnusable if a range is not finite."""
        values = list(dict.fromkeys(layer.value for layer in self.layers))
        notify = partial(self._way.notify, "calibrating")
        self._ranges = int8_ranges.measure(self._prepared, values, self._some_kept(calibration), self._work, notify)
        if not self._ranges:
            raise Unsuitable(
                "int8 needs calibration data; add samples: edged models add NAME FILE --replace --samples PICTURES"
            )
        for layer in self.layers:
            if not np.isfinite(self._ranges[layer.value].largest).all():
                raise EngineUnusable(
                    f"layer {layer.node} has no finite range of values on the calibration data; give other samples"
                )
        self._scales = self._scales_by(LARGEST)

    def _some_kept(self, calibration: Iterable[Mapping[str, Array]]) -> Iterator[Mapping[str, Array]]:
        """Yield calibration data. Keep the first inputs in memory, for `int8_repair.harm`."""
        size = 0
        for inputs in calibration:
            size += sum(array.nbytes for array in inputs.values())
            if not self._kept or (len(self._kept) < _KEPT and size <= _KEPT_BYTES):
                self._kept.append(inputs)
            yield inputs

    def _scales_by(self, estimate: str) -> Scales:
        covered = {value: ESTIMATES[estimate](found) for value, found in self._ranges.items()}
        if not self._way.asymmetric:
            return {value: int8_layers.symmetric(size) for value, size in covered.items()}
        return {
            value: int8_layers.asymmetric(
                np.maximum(found.least, -covered[value]), np.minimum(found.most, covered[value])
            )
            for value, found in self._ranges.items()
        }

    def write(self, layers: Sequence[Layer], scales: Scales | None = None) -> Model:
        """Return the prepared model with `layers` quantised."""
        model = Model.read(self._prepared)
        int8_layers.quantise(model, layers, scales or self._scales, self._corrections, self._way.levels)
        return Model(model.proto, model.folder)

    def _try(self, layers: Sequence[Layer], comparison: Comparison, scales: Scales | None = None) -> Outcome:
        place = self._work / "trial.onnx"
        for old in (place, place.with_name(f"{place.name}.data")):
            old.unlink(missing_ok=True)
        self.write(layers, scales).write(place)
        runner = Runner(place)

        def run(inputs: Mapping[str, Array]) -> dict[str, Array]:
            self._way.notify("comparing")
            return runner.run(inputs)

        return comparison.of(run)

    def improve(self, comparison: Comparison) -> None:
        """Choose the ranges, correct the biases and, if the answers are still too wrong, return layers to float32."""
        outcome = self._choose_ranges(comparison)
        harm = int8_repair.harm(self._prepared, self.layers, self._scales, self._kept, self._work, self._way.levels)
        self._corrections = {layer: each.mean for layer, each in harm.items() if each.mean is not None}
        corrected = self._try(self.layers, comparison)
        if _rank(corrected) < _rank(outcome):
            self.notes.append(f"biases are corrected: the outputs now change by {corrected.loss:.3g}")
            outcome = corrected
        else:
            self._corrections = {}
        if not outcome.verdict.accepted:
            self._repair(comparison, outcome, {layer: each.share for layer, each in harm.items()})

    def _choose_ranges(self, comparison: Comparison) -> Outcome:
        """Use the best estimate of ranges (see `_rank`), and return its outcome."""
        scales = {name: self._scales_by(name) for name in ESTIMATES}
        found = {name: self._try(self.layers, comparison, each) for name, each in scales.items()}
        best = min(found, key=lambda name: _rank(found[name]))
        self._scales = scales[best]
        others = ", ".join(
            f"{name} {each.loss:.3g}{'' if each.verdict.accepted else ' (rejected)'}"
            for name, each in found.items()
            if name != best
        )
        pictures = many(len(comparison.samples), "picture")
        self.notes.append(
            f"ranges: {best}; the outputs change by {found[best].loss:.3g} on {pictures} set aside; others: {others}"
        )
        return found[best]

    def _repair(self, comparison: Comparison, before: Outcome, harm: Mapping[str, float]) -> None:
        """Return the most harmed layers to float32. `harm`: the relative change of each layer, the largest first."""
        problem = f"int8 is too wrong on the pictures set aside: {before.verdict.reason}"
        if not self._way.repair_s:
            self.notes.append(f"{problem}; repairs are off, because int8.repair_s is 0")
            return
        start = time.monotonic()
        until = min(start + self._way.repair_s, self._way.until)
        ranked = sorted(self.layers, key=lambda layer: list(harm).index(layer.node))
        outcomes: dict[frozenset[int], Outcome] = {}

        def is_right(given_back: frozenset[int]) -> bool:
            layers = [layer for place, layer in enumerate(ranked) if place not in given_back]
            outcomes[given_back] = self._try(layers, comparison)
            return outcomes[given_back].verdict.accepted

        search = int8_repair.give_back(len(ranked), is_right, lambda: time.monotonic() < until)
        trials = many(search.trials, "trial")
        if search.given_back is None:
            seconds = f"{max(0.0, until - start):.3g}"
            end = f"the {seconds} s for repairs ended after" if search.is_cut_off else "not repaired in"
            self.notes.append(f"{problem}; {end} {trials}")
            return
        returned = [ranked[place] for place in sorted(search.given_back)]
        after = outcomes[search.given_back]
        self.kept = describe_kept((layer.kind, "int8 made the answers too wrong") for layer in returned)
        named = ", ".join(f"{layer.node} ({harm[layer.node]:.3g})" for layer in returned[:_NAMED])
        more = f" and {len(returned) - _NAMED} more" if len(returned) > _NAMED else ""
        self.notes.append(
            f"repaired: {len(returned)} of {many(len(ranked), 'layer')} compute in float32 again after {trials}; the"
            f" outputs change by {after.loss:.3g} instead of {before.loss:.3g}: {named}{more}"
            f" (in brackets: how much int8 changes the layer's output); before: {before.verdict.reason}"
        )
        self.layers = [layer for layer in self.layers if layer not in returned]


def _rank(outcome: Outcome) -> tuple[bool, float]:
    """Return the sort key of an outcome: accepted outcomes come first, and smaller losses before larger losses."""
    return not outcome.verdict.accepted, outcome.loss


def _checked(model: Model, calibration: Iterable[Mapping[str, Array]]) -> Iterator[Mapping[str, Array]]:
    """Yield calibration data. Raises Unsuitable if it does not fit the model's inputs or is not finite."""
    wanted = {
        value.name: onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        for value in model.graph.input
        if value.name not in model.constants
    }
    for number, sample in enumerate(calibration, 1):
        found = {name: array.dtype for name, array in sample.items()}
        if found != wanted:
            raise Unsuitable(f"calibration sample {number} has {_words(found)}, but the model takes {_words(wanted)}")
        if not all(np.isfinite(array).all() for array in sample.values() if array.dtype.kind == "f"):
            raise Unsuitable(f"calibration sample {number} has values that are not finite")
        yield sample


def _words(inputs: Mapping[str, np.dtype[np.generic]]) -> str:
    return ", ".join(f"{name} {dtype}" for name, dtype in inputs.items()) or "nothing"


# -- preparation and header -------------------------------------------------------------------------------------------


def prepare(model: Model, work: Path) -> tuple[Path, tuple[str, ...]]:
    """Write a copy of the model into the folder `work`, prepared for quantising. Return its path and notes on changes.

    The copy has an opset whose Q/DQ nodes can have a scale for each channel. Batch normalisation and other constant
    arithmetic are folded into the weights, and every node has a name. No output is also the input of a layer, because
    such an output would be quantised too. The copy gives the same answers as the model, which is not changed.
    """
    notes: tuple[str, ...] = ()
    proto = onnx.ModelProto.FromString(model.proto.SerializeToString())
    ready = Model(proto, model.folder)
    # This raises an old IR version: the opset converter would refuse it if initializers are not inputs.
    keep_inputs(ready.proto, {value.name for value in ready.graph.input} - ready.constants.keys())
    if model.opset < _OPSET:
        ready = _raise_opset(ready, work)
        notes = (
            f"opset raised from {model.opset} to {_OPSET}: older opsets have no Q/DQ with a scale for each channel",
        )
    ready.proto.ir_version = max(ready.proto.ir_version, _IR_VERSION)
    ready = _fold(ready, work)
    _part_outputs(ready)
    ready.name_nodes(ready.graph.node)  # layers are chosen by name
    ready.write(work / "prepared.onnx")
    return work / "prepared.onnx", notes


def _raise_opset(model: Model, work: Path) -> Model:
    old, new = work / "old.onnx", work / "new.onnx"
    model.write(old)
    try:
        # The converter needs the weights as well.
        proto = onnx.version_converter.convert_version(onnx.load(str(old)), _OPSET)
    except Exception as error:  # errors from C++ have no common class
        raise Unsuitable(f"the model's opset {model.opset} cannot be raised for int8: {one_line(error)}") from error
    Model(proto, work).write(new)
    return Model.read(new)


def _fold(model: Model, work: Path) -> Model:
    plain, hidden, folded = work / "plain.onnx", work / "hidden.onnx", work / "folded.onnx"
    model.write(plain)
    before, without = Model.read(plain), Model.read(plain)
    activations = _hide(without)
    without.write(hidden)
    ort_quantize.fold(hidden, folded)
    after = Model.read(folded)
    is_foreign = {node.domain for node in after.graph.node} - {node.domain for node in before.graph.node}
    # Folding may add operators that only ONNX Runtime has.
    return before if is_foreign or not _show(after, activations) else after


def _hide(model: Model) -> dict[str, onnx.NodeProto]:
    """Put a stand-in in the place of each activation that ONNX defines as a function. Return a mapping from the names
    of the stand-ins to the activations.

    Without the stand-ins, ONNX Runtime would also inline these functions when it folds constants. OpenVINO fuses such
    an activation into an int8 convolution, but not the operators that define the activation.
    """
    hidden = {}
    for node in model.graph.node:
        if node.op_type in _FUNCTIONS and node.domain in ONNX_DOMAINS and node.input[0] not in model.constants:
            name = model.new_name(f"hidden {node.op_type}")
            hidden[name] = onnx.NodeProto.FromString(node.SerializeToString())
            node.name, node.op_type = name, _STAND_IN
            del node.attribute[:]
    return hidden


def _show(model: Model, hidden: Mapping[str, onnx.NodeProto]) -> bool:
    """Undo `_hide`. Return whether every stand-in was found."""
    found = 0
    for node in model.graph.node:
        if (activation := hidden.get(node.name)) is not None and node.op_type == _STAND_IN:
            found += 1
            node.op_type, node.name = activation.op_type, activation.name
            node.attribute.extend(activation.attribute)
    return found == len(hidden)


def _part_outputs(model: Model) -> None:
    """Insert a copy if the input of a layer is an output of the model, so that only the copy is quantised."""
    copies: dict[str, str] = {}
    outputs = {value.name for value in model.graph.output}
    nodes = []
    for node in model.graph.node:
        if node.op_type in LAYERS and node.input[0] in outputs:
            name = node.input[0]
            if name not in copies:
                copies[name] = model.new_name(f"{name}.copy")
                nodes.append(helper.make_node("Identity", [name], [copies[name]]))
            node.input[0] = copies[name]
        nodes.append(node)
    replace_nodes(model.graph, nodes)


def _restore_header(proto: onnx.ModelProto, source: onnx.ModelProto) -> None:
    """Copy inputs, outputs, metadata and the opsets of other domains from `source` to `proto`. The IR version becomes
    that of `source`, or a newer version if the opsets need it."""
    opset = max(entry.version for entry in proto.opset_import if entry.domain in ("", "ai.onnx"))
    used = {node.domain for node in proto.graph.node}
    imports = [
        helper.make_opsetid(e.domain, e.version) for e in source.opset_import if e.domain in used - {"", "ai.onnx"}
    ]
    del proto.opset_import[:]
    proto.opset_import.extend([helper.make_opsetid("", opset), *imports])
    proto.ir_version = max(source.ir_version, helper.find_min_ir_version_for(list(proto.opset_import), True))
    for field in ("producer_name", "producer_version", "domain", "model_version", "doc_string"):
        setattr(proto, field, getattr(source, field))
    del proto.metadata_props[:]
    proto.metadata_props.extend(source.metadata_props)
    constants = {tensor.name for tensor in source.graph.initializer}
    proto.graph.name = source.graph.name
    del proto.graph.input[:], proto.graph.output[:], proto.graph.value_info[:]
    proto.graph.input.extend(value for value in source.graph.input if value.name not in constants)
    proto.graph.output.extend(source.graph.output)
