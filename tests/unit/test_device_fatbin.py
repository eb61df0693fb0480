"""The GPU code in CUDA libraries: generated and damaged files, and the rules of compatibility."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from edged.device import fatbin, runtimes
from edged.device.root import Root
from tests.unit.cuda_library import CODE, EXACT, PTX, WHEEL_OF_ARM, WHEEL_OF_X86, container, entry, library
from tests.unit.device_files import tree

ARM = "sm_89 sm_90a sm_120a sm_121a"
X86 = "sm_60 sm_70 sm_75 sm_80 sm_86 sm_90a ptx_90"


def code(top: Path, data: bytes) -> str:
    return " ".join(fatbin.code(tree(top, {"lib.so": data}), "lib.so"))


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (WHEEL_OF_ARM, ARM),
        (WHEEL_OF_X86, X86),
        (library(), ""),
        (library(container(entry(7, 90), entry(CODE, 87))), "sm_87"),  # kind 7 is an intermediate form of the linker
        (library(container(entry(CODE, 75), entry(CODE, 75)), container(entry(PTX, 75)), gap=0), "sm_75 ptx_75"),
        (library(container(entry(CODE, 100, EXACT, b"")), gap=8000), "sm_100a"),
        (library(container(entry(CODE, 87)), section=b".rodata"), ""),
        (b"", ""),
        (b"#!/bin/sh\n" * 100, ""),
        (b"\x7fELF\x01\x01" + bytes(100), ""),  # a 32-bit file
        (WHEEL_OF_X86[:-64], ""),  # truncated
    ],
)
def test_code_of_generated_libraries(tmp_path: Path, data: bytes, expected: str) -> None:
    assert code(tmp_path, data) == expected


def test_code_of_a_folder_or_missing_file_is_empty(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    assert [fatbin.code(Root(tmp_path), name) for name in ("folder", "absent", "\0")] == [(), (), ()]


@pytest.mark.parametrize("seed", range(300))
def test_code_of_a_damaged_library_ends(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    data = bytearray(chance.choice((WHEEL_OF_ARM, WHEEL_OF_X86)))
    for _ in range(chance.randint(1, 20)):
        data[chance.randrange(len(data))] = chance.randrange(256)
    found = code(tmp_path, bytes(data))
    assert len(found) < 200


def test_code_of_endless_empty_containers_ends(tmp_path: Path) -> None:
    assert code(tmp_path, library(*[container()] * 300_000, gap=0)) == ""


@pytest.mark.parametrize(
    ("names", "runs", "does_not"),
    [
        # The wheel for aarch64 has no code for Orin (8.7) and Thor (11.0).
        (ARM, "8.9 9.0 12.0 12.1", "5.3 7.2 7.5 8.0 8.6 8.7 10.0 10.3 11.0"),
        (X86, "6.0 6.1 7.0 7.5 8.0 8.6 8.9 9.0 10.0 12.0 12.1", "5.2 6.2 7.2 8.7"),
        ("sm_87", "8.7", "8.6 8.9 9.0"),  # code for an SoC does not run on a card
        ("sm_80 sm_86", "8.0 8.6 8.9", "8.7 7.5 9.0"),
        ("ptx_87", "8.7 8.9 9.0 11.0", "8.6"),
        ("ptx_90a", "9.0", "8.9 10.0"),
        ("sm_89", "8.9 unknown", "8.7"),
        ("", "", "8.7"),
        ("something else", "", "8.7"),
    ],
)
def test_runs_on_follows_the_compute_capability(names: str, runs: str, does_not: str) -> None:
    found = {each: fatbin.runs_on(names, each) for each in (*runs.split(), *does_not.split())}
    assert [each for each, is_right in found.items() if is_right] == runs.split()


def test_probe_reads_code_of_the_provider(tmp_path: Path) -> None:
    site = "opt/edged/lib/python3.12/site-packages"
    provider = f"{site}/onnxruntime/capi/libonnxruntime_providers_cuda.so"
    files: dict[str, str | bytes] = {f"{site}/onnxruntime_gpu-1.31.1.dist-info/METADATA": "Name: x\nVersion: 1.31.1\n"}
    assert not runtimes.probe(tree(tmp_path / "bare", files)).get("runtime.onnxruntime_gpu_code")
    found = runtimes.probe(tree(tmp_path / "whole", files | {provider: WHEEL_OF_ARM}))
    assert (found["runtime.onnxruntime_gpu"], found["runtime.onnxruntime_gpu_code"]) == ("1.31.1", ARM)
