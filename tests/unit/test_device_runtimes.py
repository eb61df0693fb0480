"""Versions of runtimes from package directories, library names and dpkg, with nothing imported."""

from __future__ import annotations

import os
import sys
from importlib import metadata
from pathlib import Path

import pytest

from edged.backends import registry
from edged.device import libraries, runtimes
from edged.device.root import Root
from tests.unit.device_files import write

SITE = "usr/local/lib/python3.11/dist-packages"
LIB = "usr/lib/x86_64-linux-gnu"


def facts(top: Path) -> dict[str, str]:
    return {name: value for name, value in runtimes.probe(Root(top)).items() if value}


@pytest.mark.parametrize(
    ("directory", "fact"),
    [
        ("onnxruntime", "runtime.onnxruntime"),
        ("onnxruntime_gpu", "runtime.onnxruntime_gpu"),
        ("openvino", "runtime.openvino"),
        ("tensorrt_cu13_bindings", "runtime.tensorrt"),
        ("tensorrt_rtx_cu12_libs", "runtime.tensorrt_rtx"),
        ("nvidia_cudnn_cu12", "runtime.cudnn"),
    ],
)
def test_a_package_is_its_directory(tmp_path: Path, directory: str, fact: str) -> None:
    write(
        tmp_path,
        f"{SITE}/{directory}-1.2.3.dist-info/METADATA",
        "Name: x\nVersion: 1.2.3+local\n\nVersion: 9\n",
    )
    assert facts(tmp_path) == {fact: "1.2.3+local"}


def test_without_metadata_the_directory_tells_the_version(tmp_path: Path) -> None:
    (tmp_path / SITE / "openvino-2026.4.1.dist-info").mkdir(parents=True)
    write(tmp_path, f"{SITE}/tensorrt-10.3.0.dist-info/METADATA", "Name: tensorrt\n\nVersion: 9 of the text\n")
    write(tmp_path, f"{SITE}/onnxruntime-1.23.2-py3.11.egg-info", "Name: onnxruntime\nVersion: 1.23.2\n")
    assert facts(tmp_path) == {
        "runtime.onnxruntime": "1.23.2",
        "runtime.openvino": "2026.4.1",
        "runtime.tensorrt": "10.3.0",
    }


def test_metadata_outside_the_tree_or_a_fifo_is_not_read(tmp_path: Path) -> None:
    write(tmp_path, "outside/METADATA", "Version: 6.6.6\n")
    top = tmp_path / "root"
    for package in ("openvino", "onnxruntime"):
        (top / SITE / f"{package}-1.0.dist-info").mkdir(parents=True)
    (top / SITE / "openvino-1.0.dist-info/METADATA").symlink_to(tmp_path / "outside/METADATA")
    os.mkfifo(top / SITE / "onnxruntime-1.0.dist-info/METADATA")
    (top / SITE / "tensorrt-9.dist-info").symlink_to(tmp_path / "outside")
    assert facts(top) == {"runtime.openvino": "1.0", "runtime.onnxruntime": "1.0"}


def test_the_service_s_own_environment_comes_first(tmp_path: Path) -> None:
    write(tmp_path, "opt/edged/lib/python3.11/site-packages/openvino-2.0.dist-info/METADATA")
    write(tmp_path, "usr/lib/python3/dist-packages/openvino-1.0.dist-info/METADATA")
    assert facts(tmp_path) == {"runtime.openvino": "2.0"}


def test_native_libraries_decide_over_the_metapackage(tmp_path: Path) -> None:
    write(tmp_path, f"{SITE}/tensorrt-10.13.3.dist-info/METADATA")
    write(tmp_path, f"{SITE}/tensorrt_cu12_libs-10.13.3.9.dist-info/METADATA")
    assert facts(tmp_path) == {"runtime.tensorrt": "10.13.3.9", "tensorrt.version": "10.13.3.9"}


def test_the_wheel_s_library_is_loaded_before_the_system_s(tmp_path: Path) -> None:
    write(tmp_path, f"{LIB}/libnvinfer.so.10.3.0")
    write(tmp_path, f"{SITE}/tensorrt_cu12_bindings-10.16.1.11.dist-info/METADATA")
    assert facts(tmp_path) == {"runtime.tensorrt": "10.16.1.11", "tensorrt.version": "10.3.0"}
    write(tmp_path, f"{SITE}/tensorrt_cu12_libs-10.16.1.11.post1.dist-info/METADATA")
    assert facts(tmp_path) == {"runtime.tensorrt": "10.16.1.11.post1", "tensorrt.version": "10.16.1.11"}


@pytest.mark.parametrize("folder", [LIB, f"{SITE}/tensorrt_libs"])
def test_tensorrt_s_library_itself_knows_all_four_numbers(tmp_path: Path, folder: str) -> None:
    (tmp_path / folder).mkdir(parents=True)
    mark = b"\x7fELF" + b"\0createInferBuilder\0tensorrt_version_10_3_0_30\0" + bytes(1 << 16)
    (tmp_path / folder / "libnvinfer.so.10.3.0").write_bytes(mark)
    if "site" in folder or "dist" in folder:
        write(tmp_path, f"{SITE}/tensorrt_cu12_libs-10.3.0.dist-info/METADATA")
    assert facts(tmp_path)["tensorrt.version"] == "10.3.0.30"


@pytest.mark.parametrize("content", [b"", b"\0tensorrt_version_10_3_0\0", b"tensorrt_version_10_3_0_30", bytes(100)])
def test_a_library_without_the_mark_is_known_by_its_name(tmp_path: Path, content: bytes) -> None:
    write(tmp_path, f"{LIB}/libnvinfer.so.10.3.0")
    (tmp_path / LIB / "libnvinfer.so.10.3.0").write_bytes(content)
    assert facts(tmp_path) == {"tensorrt.version": "10.3.0"}


def test_tensorrt_is_there_when_python_and_the_library_are() -> None:
    assert registry.version("tensorrt", {"runtime.tensorrt": "10.16.1.11"}) is None
    assert registry.version("tensorrt", {"tensorrt.version": "10.3.0.30"}) is None
    both = {"runtime.tensorrt": "10.3.0", "tensorrt.version": "10.3.0.30"}
    assert registry.version("tensorrt", both) == "10.3.0.30"
    assert registry.version("tensorrt", both | {"runtime.tensorrt": registry.ABSENT}) is None
    assert registry.installed(both) == ()
    assert registry.present(both) == ("tensorrt",)
    assert registry.installed(both | {"gpu.0.name": "a card"}) == ("tensorrt",)


def test_the_live_root_sees_what_this_interpreter_would_import() -> None:
    found = runtimes.probe(Root())
    assert sys.path
    for package in ("onnxruntime", "openvino"):
        try:
            expected = metadata.version(package)
        except metadata.PackageNotFoundError:
            expected = None
        assert found.get(f"runtime.{package}") == expected


def test_tensorrt_s_fourth_number_is_the_package_s(tmp_path: Path) -> None:
    write(tmp_path, f"{LIB}/libnvinfer.so.10.3.0")
    (tmp_path / LIB / "libnvinfer.so.10").symlink_to("libnvinfer.so.10.3.0")
    assert facts(tmp_path) == {"tensorrt.version": "10.3.0"}
    write(
        tmp_path,
        "var/lib/dpkg/status",
        "Package: libnvinfer10\nStatus: install ok installed\nVersion: 10.3.0.26-1+cuda12.5\n",
    )
    assert facts(tmp_path) == {"tensorrt.version": "10.3.0.26"}


def test_a_package_that_disagrees_with_the_library_is_about_another_copy(tmp_path: Path) -> None:
    write(tmp_path, f"{LIB}/libnvinfer.so.10.16.2")
    write(
        tmp_path,
        "var/lib/dpkg/status",
        "Package: libnvinfer10\nStatus: install ok installed\nVersion: 10.3.0.26-1+cuda12.5\n",
    )
    assert facts(tmp_path) == {"tensorrt.version": "10.16.2"}


def test_numbers_are_compared_as_numbers(tmp_path: Path) -> None:
    for version in ("8.6.1", "10.3.0", "9.1.0"):
        write(tmp_path, f"{LIB}/libnvinfer.so.{version}")
    assert libraries.system_version(Root(tmp_path), "libnvinfer.so.*") == "10.3.0"


def test_cuda_is_what_the_link_leads_to(tmp_path: Path) -> None:
    for version in ("12.6", "13.0"):
        write(tmp_path, f"usr/local/cuda-{version}/version.json", f'{{"cuda": {{"version": "{version}.1"}}}}')
        write(tmp_path, f"usr/local/cuda-{version}/targets/x86_64-linux/lib/libcudart.so.{version}.9")
    assert facts(tmp_path) == {"cuda.version": "13.0.1", "cuda.runtime": "13.0.9"}
    # The way Debian's packages lay it out: absolute links, by way of /etc/alternatives.
    (tmp_path / "etc" / "alternatives").mkdir(parents=True)
    (tmp_path / "etc" / "alternatives" / "cuda").symlink_to("/usr/local/cuda-12.6")
    (tmp_path / "usr/local/cuda").symlink_to("/etc/alternatives/cuda")
    assert facts(tmp_path) == {"cuda.version": "12.6.1", "cuda.runtime": "12.6.9"}


@pytest.mark.parametrize("text", ["", "{", "[]", '{"cuda": 3}', '{"cuda": {"version": 3}}', "[" * 200_000, "null"])
def test_a_damaged_version_file_is_absent(tmp_path: Path, text: str) -> None:
    write(tmp_path, "usr/local/cuda/version.json", text)
    assert facts(tmp_path) == {}


@pytest.mark.parametrize(
    ("version", "upstream"),
    [
        ("2.36-9+deb12u9", "2.36"),
        ("2:1.3.29735-1~22.04", "1.3.29735"),
        ("36.4.3-20250107174145", "36.4.3"),
        ("1.0-rc-2-3", "1.0-rc-2"),
        ("7", "7"),
        ("", ""),
    ],
)
def test_upstream_version(version: str, upstream: str) -> None:
    assert libraries.upstream(version) == upstream


def test_only_installed_packages_count(tmp_path: Path) -> None:
    write(
        tmp_path,
        libraries.STATUS,
        "Package: a\nStatus: deinstall ok config-files\nVersion: 1\n\n"
        "Package: b\nStatus: install ok half-installed\nVersion: 2\n\n"
        "Package: c\nVersion: 3\n\n"
        "Package: d\nDescription: x\n Package: e\nStatus: install ok installed\nVersion: 4",
    )
    assert libraries.package_versions(Root(tmp_path), ["a", "b", "c", "d", "e", "f", "."]) == {"d": "4"}
