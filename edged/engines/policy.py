"""Which engines a model should have on a device. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

from edged.backends import registry
from edged.backends.contract import REFERENCE, Recipe
from edged.device.fingerprint import Device, Fingerprint, devices
from edged.models import settings as model_settings
from edged.models.settings import PRECISIONS

# Whether a precision is worth a try by itself, by the device and the instructions of its processor.
_Suits: TypeAlias = Callable[[Device, frozenset[str]], bool]


def _with_any(*instructions: str) -> _Suits:
    return lambda _, known: not known.isdisjoint(instructions)


def _from(major: int, minor: int) -> _Suits:
    return lambda device, _: (_capability(device) or (0, 0)) >= (major, minor)


def _by_itself(device: Device, known: frozenset[str]) -> bool:
    return True


def _on_request(device: Device, known: frozenset[str]) -> bool:
    return False


# The precisions that a backend can build for a kind of device, the most promising first where making one takes long.
# Where the hardware lacks one, a runtime would emulate it or go on in fp32 in silence. int8 is for who asks for it: its
# answers are as good as the pictures it was calibrated on.
_CUDA: dict[str, _Suits] = {"fp16": _from(5, 3), "tf32": _from(8, 0), "fp32": _by_itself, "int8": _on_request}
_PRECISIONS: dict[tuple[str, str], dict[str, _Suits]] = {
    ("null", "cpu"): {"fp32": _by_itself},
    ("onnxruntime", "cpu"): {"fp32": _by_itself, "fp16": _on_request, "int8": _on_request},
    ("onnxruntime", "cuda"): _CUDA,
    ("openvino", "cpu"): {
        "fp32": _by_itself,
        "bf16": _with_any("avx512_bf16", "amx_bf16", "svebf16"),
        "fp16": _with_any("avx512_fp16", "amx_fp16", "asimdhp"),
        "int8": _on_request,
    },
    ("openvino", "intel-gpu"): {"fp16": _by_itself, "fp32": _by_itself, "int8": _on_request},
    ("openvino", "intel-npu"): {"fp16": _by_itself, "int8": _on_request},  # it computes in nothing wider
    ("tensorrt", "cuda"): _CUDA,
    ("tensorrt_rtx", "cuda"): _CUDA,
}


def candidates(settings: Mapping[str, str], facts: Mapping[str, str], *, is_decoded: bool = True) -> tuple[Recipe, ...]:
    """Every engine worth having, the reference first: it answers before anything is built.

    Devices x backends x precisions x threads. The setting `backends` narrows the choice, also to backends that are
    never chosen by themselves (`null`); `precisions` narrows or widens it within what a backend can do on a device;
    `threads` lists the numbers to try on the CPU. If the model's outputs are not decoded (`is_decoded`), nothing says
    whether fewer digits change what its user sees, so only the precisions that the settings name are tried. The
    reference stays, since what is verified is verified against it.
    """
    counts = model_settings.threads(settings)
    wanted = model_settings.backends(settings) or registry.installed(facts)
    reference = Recipe(REFERENCE.backend, optimization=REFERENCE.optimization, threads=counts[0])
    others = (
        Recipe(backend, device.name, precision, threads=count)
        for device in devices(Fingerprint(dict(facts)))
        for backend in wanted
        for precision in precisions(backend, device, settings, facts)
        if is_decoded or precision == REFERENCE.precision or PRECISIONS in settings
        for count in (counts if device.kind == "cpu" else (0,))
    )
    return tuple(dict.fromkeys((reference, *others)))


def precisions(backend: str, device: Device, settings: Mapping[str, str], facts: Mapping[str, str]) -> tuple[str, ...]:
    """The precisions to try with a backend on a device: those of the settings that it can do, otherwise what suits the
    hardware; none where the backend cannot use the device."""
    known = _PRECISIONS.get((backend, device.kind), {})
    if not _is_usable(backend, device, facts):
        return ()
    chosen = model_settings.precisions(settings)
    if chosen is not None:
        return tuple(precision for precision in chosen if precision in known)
    instructions = frozenset(facts.get("cpu.features", "").split())
    return tuple(precision for precision, suits in known.items() if suits(device, instructions))


def lanes(facts: Mapping[str, str]) -> dict[str, str]:
    """For every device the lane in which its engines are made, one after the other.

    Devices that share the system's memory share a lane: two builders at once are what a small box dies of.
    """
    return {d.name: "cpu" if d.is_integrated else d.name for d in devices(Fingerprint(dict(facts)))}


def _is_usable(backend: str, device: Device, facts: Mapping[str, str]) -> bool:
    if device.kind != "cuda":
        return True
    # Without a compute capability a key could not tell for which machine the code is.
    if _capability(device) is None:
        return False
    return backend != "onnxruntime" or "runtime.onnxruntime_gpu" in facts  # only that package has CUDA in it


def _capability(device: Device) -> tuple[int, int] | None:
    major, _, minor = (device.compute_capability or "").partition(".")
    return (int(major), int(minor)) if major.isdecimal() and minor.isdecimal() else None
