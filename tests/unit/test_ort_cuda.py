"""ONNX Runtime's CUDA provider, without a GPU: its options, and the meaning of its errors."""

from __future__ import annotations

from pathlib import Path

import onnxruntime as ort
import pytest

from edged.backends import cuda as cuda_driver
from edged.backends import registry
from edged.backends.contract import Order, Recipe
from edged.backends.ort import cuda, runtime
from edged.backends.ort.runtime import CPU_PROVIDER, Provider, create, session_options
from edged.errors import EngineUnusable, Unsuitable
from edged.jobs.tasks import load_graphs
from tests import models

GPU = Provider(cuda.PROVIDER, {}, "cuda:0")


@pytest.mark.parametrize(("precision", "tf32"), [("fp32", "0"), ("tf32", "1"), ("fp16", "0"), ("int8", "0")])
def test_provider_uses_tf32_only_if_requested(precision: str, tf32: str) -> None:
    where = runtime.provider(Recipe("onnxruntime", device="cuda:2", precision=precision))
    assert where.name == "CUDAExecutionProvider"
    assert where.options["device_id"] == "2"
    assert where.options["use_tf32"] == tf32
    assert where.options["arena_extend_strategy"] == "kSameAsRequested"


@pytest.mark.parametrize("name", ["intel-gpu:0", "cuda", "cuda:x", "tpu"])
def test_provider_for_an_unsupported_device_is_unsuitable(name: str) -> None:
    with pytest.raises(Unsuitable, match=name):
        runtime.provider(Recipe("onnxruntime", device=name))


@pytest.mark.skipif(cuda.PROVIDER in ort.get_available_providers(), reason="this ONNX Runtime has the CUDA provider")
def test_create_without_the_provider_does_not_fall_back_to_the_cpu(tmp_path: Path) -> None:
    proto = models.conv()
    path = models.save(proto, tmp_path / "model.onnx")
    wanted = Order(str(path), models.signature(proto), Recipe("onnxruntime", device="cuda:0"))
    (tmp_path / "out").mkdir()
    with pytest.raises(Unsuitable, match=r"^this onnxruntime cannot use cuda:0; install onnxruntime-gpu"):
        registry.load("onnxruntime").build(wanted, tmp_path / "out", lambda fraction: None, load_graphs)
    with pytest.raises(Unsuitable, match="install onnxruntime-gpu"):
        create(wanted.model, session_options("all", 1), runtime.provider(wanted.recipe))


@pytest.mark.parametrize(
    ("text", "kind", "expected"),
    [
        (
            "Failed to load library libonnxruntime_providers_cuda.so with error: libcudnn.so.9: cannot open shared"
            " object file: No such file or directory",
            Unsuitable,
            "ONNX Runtime cannot use cuda:0: libcudnn.so.9 is missing; install CUDA and cuDNN: ",
        ),
        (
            "with error: libcuda.so.1: cannot open shared object file: No such file or directory",
            Unsuitable,
            "ONNX Runtime cannot use cuda:0: libcuda.so.1 is missing; install the NVIDIA driver",
        ),
        (
            "x"
            * 500
            + "/src/cuda_call.cc:129 CUDA failure 35: CUDA driver version is insufficient for CUDA runtime version ;"
            " GPU=0 ; hostname=box ; expr=cudaSetDevice(0)",
            EngineUnusable,
            "cuda:0 cannot be used: CUDA driver version is insufficient for CUDA runtime version (CUDA error 35);"
            " install the NVIDIA driver, or update it",
        ),
        (
            "CUDA failure 700: an illegal memory access was encountered ; GPU=0",
            EngineUnusable,
            "cuda:0 cannot be used: an illegal memory access was encountered (CUDA error 700); see the kernel's log",
        ),
        (
            'Failed to parse provider option "device_id": Invalid device ID: 0, must be between 0 (inclusive) and 0',
            EngineUnusable,
            "CUDA does not see cuda:0; see `nvidia-smi`, and check whether CUDA_VISIBLE_DEVICES hides the GPU",
        ),
        ("Protobuf parsing failed.", EngineUnusable, "ONNX Runtime refuses the model on cuda:0: Protobuf parsing"),
    ],
)
def test_cuda_failure_is_one_line_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch, text: str, kind: type[EngineUnusable], expected: str
) -> None:
    monkeypatch.setattr(cuda, "missing_library", lambda: None)
    error = cuda.refusal("cuda:0", text)
    assert type(error) is kind
    assert str(error).startswith(expected)


def test_create_session_without_the_provider_names_the_missing_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Silent:
        """A session like that of ONNX Runtime if it could not load a provider."""

        def __init__(self, *args: object, **more: object) -> None: ...

        def get_providers(self) -> list[str]:
            return [CPU_PROVIDER]

    monkeypatch.setattr(cuda.ort, "get_available_providers", lambda: [cuda.PROVIDER, CPU_PROVIDER])
    monkeypatch.setattr(cuda, "_CUDNN", "libc.so.6")
    monkeypatch.setattr(cuda, "missing_library", lambda: "libcublasLt.so.13")
    monkeypatch.setattr(runtime.ort, "InferenceSession", Silent)
    with pytest.raises(Unsuitable, match=r"libcublasLt\.so\.13 is missing"):
        create("model.onnx", session_options("all", 1), GPU)
    monkeypatch.setattr(cuda, "missing_library", lambda: None)
    with pytest.raises(EngineUnusable, match="CUDAExecutionProvider was not loaded"):
        create("model.onnx", session_options("all", 1), GPU)


def test_create_without_cudnn_is_unsuitable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda.ort, "get_available_providers", lambda: [cuda.PROVIDER, CPU_PROVIDER])
    monkeypatch.setattr(cuda, "_CUDNN", "libcudnn.so.0")
    with pytest.raises(Unsuitable, match=r"libcudnn\.so"):
        create("model.onnx", session_options("all", 1), GPU)


def test_preload_prints_nothing(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(cuda.ort, "preload_dlls", lambda **more: print("Failed to load"), raising=False)
    cuda._preload.__wrapped__()
    assert capfd.readouterr().out == ""


def test_prepare_in_a_process_with_another_order_of_gpus_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ort, "get_available_providers", lambda: [cuda.PROVIDER])
    monkeypatch.setattr(cuda, "_not_loadable", lambda library: None)
    monkeypatch.setattr(cuda, "_preload", lambda: None)
    monkeypatch.setattr(cuda_driver, "pci_address", lambda number: "0000:81:00.0")
    monkeypatch.setattr(cuda_driver.nvidia, "addresses", lambda root: ["0000:01:00.0", "0000:81:00.0"])
    cuda.prepare("cuda:1")
    with pytest.raises(EngineUnusable, match=r"the GPU at 0000:81:00.0 is device 0 for CUDA, but cuda:1 for edged"):
        cuda.prepare("cuda:0")
