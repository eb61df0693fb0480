"""User tensors: reading, golden answers, and admission of models that accept only certain values."""

from __future__ import annotations

import io
import random
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import numpy as np
import onnx
import pytest

from edged.backends.contract import Signature
from edged.config.child_limits import Limits
from edged.engines.admission import Admission, Proven, admit, examine, prove
from edged.engines.builder import Builder
from edged.errors import EngineUnusable, InvalidInput, ModelRefused, Superseded
from edged.models.entries import plain_entry
from edged.models.finding import Category, Finding
from edged.models.model import Model
from edged.models.samples import by_content, content
from edged.store.store import Store
from edged.tensors import Array, TensorSpec
from edged.verification import golden, user_samples
from edged.verification.probes import GIVEN
from edged.vision.family import Recognition, Thresholds
from tests import models
from tests.waiting import run

TENSORS = Recognition(None, "", None, "", (), Thresholds())  # a model without picture input
SIGNATURE = Signature((TensorSpec("a", "FP32", ("n", 2)), TensorSpec("b.0", "BYTES", ("n",))), ())


def choosy(*values: int) -> onnx.ModelProto:
    """Return a model that accepts these numbers and no others."""
    numbers = ", ".join(map(str, values))
    node = f"y = ai.onnx.ml.OneHotEncoder<cats_int64s = [{numbers}], zeros = 0>(x)"
    return models.parse(f"(int64[n] x) => (float[] y) {{ {node} }}", domains={"ai.onnx.ml": 3})


def npz(path: Path, **arrays: object) -> Path:
    np.savez_compressed(path, **{name.replace("__", "."): np.asarray(value) for name, value in arrays.items()})
    return path


A, B = np.arange(6, dtype=np.float32).reshape(3, 2), np.array(["eins", "zwölf", ""])


# -- reading --------------------------------------------------------------------------------------------------------


def test_read_tensors_converts_arrays_for_sessions(tmp_path: Path) -> None:
    probe = user_samples.read_tensors(
        npz(tmp_path / "ask.npz", a=np.asfortranarray(A).astype(">f4"), b__0=B), SIGNATURE
    )
    assert (probe.kind, probe.name, probe.placement) == (GIVEN, "ask.npz", None)
    a, b = probe.inputs["a"], probe.inputs["b.0"]
    assert a.dtype == np.float32
    assert a.flags.c_contiguous
    assert a.flags.writeable
    np.testing.assert_array_equal(a, A)
    assert b.tolist() == [b"eins", "zwölf".encode(), b""]
    again = user_samples.read_tensors(npz(tmp_path / "ask.npz", a=A, b__0=np.array([b"x", b"yz", b""])), SIGNATURE)
    assert again.inputs["b.0"].tolist() == [b"x", b"yz", b""]


WRONG: dict[str, tuple[dict[str, object], str]] = {
    "an input is missing": ({"a": A}, "the file has no array 'b.0'"),
    "no input": ({"a": A, "b__0": B, "c": A}, "'c' is not an input of the model, whose inputs are 'a', 'b.0'"),
    "another type": (
        {"a": A.astype(np.float64), "b__0": B},
        r"'a' has dtype float64, but the model takes FP32: astype\('float32'\)",
    ),
    "another shape": ({"a": A.T, "b__0": B}, r"'a' has shape \[2, 3\], but the model takes \[-1, 2\]"),
    "numbers for texts": ({"a": A, "b__0": np.arange(3)}, r"the model takes strings: astype\('S'\)"),
    "objects": ({"a": A, "b__0": np.array(["x", 1, None], object)}, r"the model takes strings: astype\('S'\)"),
}


@pytest.mark.parametrize(("arrays", "words"), WRONG.values(), ids=WRONG)
def test_read_tensors_that_do_not_fit_are_refused_in_one_line(
    tmp_path: Path, arrays: dict[str, object], words: str
) -> None:
    with pytest.raises(InvalidInput, match=rf"^sample ask\.npz cannot be used: .*{words}") as raised:
        user_samples.read_tensors(npz(tmp_path / "ask.npz", **arrays), SIGNATURE)
    assert "\n" not in str(raised.value)


def archive(path: Path, **members: bytes) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, data in members.items():
            file.writestr(f"{name}.npy", data)
    return path


def test_read_tensors_too_large_is_refused_before_it_is_unpacked(tmp_path: Path) -> None:
    bomb = archive(tmp_path / "bomb.npz", a=bytes(65 << 20))
    assert bomb.stat().st_size < 1 << 20
    with pytest.raises(InvalidInput, match="take more than 64 MiB"):
        user_samples.read_tensors(bomb, SIGNATURE)
    lie = io.BytesIO()
    header = {"descr": "<f4", "fortran_order": False, "shape": (1 << 50, 2)}
    np.lib.format.write_array_header_1_0(lie, header)
    with pytest.raises(InvalidInput, match="'a'"):
        user_samples.read_tensors(archive(tmp_path / "lie.npz", a=lie.getvalue(), b__0=b""), one_input())


@pytest.mark.parametrize("words", [b"(" * 5000, b"-" * 5000, b"1+" * 2000 + b"1", b"{[]: 1}", b"\0", b""])
def test_read_tensors_damaged_header_is_refused(tmp_path: Path, words: bytes) -> None:
    member = b"\x93NUMPY\x01\x00" + len(words).to_bytes(2, "little") + words
    with pytest.raises(InvalidInput, match="'a'"):
        user_samples.read_tensors(archive(tmp_path / "odd.npz", a=member, b__0=b""), one_input())


def one_input() -> Signature:
    return Signature((SIGNATURE.inputs[0], TensorSpec("b__0", "FP32", ())), ())


def test_read_tensors_damaged_file_is_read_or_refused(tmp_path: Path) -> None:
    whole = npz(tmp_path / "ask.npz", a=A, b__0=B).read_bytes()
    chance = random.Random(7)
    outcomes: set[str] = set()
    for _ in range(400):
        spoiled = bytearray(whole[: chance.choice([len(whole), len(whole), chance.randrange(len(whole))])])
        for _ in range(chance.randrange(1, 4)):
            if spoiled:
                spoiled[chance.randrange(len(spoiled))] = chance.randrange(256)
        (tmp_path / "ask.npz").write_bytes(spoiled)
        try:
            user_samples.read_tensors(tmp_path / "ask.npz", SIGNATURE)
            outcomes.add("read")
        except InvalidInput as error:
            outcomes.add(str(error)[:30])
    assert "sample ask.npz cannot be used:"[:30] in outcomes
    assert outcomes <= {"read", "sample ask.npz cannot be used:"}


def test_read_tensors_replaced_file_is_superseded(tmp_path: Path) -> None:
    path = npz(tmp_path / "ask.npz", a=A, b__0=B)
    assert user_samples.read_tensors(path, SIGNATURE, content(str(path))).name == "ask.npz"
    with pytest.raises(Superseded, match="was changed"):
        user_samples.read_tensors(path, SIGNATURE, "0" * 64)
    path.unlink()
    with pytest.raises(Superseded, match="can no longer be read"):
        user_samples.read_tensors(path, SIGNATURE, "0" * 64)
    with pytest.raises(InvalidInput, match="cannot be read"):
        user_samples.read_tensors(path, SIGNATURE)


def test_by_content_skips_unreadable_files_and_calibration_uses_pictures_only(tmp_path: Path) -> None:
    picture, tensors = tmp_path / "a.jpg", npz(tmp_path / "ask.npz", a=A)
    picture.write_bytes(b"any")
    both = [str(picture), str(tensors), str(tmp_path / "gone.npz")]
    assert list(user_samples.calibration_pictures(both).values()) == [str(picture)]
    assert by_content(both) == {content(path): path for path in both[:2]}


# -- golden answers -------------------------------------------------------------------------------------------------


class Choosy:
    """A session that answers only if every value is one of those given."""

    def __init__(self, *values: int) -> None:
        self._values = values

    def infer(self, inputs: Mapping[str, Array], outputs: Sequence[str] | None = None) -> dict[str, Array]:
        if not np.isin(inputs["x"], self._values).all():
            raise EngineUnusable("Unknown Category and zeros = 0.")
        return {"y": inputs["x"] + 1}

    def close(self) -> None:
        pass


NUMBERS = Signature((TensorSpec("x", "INT64", (16,)),), ())


@pytest.mark.parametrize(("value", "kind"), [(0, "zeros"), (1, "ones")])
def test_make_uses_constants_if_nothing_else_is_answered(value: int, kind: str) -> None:
    (sample,) = golden.make(Choosy(value), NUMBERS, TENSORS).samples
    assert sample.kind == kind
    assert set(sample.inputs["x"].tolist()) == {value}


def test_make_uses_user_samples_and_they_decide(tmp_path: Path) -> None:
    path = npz(tmp_path / "ask.npz", x=[40, 70] * 8)
    made = golden.make(Choosy(40, 70), NUMBERS, TENSORS, [str(path)])
    (sample,) = made.samples
    assert (sample.kind, sample.name, made.skipped) == (GIVEN, "ask.npz", ())
    assert sample.outputs["y"].tolist() == [41, 71] * 8
    many = golden.make(Choosy(*range(256)), NUMBERS, TENSORS, [str(path)]).samples
    assert [each.kind for each in golden.deciding(many, "fp16")] == [GIVEN]


def test_make_refused_sample_is_skipped(tmp_path: Path) -> None:
    path = npz(tmp_path / "ask.npz", x=[40, 70] * 8)
    (reason,) = golden.make(Choosy(0, 1), NUMBERS, TENSORS, [str(path)]).skipped
    assert reason.startswith("sample ask.npz is left out, because the reference does not answer it: Unknown Category")
    with pytest.raises(EngineUnusable, match="Unknown Category"):
        golden.make(Choosy(2), NUMBERS, TENSORS, [str(path)])


# -- admission, with real children ----------------------------------------------------------------------------------


def builder_in(cache: Path) -> Builder:
    return Builder(Store(cache), cache, Limits(seconds=60))


def admitted(tmp_path: Path, proto: onnx.ModelProto, *samples: Path) -> Admission:
    path = models.save(proto, tmp_path / "model.onnx")
    return run(admit(builder_in(tmp_path / "cache"), path, {}, ["onnxruntime"], samples), 200)


def test_admit_model_that_accepts_odd_values_only_needs_samples(tmp_path: Path) -> None:
    assert admitted(tmp_path, choosy(1, 50, 70)).finding is None
    with pytest.raises(ModelRefused) as raised:
        admitted(tmp_path, choosy(50, 70))
    finding = Finding.of(raised.value)
    assert finding is not None
    assert finding.category is Category.FAILED
    assert "--samples INPUTS.npz" in finding.remedy
    assert admitted(tmp_path, choosy(50, 70), npz(tmp_path / "ask.npz", x=[50, 70])).warnings == ()


@pytest.mark.long
def test_admit_sample_that_is_not_answered_is_a_warning_or_the_reason(
    tmp_path: Path,
) -> None:
    sample = npz(tmp_path / "ask.npz", x=[3])
    (warning,) = admitted(tmp_path, choosy(0, 1), sample).warnings
    assert (warning.category, warning.message.partition(": ")[0]) == (
        Category.FAILED,
        "the model does not answer sample ask.npz",
    )
    with pytest.raises(ModelRefused, match=r"answers none of its test inputs \(golden inputs\): "):
        admitted(tmp_path, choosy(50, 70), sample)
    floats = npz(tmp_path / "ask.npz", x=[50.0])
    with pytest.raises(ModelRefused, match=r"sample ask\.npz cannot be used: array 'x' has dtype float64"):
        admitted(tmp_path, choosy(50, 70), floats)
    with pytest.raises(InvalidInput, match="'x'"):
        admitted(tmp_path, choosy(0, 1), floats)


def test_prove_with_changed_samples_is_repeated(tmp_path: Path) -> None:
    path, sample = models.save(choosy(50, 70), tmp_path / "model.onnx"), tmp_path / "ask.npz"
    builder = builder_in(tmp_path / "cache")
    inspection = run(builder.inspect(path), 200)
    entry = msgspec.structs.replace(plain_entry("m", path, {}), samples=(str(npz(sample, x=[50])),))
    assert run(prove(builder, Model.of(entry, inspection)), 200) == Proven()
    npz(sample, x=[51, 52])
    with pytest.raises(ModelRefused):
        run(prove(builder, Model.of(entry, inspection)), 200)
    assert run(examine(builder, path, {}, ["onnxruntime"]), 200).finding is not None
