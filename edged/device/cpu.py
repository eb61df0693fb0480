"""Facts `cpu.*` from `/proc/cpuinfo` of x86 and ARM Linux (formats: the kernel's `arch/{x86,arm64}/kernel/`).

Clock speeds and the microcode's version are not read, because they change. The serial number that some boards print is
not read, because it would identify the owner's board.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Mapping

from edged.device.root import Root

CPUINFO = "proc/cpuinfo"
_LIMIT = 8 << 20  # bytes; about 2 kB for each hardware thread
_ISA_DIGITS = 16

# Flags of instructions: runtimes generate or select code for these. The digest has no other flags: each new Linux
# kernel adds flags of mitigations and virtualisation, so a kernel update would invalidate every engine.
_INSTRUCTIONS = re.compile(
    r"""(?x)
    mmx | s?sse\w* | pni | avx\w* | amx\w* | fma4? | f16c | bmi[12] | abm | lzcnt | popcnt | movbe | xop
    | cx16 | adx | aes | vaes | v?pclmulqdq | sha_ni | sha512 | sm[34] | gfni
    | fp | fphp | asimd\w* | sve\w* | sme\w* | i8mm | e?bf16 | f8\w* | fcma | jscvt | atomics | crc32
    | pmull | sha[123] | neon | vfp\w* | half | idiv[at] | fpmr | lut
    """,
    re.ASCII,
)
# The flags in the fact `cpu.features`, in this order. They determine the speed of int8 and 16-bit arithmetic.
_NOTABLE = (
    *("sse4_2", "avx", "f16c", "fma", "avx2", "avx_vnni", "avx_vnni_int8"),
    *("avx512f", "avx512bw", "avx512vl", "avx512_vnni", "avx512_bf16", "avx512_fp16"),
    *("amx_tile", "amx_int8", "amx_bf16", "amx_fp16"),
    *("neon", "asimd", "asimdhp", "asimddp", "asimdfhm", "i8mm", "bf16"),
    *("sve", "svei8mm", "svebf16", "sve2", "sme"),
)


# x86 instructions that add products of 8-bit numbers in 32 bits. Without these, runtimes use pmaddubsw, which adds two
# products in 16 bits and saturates if the sum does not fit.
_INT8_SUMS = frozenset(("avx_vnni", "avx512_vnni", "amx_int8"))


def saturates(facts: Mapping[str, str]) -> bool:
    """Whether sums of 8-bit products can be wrong on this processor if the weights use all 8 bits."""
    return facts.get("cpu.arch") == "x86_64" and _INT8_SUMS.isdisjoint(facts.get("cpu.features", "").split())


def probe(root: Root) -> dict[str, str]:
    """Read the facts `cpu.*` that the file has: arch, vendor, model, signature, isa, features, cores and threads."""
    found = facts(parse(root.read(CPUINFO, _LIMIT) or ""))
    if root.is_live:
        # Under emulation cpuinfo may be the host's, but libraries must match the emulated architecture, as in uname.
        found["cpu.arch"] = os.uname().machine
    return found


def facts(blocks: list[dict[str, str]]) -> dict[str, str]:
    """Return the facts from the paragraphs of cpuinfo on x86 or ARM; on another architecture only counts and
    instructions."""
    found = _counts(blocks) | _instructions(blocks)
    if any("CPU implementer" in block for block in blocks):
        found |= _arm(blocks)
    elif any("vendor_id" in block for block in blocks):
        found |= _x86(blocks)
    return found


def parse(text: str) -> list[dict[str, str]]:
    """Return the keys and values of each paragraph. If a paragraph repeats a key, the last value counts."""
    blocks = []
    for paragraph in text.split("\n\n"):
        pairs = (line.partition(":") for line in paragraph.split("\n"))
        block = {key.strip(): value.strip() for key, colon, value in pairs if colon}
        if block:
            blocks.append(block)
    return blocks


def threads(root: Root) -> int:
    """Return the number of online hardware threads; 0 if unknown."""
    return sum("processor" in block for block in parse(root.read(CPUINFO, _LIMIT) or ""))


def _counts(blocks: list[dict[str, str]]) -> dict[str, str]:
    """Count online threads and their cores. On ARM, which prints no core ids, each thread counts as a core."""
    online = [block for block in blocks if "processor" in block]
    if not online:
        return {}
    cores = {(block.get("physical id", ""), block.get("core id", block["processor"])) for block in online}
    return {"cpu.threads": str(len(online)), "cpu.cores": str(len(cores))}


def _instructions(blocks: list[dict[str, str]]) -> dict[str, str]:
    """Return a digest and a list of the instructions that all cores have, because threads migrate between cores."""
    lines = [block.get("flags") or block.get("Features") for block in blocks]
    sets = [set(line.split()) for line in lines if line]
    if not sets:
        return {}
    flags = set.intersection(*sets)
    named = sorted(flag for flag in flags if _INSTRUCTIONS.fullmatch(flag))
    digest = hashlib.sha256(" ".join(named).encode("utf-8")).hexdigest()
    return {"cpu.isa": digest[:_ISA_DIGITS], "cpu.features": " ".join(f for f in _NOTABLE if f in flags)}


def _x86(blocks: list[dict[str, str]]) -> dict[str, str]:
    # In a virtual machine the model name is often only a brand ("AMD EPYC"), but family and model show the generation.
    family, model = _join(blocks, "cpu family"), _join(blocks, "model")
    wide = any("lm" in block.get("flags", "").split() for block in blocks)
    return {
        "cpu.arch": "x86_64" if wide else "i686",
        "cpu.vendor": _join(blocks, "vendor_id"),
        "cpu.model": _join(blocks, "model name"),
        "cpu.signature": f"family {family} model {model}" if family and model else "",
    }


def _arm(blocks: list[dict[str, str]]) -> dict[str, str]:
    """Name all kinds of cores (big.LITTLE) without counting them, because a power mode may take cores offline."""
    codes = ((block.get("CPU implementer"), block.get("CPU part", "")) for block in blocks)
    kinds = sorted({(implementer.lower(), part.lower()) for implementer, part in codes if implementer})
    wide = any(block.get("CPU architecture", "").startswith(("8", "9", "AArch64")) for block in blocks)
    return {
        "cpu.arch": "aarch64" if wide else "armv7l",
        "cpu.vendor": _plus(vendor_name(implementer) for implementer, _ in kinds),
        "cpu.model": _plus(core_name(implementer, part) for implementer, part in kinds),
        "cpu.signature": _plus(f"{implementer}/{part}" for implementer, part in kinds),
    }


def _join(blocks: list[dict[str, str]], key: str) -> str:
    return _plus(sorted({block[key] for block in blocks if block.get(key)}))


def _plus(names: Iterable[str]) -> str:
    return " + ".join(dict.fromkeys(names))


_VENDORS = {
    "0x41": "ARM",
    "0x42": "Broadcom",
    "0x43": "Cavium",
    "0x46": "Fujitsu",
    "0x48": "HiSilicon",
    "0x4e": "NVIDIA",
    "0x50": "APM",
    "0x51": "Qualcomm",
    "0x53": "Samsung",
    "0x61": "Apple",
    "0x6d": "Microsoft",
    "0xc0": "Ampere",
}

_CORES = {
    ("0x41", "0xc07"): "Cortex-A7",
    ("0x41", "0xc09"): "Cortex-A9",
    ("0x41", "0xc0f"): "Cortex-A15",
    ("0x41", "0xd03"): "Cortex-A53",
    ("0x41", "0xd04"): "Cortex-A35",
    ("0x41", "0xd05"): "Cortex-A55",
    ("0x41", "0xd07"): "Cortex-A57",
    ("0x41", "0xd08"): "Cortex-A72",
    ("0x41", "0xd09"): "Cortex-A73",
    ("0x41", "0xd0a"): "Cortex-A75",
    ("0x41", "0xd0b"): "Cortex-A76",
    ("0x41", "0xd0c"): "Neoverse-N1",
    ("0x41", "0xd0d"): "Cortex-A77",
    ("0x41", "0xd0e"): "Cortex-A76AE",
    ("0x41", "0xd40"): "Neoverse-V1",
    ("0x41", "0xd41"): "Cortex-A78",
    ("0x41", "0xd42"): "Cortex-A78AE",
    ("0x41", "0xd44"): "Cortex-X1",
    ("0x41", "0xd46"): "Cortex-A510",
    ("0x41", "0xd47"): "Cortex-A710",
    ("0x41", "0xd48"): "Cortex-X2",
    ("0x41", "0xd49"): "Neoverse-N2",
    ("0x41", "0xd4b"): "Cortex-A78C",
    ("0x41", "0xd4d"): "Cortex-A715",
    ("0x41", "0xd4e"): "Cortex-X3",
    ("0x41", "0xd4f"): "Neoverse-V2",
    ("0x41", "0xd80"): "Cortex-A520",
    ("0x41", "0xd81"): "Cortex-A720",
    ("0x41", "0xd82"): "Cortex-X4",
    ("0x41", "0xd83"): "Neoverse-V3AE",
    ("0x41", "0xd84"): "Neoverse-V3",
    ("0x41", "0xd85"): "Cortex-X925",
    ("0x41", "0xd87"): "Cortex-A725",
    ("0x41", "0xd8e"): "Neoverse-N3",
    ("0x46", "0x001"): "A64FX",
    ("0x48", "0xd01"): "TSV110",
    ("0x4e", "0x003"): "Denver 2",
    ("0x4e", "0x004"): "Carmel",
    ("0x51", "0x001"): "Oryon",
    ("0xc0", "0xac3"): "Ampere-1",
    ("0xc0", "0xac4"): "Ampere-1A",
}


def vendor_name(implementer: str) -> str:
    """Return the name of a vendor: `"0x41"` -> `"ARM"`; the code itself if it is unknown."""
    return _VENDORS.get(implementer, implementer)


def core_name(implementer: str, part: str) -> str:
    """Return the name of a core: `("0x41", "0xd0b")` -> `"Cortex-A76"`; the codes if they are unknown."""
    return _CORES.get((implementer, part), f"{implementer}/{part}")
