"""Any torch module: `package.module:factory`. The factory is a function or class without arguments, or an instance of
torch.nn.Module. If the torch module has an attribute `example_inputs`, these are its inputs: tensors by name or in
order. Otherwise its input is one picture."""

from __future__ import annotations

import importlib

import torch
from edged_frameworks import torch_model
from edged_frameworks.contract import Loaded, Refused, Request


def load(request: Request) -> Loaded:
    path, _, name = request.source.partition(":")
    made = importlib.import_module(path)  # type: Any
    for part in name.split("."):
        if not hasattr(made, part):
            raise Refused(f"Python module {path} has no attribute {name!r}")
        made = getattr(made, part)
    module = made if isinstance(made, torch.nn.Module) else made()
    if not isinstance(module, torch.nn.Module):
        raise Refused(f"{request.source} returns a {type(module).__name__}, not a torch.nn.Module")
    if request.weights:
        torch_model.fill(module, request.weights)
    settings = getattr(module, "edged_settings", {})
    loaded = torch_model.load(module, request, "", settings)
    if not request.weights:
        loaded.notes.append("the weights are those of the factory, because --weights was not given")
    return loaded
