"""A package with a model family, as `edged family new` writes it, importable without pip; and a model for it."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from edged.cli.family import write_project

SIDE = 64  # of the model's input, in pixels


def install(site: Path, name: str, *, version: str = "0.1.0", code: str = "") -> Path:
    """Put a package into the folder `site`, as an installer would. Return its module's file.

    `code` is added to the end of the module; @CLASS@ stands for the family's class.
    """
    project = write_project(name, site / f".project-{name}")
    (module,) = (each for each in project.iterdir() if each.name.startswith("edged_family_"))
    place = site / module.name
    module.rename(place)
    source = place / "__init__.py"
    if code:
        source.write_text(source.read_text() + "\n\n" + code.replace("@CLASS@", class_name(name)))
    describe(site, name, version)
    return source


def class_name(name: str) -> str:
    return "".join(part.capitalize() for part in name.replace("_", "-").split("-"))


def describe(site: Path, name: str, version: str = "0.1.0", target: str = "", entry: str = "") -> None:
    """Write the metadata of a package with one family. `entry` and `target` are the two sides of its entry point."""
    module = f"edged_family_{name}".replace("-", "_")
    about = site / f"{module}-{version}.dist-info"
    about.mkdir(parents=True, exist_ok=True)
    about.joinpath("METADATA").write_text(f"Metadata-Version: 2.1\nName: edged-family-{name}\nVersion: {version}\n")
    target = target or f"{module}:{class_name(name)}"
    about.joinpath("entry_points.txt").write_text(f"[edged.families]\n{entry or name} = {target}\n")


def environment(site: Path) -> dict[str, str]:
    """Return the environment of a process that imports the packages in `site`."""
    paths = (str(site), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)))
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def save_model(path: Path, names: tuple[str, str, str] = ("centres", "sizes", "scores")) -> Path:
    """Write a model that the template's family decodes: in every picture it finds an object of class 2 with score 0.9,
    in the middle, half as wide and a quarter as high as the input."""
    arrays = (
        np.array([[[0.5, 0.5], [0.1, 0.1]]], np.float32),
        np.array([[[0.5, 0.25], [0.1, 0.1]]], np.float32),
        np.array([[[0.1, 0.0, 0.9], [0.1, 0.1, 0.1]]], np.float32),
    )
    nodes = [
        helper.make_node("ReduceMean", ["images"], ["mean"], axes=[1, 2, 3], keepdims=0),
        helper.make_node("Mul", ["mean", "zero"], ["nothing"]),
    ]
    weights = [numpy_helper.from_array(np.float32(0), "zero")]
    outputs = []
    for name, array in zip(names, arrays, strict=True):
        weights.append(numpy_helper.from_array(array, f"{name}_value"))
        nodes.append(helper.make_node("Add", [f"{name}_value", "nothing"], [name]))
        outputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, array.shape))
    images = helper.make_tensor_value_info("images", TensorProto.FLOAT, [1, 3, SIDE, SIDE])
    graph = helper.make_graph(nodes, "rows", [images], outputs, weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path
