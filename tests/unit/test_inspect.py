"""Inspection of model files: their facts, and refusals of damaged files and files that are no models."""

from __future__ import annotations

import asyncio
import contextlib
import os
from pathlib import Path

import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto

from edged.client.upload import Package
from edged.config.child_limits import Limits
from edged.engines.admission import admit, examine
from edged.engines.builder import Builder
from edged.errors import ConfigError, ModelRefused
from edged.jobs.inspect import inspect
from edged.models.entries import plain_entry
from edged.models.finding import Finding, Stage
from edged.models.inspection import ExternalFile, Inspection
from edged.models.model import Model
from edged.store.store import Store
from edged.tensors import ANY_SHAPE, TensorSpec
from tests import models
from tests.waiting import ends_despite_fifo
from tests.zoo.exhibit import Ending, Exhibit
from tests.zoo.manifest import exhibits
from tests.zoo.runtime import Reach
from tests.zoo.words import WORDS

WHOLE = models.conv().SerializeToString()


def saved(tmp_path: Path, proto: onnx.ModelProto) -> Path:
    return models.save(proto, tmp_path / "model.onnx")


def read(tmp_path: Path, proto: onnx.ModelProto) -> Inspection:
    return inspect(saved(tmp_path, proto))


def function(body: str, domain: str = "mine") -> onnx.FunctionProto:
    return onnx.parser.parse_function(f'<domain: "{domain}", opset_import: ["": {models.OPSET}]> {body}')


def test_inspect_small_model_is_read_in_full(tmp_path: Path) -> None:
    found = read(tmp_path, models.conv())
    assert found.digest == found.graph_digest
    assert found.size == (tmp_path / "model.onnx").stat().st_size
    assert found.ir_version == models.IR_VERSION
    assert found.opsets == {"ai.onnx": models.OPSET}
    assert found.producer == "edged-tests 1"
    assert found.signature == models.signature(models.conv())
    assert found.operators == {"Conv": 1, "GlobalAveragePool": 1, "Relu": 1}
    assert (found.subgraphs, found.functions) == (0, 0)
    assert found.parameters == 4 * 3 * 3 * 3 + 4
    assert found.external == ()


@pytest.mark.parametrize("datatype", models.ONNX_TYPES)
def test_inspect_reads_every_datatype(tmp_path: Path, datatype: str) -> None:
    found = read(tmp_path, models.identity(datatype, ["n", 2]))
    assert found.signature.inputs == (TensorSpec("x", datatype, ("n", 2)),)


def test_inspect_reads_metadata(tmp_path: Path) -> None:
    metadata = {"names": "{0: 'cat'}", "imgsz": "[640, 640]"}
    assert read(tmp_path, models.identity(metadata=metadata)).metadata == metadata


def _unnamed_and_negative() -> onnx.ModelProto:
    proto = models.identity(shape=["batch", 3, 4])
    dims = proto.graph.input[0].type.tensor_type.shape.dim
    dims.add()
    dims.add().dim_value = -1
    return proto


@pytest.mark.parametrize(
    ("proto", "shape", "admits"),
    [
        pytest.param(_unnamed_and_negative(), ("batch", 3, 4, "?", "?"), [(1, 3, 4, 5, 6)], id="dynamic"),
        pytest.param(models.identity(shape=[]), (), [()], id="scalar"),
        pytest.param(models.parse("(float[] x) => (float[] y) { y = Relu(x) }"), ANY_SHAPE, [(), (2, 3)], id="any"),
    ],
)
def test_inspect_shape_of_an_input(
    tmp_path: Path, proto: onnx.ModelProto, shape: tuple[int | str, ...], admits: list[tuple[int, ...]]
) -> None:
    spec = read(tmp_path, proto).signature.inputs[0]
    assert spec.shape == shape
    assert all(spec.admits(each) for each in admits)
    assert spec.admits((1,)) is (shape == ANY_SHAPE)


@pytest.mark.parametrize(("ir_version", "optional"), [(3, ()), (4, ("gain",)), (10, ("gain",))])
def test_inspect_small_initializer_among_the_inputs_is_optional_from_ir_version_4(
    tmp_path: Path, ir_version: int, optional: tuple[str, ...]
) -> None:
    found = read(tmp_path, models.listed_initializers(ir_version))
    assert [spec.name for spec in found.signature.inputs] == ["x"]
    assert tuple(spec.name for spec in found.optional) == optional
    assert found.ir_version == ir_version


def test_inspect_counts_subgraphs_with_their_nodes(tmp_path: Path) -> None:
    found = read(tmp_path, models.branches())
    assert found.subgraphs == 2
    assert found.operators == {"Add": 1, "If": 1, "Mul": 1}


def test_inspect_counts_functions_and_operators_of_other_domains(tmp_path: Path) -> None:
    functions = [function("Twice (a) => (b) { b = Relu(a) }")]
    graph = "(float[1] x) => (float[1] y) { y = mine.Twice(x) }"
    found = read(tmp_path, models.parse(graph, domains={"mine": 1}, functions=functions))
    assert found.functions == 1
    assert found.operators == {"mine.Twice": 1}
    assert found.opsets == {"ai.onnx": models.OPSET, "mine": 1}


# -- not a model ----------------------------------------------------------------------------------------------------


ZOO = [each for each in exhibits(Reach(0, 0)) if not (each.costly or each.not_as_root)]
DECIDED = (Stage.FILE, Stage.PARSE, Stage.GRAPH, Stage.EXTERNAL_DATA)  # stages that need no runtime


@pytest.mark.parametrize("exhibit", ZOO, ids=lambda exhibit: exhibit.name)
def test_inspect_model_of_the_zoo_has_the_result_in_its_manifest(tmp_path: Path, exhibit: Exhibit) -> None:
    place = tmp_path / "1"
    place.mkdir()
    path = exhibit.make(place)
    try:
        read = inspect(path)
        found = read.finding or read.suspicion
    except ModelRefused as error:
        found = Finding.of(error)
    if found is None:
        assert any(ending.stage not in DECIDED for ending in exhibit.endings)
        return
    assert Ending(found.stage, found.category) in exhibit.endings
    assert WORDS.get(exhibit.name, "") in found.line()
    assert found.line().isprintable()
    assert found.stage not in (Stage.FILE, Stage.PARSE) or path.name in found.message


@pytest.mark.parametrize(
    ("beside", "words"), [("", "does not exist"), ("doors.onnx", "rename doors.onnx to model.onnx")]
)
def test_inspect_missing_file_is_refused(tmp_path: Path, beside: str, words: str) -> None:
    if beside:
        (tmp_path / beside).touch()
    with pytest.raises(ModelRefused, match=words):
        inspect(tmp_path / "model.onnx")


def test_inspect_fifo_is_refused_without_blocking(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    os.mkfifo(path)

    def read() -> None:
        with pytest.raises(ModelRefused):
            inspect(path)

    assert ends_despite_fifo(read, path, seconds=10)


# -- valid files that cannot be served ------------------------------------------------------------------------------


def refused(path: Path) -> Inspection:
    """Return the inspection of a model that can be parsed but not served."""
    found = inspect(path)
    assert found.refusal
    assert "\n" not in found.refusal
    return found


def test_inspect_model_that_cannot_be_served_is_read_in_full(tmp_path: Path) -> None:
    proto = models.conv()
    whole = read(tmp_path, proto)
    assert whole.refusal == ""
    proto.graph.output[0].type.tensor_type.elem_type = TensorProto.COMPLEX64
    found = refused(saved(tmp_path, proto))
    assert found.digest == found.graph_digest
    assert found.signature.inputs == whole.signature.inputs
    first, *others = whole.signature.outputs
    assert found.signature.outputs == (TensorSpec(first.name, "COMPLEX64", first.shape), *others)
    for name in ("ir_version", "opsets", "producer", "metadata", "operators", "subgraphs", "parameters", "external"):
        assert getattr(found, name) == getattr(whole, name)


def test_inspect_missing_type_of_an_output_is_inferred_if_its_operator_is_known(tmp_path: Path) -> None:
    proto = models.identity()
    whole = read(tmp_path, proto).signature
    proto.graph.output[0].ClearField("type")
    assert read(tmp_path, proto).signature == whole
    proto.graph.node[0].domain = "unknown"
    proto.opset_import.add(domain="unknown", version=1)
    assert refused(saved(tmp_path, proto)).signature.outputs[0].datatype == "UNDEFINED"


def test_package_and_model_of_an_unservable_file_are_refused(tmp_path: Path) -> None:
    path = models.external(tmp_path, write=False)
    with pytest.raises(ModelRefused, match=r"weights\.bin"):
        Package.of("mine", path, None)
    with pytest.raises(ModelRefused, match=r"weights\.bin"):
        Model.of(plain_entry("m", path, {}), inspect(path))


def test_settings_of_language_models_are_refused_for_others(tmp_path: Path) -> None:
    path = models.save(models.identity(), tmp_path / "m.onnx")
    with pytest.raises(ConfigError, match=r"language\.context"):
        Model.of(plain_entry("m", path, {"language.context": "64"}), inspect(path))


def test_examine_refused_model_has_facts_and_a_reason_for_each_backend(tmp_path: Path) -> None:
    path = models.external(tmp_path / "m", write=False)
    builder = Builder(Store(tmp_path / "cache"), tmp_path / "cache", Limits(seconds=60))
    admission = asyncio.run(examine(builder, path, {}, ["onnxruntime", "null"]))
    assert admission.model is None
    assert admission.inspection.operators == {"MatMul": 1}
    assert "missing" in admission.refusal
    assert admission.backends == dict.fromkeys(("onnxruntime", "null"), admission.refusal)
    with pytest.raises(ModelRefused):
        asyncio.run(admit(builder, path, {}, ["onnxruntime"]))


# -- external data --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("location", ["weights.bin", "data/weights.bin"])
def test_inspect_external_data_is_found_and_part_of_the_digest(tmp_path: Path, location: str) -> None:
    path = models.external(tmp_path, location)
    found = inspect(path)
    assert found.external == (ExternalFile(location, 48),)
    assert found.digest != found.graph_digest
    assert found.parameters == 12
    (tmp_path / location).write_bytes(bytes(48))
    altered = inspect(path)
    assert altered.graph_digest == found.graph_digest
    assert altered.digest != found.digest


def test_inspect_missing_external_data_is_refused_by_name(tmp_path: Path) -> None:
    found = refused(models.external(tmp_path, write=False))
    assert "'weights.bin' is missing" in found.refusal
    assert found.external == (ExternalFile("weights.bin", 0, found.refusal),)
    assert found.digest == ""
    assert found.parameters == 12


# -- hostile bytes --------------------------------------------------------------------------------------------------

# Small values only: names that are not UTF-8 and unknown types are tested above.
_TAME = st.integers(0, 8)


@settings(max_examples=300)
@given(st.data())
def test_inspect_changed_bytes_are_read_or_refused(tmp_path: Path, data: st.DataObject) -> None:
    content = bytearray(WHOLE)
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(_TAME)
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    with contextlib.suppress(ModelRefused):
        found = inspect(path)
        assert found.digest or found.refusal


def test_inspect_domain_written_as_ai_onnx_in_nodes_is_no_suspicion(tmp_path: Path) -> None:
    proto = onnx.load_from_string(WHOLE)
    for node in proto.graph.node:
        node.domain = "ai.onnx"
    assert read(tmp_path, proto).suspicion is None
