"""The CUDA contract on a stand-in driver: every package that is installed, the real one of it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from edged.backend.cuda import LIBRARIES, choice
from edged.errors import Unsupported
from tests.fake_cuda import runner


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return runner.compile_driver(tmp_path_factory.mktemp("driver"))


@pytest.mark.parametrize("implementation", LIBRARIES)
def test_the_contract_holds(driver: Path, implementation: str) -> None:
    runner.run("contract_checks.py", driver, implementation)


def test_an_older_driver_lacks_only_what_came_later(driver: Path) -> None:
    """The newest package asks the driver of JetPack 6 for one function that it does not have yet."""
    runner.require("cuda-bindings")
    program = (
        "from tests.fake_cuda.control import Control\n"
        "Control().configure(driver_version=12060)\n"
        "from edged.backend.cuda import open_device\n"
        "from edged.errors import EngineUnusable\n"
        "device = open_device(library='cuda-bindings')\n"
        "assert device.versions.driver == '12.6'\n"
        "with device.current():\n"
        "    stream, start, end = device.stream(), device.event(timed=True), device.event(timed=True)\n"
        "    for event in (start, end): stream.record(event)\n"
        "    end.synchronize()\n"
        "    stream.capture(lambda: None).close()\n"
        "    try: assert end.elapsed_ms(start) >= 0\n"
        "    except EngineUnusable as error: assert 'cuEventElapsedTime is not to be had' in str(error)\n"
    )
    ended = runner.start([sys.executable, "-c", program], driver)
    assert ended.returncode == 0, ended.stderr


def test_importing_the_room_imports_no_package_that_loads_a_driver() -> None:
    program = "import sys, edged.backend.cuda; sys.exit(bool({'cuda', 'pycuda'} & sys.modules.keys()))"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_where_no_package_is_installed_both_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "_MODULES", dict.fromkeys(LIBRARIES, "edged.backend.cuda.not_there"))
    with pytest.raises(Unsupported, match=r"pycuda: .*cuda-bindings: .*install"):
        choice.open_device()


def test_a_box_without_a_driver_is_told_in_one_line() -> None:
    """In a process of its own, without the stand-in; on a box that has a driver there is nothing to see."""
    runner.require("cuda-bindings")
    program = (
        "from edged.backend.cuda import open_device\n"
        "from edged.errors import EdgedError\n"
        "try: open_device(library='cuda-bindings')\n"
        "except EdgedError as error: print(type(error).__name__, error)\n"
        "else: print('a GPU')"
    )
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert told.count("\n") == 1
    assert told.startswith(("EngineUnusable cuInit", "a GPU"))
