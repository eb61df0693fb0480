"""`edged inspect`: what an ONNX file holds, and whether it can be served here."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.table import Table

from edged.build.admission import Admission
from edged.cli import common, local
from edged.errors import EdgedError, InvalidInput
from edged.model.inspection import ExternalFile
from edged.tensors import TensorSpec


def inspect(
    file: Annotated[Path, typer.Argument(help="The ONNX file.")],
    setting: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A model setting to try; repeatable.")
    ] = None,
    json: common.Json = False,
) -> None:
    """Show what an ONNX file holds, which detector family it is, and which backends here can serve it, or why not.

    Exit status: 0 it can be served, 2 it cannot.
    """
    from edged.model.settings import parse_assignments

    try:
        with common.working(f"examining {file.name}"):
            admission = local.Box().examine(file, parse_assignments(setting or []))
    except InvalidInput as error:
        _refuse(file, error, json)
        raise typer.Exit(common.USAGE) from None
    if json:
        common.print_json(msgspec.json.encode(_facts(file, admission)))
    else:
        common.show(_table(file, admission))
    if admission.refusal:
        raise typer.Exit(common.USAGE)


def register(app: typer.Typer) -> None:
    app.command("inspect")(common.command(inspect))


def _refuse(file: Path, error: EdgedError, json: bool) -> None:
    if json:
        common.print_json(msgspec.json.encode({"file": str(file), "ok": False, "message": str(error), "backends": {}}))
    else:
        typer.echo(f"edged: {error}", err=True)


def _facts(file: Path, admission: Admission) -> dict[str, Any]:
    inspection = admission.inspection
    return {
        "file": str(file),
        "ok": not admission.refusal,
        "message": admission.refusal,
        "digest": inspection.digest,
        "size": inspection.size,
        "ir_version": inspection.ir_version,
        "opsets": inspection.opsets,
        "producer": inspection.producer,
        "metadata": inspection.metadata,
        "inputs": [_tensor(spec) for spec in inspection.signature.inputs],
        "outputs": [_tensor(spec) for spec in inspection.signature.outputs],
        "operators": inspection.operators,
        "subgraphs": inspection.subgraphs,
        "functions": inspection.functions,
        "parameters": inspection.parameters,
        "external": [msgspec.to_builtins(item) for item in inspection.external],
        **_meaning(admission),
        "backends": {name: {"ok": not why, "message": why} for name, why in admission.backends.items()},
    }


def _meaning(admission: Admission) -> dict[str, Any]:
    """What the pictures and outputs mean; nothing is known of a model that cannot be served."""
    if admission.model is None:
        return {"family": None, "family_reason": "", "picture": None, "names": ()}
    found = admission.model.recognition
    return {
        "family": found.family,
        "family_reason": found.reason,
        "picture": msgspec.to_builtins(found.preprocess),
        "names": found.names,
    }


def _tensor(spec: TensorSpec) -> dict[str, Any]:
    return {"name": spec.name, "datatype": spec.datatype, "shape": spec.shape, "dims": spec.dims}


def _table(file: Path, admission: Admission) -> Table:
    inspection, model = admission.inspection, admission.model
    table = Table(show_header=False, box=None, pad_edge=False)
    opsets = ", ".join(f"{domain} {version}" for domain, version in inspection.opsets.items())
    operators = ", ".join(f"{count} {name}" for name, count in inspection.operators.items())
    rows = {
        "file": f"{file} ({inspection.size / 1e6:.2f} MB)",
        "digest": inspection.digest or "none: the model is not whole",
        "producer": inspection.producer or "unknown",
        "version": f"IR {inspection.ir_version}, opset {opsets}",
        "inputs": _shapes(inspection.signature.inputs),
        "outputs": _shapes(inspection.signature.outputs),
        "operators": operators,
        "subgraphs": str(inspection.subgraphs),
        "parameters": f"{inspection.parameters:,}",
        "external data": ", ".join(map(_external, inspection.external)) or "none",
    }
    if model is not None:
        rows["family"] = f"{model.recognition.family or 'raw tensors'}: {model.recognition.reason}"
        rows["picture"] = model.recognition.picture
    rows |= {
        **{f"on {name}": why or "can be served" for name, why in admission.backends.items()},
        "verdict": f"cannot be served here: {admission.refusal}" if admission.refusal else "can be served here",
    }
    for name, value in rows.items():
        table.add_row(name, value)
    return table


def _external(file: ExternalFile) -> str:
    return file.problem.removeprefix("external data ") or f"{file.path} ({file.size} bytes)"


def _shapes(specs: tuple[TensorSpec, ...]) -> str:
    return ", ".join(f"{s.name} {s.datatype}[{', '.join(str(d) for d in s.shape)}]" for s in specs) or "none"
