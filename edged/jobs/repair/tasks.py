"""What a child does for each job of `messages.py`."""

from __future__ import annotations

from pathlib import Path
from typing import TypeAlias

import msgspec
import onnx
import onnx.inliner

from edged.backends.contract import one_line
from edged.errors import ModelRefused
from edged.ipc.repair_messages import FreeDims, Lower, Lowered, Prove, Simplify
from edged.jobs.repair import ir, lowering
from edged.jobs.repair.dims import free
from edged.jobs.repair.proof import prove
from edged.jobs.repair.simplify import simplify

Job: TypeAlias = Lower | Prove | FreeDims | Simplify


def do(job: Job) -> msgspec.Struct:
    """Does one job in this process."""
    if isinstance(job, Prove):
        return prove(job)
    if isinstance(job, FreeDims):
        return free(job)
    if isinstance(job, Simplify):
        return simplify(job)
    return _lower(job)


def _lower(job: Lower) -> Lowered:
    try:
        model = onnx.load(job.path, load_external_data=False)
    except Exception as error:  # the parser's errors share no base
        raise ModelRefused(f"{Path(job.path).name} cannot be read: {one_line(error)}") from error
    done, details = lowering.Lowered(), list[str]()
    if job.opset:
        if model.functions:  # each has versions of its own
            model = onnx.inliner.inline_local_functions(model)
            details.append("functions of its own written out")
        done = lowering.lower(model, job.opset)
    if job.ir:
        ir.stamp(model, job.ir)
    Path(job.out).write_bytes(model.SerializeToString())
    return Lowered(done.by_definition and not details, (*details, *done.details))
