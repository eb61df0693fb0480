"""CUDA by cuda-bindings, and TensorRT's sessions, on a stand-in driver."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from edged.backends import cuda
from edged.errors import EngineUnusable, Unsupported
from tests.fake_cuda import runner


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return runner.compile_driver(tmp_path_factory.mktemp("driver"))


@pytest.mark.parametrize("checks", ["contract_checks.py", "session_checks.py"])
def test_device_and_tensorrt_sessions_on_the_stand_in_driver_pass_their_checks(driver: Path, checks: str) -> None:
    runner.run(checks, driver)


def test_older_driver_has_all_that_is_called(driver: Path) -> None:
    """The newest package asks the driver of JetPack 6 for functions that it does not have yet."""
    pytest.importorskip("cuda.bindings")
    program = (
        "from tests.fake_cuda.control import Control\n"
        "Control().configure(driver_version=12060)\n"
        "from edged.backends.cuda import open_device\n"
        "device = open_device()\n"
        "with device.current():\n"
        "    stream, event = device.stream(), device.event()\n"
        "    stream.record(event)\n"
        "    event.synchronize()\n"
        "    stream.capture(lambda: None).close()\n"
    )
    ended = runner.start([sys.executable, "-c", program], driver)
    assert ended.returncode == 0, ended.stderr


def test_import_of_cuda_imports_no_cuda_package() -> None:
    program = "import sys, edged.backends.cuda; sys.exit('cuda.bindings' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_open_device_without_cuda_bindings_is_unsupported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "edged.backends.cuda.driver", None)
    with pytest.raises(Unsupported, match="cuda-bindings"):
        cuda.open_device()


def test_missing_driver_is_one_line() -> None:
    """In a process of its own, without the stand-in; on a box that has a driver there is nothing to see."""
    pytest.importorskip("cuda.bindings")
    program = (
        "from edged.backends.cuda import open_device\n"
        "from edged.errors import EdgedError\n"
        "try: open_device()\n"
        "except EdgedError as error: print(type(error).__name__, error)\n"
        "else: print('a GPU')"
    )
    reported = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert reported.count("\n") == 1
    assert reported.startswith(("EngineUnusable cuInit", "a GPU"))


# -- numbers --------------------------------------------------------------------------------------------------------

TWO_CARDS = (
    "import os, sys\n"
    "from tests.fake_cuda.control import Control\n"
    "Control().configure(devices=2)\n"
    "from edged.device import nvidia\n"
    "nvidia.addresses = lambda root: ['0000:01:00.0', '0000:02:00.0']\n"
    "from edged.backends import cuda\n"
    "from edged.backends.cuda import open_device\n"
    "from edged.errors import EngineUnusable\n"
)
OPEN = (
    "for number in (0, 1):\n"
    "    try: print(open_device(number).properties.pci_address, cuda.pci_address(number))\n"
    "    except EngineUnusable as error: print(error)\n"
)


def tell(driver: Path, program: str, visible: str) -> list[str]:
    pytest.importorskip("cuda.bindings")
    ended = runner.start([sys.executable, "-c", TWO_CARDS + program], driver, {"CUDA_VISIBLE_DEVICES": visible})
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.splitlines()


@pytest.mark.parametrize("visible", ["1", "1,0", "0,1", "GPU-12ab"])
def test_device_number_is_independent_of_the_visible_devices(driver: Path, visible: str) -> None:
    assert tell(driver, OPEN, visible) == ["0000:01:00.0 0000:01:00.0", "0000:02:00.0 0000:02:00.0"]


@pytest.mark.parametrize("visible", ["", "-1", "MIG-1"])
def test_no_visible_gpu_is_refused(driver: Path, visible: str) -> None:
    assert tell(driver, OPEN, visible) == ["cuDeviceGet failed: CUDA_ERROR_INVALID_DEVICE"] * 2


def test_a_process_in_which_cuda_counts_otherwise_gets_no_other_gpu_instead(driver: Path) -> None:
    """The real driver reads the variable once, the stand-in always; so here edged is kept from changing it."""
    program = "from edged.device import nvidia\nnvidia.use_pci_order = lambda: None\n" + OPEN
    other = "CUDA's device 0 is the GPU at 0000:02:00.0, which is cuda:1; unset CUDA_VISIBLE_DEVICES"
    first, second = tell(driver, "os.environ['CUDA_DEVICE_ORDER'] = 'PCI_BUS_ID'\n" + program, "1")
    assert first.startswith(other)
    assert second == "cuDeviceGet failed: CUDA_ERROR_INVALID_DEVICE"
    first, second = tell(driver, program.replace("number in (0, 1)", "number in (0, 0)"), "1,0")
    assert first.startswith(other)


def test_a_gpu_that_the_facts_know_by_no_address_is_taken_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda.nvidia, "addresses", lambda root: [])
    cuda.require_number(0, "0000:00:00.0")
    monkeypatch.setattr(cuda.nvidia, "addresses", lambda root: ["0000:01:00.0", "0000:81:00.0"])
    cuda.require_number(1, "0000:81:00.0")
    with pytest.raises(EngineUnusable, match=r"device 0 is the GPU at 0000:81:00.0, which is cuda:1"):
        cuda.require_number(0, "0000:81:00.0")
