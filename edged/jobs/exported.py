"""Finishes models that exporters of training frameworks wrote, and runs them layer by layer for comparison.

Exporters say in two ways which module a node comes from. The newer exporter of torch writes metadata of nodes
(`pkg.torch.onnx.*`). The older exporter puts the path of the module into the node's name.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import numpy as np
import onnx
from onnx import NodeProto

from edged.backends.contract import one_line
from edged.backends.ort.quantize import Runner
from edged.errors import EngineUnusable
from edged.ipc import job_messages as jobs
from edged.jobs.onnx_graph import Model

_SCOPES, _TRACE = "pkg.torch.onnx.name_scopes", "pkg.torch.onnx.stack_trace"
_LINE = re.compile(r'File "(.*?)", line (\d+)')
_LARGE = 1_900_000_000  # bytes: a protobuf message must be smaller than 2 GiB
_SAMPLED = 4096  # elements, as in `edged.export.frameworks.torch_model`


def finish(job: jobs.FinishExport) -> jobs.FinishedExport:
    """Write an exported model again, as one file if the model is not too large, with the job's metadata. Return for
    each operator the file and line of the code that its first node with a trace comes from. Raises EngineUnusable if
    the model or its external data cannot be read."""
    source = Path(job.path)
    try:
        size = sum(file.stat().st_size for file in source.parent.glob(f"{source.name}*"))
        proto = onnx.load(str(source), load_external_data=size < _LARGE)
    except Exception as error:  # the parser's errors have no common class
        raise EngineUnusable(f"the exported file cannot be read: {one_line(error)}") from error
    sources: dict[str, str] = {}
    for node in proto.graph.node:
        if lines := _LINE.findall(_metadata(node, _TRACE)):
            sources.setdefault(node.op_type, "{}:{}".format(*lines[-1]))
        # Traces have paths of the exporting computer, and may be larger than the weights.
        kept = [entry for entry in node.metadata_props if entry.key != _TRACE]
        del node.metadata_props[:]
        node.metadata_props.extend(kept)
        node.ClearField("doc_string")
    onnx.helper.set_model_props(proto, {**{e.key: e.value for e in proto.metadata_props}, **job.metadata})
    if size < _LARGE:
        Path(job.out).write_bytes(proto.SerializeToString())
    else:
        Model(proto, source.parent).write(Path(job.out))
    return jobs.FinishedExport(sources)


def layers(job: jobs.ExportLayers) -> jobs.Done:
    """Run a model on `job.inputs` and write a sample of each module's output to `job.out`. Write the names of modules,
    with the shapes of outputs, to a file with the suffix `.names`. Raises EngineUnusable if the model cannot be run."""
    model = Model.read(Path(job.path))
    last: dict[str, str] = {}
    for node in model.graph.node:
        if node.output and (path := module_of(node)):
            while path:  # the last node of a module is also a node of the enclosing modules
                last[path] = node.output[0]
                path = path.rpartition(".")[0]
    known = {value.name for value in model.graph.output}
    wanted = [name for name in dict.fromkeys(last.values()) if model.types.get(name) == onnx.TensorProto.FLOAT]
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in wanted if name not in known)
    place = Path(job.out).with_suffix(".layers.onnx")
    model.write(place)
    with np.load(job.inputs, allow_pickle=False) as given:
        answer = Runner(place).run({name[1:]: given[name] for name in given.files}, wanted)
    found = {
        f"{path}|{'x'.join(map(str, answer[name].shape))}": _sampled(answer[name])
        for path, name in last.items()
        if name in answer
    }
    np.savez(job.out, **{str(number): values for number, values in enumerate(found.values())})  # type: ignore[arg-type]
    Path(job.out).with_suffix(".names").write_text("\n".join(found))
    return jobs.Done()


def module_of(node: NodeProto) -> str:
    """Return the path of the module that a node comes from, such as `features.0.conv`; empty if it is unknown."""
    if scopes := _metadata(node, _SCOPES):
        try:
            names = ast.literal_eval(scopes) if len(scopes) < 1 << 16 else []
        except (ValueError, SyntaxError):
            return ""
        return str(names[-2]) if isinstance(names, list) and len(names) > 1 else ""
    found = ""
    for part in node.name.split("/")[1:-1]:
        found = part if part.startswith(f"{found}.") or not found else f"{found}.{part}"
    return found


def _metadata(node: NodeProto, key: str) -> str:
    return next((entry.value for entry in node.metadata_props if entry.key == key), "")


def _sampled(values: np.ndarray) -> np.ndarray:
    flat = np.ascontiguousarray(values, np.float32).reshape(-1)
    return flat[:: max(1, flat.size // _SAMPLED)][:_SAMPLED]
