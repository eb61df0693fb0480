"""Runtimes behind the contract: their answers, and their errors for invalid models and damaged files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from edged.backends import registry
from edged.backends.contract import Order, Recipe, Session, Signature, one_line
from edged.backends.ort.runtime import create, session_options
from edged.backends.ort.session import DeviceSession
from edged.errors import EngineDamaged, EngineUnusable, InvalidInput, Unsupported
from edged.tensors import Array, TensorSpec, numpy_dtype
from tests import models
from tests.engines import build, opened, order, reference

REAL = ("onnxruntime", "openvino")
BOUND = "bound"
SESSIONS = (*REAL, BOUND)
BLOBS = {"onnxruntime": "model.onnx", "openvino": "engine.blob", "null": "engine.null"}
EXACT_ON_OPENVINO = ("FP32", "FP16", "INT32", "UINT8", "INT8", "BOOL")
RANDOM = np.random.default_rng(11)


def engine(folder: Path, proto: onnx.ModelProto, backend: str, **recipe: object) -> Session:
    """Build and open an engine. BOUND is ONNX Runtime with tensors bound to a device, which is the CPU here."""
    if backend == BOUND:
        path = models.save(proto, folder / "model.onnx")
        return DeviceSession(create(str(path), session_options("all", 1)), models.signature(proto), "cpu", 0)
    return opened(build(order(folder / backend, proto, backend, **recipe), folder / backend / "engine")[0])


def values(spec: TensorSpec) -> Array:
    dtype = numpy_dtype(spec.datatype)
    shape = tuple(d if isinstance(d, int) else 5 for d in spec.shape)
    if dtype == np.object_:
        return np.array([["", "ä€😀".encode(), b"x" * 300, b"0", b"a\0b"][i % 5] or b"" for i in range(5)], dtype)
    if dtype == np.bool_:
        return RANDOM.integers(0, 2, shape).astype(np.bool_)
    return np.frombuffer(RANDOM.bytes(int(np.prod(shape)) * dtype.itemsize), dtype).reshape(shape)


@pytest.mark.parametrize("backend", REAL)
@pytest.mark.parametrize("threads", [0, 1])
@pytest.mark.parametrize("make", [models.conv, models.matmul, models.several, models.dynamic, models.loop])
def test_infer_built_engine_answers_as_the_reference(tmp_path: Path, backend: str, make: object, threads: int) -> None:
    proto = make()  # type: ignore[operator]
    inputs = {
        spec.name: RANDOM.standard_normal([d if isinstance(d, int) else 6 for d in spec.shape]).astype(np.float32)
        if spec.datatype == "FP32"
        else np.array(3, numpy_dtype(spec.datatype))
        for spec in models.signature(proto).inputs
    }
    expected = reference(tmp_path, proto).infer(inputs)
    answer = engine(tmp_path, proto, backend, threads=threads).infer(inputs)
    assert answer.keys() == expected.keys()
    for name, array in expected.items():
        assert answer[name].dtype == array.dtype
        np.testing.assert_allclose(answer[name], array, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("backend", REAL)
@pytest.mark.parametrize("ir_version", [3, 4, 10])
def test_build_model_that_lists_equal_constants_as_inputs_needs_no_values_for_them(
    tmp_path: Path, backend: str, ir_version: int
) -> None:
    proto = models.equal_constants(ir_version)
    inputs = {"x": RANDOM.standard_normal((1, 4, 6)).astype(np.float32)}
    expected = reference(tmp_path, proto).infer(inputs)["y"]
    answer = engine(tmp_path, proto, backend).infer(inputs)["y"]
    np.testing.assert_allclose(answer, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("is_external", [False, True])
@pytest.mark.parametrize("ir_version", [3, 4, 10])
def test_build_model_that_lists_its_initializers_as_inputs_folds_them(
    tmp_path: Path, ir_version: int, is_external: bool
) -> None:
    proto, path, out = models.listed_initializers(ir_version), tmp_path / "model.onnx", tmp_path / "engine"
    signature, inputs = models.signature(proto), {"x": RANDOM.standard_normal((1, 4)).astype(np.float32)}
    onnx.save(proto, path, save_as_external_data=is_external, location="w.bin", size_threshold=0)
    wanted = Order(str(path), signature, Recipe("onnxruntime"), external=("w.bin",) if is_external else ())
    built, _ = build(wanted, out)
    made = onnx.load(out / "model.onnx", load_external_data=False).graph
    assert [value.name for value in made.input] == ["x"]
    assert not {"w", "v"} & {name for node in made.node for name in node.input}
    for file in tmp_path.glob("*.*"):  # an engine does not need the model's files
        file.unlink()
    answer = opened(built).infer(inputs)["y"]
    np.testing.assert_allclose(answer, np.tile(inputs["x"].sum() * 6, (1, 5)), rtol=1e-4)


def test_build_optimises_the_graph(tmp_path: Path) -> None:
    built, _ = build(order(tmp_path, models.conv(), "onnxruntime"), tmp_path / "engine")
    assert built.artefact is not None
    assert built.artefact.load("model.onnx") != Path(built.model).read_bytes()


@pytest.mark.parametrize("datatype", models.ONNX_TYPES)
@pytest.mark.parametrize("shape", [[5], ["n"]])
def test_infer_onnx_runtime_keeps_the_bits_of_every_datatype(
    tmp_path: Path, datatype: str, shape: list[int | str]
) -> None:
    proto = models.identity(datatype, shape)
    array = values(models.signature(proto).inputs[0])
    for session in (reference(tmp_path, proto), *(engine(tmp_path, proto, name) for name in ("onnxruntime", BOUND))):
        answer = session.infer({"x": array})["y"]
        assert answer.dtype == array.dtype
        assert answer.tolist() == array.tolist() if datatype == "BYTES" else answer.tobytes() == array.tobytes()


@pytest.mark.parametrize("datatype", EXACT_ON_OPENVINO)
def test_infer_openvino_keeps_the_bits_of_datatypes_that_it_supports(tmp_path: Path, datatype: str) -> None:
    proto = models.identity(datatype, [7])
    array = values(models.signature(proto).inputs[0])
    answer = engine(tmp_path, proto, "openvino").infer({"x": array})["y"]
    assert answer.dtype == array.dtype
    assert answer.tobytes() == array.tobytes()


@pytest.mark.parametrize("datatype", sorted(set(models.ONNX_TYPES) - set(EXACT_ON_OPENVINO)))
def test_build_openvino_datatype_that_it_would_narrow_is_unusable(tmp_path: Path, datatype: str) -> None:
    with pytest.raises(EngineUnusable, match=datatype):
        build(order(tmp_path, models.identity(datatype), "openvino"), tmp_path / "engine")
    assert list((tmp_path / "engine").iterdir()) == []


@pytest.mark.parametrize("backend", SESSIONS)
@pytest.mark.parametrize(("declared", "given"), [((), ()), ((0, 4), (0, 4)), (("n", 4), (0, 4)), (("n", 4), (3, 4))])
def test_infer_scalars_and_empty_tensors_keep_their_shape(
    tmp_path: Path, backend: str, declared: tuple[int | str, ...], given: tuple[int, ...]
) -> None:
    session = engine(tmp_path, models.identity(shape=declared), backend)
    array = np.full(given, 2.5, np.float32)
    answer = session.infer({"x": array})["y"]
    assert answer.shape == given
    assert answer.tobytes() == array.tobytes()


@pytest.mark.parametrize("backend", SESSIONS)
def test_infer_control_flow_follows_its_inputs_in_every_run(tmp_path: Path, backend: str) -> None:
    branches, loop = engine(tmp_path / "a", models.branches(), backend), engine(tmp_path / "b", models.loop(), backend)
    for times in (3, 0, 1, 0, 0, 2):
        x = RANDOM.standard_normal(2).astype(np.float32)
        answer = branches.infer({"up": np.array(times > 0), "x": x})["y"]
        np.testing.assert_array_equal(answer, x + 1 if times > 0 else x * 10)
        answer = loop.infer({"times": np.array(times, np.int32), "x": x})["y"]
        np.testing.assert_array_equal(answer, x * 2**times)


@pytest.mark.parametrize("backend", SESSIONS)
def test_infer_returns_the_chosen_outputs_in_order(tmp_path: Path, backend: str) -> None:
    session = engine(tmp_path, models.several(), backend)
    a, b = np.float32([[1, 2, 3]]), np.float32([[10, 20, 30]])
    assert list(session.infer({"a": a, "b": b})) == ["sum", "diff", "prod"]
    answer = session.infer({"b": b, "a": a}, ["prod", "diff"])
    assert list(answer) == ["prod", "diff"]
    np.testing.assert_array_equal(answer["diff"], a - b)
    np.testing.assert_array_equal(answer["prod"], a * b)


@pytest.mark.parametrize("backend", [*SESSIONS, "null"])
def test_infer_answer_stays_while_the_next_one_is_computed(tmp_path: Path, backend: str) -> None:
    session = engine(tmp_path, models.identity(shape=[1, 1000]), backend)
    x = np.ones((1, 1000), np.float32)
    first = session.infer({"x": x})["y"]
    copy = first.copy()
    x[:] = 7
    for _ in range(3):
        session.infer({"x": x})
    np.testing.assert_array_equal(first, copy)


@pytest.mark.parametrize("backend", SESSIONS)
def test_infer_accepts_read_only_inputs(tmp_path: Path, backend: str) -> None:
    session = engine(tmp_path, models.several(), backend)
    data = np.float32([[1, 2, 3]]).tobytes()
    inputs = {name: np.frombuffer(data, np.float32).reshape(1, 3) for name in "ab"}
    np.testing.assert_array_equal(session.infer(inputs)["sum"], [[2, 4, 6]])
    assert inputs["a"].tobytes() == data


@pytest.mark.parametrize("backend", ["onnxruntime", "openvino"])
@pytest.mark.parametrize("columns", [3, 5000])
def test_build_external_weights_are_part_of_the_engine(tmp_path: Path, backend: str, columns: int) -> None:
    proto = models.matmul(columns=columns, seed=1)
    path = models.external(tmp_path / "first", seed=1, columns=columns)
    wanted = Order(str(path), models.signature(proto), Recipe(backend), external=("weights.bin",))
    built, _ = build(wanted, tmp_path / "out")
    x = np.float32([[1, 2, 3, 4]])
    expected = reference(tmp_path, proto).infer({"x": x})["y"]
    (path.parent / "weights.bin").write_bytes(bytes(16 * columns))  # the engine must not read this file again
    np.testing.assert_allclose(opened(built).infer({"x": x})["y"], expected, rtol=1e-4)


@pytest.mark.parametrize("backend", [*REAL, "null"])
@pytest.mark.parametrize("damage", ["cut", "flipped", "gone"])
def test_open_altered_file_is_damaged(tmp_path: Path, backend: str, damage: str) -> None:
    built, _ = build(order(tmp_path, models.conv(), backend), tmp_path / "engine")
    blob = tmp_path / "engine" / BLOBS[backend]
    data = bytearray(blob.read_bytes())
    data[len(data) // 2] ^= 1
    if damage == "gone":
        blob.unlink()
    else:
        blob.write_bytes(data if damage == "flipped" else data[: len(data) // 2])
    with pytest.raises(EngineDamaged):
        opened(built)


@pytest.mark.parametrize("backend", REAL)
def test_open_without_files_is_unusable(tmp_path: Path, backend: str) -> None:
    with pytest.raises(EngineUnusable, match="not been built"):
        opened(order(tmp_path, models.conv(), backend))


def _garbage() -> bytes:
    return b"\x08\x0agarbage" * 20


def _unknown() -> bytes:
    graph = "(float[1] x) => (float[1] y) { y = nowhere.NoSuchOperator(x) }"
    return models.parse(graph, domains={"nowhere": 1}).SerializeToString()


def _future() -> bytes:
    return models.identity(ir_version=999).SerializeToString()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        *((name, content) for name in REAL for content in (_garbage(), _unknown(), None)),
        ("onnxruntime", _future()),
    ],
    ids=[*(f"{name}-{what}" for name in REAL for what in ("garbage", "unknown operator", "no file")), "future format"],
)
def test_check_and_build_refused_model_is_unusable_in_one_line(
    tmp_path: Path, name: str, content: bytes | None
) -> None:
    backend, path = registry.load(name), tmp_path / "model.onnx"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(EngineUnusable) as raised:
        backend.check(path)
    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) < 500
    with pytest.raises(EngineUnusable):
        build(Order(str(path), models.signature(models.identity()), Recipe(name)), tmp_path / "out")


@pytest.mark.parametrize("backend", REAL)
def test_check_valid_model_passes(tmp_path: Path, backend: str) -> None:
    registry.load(backend).check(models.save(models.conv(), tmp_path / "model.onnx"))


@pytest.mark.parametrize(
    ("backend", "proto", "wrong", "right", "answer"),
    [
        (
            "onnxruntime",
            models.gather(),
            {"index": np.array([0, 1, 99])},
            {"index": np.array([0, 1, 2])},
            [[0, 1], [2, 3], [4, 5]],
        ),
        (
            "openvino",
            models.several(),
            {"a": np.ones((1, 7), np.float32), "b": np.ones((1, 3), np.float32)},
            {"a": np.ones((1, 3), np.float32), "b": np.ones((1, 3), np.float32)},
            [[2, 2, 2]],
        ),
    ],
    ids=["index out of range", "another shape"],
)
def test_infer_after_a_failed_inference_answers_correctly(
    tmp_path: Path,
    backend: str,
    proto: onnx.ModelProto,
    wrong: dict[str, Array],
    right: dict[str, Array],
    answer: list[list[float]],
) -> None:
    session = engine(tmp_path, proto, backend)
    with pytest.raises(EngineUnusable) as raised:
        session.infer(wrong)
    assert "\n" not in str(raised.value)
    assert next(iter(session.infer(right).values())).tolist() == answer


NOT_UTF8 = {
    "one": [b"\xff\xd8\xff\xe0\0JFIF\0\0"],
    "equal lengths": [b"\xff\0", b"\0\0", b"ok"],
    "different lengths": [b"\xff\xfe", b"", b"longer \x80", "ö".encode()],
}


@pytest.mark.parametrize("elements", NOT_UTF8.values(), ids=NOT_UTF8)
def test_infer_bytes_that_are_not_utf8_reach_the_model_unchanged(tmp_path: Path, elements: list[bytes]) -> None:
    session = engine(tmp_path, models.equals_text(elements), "onnxruntime")
    assert session.infer({"x": np.array(elements, np.object_)})["y"].all()
    for place, element in enumerate(elements):
        others = [*elements[:place], element[:-1] + b"\x81", *elements[place + 1 :]]
        expected = [one == other for one, other in zip(elements, others, strict=True)]
        assert session.infer({"x": np.array(others, np.object_)})["y"].tolist() == expected


@pytest.mark.parametrize(
    "elements", [[b"\xff\0\xff", b"a"], [b"\xff" * 1000, *[b""] * 100_000]], ids=["zero bytes", "too large"]
)
def test_infer_bytes_that_the_runtime_cannot_represent_are_refused(tmp_path: Path, elements: list[bytes]) -> None:
    session = engine(tmp_path, models.text(), "onnxruntime")
    with pytest.raises(InvalidInput, match="'x'"):
        session.infer({"x": np.array(elements, np.object_)})


def test_infer_output_that_is_not_utf8_is_refused_by_name(tmp_path: Path) -> None:
    session = engine(tmp_path, models.text(), "onnxruntime")
    with pytest.raises(InvalidInput, match="'y'"):
        session.infer({"x": np.array([b"fine", b"\xff\xfe"], np.object_)})
    assert session.infer({"x": np.array([b"fine"], np.object_)})["y"].tolist() == [b"fine"]


def test_infer_strings_of_any_rank_are_answered(tmp_path: Path) -> None:
    session = engine(tmp_path, models.identity("BYTES", ["n", "m"]), "onnxruntime")
    array = np.array([[b"a", "ö".encode()], [b"", b"long" * 100]], np.object_)
    assert session.infer({"x": array})["y"].tolist() == array.tolist()
    assert session.infer({"x": np.empty((0, 2), np.object_)})["y"].shape == (0, 2)


# -- the null backend -----------------------------------------------------------------------------------------------


def test_null_answers_the_mean_of_all_bytes_in_declared_shapes() -> None:
    signature = Signature(
        (TensorSpec("a", "UINT8", (4,)), TensorSpec("b", "FP32", ("n",))),
        tuple(TensorSpec(name, name, ("n", 2)) for name in models.ONNX_TYPES),
    )
    session = opened(Order("", signature, Recipe("null")))
    answer = session.infer({"a": np.array([2, 4, 6, 8], np.uint8), "b": np.zeros(0, np.float32)})
    for name in models.ONNX_TYPES:
        assert answer[name].shape == (1, 2)
        assert answer[name].dtype == numpy_dtype(name)
    assert answer["FP32"].tolist() == [[5.0, 5.0]]
    assert answer["INT64"].tolist() == [[0, 0]]
    assert answer["BYTES"].tolist() == [[b"", b""]]
    assert list(session.infer({"a": np.zeros(4, np.uint8)}, ["INT64", "FP32"])) == ["INT64", "FP32"]


def test_null_check_of_a_folder_is_unusable(tmp_path: Path) -> None:
    with pytest.raises(EngineUnusable):
        registry.load("null").check(tmp_path)


# -- the registry ---------------------------------------------------------------------------------------------------


def test_load_unknown_backend_names_the_known_ones() -> None:
    with pytest.raises(Unsupported, match="onnxruntime, openvino, tensorrt, tensorrt_rtx, null"):
        registry.load("tensorflow")


def test_installed_backends_follow_the_facts() -> None:
    assert registry.usable({}) == ()
    assert registry.usable({"runtime.openvino": "1"}) == ("openvino",)
    everything = {f"runtime.{name}": "1" for name in registry.NAMES}
    assert registry.usable(everything) == ("onnxruntime", "openvino")


def test_one_line_shortens_long_text() -> None:
    assert one_line(RuntimeError("a\n  b\tc ")) == "a b c"
    assert len(one_line(RuntimeError("x" * 5000))) == 400


@pytest.mark.parametrize(
    ("loaded", "expected", "agrees"),
    [
        ("10.3.0.30", "10.3.0.30", True),
        ("10.3.0.30", "10.3.0", True),
        ("10.3.0", "10.3.0.30", True),
        ("10.3.0.30", "10.3.0.31", False),
        ("10.3.0.30", "10.30", False),
        ("2026.4.1", "2026.3.1", False),
    ],
)
def test_agree_compares_the_common_part_of_versions(loaded: str, expected: str, agrees: bool) -> None:
    assert registry.agree(loaded, expected) is agrees
