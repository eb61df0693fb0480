"""Inspection: facts of model files, and why files that are damaged or no models are refused."""

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
from edged.config.child_limits import Limits
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


def _field(number: int, content: bytes) -> bytes:
    """One length-delimited field of a protobuf message."""
    size, length = len(content), b""
    while size >= 0x80:
        length += bytes([size & 0x7F | 0x80])
        size >>= 7
    return bytes([number << 3 | 2]) + length + bytes([size]) + content


@pytest.mark.parametrize("depth", [20, 5000])
def test_inspect_nested_graphs_are_read_or_refused(tmp_path: Path, depth: int) -> None:
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


@pytest.mark.parametrize(("make", "words"), NO_MODELS.values(), ids=NO_MODELS)
def test_inspect_other_file_is_refused_by_its_kind(tmp_path: Path, make: Callable[[Path], object], words: str) -> None:
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


@pytest.mark.parametrize(("make", "category", "remedy"), MISTAKEN.values(), ids=MISTAKEN)
def test_inspect_known_mistake_names_its_remedy(
    tmp_path: Path, make: Callable[[Path], object], category: Category, remedy: str
) -> None:
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


def test_inspect_fifo_is_refused_without_waiting(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    _fifo(path)

    def read() -> None:
        with pytest.raises(ModelRefused):
            inspect(path)

    assert ends_despite_fifo(read, path, seconds=10)


@pytest.mark.parametrize("part", [0.01, 0.3, 0.5, 0.9, 0.999])
def test_inspect_truncated_model_is_refused(tmp_path: Path, part: float) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(WHOLE[: int(len(WHOLE) * part)])
    with pytest.raises(ModelRefused):
        inspect(path)


# -- parsed, and not to be served -----------------------------------------------------------------------------------


def refused(path: Path) -> Inspection:
    """The inspection of a model that parses and cannot be served."""
    found = inspect(path)
    assert found.refusal
    assert "\n" not in found.refusal
    return found


def _sequence(is_typed: bool) -> onnx.ModelProto:
    proto = models.parse("(float[1] x) => (seq(float[1]) many) { many = SequenceConstruct(x) }")
    if not is_typed:  # the type follows from the node
        proto.graph.output[0].ClearField("type")
    return proto


def _element(kind: int) -> onnx.ModelProto:
    proto = models.identity()
    proto.graph.input[0].type.tensor_type.elem_type = kind
    return proto


UNSERVABLE: dict[str, tuple[onnx.ModelProto, str, str]] = {
    "sequence": (_sequence(is_typed=True), "many", "SEQUENCE"),
    "sequence without a type": (_sequence(is_typed=False), "many", "SEQUENCE"),
    "complex": (_element(TensorProto.COMPLEX64), "x", "COMPLEX64"),
    "eight bits": (_element(TensorProto.FLOAT8E4M3FN), "x", "FLOAT8E4M3FN"),
    "undefined": (_element(TensorProto.UNDEFINED), "x", "UNDEFINED"),
    **{f"unknown {kind}": (_element(kind), "x", f"number {kind}") for kind in (50, 200, -1)},
}


@pytest.mark.parametrize(("proto", "name", "datatype"), UNSERVABLE.values(), ids=UNSERVABLE)
def test_inspect_unservable_type_is_refused_by_name(
    tmp_path: Path, proto: onnx.ModelProto, name: str, datatype: str
) -> None:
    found = refused(saved(tmp_path, proto))
    assert found.finding is not None
    assert (found.finding.category, found.finding.node) == (Category.UNSERVABLE_TYPE, name)
    assert datatype in {spec.datatype for spec in (*found.signature.inputs, *found.signature.outputs)}


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


def test_inspect_name_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(models.several().SerializeToString().replace(b"prod", b"\xff\xfe\xfd\xfc"))
    assert "not UTF-8" in refused(path).refusal
    assert msgspec.json.decode(msgspec.json.encode(inspect(path)), type=Inspection) == inspect(path)


def test_package_and_model_of_an_unservable_file_are_refused(tmp_path: Path) -> None:
    path = models.external(tmp_path, write=False)
    with pytest.raises(ModelRefused, match=r"weights\.bin"):
        Package.of("mine", path, None)
    with pytest.raises(ModelRefused, match=r"weights\.bin"):
        Model.of(plain_entry("m", path, {}), inspect(path))


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


def test_inspect_external_data_is_found_and_part_of_the_digest(tmp_path: Path) -> None:
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


def test_inspect_external_data_in_a_folder_is_found(tmp_path: Path) -> None:
    assert inspect(models.external(tmp_path, "data/weights.bin")).external[0].path == "data/weights.bin"


def _link(place: Path, root: Path) -> None:
    (root / "secret").write_bytes(bytes(48))
    place.symlink_to(root / "secret")


def _linked_folder(place: Path, root: Path) -> None:
    (root / "elsewhere").mkdir()
    (root / "elsewhere" / "weights.bin").write_bytes(bytes(48))
    place.parent.symlink_to(root / "elsewhere")


def _fifo_there(place: Path, root: Path) -> None:
    os.mkfifo(place)


def _folder_there(place: Path, root: Path) -> None:
    place.mkdir()


def _outside_there(place: Path, root: Path) -> None:
    (root / "weights.bin").write_bytes(bytes(48))
    (root / "m" / "data").mkdir(parents=True, exist_ok=True)


@pytest.mark.parametrize(
    ("location", "make", "problem"),
    [
        ("/etc/passwd", _outside_there, "outside the model's folder"),
        ("../weights.bin", _outside_there, "outside the model's folder"),
        ("data/../../weights.bin", _outside_there, "outside the model's folder"),
        ("data/weights.bin", _linked_folder, "outside"),
        ("weights.bin", _link, "a link"),
        ("weights.bin", _folder_there, "regular file"),
        ("weights.bin", _fifo_there, "regular file"),
        ("weights\0.bin", _outside_there, ""),
    ],
)
def test_inspect_external_data_that_is_no_file_of_the_model_is_refused(
    tmp_path: Path, location: str, make: Callable[[Path, Path], None], problem: str
) -> None:
    path = models.external(tmp_path / "m", location, write=False)
    make(tmp_path / "m" / location, tmp_path)
    assert problem in refused(path).refusal


def test_inspect_missing_external_data_is_refused_by_name(tmp_path: Path) -> None:
    found = refused(models.external(tmp_path, write=False))
    assert "'weights.bin' is missing" in found.refusal
    assert found.external == (ExternalFile("weights.bin", 0, found.refusal),)
    assert found.digest == ""
    assert found.parameters == 12


def test_inspect_truncated_external_data_is_refused_with_both_sizes(tmp_path: Path) -> None:
    path = models.external(tmp_path)
    (tmp_path / "weights.bin").write_bytes(bytes(47))
    found = refused(path)
    assert "47 bytes of at least 48" in found.refusal
    assert found.external[0].size == 47


def with_checksum(folder: Path, checksum: str) -> Path:
    path = models.external(folder)
    proto = onnx.load(path, load_external_data=False)
    proto.graph.initializer[0].external_data.add(key="checksum", value=checksum)
    return models.save(proto, path)


@pytest.mark.parametrize("shown", [str.lower, str.upper])
def test_inspect_altered_external_data_is_refused_by_its_checksum(tmp_path: Path, shown: Callable[[str], str]) -> None:
    weights = models.external(tmp_path).with_name("weights.bin")
    held = hashlib.sha1(weights.read_bytes(), usedforsecurity=False).hexdigest()
    path = with_checksum(tmp_path, shown(held))
    assert inspect(path).finding is None
    weights.write_bytes(bytes(48))  # as long as before
    found = refused(path)
    assert found.finding is not None
    assert (found.finding.stage, found.finding.category) == (Stage.EXTERNAL_DATA, Category.EXTERNAL_DAMAGED)
    assert found.finding.node == "w"
    assert hashlib.sha1(bytes(48)).hexdigest()[:12] in found.refusal
    assert held[:12] in found.refusal
    assert found.external[0].problem == found.refusal


def test_inspect_checksum_that_is_no_sha1_is_refused(tmp_path: Path) -> None:
    assert "checksum 'deadbeef' is not a SHA-1" in refused(with_checksum(tmp_path, "deadbeef")).refusal


def _outside(tensor: onnx.TensorProto, location: str) -> None:
    tensor.ClearField("raw_data")
    tensor.ClearField("float_data")
    tensor.data_location = TensorProto.EXTERNAL
    if location:
        tensor.external_data.add(key="location", value=location)


def test_inspect_damaged_reference_to_external_data_is_refused(tmp_path: Path) -> None:
    proto = onnx.load(models.external(tmp_path), load_external_data=False)
    proto.graph.initializer[0].external_data[1].value = "zero"
    assert "damaged reference" in refused(saved(tmp_path, proto)).refusal


def test_inspect_external_data_without_a_location_is_damaged(tmp_path: Path) -> None:
    proto = onnx.load_from_string(WHOLE)
    _outside(proto.graph.initializer[0], "")
    found = read(tmp_path, proto).finding
    assert found is not None
    assert found.category is Category.EXTERNAL_DAMAGED


def test_inspect_external_data_of_constants_and_subgraphs_is_found(tmp_path: Path) -> None:
    proto = models.parse(
        """(bool up, float[2] x) => (float[2] y) {
            k = Constant<value = float[2] c {1, 1}>()
            y = If(up) <
                then_branch = t () => (float[2] t) <float[2] s = {1, 1}> { t = Add(x, s) },
                else_branch = e () => (float[2] e) { e = Mul(x, k) }
            >
        }"""
    )
    constant, choice = proto.graph.node
    _outside(constant.attribute[0].t, "constant.bin")
    _outside(choice.attribute[0].g.initializer[0], "branch.bin")
    for name in ("constant.bin", "branch.bin"):
        (tmp_path / name).write_bytes(bytes(8))
    assert [file.path for file in read(tmp_path, proto).external] == ["branch.bin", "constant.bin"]


def test_inspect_external_data_inside_the_branches_of_a_function_is_found(tmp_path: Path) -> None:
    made = function(
        """F (up, a) => (b) {
            b = If(up) <
                then_branch = t () => (float[1] t) <float[1] one = {1}> { t = Add(a, one) },
                else_branch = e () => (float[1] e) { e = Neg(a) }
            >
        }"""
    )
    _outside(made.node[0].attribute[0].g.initializer[0], "inner.bin")
    graph = "(bool up, float[1] x) => (float[1] y) { y = mine.F(up, x) }"
    (tmp_path / "inner.bin").write_bytes(bytes(4))
    proto = models.parse(graph, domains={"mine": 1}, functions=[made])
    assert [file.path for file in read(tmp_path, proto).external] == ["inner.bin"]


# -- hostile bytes --------------------------------------------------------------------------------------------------

# Names that are not UTF-8 and unknown types are tested above.
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


def test_inspect_domain_that_only_nodes_spell_out_raises_no_suspicion(tmp_path: Path) -> None:
    proto = onnx.load_from_string(WHOLE)
    for node in proto.graph.node:
        node.domain = "ai.onnx"
    assert read(tmp_path, proto).suspicion is None
