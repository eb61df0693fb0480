"""Ensembles on disk, for tests: their config.pbtxt from steps written as `x=X y=Y`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

StepText = tuple[str, str, str]  # model (NAME or NAME:VERSION), input_map, output_map


def config(
    steps: Sequence[StepText],
    inputs: Sequence[str] = ("X FP32 1,4",),
    outputs: Sequence[str] = ("Y FP32 1,4",),
    more: str = "",
) -> str:
    """Return the text of a config.pbtxt. Tensors are `NAME DATATYPE DIMS`."""
    lines = ['platform: "ensemble"', more]
    for kind, tensors in (("input", inputs), ("output", outputs)):
        for name, datatype, dims in (text.split() for text in tensors):
            lines.append(f'{kind} {{ name: "{name}" data_type: TYPE_{datatype} dims: [ {dims} ] }}')
    lines.append("ensemble_scheduling {")
    for model, given, made in steps:
        name, _, version = model.partition(":")
        maps = (("input_map", given), ("output_map", made))
        pairs = ((field, *pair.split("=")) for field, text in maps for pair in text.split())
        entries = " ".join(f'{field} {{ key: "{key}" value: "{value}" }}' for field, key, value in pairs)
        lines.append(f'step {{ model_name: "{name}" model_version: {version or -1} {entries} }}')
    return "\n".join([*lines, "}"]) + "\n"


CHAIN: tuple[StepText, ...] = (("a", "x=X", "y=t"), ("b", "x=t", "y=Y"))


def write(models: Path, name: str, text: str) -> Path:
    """Write an ensemble into a folder of models; it appears whole. Return its folder."""
    staged = models / f".{name}"
    staged.mkdir(parents=True)
    (staged / "config.pbtxt").write_text(text)
    return staged.rename(models / name)
