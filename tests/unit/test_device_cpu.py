"""CPU facts from /proc/cpuinfo."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edged.device import cpu
from edged.device.root import Root


def facts_of(tmp_path: Path, text: str | bytes) -> dict[str, str]:
    (tmp_path / "proc").mkdir(exist_ok=True)
    (tmp_path / "proc" / "cpuinfo").write_bytes(text if isinstance(text, bytes) else text.encode())
    return cpu.probe(Root(tmp_path))


def x86(flags: str, index: int = 0, **more: str) -> str:
    fields = {"processor": str(index), "vendor_id": "GenuineIntel", "model name": "A CPU", "flags": flags, **more}
    return "".join(f"{key}\t: {value}\n" for key, value in fields.items()) + "\n"


def arm(part: str, index: int = 0, features: str = "fp asimd", implementer: str = "0x41") -> str:
    return (
        f"processor\t: {index}\nFeatures\t: {features}\nCPU implementer\t: {implementer}\n"
        f"CPU architecture: 8\nCPU part\t: {part}\n\n"
    )


X86_FLAGS = ("avx512_vnni", "amx_int8", "avx10_2", "avx_vnni", "f16c", "gfni", "sse4_1")
ARM_FLAGS = ("asimddp", "i8mm", "bf16", "sve", "sve2", "svei8mm", "sme", "asimdhp")


def test_isa_changes_only_with_instruction_sets(tmp_path: Path) -> None:
    one = facts_of(tmp_path, x86("lm sse4_2 avx2 fma"))["cpu.isa"]
    assert facts_of(tmp_path, x86("fma avx2 lm sse4_2 ibrs stibp hypervisor md_clear"))["cpu.isa"] == one
    digests = [facts_of(tmp_path, x86(f"lm sse4_2 avx2 fma {flag}"))["cpu.isa"] for flag in X86_FLAGS]
    for flag in ("", *ARM_FLAGS):
        found = facts_of(tmp_path, arm("0xd0b", features=f"fp asimd {flag}"))
        digests.append(found["cpu.isa"])
        assert flag in ("", *found["cpu.features"].split())
    assert len({one, *digests}) == 1 + len(digests)


def test_clock_speed_and_microcode_are_not_facts(tmp_path: Path) -> None:
    fast = facts_of(tmp_path, x86("lm avx2", 0, **{"cpu MHz": "4000.1", "microcode": "0x1", "bogomips": "1.0"}))
    slow = facts_of(tmp_path, x86("lm avx2", 0, **{"cpu MHz": "800.0", "microcode": "0x2", "bogomips": "9.0"}))
    assert fast == slow


def test_isa_of_unequal_cores_has_only_their_common_features(tmp_path: Path) -> None:
    mixed = facts_of(tmp_path, x86("lm avx2 avx512f") + x86("lm avx2", index=1))
    assert mixed["cpu.isa"] == facts_of(tmp_path, x86("lm avx2"))["cpu.isa"]
    assert mixed["cpu.features"] == "avx2"


def test_cores_and_threads_are_counted_by_package_and_core(tmp_path: Path) -> None:
    places = [("0", "0"), ("0", "0"), ("0", "1"), ("1", "0")]
    text = "".join(
        x86("lm", index, **{"physical id": package, "core id": core}) for index, (package, core) in enumerate(places)
    )
    facts = facts_of(tmp_path, text)
    assert (facts["cpu.cores"], facts["cpu.threads"]) == ("3", "4")


def test_cores_of_32_bit_x86_without_core_ids_are_the_threads(tmp_path: Path) -> None:
    facts = facts_of(tmp_path, x86("sse sse2") + x86("sse sse2", 1))
    assert (facts["cpu.arch"], facts["cpu.cores"], facts["cpu.threads"]) == ("i686", "2", "2")


@pytest.mark.parametrize(
    ("implementer", "part", "model"),
    [
        ("0x41", "0xd0b", "Cortex-A76"),
        ("0x41", "0xd42", "Cortex-A78AE"),
        ("0x41", "0xd83", "Neoverse-V3AE"),
        ("0x41", "0xD4F", "Neoverse-V2"),
        ("0x4e", "0x004", "Carmel"),
        ("0x41", "0xfff", "0x41/0xfff"),
        ("0x99", "0x001", "0x99/0x001"),
    ],
)
def test_model_of_an_arm_core_is_its_name_or_codes(tmp_path: Path, implementer: str, part: str, model: str) -> None:
    assert facts_of(tmp_path, arm(part, implementer=implementer))["cpu.model"] == model


def test_model_of_unequal_arm_cores_names_each_kind_once(tmp_path: Path) -> None:
    text = arm("0xd05") + arm("0xd0b", 1) + arm("0xd0b", 2)
    facts = facts_of(tmp_path, text)
    assert facts["cpu.model"] == "Cortex-A55 + Cortex-A76"
    assert facts["cpu.signature"] == "0x41/0xd05 + 0x41/0xd0b"
    assert facts["cpu.vendor"] == "ARM"
    assert facts["cpu.threads"] == "3"
    turned = facts_of(tmp_path, arm("0xd0b") + arm("0xd05", 1))
    assert turned["cpu.model"] == facts["cpu.model"]


def test_probe_live_has_the_architecture_of_this_process() -> None:
    assert cpu.probe(Root())["cpu.arch"] == os.uname().machine


@pytest.mark.parametrize("text", [b"", b"\xff\xfe\x00\x01" * 100, b":::\n\n:\n", b"processor"])
def test_facts_of_garbage_are_empty(tmp_path: Path, text: bytes) -> None:
    assert facts_of(tmp_path, text) == {}


KEYS = [
    *("processor", "vendor_id", "model name", "model", "cpu family", "flags", "physical id", "core id"),
    *("CPU implementer", "CPU part", "CPU architecture", "Features"),
]
VALUES = st.one_of(
    st.text(max_size=12),
    st.sampled_from(["0", "1", "0x41", "0xd0b", "0xD42", "GenuineIntel", "lm avx2", "8", "AArch64", "fp asimd"]),
)
LINES = st.one_of(
    st.tuples(st.sampled_from(KEYS), st.sampled_from([":", "\t: ", ""]), VALUES).map("".join),
    st.just(""),
    st.text(max_size=20),
)


@given(st.lists(LINES, max_size=40).map("\n".join))
def test_parse_any_text_does_not_raise(text: str) -> None:
    blocks = cpu.parse(text)
    facts = cpu.facts(blocks)
    assert all(isinstance(value, str) for value in facts.values())
    assert facts == cpu.facts(cpu.parse(text))


@pytest.mark.parametrize(
    ("features", "arch", "expected"),
    [
        ("avx2 fma", "x86_64", True),
        ("avx2 avx_vnni", "x86_64", False),
        ("avx512f avx512_vnni", "x86_64", False),
        ("amx_int8", "x86_64", False),
        ("asimd", "aarch64", False),
        ("", "", False),
    ],
)
def test_saturates_only_x86_without_32_bit_sums(features: str, arch: str, expected: bool) -> None:
    assert cpu.saturates({"cpu.features": features, "cpu.arch": arch}) is expected
