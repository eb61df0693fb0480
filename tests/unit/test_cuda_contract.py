"""CUDA through cuda-bindings, and sessions of TensorRT, on a fake driver."""

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
def test_contract_and_session_checks_on_the_fake_driver_pass(driver: Path, checks: str) -> None:
    runner.run(checks, driver)


def test_open_device_with_an_older_driver_works(driver: Path) -> None:
    """The newest cuda-bindings looks up functions that the driver of JetPack 6 does not have."""
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


def test_open_device_without_driver_is_refused_in_one_line() -> None:
    """Runs in a separate process, without the fake driver. On a box with a GPU the device opens."""
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
def test_open_device_without_visible_gpu_is_refused(driver: Path, visible: str) -> None:
    assert tell(driver, OPEN, visible) == ["cuDeviceGet failed: CUDA_ERROR_INVALID_DEVICE"] * 2


def test_open_device_in_a_process_with_another_order_is_refused(driver: Path) -> None:
    """The real driver reads the variable once, the fake one always. So edged must not change the variable here."""
    program = "from edged.device import nvidia\nnvidia.use_pci_order = lambda: None\n" + OPEN
    other = "the GPU at 0000:02:00.0 is device 0 for CUDA, but cuda:1 for edged; unset CUDA_VISIBLE_DEVICES"
    first, second = tell(driver, "os.environ['CUDA_DEVICE_ORDER'] = 'PCI_BUS_ID'\n" + program, "1")
    assert first.startswith(other)
    assert second == "cuDeviceGet failed: CUDA_ERROR_INVALID_DEVICE"
    first, second = tell(driver, program.replace("number in (0, 1)", "number in (0, 0)"), "1,0")
    assert first.startswith(other)


def test_require_number_of_a_gpu_without_known_address_is_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda.nvidia, "addresses", lambda root: [])
    cuda.require_number(0, "0000:00:00.0")
    monkeypatch.setattr(cuda.nvidia, "addresses", lambda root: ["0000:01:00.0", "0000:81:00.0"])
    cuda.require_number(1, "0000:81:00.0")
    with pytest.raises(EngineUnusable, match=r"the GPU at 0000:81:00.0 is device 0 for CUDA, but cuda:1 for edged"):
        cuda.require_number(0, "0000:81:00.0")
