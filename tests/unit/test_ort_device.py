"""Engines of ONNX Runtime on another device than the CPU, without such a device: a fake reports the placement of nodes,
and real sessions on the CPU stand for those of a GPU."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import onnx
import onnxruntime as ort
import pytest

from edged.backends.artefact import Artefact
from edged.backends.contract import Composition, Order, Recipe
from edged.backends.ort import cuda, device, placement, runtime
from edged.backends.ort.placement import PlacedNode, Placement
from edged.backends.ort.runtime import CPU_PROVIDER, CpuForbidden, Provider, create
from edged.backends.ort.session import DeviceSession
from edged.errors import EngineDamaged, EngineUnusable, Unsuitable
from tests import models
from tests.engines import build, opened, order

GPU = Provider(cuda.PROVIDER, {}, "cuda:0")
RECIPE = Recipe("onnxruntime", device="cuda:0")


def shapes() -> onnx.ModelProto:
    """Return a model with a ReLU, and a Reshape to a computed shape."""
    return models.parse(
        """(float[n,3,4] x) => (float[n,12] y) <int64[1] zero = {0}, int64[1] rest = {-1}> {
            r = Relu(x)
            s = Shape(r)
            n = Gather(s, zero)
            to = Concat<axis = 0>(n, rest)
            y = Reshape(r, to)
        }"""
    )


class Gpu:
    """A fake provider that leaves the operators in `lacks` to the CPU."""

    def __init__(self, *lacks: str) -> None:
        self.lacks = set(lacks)
        self.can_save, self.forbids = True, False
        self.forbade = list[bool]()

    def made(
        self, options: ort.SessionOptions, make: Callable[[ort.SessionOptions], ort.InferenceSession], **more: object
    ) -> tuple[ort.InferenceSession, Placement]:
        session, placed = self.really(options, make)
        return session, tuple(
            msgspec.structs.replace(n, provider=CPU_PROVIDER if n.operator in self.lacks else GPU.name) for n in placed
        )

    def create(self, source: str | bytes, options: ort.SessionOptions, where: Provider) -> ort.InferenceSession:
        forbidden, self.forbids = self.forbids, False
        self.forbade.append(forbidden)
        if options.optimized_model_filepath and not self.can_save:
            raise EngineUnusable("it contains compiled nodes")
        session, placed = self.really(options, lambda ready: create(source, ready))
        if forbidden and any(n.operator in self.lacks for n in placed):
            raise CpuForbidden("some of the model's nodes would run on the CPU instead of cuda:0")
        return session

    def forbid_cpu(self, options: ort.SessionOptions) -> None:
        self.forbids = True

    really = staticmethod(placement.made)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    if not placement._KEPT:
        pytest.skip("this ONNX Runtime does not name nodes")
    made = Gpu()
    monkeypatch.setattr(placement, "made", made.made)
    monkeypatch.setattr(device, "create", made.create)
    monkeypatch.setattr(runtime, "forbid_cpu", made.forbid_cpu)
    return made


def _bound(session: object) -> DeviceSession:
    assert isinstance(session, DeviceSession)
    session._kind = "cpu"
    return session


def made_of(folder: Path, proto: onnx.ModelProto) -> tuple[Order, Composition]:
    """Build an engine for the GPU. Return the order that opens it, and its composition."""
    return build(order(folder, proto, "onnxruntime", device="cuda:0"), folder / "out")


# -- building -------------------------------------------------------------------------------------------------------


def test_build_model_that_runs_wholly_on_the_device_forbids_the_cpu(tmp_path: Path, gpu: Gpu) -> None:
    sealed, made = made_of(tmp_path, models.conv())
    assert made.nodes == {GPU.name: {"Conv": 1, "GlobalAveragePool": 1, "Relu": 1}}
    assert made.layers == {"fp32": 1}
    assert made.fallback == made.notes == ()
    assert json.loads((tmp_path / "out" / "placement.json").read_text()) == {
        "provider": GPU.name,
        "is_whole": True,
        "on_cpu": {},
    }
    opened(sealed).close()
    assert gpu.forbade == [True, True]


def test_build_reports_operators_on_the_cpu_except_shape_computations(tmp_path: Path, gpu: Gpu) -> None:
    gpu.lacks = {"Relu", "Shape", "Gather", "Concat"}
    _, made = made_of(tmp_path, shapes())
    assert made.nodes == {
        CPU_PROVIDER: {"Concat": 1, "Gather": 1, "Relu": 1, "Shape": 1},
        GPU.name: {"Reshape": 1},
    }
    assert made.fallback == ("1 Relu run on the CPU (1 of 5 nodes)",)
    assert made.notes == ("nodes on the CPU because they only compute shapes: 1 Concat, 1 Gather, 1 Shape",)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["model.onnx", "placement.json"]


@pytest.mark.parametrize("can_save", [True, False])
def test_build_with_only_shape_computations_on_the_cpu_has_no_fallback(
    tmp_path: Path, gpu: Gpu, can_save: bool
) -> None:
    gpu.lacks, gpu.can_save = {"Gather", "Concat"}, can_save
    _, made = made_of(tmp_path, shapes())
    assert made.fallback == ()
    assert len(made.notes) == 1


def test_build_model_without_nodes_on_the_device_is_unsuitable(tmp_path: Path, gpu: Gpu) -> None:
    gpu.lacks = {"Add", "Sub", "Mul"}
    with pytest.raises(Unsuitable, match=r"^none of the model's operators runs on cuda:0; use the CPU$"):
        made_of(tmp_path, models.several())


def test_build_engine_with_external_weights_needs_no_file_of_the_model(tmp_path: Path, gpu: Gpu) -> None:
    path = models.external(tmp_path / "model", columns=5000)
    signature = models.signature(models.matmul(columns=5000))
    sealed, _ = build(Order(str(path), signature, RECIPE, external=("weights.bin",)), tmp_path / "out")
    x = np.float32([[1, 2, 3, 4]])
    expected = x @ np.frombuffer((path.parent / "weights.bin").read_bytes(), np.float32).reshape(4, 5000)
    for file in path.parent.iterdir():
        file.unlink()
    # The CPU's memory stands for the device's.
    session = _bound(opened(sealed))
    np.testing.assert_allclose(session.infer({"x": x})["y"], expected, rtol=1e-5)


# -- opening --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("built_without", "opened_without", "problem"),
    [
        ((), ("Mul", "Sub"), r"^1 Mul, 1 Sub ran on cuda:0 when this engine was built but would run on"),
        (("Sub",), ("Sub", "Mul"), r"^1 Mul ran on cuda:0"),
        (("Sub",), ("Sub",), ""),
        (("Sub",), (), ""),
    ],
)
def test_open_engine_with_more_nodes_on_the_cpu_is_unusable(
    tmp_path: Path, gpu: Gpu, built_without: tuple[str, ...], opened_without: tuple[str, ...], problem: str
) -> None:
    gpu.lacks = set(built_without)
    sealed, _ = made_of(tmp_path, models.several())
    gpu.lacks = set(opened_without)
    with pytest.raises(EngineUnusable, match=problem) if problem else contextlib.nullcontext():
        opened(sealed).close()


@pytest.mark.parametrize("content", [b"", b"{}", b'{"provider":1,"is_whole":true,"on_cpu":{}}'])
def test_open_engine_with_an_invalid_placement_is_damaged(tmp_path: Path, gpu: Gpu, content: bytes) -> None:
    sealed, _ = made_of(tmp_path, models.several())
    (tmp_path / "out" / "placement.json").write_bytes(content)
    with pytest.raises(EngineDamaged, match=r"placement\.json"):
        opened(sealed)  # its digest differs
    with pytest.raises(EngineDamaged, match=r"placement\.json"):
        opened(msgspec.structs.replace(sealed, artefact=Artefact.seal(tmp_path / "out")))


def test_open_engine_with_altered_weights_is_damaged(tmp_path: Path, gpu: Gpu) -> None:
    path = models.external(tmp_path / "model", columns=5000)
    signature = models.signature(models.matmul(columns=5000))
    sealed, _ = build(Order(str(path), signature, RECIPE, external=("weights.bin",)), tmp_path / "out")
    weights = tmp_path / "out" / "model.onnx.data"
    weights.write_bytes(bytes(weights.stat().st_size))
    with pytest.raises(EngineDamaged, match="altered"):
        opened(sealed)


def test_build_with_an_older_runtime_that_names_no_nodes_counts_those_of_the_graph(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def made(
        options: ort.SessionOptions, make: Callable[[ort.SessionOptions], ort.InferenceSession], **more: object
    ) -> tuple[ort.InferenceSession, Placement]:
        return make(options), (PlacedNode(GPU.name),) * 3

    monkeypatch.setattr(placement, "made", made)
    monkeypatch.setattr(device, "create", lambda source, options, where: None)
    _, composition = made_of(tmp_path, models.conv())
    assert composition.nodes == {GPU.name: {"Conv": 1, "GlobalAveragePool": 1, "Relu": 1}}
