"""Exports a torch module with torch's own exporters, and computes its answers, for all frameworks based on torch.

torch 2.5 and newer have two exporters, and edged tries both. The newer exporter ("dynamo") may write another opset than
the requested one, and only log this. The older exporter ("torchscript") writes the requested opset.
"""

from __future__ import annotations

import inspect
import os
import re
import sys
import warnings
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from edged_frameworks.contract import Arrays, Input, Loaded, Refused, Request

_SAMPLED = 4096  # the most elements that are kept of a layer's output
DYNAMO, TORCHSCRIPT = "dynamo", "torchscript"


def load(
    module: torch.nn.Module,
    request: Request,
    framework: str,
    settings: Mapping[str, str] = {},
    size: tuple[int, int] = (640, 640),
    input_name: str = "images",
    keep: Sequence[str] = (),
) -> Loaded:
    """Prepare a module that takes one picture [N, 3, height, width], or the inputs in its attribute `example_inputs`.
    `size` is the height and width if the request gives none. If the module returns a mapping, `keep` names the outputs
    to keep; if `keep` is empty, all tensors are kept."""
    module = module.float().eval()
    example = getattr(module, "example_inputs", None)
    if isinstance(example, torch.Tensor):
        example = [example]
    if example is None:
        height, width = request.imgsz or size
        example = {input_name: torch.zeros(1, 3, height, width)}
    elif not isinstance(example, dict):
        example = {f"input{number}": value for number, value in enumerate(example)}
    if request.half:
        module = module.half()
        example = {name: value.half() if value.is_floating_point() else value for name, value in example.items()}
    opened = {name: _open(value, request.dynamic) for name, value in example.items()}
    if "size" in request.dynamic and not any(2 in each for each in opened.values()):
        raise Refused(
            "--dynamic size cannot be used with this model: it has no input for pictures, [N, 3, height, width]"
        )
    model = _Model(module, example, opened, keep)
    ways = [TORCHSCRIPT]
    if "dynamo" in inspect.signature(torch.onnx.export).parameters:
        ways.insert(0, DYNAMO)
    inputs = {name: Input(str(value.numpy().dtype), list(value.shape), opened[name]) for name, value in example.items()}
    known = {str(key): _text(value) for key, value in settings.items()}
    about = "torch " + torch.__version__ + (", " + framework if framework else "")
    return Loaded(about, inputs, model.export, model.answer, ways, known, layers=model.layers)


def _text(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def short(error: Exception) -> str:
    """Return the beginning of an error's text in one line, without colours."""
    return " ".join(re.sub(r"\x1b\[[0-9;]*m", "", str(error)).split())[:200]


def _open(value: torch.Tensor, dynamic: Sequence[str]) -> dict[int, str]:
    wanted = {0: "batch"} if "batch" in dynamic else {}
    if "size" in dynamic and value.ndim == 4:
        wanted = {**wanted, 2: "height", 3: "width"}
    return wanted


def read_weights(path: str) -> dict[str, torch.Tensor]:
    """Return the tensors of a checkpoint. Only tensors are loaded, never code. Raises Refused for any other content."""
    if path.endswith(".safetensors"):
        from safetensors.torch import load_file

        return load_file(path)
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise Refused(
            f"{os.path.basename(path)} contains more than weights ({short(error)}); save only the model's state_dict"
        ) from None
    for key in ("state_dict", "model", "model_state_dict"):
        if isinstance(found, dict) and isinstance(found.get(key), dict):
            found = found[key]
    if not isinstance(found, dict) or not all(isinstance(value, torch.Tensor) for value in found.values()):
        raise Refused(f"{os.path.basename(path)} has no tensors by name; save the state_dict of the model")
    return {name[len("module.") :] if name.startswith("module.") else name: value for name, value in found.items()}


def fill(module: torch.nn.Module, path: str) -> torch.nn.Module:
    """Load the weights of a file into a module. Raises Refused if the weights do not fit the module."""
    try:
        module.load_state_dict(read_weights(path))
    except RuntimeError as error:
        raise Refused(f"the weights in {os.path.basename(path)} do not fit the model: {short(error)}") from None
    return module


def classes_in(path: str, usual: int) -> int:
    """Return the number of classes of a classifier: the number of rows of the last tensor in the file with at least two
    dimensions, or `usual` if no tensor has two dimensions."""
    rows = [value.shape[0] for value in read_weights(path).values() if value.ndim >= 2]
    return int(rows[-1]) if rows else usual


class Flat(torch.nn.Module):
    """Returns a module's tensors as a tuple, because an ONNX file cannot return a mapping. After a call, `names` has
    the names of the tensors."""

    def __init__(self, model: torch.nn.Module, keep: Sequence[str]) -> None:
        super().__init__()
        self.model, self._keep = model, tuple(keep)
        self.names = []  # type: List[str]

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        found = OrderedDict()  # type: OrderedDict[str, torch.Tensor]
        _collect(self.model(*inputs), "", found)
        if self._keep:
            found = OrderedDict((name, found[name]) for name in self._keep if name in found)
        self.names = list(found)
        return tuple(found.values())


def _collect(value: Any, name: str, found: dict[str, torch.Tensor]) -> None:
    if isinstance(value, torch.Tensor):
        found[name or f"output{len(found)}"] = value
    elif isinstance(value, Mapping):
        for key, each in value.items():
            _collect(each, str(key) if not name else f"{name}.{key}", found)
    elif isinstance(value, (tuple, list)):
        for each in value:
            _collect(each, "", found)


class _Model:
    def __init__(
        self,
        module: torch.nn.Module,
        example: dict[str, torch.Tensor],
        opened: Mapping[str, Mapping[int, str]],
        keep: Sequence[str],
    ) -> None:
        self._flat, self._example, self._opened = Flat(module, keep).eval(), example, opened
        try:
            with torch.no_grad():
                self._flat(*example.values())  # learns the names of the outputs
        except Exception as error:
            takes = ", ".join(f"{name} {list(value.shape)}" for name, value in example.items())
            raise Refused(
                f"the model fails with {takes} ({type(error).__name__}: {short(error)}); set another --imgsz, often"
                " a multiple of 32, or set the attribute example_inputs of the module"
            ) from None
        taken = set(example)
        self._outputs = [name if name not in taken else name + "_out" for name in self._flat.names]

    def export(self, out: str, opset: int | None, way: str) -> None:
        arguments = tuple(self._example.values())
        options = {"input_names": list(self._example), "output_names": self._outputs}  # type: Dict[str, Any]
        if opset is not None:
            options["opset_version"] = opset
        with torch.no_grad():
            if way == DYNAMO:
                shapes = None
                if any(self._opened.values()):
                    # The exporter would make an open dimension constant if its size in the example is 1.
                    arguments = tuple(_doubled(value, 0 in self._opened[name]) for name, value in self._example.items())
                    dims = {word: torch.export.Dim(word) for each in self._opened.values() for word in each.values()}
                    opened = (self._opened[name] for name in self._example)
                    shapes = (tuple({axis: dims[word] for axis, word in each.items()} or None for each in opened),)
                torch.onnx.export(
                    self._flat,
                    arguments,
                    out,
                    dynamo=True,
                    external_data=False,
                    dynamic_shapes=shapes,
                    verbose=False,
                    **options,
                )
                return
            axes = {name: dict(each) for name, each in self._opened.items() if each}
            if axes:
                axes.update({name: {0: "batch"} for name in self._outputs if "batch" in str(axes)})
            if "dynamo" in inspect.signature(torch.onnx.export).parameters:
                options["dynamo"] = False
            with warnings.catch_warnings(record=True) as warned:
                warnings.simplefilter("always")
                torch.onnx.export(self._flat, arguments, out, dynamic_axes=axes or None, **options)
        own = os.path.abspath(sys.path[0])
        for each in warned:
            # A trace contains only the branches that the example took. Branches in libraries are accepted, because they
            # mostly check sizes.
            if "Python boolean" in str(each.message) and os.path.abspath(each.filename).startswith(own + os.sep):
                raise Refused(
                    f"{os.path.basename(each.filename)}:{each.lineno} has a branch that depends on a tensor's value,"
                    " but the exported file would always take the same branch; use torch.where or torch.cond"
                )

    def answer(self, inputs: Arrays) -> Arrays:
        with torch.no_grad():
            found = self._flat(*(torch.from_numpy(inputs[name]) for name in self._example))
        return {name: found[number].numpy() for number, name in enumerate(self._outputs)}

    def layers(self, inputs: Arrays) -> Arrays:
        return layers_of(self._flat, lambda: self.answer(inputs))


def layers_of(module: torch.nn.Module, run: Callable[[], object]) -> Arrays:
    """Call `run`, and return a sample of the output of each module inside `module`. The keys are "name|shape"."""
    found = OrderedDict()  # type: OrderedDict[str, Any]

    def keep(name: str) -> Any:
        def hook(module: Any, given: Any, value: Any) -> None:
            if isinstance(value, torch.Tensor) and value.is_floating_point() and value.numel():
                found["{}|{}".format(name, "x".join(map(str, value.shape)))] = sampled(value.detach().float().numpy())

        return hook

    handles = [each.register_forward_hook(keep(name)) for name, each in module.named_modules() if name]
    try:
        run()
    finally:
        for handle in handles:
            handle.remove()
    return found


def sampled(values: Any) -> Any:
    """Return at most `_SAMPLED` elements, evenly spread, as float32."""
    flat = np.ascontiguousarray(values, dtype=np.float32).reshape(-1)
    return flat[:: max(1, flat.size // _SAMPLED)][:_SAMPLED].copy()


def _doubled(value: torch.Tensor, is_open: bool) -> torch.Tensor:
    return torch.cat([value, value]) if is_open and value.shape[0] == 1 else value
