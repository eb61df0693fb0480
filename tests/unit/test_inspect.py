"""What is read of a model file, and what is said about files that are none or not whole."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import hashlib
import os
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from edged.client.upload import Package
from edged.config.limits import Limits
from edged.engines.admission import admit, examine
from edged.engines.builder import Builder
from edged.errors import ModelRefused
from edged.jobs.inspect import inspect
from edged.models.entries import plain_entry
from edged.models.finding import Category, Finding, Stage
from edged.models.inspection import ExternalFile, Inspection
from edged.models.model import Model
from edged.store.store import Store
from edged.tensors import ANY_SHAPE, TensorSpec
from tests import models
from tests.waiting import ends_despite_fifo

WHOLE = models.conv().SerializeToString()


def saved(tmp_path: Path, proto: onnx.ModelProto) -> Path:
    return models.save(proto, tmp_path / "model.onnx")


def test_a_small_model_is_told_in_full(tmp_path: Path) -> None:
    path = saved(tmp_path, models.conv())
    found = inspect(path)
    assert found.digest == found.graph_digest
    assert found.size == path.stat().st_size
    assert found.ir_version == models.IR_VERSION
    assert found.opsets == {"ai.onnx": models.OPSET}
    assert found.producer == "edged-tests 1"
    assert found.signature == models.signature(models.conv())
    assert found.operators == {"Conv": 1, "GlobalAveragePool": 1, "Relu": 1}
    assert (found.subgraphs, found.functions) == (0, 0)
    assert found.parameters == 4 * 3 * 3 * 3 + 4
    assert found.external == ()


@pytest.mark.parametrize("datatype", models.ONNX_TYPES)
def test_every_datatype_of_the_protocol_is_known(tmp_path: Path, datatype: str) -> None:
    found = inspect(saved(tmp_path, models.identity(datatype, ["n", 2])))
    assert found.signature.inputs == (TensorSpec("x", datatype, ("n", 2)),)


def test_metadata_is_read(tmp_path: Path) -> None:
    found = inspect(saved(tmp_path, models.identity(metadata={"names": "{0: 'cat'}", "imgsz": "[640, 640]"})))
    assert found.metadata == {"names": "{0: 'cat'}", "imgsz": "[640, 640]"}


def test_dynamic_dimensions_keep_their_names_and_nameless_ones_are_marked(tmp_path: Path) -> None:
    proto = models.identity(shape=["batch", 3, 4])
    proto.graph.input[0].type.tensor_type.shape.dim.add()
    proto.graph.input[0].type.tensor_type.shape.dim.add().dim_value = -1
    spec = inspect(saved(tmp_path, proto)).signature.inputs[0]
    assert spec.shape == ("batch", 3, 4, "?", "?")
    assert spec.dims == (-1, 3, 4, -1, -1)


def test_scalars_have_no_dimensions(tmp_path: Path) -> None:
    spec = inspect(saved(tmp_path, models.identity(shape=[]))).signature.inputs[0]
    assert spec.shape == ()
    assert spec.admits(())
    assert not spec.admits((1,))


def test_an_input_without_a_declared_shape_is_not_taken_for_a_scalar(tmp_path: Path) -> None:
    node = helper.make_node("Identity", ["x"], ["y"])
    proto = models.model([node], [models.value("x", "FP32", None)], [models.value("y", "FP32", None)])
    for spec in (
        inspect(saved(tmp_path, proto)).signature.inputs[0],
        inspect(tmp_path / "model.onnx").signature.outputs[0],
    ):
        assert spec.admits((2, 3))
        assert spec.admits(())


def test_initialisers_that_old_files_list_as_inputs_are_none(tmp_path: Path) -> None:
    proto = models.matmul()
    proto.ir_version = 3
    proto.graph.input.append(models.value("w", "FP32", [4, 3]))
    found = inspect(saved(tmp_path, proto))
    assert [spec.name for spec in found.signature.inputs] == ["x"]
    assert found.ir_version == 3


@pytest.mark.parametrize(("ir_version", "optional"), [(3, ()), (4, ("gain",)), (10, ("gain",))])
def test_inspect_small_initializer_among_the_inputs_is_optional_from_ir_version_4(
    tmp_path: Path, ir_version: int, optional: tuple[str, ...]
) -> None:
    found = inspect(saved(tmp_path, models.listed_initializers(ir_version)))
    assert [spec.name for spec in found.signature.inputs] == ["x"]
    assert tuple(spec.name for spec in found.optional) == optional


def test_subgraphs_are_counted_with_what_is_in_them(tmp_path: Path) -> None:
    found = inspect(saved(tmp_path, models.branches()))
    assert found.subgraphs == 2
    assert found.operators == {"Add": 1, "If": 1, "Mul": 1}
    assert inspect(saved(tmp_path, models.loop())).subgraphs == 1


def test_functions_and_operators_of_other_domains_are_told(tmp_path: Path) -> None:
    body = [helper.make_node("Relu", ["a"], ["b"])]
    function = helper.make_function("mine", "Twice", ["a"], ["b"], body, [helper.make_opsetid("", models.OPSET)])
    proto = models.model(
        [helper.make_node("Twice", ["x"], ["y"], domain="mine")],
        [models.value("x", "FP32", [1])],
        [models.value("y", "FP32", [1])],
        domains={"mine": 1},
        functions=[function],
    )
    found = inspect(saved(tmp_path, proto))
    assert found.functions == 1
    assert found.operators == {"mine.Twice": 1}
    assert found.opsets == {"ai.onnx": models.OPSET, "mine": 1}


def _field(number: int, content: bytes) -> bytes:
    """One length-delimited field of a protobuf message."""
    size, length = len(content), b""
    while size >= 0x80:
        length += bytes([size & 0x7F | 0x80])
        size >>= 7
    return bytes([number << 3 | 2]) + length + bytes([size]) + content


@pytest.mark.parametrize("depth", [20, 5000])
def test_graphs_nested_in_graphs_are_read_or_refused_and_never_crash(tmp_path: Path, depth: int) -> None:
    graph = models.identity().graph.SerializeToString()
    for _ in range(depth):
        attribute = _field(6, graph) + b"\xa0\x01\x05"  # its type: a graph
        graph = _field(1, _field(5, attribute))
    whole = models.identity().SerializeToString() + _field(7, graph)
    (tmp_path / "model.onnx").write_bytes(whole)
    if depth > 100:
        with pytest.raises(ModelRefused):
            inspect(tmp_path / "model.onnx")
    else:
        assert inspect(tmp_path / "model.onnx").subgraphs == depth


# -- not a model ----------------------------------------------------------------------------------------------------


def _zip(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("model.onnx", WHOLE)


def _fifo(path: Path) -> None:
    os.mkfifo(path)


def _checkpoint(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("yolo/data.pkl", b"\x80\x02}.")


NO_MODELS: dict[str, tuple[Callable[[Path], object], str]] = {
    "missing": (lambda p: None, "does not exist"),
    "missing under that name": (lambda p: (p.parent / "doors.onnx").touch(), "rename doors.onnx to model.onnx"),
    "empty": (lambda p: p.write_bytes(b""), "is empty"),
    "text": (lambda p: p.write_text("this is not a model\n" * 20), "is a text file, not .*ONNX model"),
    "long text": (lambda p: p.write_text("h" + "ä" * 5000), "is a text file"),
    "text in another encoding": (lambda p: p.write_text("nächst", encoding="latin-1"), "cannot be parsed"),
    "json": (lambda p: p.write_text('{"irVersion": "8"}'), "is a text file, not .*ONNX model"),
    "zip": (_zip, "zip archive"),
    "gzip": (lambda p: p.write_bytes(gzip.compress(WHOLE)), "gzip"),
    "LFS pointer": (
        lambda p: p.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n"),
        "git lfs pull",
    ),
    "web page": (lambda p: p.write_text("\n  <!DOCTYPE html><html>Not found</html>"), "web page"),
    "PyTorch checkpoint": (_checkpoint, "PyTorch checkpoint; export it"),
    "pickle": (lambda p: p.write_bytes(pickle.dumps({"w": 1}, 2)), "pickle"),
    "TensorFlow Lite": (lambda p: p.write_bytes(b"\x1c\0\0\0TFL3" + bytes(64)), "Lite model; convert it"),
    "ONNX Runtime's format": (lambda p: p.write_bytes(b"\x18\0\0\0ORTM" + bytes(64)), "own format"),
    "Keras": (lambda p: p.write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(64)), "HDF5"),
    "OpenVINO's format": (lambda p: p.write_text('<?xml version="1.0"?>\n<net name="m"></net>\n'), "OpenVINO's own"),
    "safetensors whose length is an angle bracket": (
        lambda p: p.write_bytes(b"<" + bytes(7) + b'{"w":{}}'.ljust(60) + bytes(8)),
        "safetensors",
    ),
    "text of two bytes to a letter": (lambda p: p.write_text("not a model", encoding="utf-16"), "text file"),
    "folder": (lambda p: p.mkdir(), "is a folder"),
    "FIFO": (_fifo, "regular file"),
    "dangling link": (lambda p: p.symlink_to("nowhere"), "does not exist"),
    "link to itself": (lambda p: p.symlink_to(p), "leads back to itself"),
    "zeros": (lambda p: p.write_bytes(bytes(4096)), "not .*ONNX model"),
    "a model without nodes": (
        lambda p: p.write_bytes(onnx.ModelProto(ir_version=8).SerializeToString()),
        "not an ONNX",
    ),
}


@pytest.mark.parametrize("what", NO_MODELS)
def test_what_is_no_model_is_refused_in_one_line_that_says_what_it_is(tmp_path: Path, what: str) -> None:
    make, words = NO_MODELS[what]
    path = tmp_path / "model.onnx"
    make(path)
    with pytest.raises(ModelRefused, match=words) as raised:
        inspect(path)
    assert "model.onnx" in str(raised.value)
    assert "\n" not in str(raised.value)


def _folder_of(*names: str) -> Callable[[Path], object]:
    def make(path: Path) -> None:
        path.mkdir()
        for name in names:
            (path / name).touch()

    return make


def _tensor(path: Path) -> None:
    path.write_bytes(numpy_helper.from_array(np.ones((2, 3), np.float32), "input").SerializeToString())


def _zipped(path: Path) -> None:
    floats = helper.make_tensor_type_proto(TensorProto.FLOAT, [])
    kind = helper.make_sequence_type_proto(helper.make_map_type_proto(TensorProto.INT64, floats))
    node = helper.make_node("ZipMap", ["x"], ["p"], domain="ai.onnx.ml", classlabels_int64s=[0, 1])
    ends = [models.value("x", "FP32", [1, 2])], [helper.make_value_info("p", kind)]
    models.save(models.model([node], *ends, domains={"ai.onnx.ml": 3}), path)


MISTAKEN: dict[str, tuple[Callable[[Path], object], Category, str]] = {
    "tensor": (_tensor, Category.NOT_ONNX, "numpy.savez"),
    "folder of a model": (_folder_of("yolo.onnx"), Category.NOT_A_FILE, "yolo.onnx"),
    "TensorFlow's folder": (_folder_of("saved_model.pb"), Category.NOT_A_FILE, "tf2onnx"),
    "link loop": (lambda p: p.symlink_to(p), Category.UNREADABLE, "name the .onnx file"),
    "ZipMap": (_zipped, Category.UNSERVABLE_TYPE, "options={'zipmap': False}"),
}


@pytest.mark.parametrize("what", MISTAKEN)
def test_inspect_known_mistake_names_its_remedy(tmp_path: Path, what: str) -> None:
    make, category, remedy = MISTAKEN[what]
    path = tmp_path / "model.onnx"
    make(path)
    try:
        found = inspect(path).finding
    except ModelRefused as error:
        found = Finding.of(error)
    assert found is not None
    assert found.category is category
    assert remedy in found.remedy
    assert "\n" not in found.line()


def test_a_fifo_is_never_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    _fifo(path)

    def read() -> None:
        with pytest.raises(ModelRefused):
            inspect(path)

    assert ends_despite_fifo(read, path, seconds=10)


@pytest.mark.parametrize("part", [0.01, 0.3, 0.5, 0.9, 0.999])
def test_a_truncated_model_is_refused(tmp_path: Path, part: float) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(WHOLE[: int(len(WHOLE) * part)])
    with pytest.raises(ModelRefused):
        inspect(path)


# -- parsed, and not to be served -----------------------------------------------------------------------------------


def refused(path: Path) -> Inspection:
    """What is read of a model that parses and cannot be served."""
    found = inspect(path)
    assert found.refusal
    assert "\n" not in found.refusal
    return found


def test_a_model_that_cannot_be_served_is_told_in_full(tmp_path: Path) -> None:
    proto = models.conv()
    whole = inspect(saved(tmp_path, proto))
    assert whole.refusal == ""
    proto.graph.output[0].type.tensor_type.elem_type = TensorProto.COMPLEX64
    found = refused(saved(tmp_path, proto))
    assert found.finding == Finding(
        Stage.GRAPH,
        Category.UNSERVABLE_TYPE,
        "'y' has elements of type COMPLEX64, which the inference protocol cannot carry",
        "cast it inside the model",
        "y",
    )
    assert found.digest == found.graph_digest
    assert found.signature.inputs == whole.signature.inputs
    first, *others = whole.signature.outputs
    assert found.signature.outputs == (TensorSpec(first.name, "COMPLEX64", first.shape), *others)
    for name in ("ir_version", "opsets", "producer", "metadata", "operators", "subgraphs", "parameters", "external"):
        assert getattr(found, name) == getattr(whole, name)


def test_values_that_are_no_tensors_are_refused_by_name(tmp_path: Path) -> None:
    proto = models.identity()
    proto.graph.node[0].CopyFrom(helper.make_node("SequenceConstruct", ["x"], ["many"]))
    proto.graph.output[0].CopyFrom(helper.make_tensor_sequence_value_info("many", TensorProto.FLOAT, [1]))
    found = refused(saved(tmp_path, proto))
    assert found.refusal.startswith("'many' is a sequence: only tensors can be served")
    assert found.signature.outputs == (TensorSpec("many", "SEQUENCE", ANY_SHAPE),)
    proto.graph.output[0].ClearField("type")  # which follows from the node
    assert refused(saved(tmp_path, proto)).refusal.startswith("'many' is a sequence: only tensors can be served")


def test_the_type_of_an_output_is_worked_out_where_it_is_left_away(tmp_path: Path) -> None:
    proto = models.identity()
    whole = inspect(saved(tmp_path, proto)).signature
    proto.graph.output[0].ClearField("type")
    assert inspect(saved(tmp_path, proto)).signature == whole
    proto.graph.node[0].domain = "somebody"  # of whose operators nothing is known
    proto.opset_import.add(domain="somebody", version=1)
    found = refused(saved(tmp_path, proto))
    assert found.refusal.startswith(f"{whole.outputs[0].name!r} is a value without a type")
    assert found.signature.outputs[0].datatype == "UNDEFINED"


@pytest.mark.parametrize("element", [TensorProto.COMPLEX64, TensorProto.FLOAT8E4M3FN, TensorProto.UNDEFINED, 200])
def test_elements_that_the_protocol_cannot_carry_are_refused_by_name(tmp_path: Path, element: int) -> None:
    proto = models.identity()
    proto.graph.input[0].type.tensor_type.elem_type = element
    assert "'x'" in refused(saved(tmp_path, proto)).refusal


@pytest.mark.parametrize("element", [50, -1])
def test_elements_of_a_type_nobody_knows_are_refused_by_name(tmp_path: Path, element: int) -> None:
    proto = models.identity()
    proto.graph.input[0].type.tensor_type.elem_type = element
    found = refused(saved(tmp_path, proto))
    assert "'x'" in found.refusal
    assert found.signature.inputs[0].datatype == f"number {element}"


def test_a_name_that_is_no_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(models.several().SerializeToString().replace(b"prod", b"\xff\xfe\xfd\xfc"))
    assert "not UTF-8" in refused(path).refusal
    assert msgspec.json.decode(msgspec.json.encode(inspect(path)), type=Inspection) == inspect(path)


def test_an_upload_of_what_cannot_be_served_is_refused_before_it_begins(tmp_path: Path) -> None:
    path = models.external(tmp_path, write=False)
    with pytest.raises(ModelRefused, match=r"weights\.bin.*missing"):
        Package.of("mine", path, None)


def test_no_model_is_made_of_what_cannot_be_served(tmp_path: Path) -> None:
    path = models.external(tmp_path, write=False)
    with pytest.raises(ModelRefused, match=r"weights\.bin.*missing"):
        Model.of(plain_entry("m", path, {}), inspect(path))


def test_admission_tells_the_facts_of_what_it_refuses(tmp_path: Path) -> None:
    path = models.external(tmp_path / "m", write=False)
    builder = Builder(Store(tmp_path / "cache"), tmp_path / "cache", Limits(seconds=60))
    admission = asyncio.run(examine(builder, path, {}, ["onnxruntime", "null"]))
    assert admission.model is None
    assert admission.inspection.operators == {"MatMul": 1}
    assert "missing" in admission.refusal
    assert admission.backends == dict.fromkeys(("onnxruntime", "null"), admission.refusal)
    with pytest.raises(ModelRefused, match=r"model\.onnx cannot be served here: .*missing"):
        asyncio.run(admit(builder, path, {}, ["onnxruntime"]))


# -- external data --------------------------------------------------------------------------------------------------


def test_external_data_is_found_and_part_of_the_digest(tmp_path: Path) -> None:
    path = models.external(tmp_path)
    found = inspect(path)
    assert found.external == (ExternalFile("weights.bin", 48),)
    assert found.digest != found.graph_digest
    assert found.parameters == 12
    weights = tmp_path / "weights.bin"
    weights.write_bytes(bytes(48))
    altered = inspect(path)
    assert altered.graph_digest == found.graph_digest
    assert altered.digest != found.digest


def test_external_data_may_lie_in_a_folder_below(tmp_path: Path) -> None:
    assert inspect(models.external(tmp_path, "data/weights.bin")).external[0].path == "data/weights.bin"


@pytest.mark.parametrize("location", ["/etc/passwd", "../weights.bin", "data/../../weights.bin"])
def test_external_data_outside_the_models_folder_is_refused(tmp_path: Path, location: str) -> None:
    (tmp_path / "weights.bin").write_bytes(bytes(48))
    (tmp_path / "m" / "data").mkdir(parents=True)
    assert "outside the model's folder" in refused(models.external(tmp_path / "m", location, write=False)).refusal


def test_missing_external_data_is_refused_by_name(tmp_path: Path) -> None:
    found = refused(models.external(tmp_path, write=False))
    assert found.refusal == "external data 'weights.bin' is missing; put it beside the model"
    assert found.external == (ExternalFile("weights.bin", 0, found.refusal),)
    assert found.digest == ""
    assert found.parameters == 12


def test_truncated_external_data_is_refused_with_both_sizes(tmp_path: Path) -> None:
    path = models.external(tmp_path)
    (tmp_path / "weights.bin").write_bytes(bytes(47))
    found = refused(path)
    assert "47 bytes of at least 48" in found.refusal
    assert found.external[0].size == 47


def test_external_data_that_is_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(bytes(48))
    path = models.external(tmp_path / "m", write=False)
    (tmp_path / "m" / "weights.bin").symlink_to(tmp_path / "secret")
    assert "a link" in refused(path).refusal


def test_external_data_behind_a_linked_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "weights.bin").write_bytes(bytes(48))
    path = models.external(tmp_path / "m", "data/weights.bin", write=False)
    (tmp_path / "m" / "data").symlink_to(tmp_path / "elsewhere")
    assert "outside" in refused(path).refusal


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo])
def test_external_data_that_is_no_file_is_refused_without_waiting(
    tmp_path: Path, make: Callable[[Path], object]
) -> None:
    path = models.external(tmp_path, write=False)
    make(tmp_path / "weights.bin")
    assert "regular file" in refused(path).refusal


def with_checksum(folder: Path, checksum: str) -> Path:
    path = models.external(folder)
    proto = onnx.load(path, load_external_data=False)
    proto.graph.initializer[0].external_data.add(key="checksum", value=checksum)
    return models.save(proto, path)


@pytest.mark.parametrize("shown", [str.lower, str.upper])
def test_external_data_is_compared_with_its_checksum(tmp_path: Path, shown: Callable[[str], str]) -> None:
    weights = models.external(tmp_path).with_name("weights.bin")
    held = hashlib.sha1(weights.read_bytes(), usedforsecurity=False).hexdigest()
    path = with_checksum(tmp_path, shown(held))
    assert inspect(path).finding is None
    weights.write_bytes(bytes(48))  # as long as before
    found = refused(path)
    assert found.finding is not None
    assert (found.finding.stage, found.finding.category) == (Stage.EXTERNAL_DATA, Category.EXTERNAL_DAMAGED)
    assert found.finding.node == "w"
    assert f"external data 'weights.bin' was altered: its SHA-1 is {hashlib.sha1(bytes(48)).hexdigest()[:12]}..." in (
        found.refusal
    )
    assert held[:12] in found.refusal
    assert found.external[0].problem == found.refusal


def test_a_checksum_that_nothing_can_have_is_refused(tmp_path: Path) -> None:
    assert "checksum 'deadbeef' is not a SHA-1" in refused(with_checksum(tmp_path, "deadbeef")).refusal


def test_a_damaged_reference_to_external_data_is_refused(tmp_path: Path) -> None:
    proto = onnx.load(models.external(tmp_path), load_external_data=False)
    proto.graph.initializer[0].external_data[1].value = "zero"
    assert "damaged reference" in refused(saved(tmp_path, proto)).refusal


def test_a_location_with_a_zero_byte_is_refused(tmp_path: Path) -> None:
    refused(models.external(tmp_path, "weights\0.bin", write=False))


def _outside(tensor: onnx.TensorProto, location: str) -> onnx.TensorProto:
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=location)
    return tensor


def test_external_data_of_constants_and_subgraphs_is_found(tmp_path: Path) -> None:
    constant = _outside(numpy_helper.from_array(np.ones(2, np.float32), "c"), "constant.bin")
    proto = models.branches()
    proto.graph.node.append(helper.make_node("Constant", [], ["k"], value=constant))
    branch = proto.graph.node[0].attribute[0].g
    branch.initializer.append(_outside(numpy_helper.from_array(np.ones(2, np.float32), "s"), "branch.bin"))
    for name in ("constant.bin", "branch.bin"):
        (tmp_path / name).write_bytes(bytes(8))
    found = inspect(saved(tmp_path, proto))
    assert [file.path for file in found.external] == ["branch.bin", "constant.bin"]


def test_external_data_inside_the_branches_of_a_function_is_found(tmp_path: Path) -> None:
    one = _outside(numpy_helper.from_array(np.ones(1, np.float32), "one"), "inner.bin")
    out = [models.value("t", "FP32", [1])]
    branch = helper.make_graph([helper.make_node("Add", ["a", "one"], ["t"])], "g", [], out, [one])
    body = [helper.make_node("If", ["up"], ["b"], then_branch=branch, else_branch=branch)]
    imports = [helper.make_opsetid("", models.OPSET)]
    proto = models.model(
        [helper.make_node("F", ["up", "x"], ["y"], domain="mine")],
        [models.value("up", "BOOL", []), models.value("x", "FP32", [1])],
        [models.value("y", "FP32", [1])],
        domains={"mine": 1},
        functions=[helper.make_function("mine", "F", ["up", "a"], ["b"], body, imports)],
    )
    (tmp_path / "inner.bin").write_bytes(bytes(4))
    assert [file.path for file in inspect(saved(tmp_path, proto)).external] == ["inner.bin"]


# -- hostile bytes --------------------------------------------------------------------------------------------------

# Bytes that are no UTF-8 and types that nobody knows have tests of their own above.
_TAME = st.integers(0, 8)


@settings(max_examples=300)
@given(st.data())
def test_bytes_changed_anywhere_are_read_or_refused(tmp_path: Path, data: st.DataObject) -> None:
    content = bytearray(WHOLE)
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(_TAME)
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    with contextlib.suppress(ModelRefused):
        found = inspect(path)
        assert found.digest or found.refusal


def test_external_data_without_the_name_of_a_file_is_told_as_such(tmp_path: Path) -> None:
    proto = onnx.load_from_string(WHOLE)
    tensor = proto.graph.initializer[0]
    tensor.data_location = TensorProto.EXTERNAL
    tensor.ClearField("raw_data")
    path = tmp_path / "model.onnx"
    path.write_bytes(proto.SerializeToString())
    found = inspect(path).finding
    assert found is not None
    assert found.category is Category.EXTERNAL_DAMAGED
    assert "not named" in found.message


def test_a_domain_that_is_spelled_out_by_a_node_alone_raises_no_suspicion(tmp_path: Path) -> None:
    proto = onnx.load_from_string(WHOLE)
    for node in proto.graph.node:
        node.domain = "ai.onnx"
    path = tmp_path / "model.onnx"
    path.write_bytes(proto.SerializeToString())
    assert inspect(path).suspicion is None
