"""`edged inspect`: shows the contents of an ONNX file, and whether the model can be served here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from rich.table import Table

from edged import formatting
from edged.api_types import ModelInfo
from edged.cli import common, model_options
from edged.cli.targets import local_box
from edged.errors import EdgedError, InvalidInput
from edged.models import language
from edged.models.finding import Category, Finding, Stage
from edged.models.inspection import ExternalFile
from edged.models.repair import Record, RepairOptions
from edged.tensors import TensorSpec

if TYPE_CHECKING:
    from edged.cli import sample_run
    from edged.cli.family_sheet import FamilySheet
    from edged.cli.local import LocalBox
    from edged.engines.admission import Admission


def inspect(
    model: Annotated[
        str,
        typer.Argument(metavar="FILE", help="The ONNX file, a reference to one, or the folder of an ensemble."),
    ],
    setting: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A model setting to try; repeatable.")
    ] = None,
    draw: Annotated[
        Path | None,
        typer.Option(
            "--draw",
            metavar="PICTURE",
            help="Run the model once on this picture, draw the detections, and count them by class.",
        ),
    ] = None,
    try_all: Annotated[
        bool,
        typer.Option(
            "--try-all",
            help="With --draw: draw what each family that accepts the model finds, all on one picture.",
        ),
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            help="File for the drawn picture; default: PICTURE.MODEL.jpg in this folder; with --try-all"
            " PICTURE.MODEL.families.jpg.",
        ),
    ] = None,
    samples: model_options.Samples = None,
    convert: model_options.Convert = False,
    convert_steps: model_options.Steps = None,
    seconds: model_options.Seconds = None,
    memory_mb: model_options.MemoryMb = None,
    json: common.Json = False,
) -> None:
    """Show an ONNX file, and whether this box can serve it.

    The command names the model family, and says for each installed backend whether it can serve the model, or why not.

    --draw runs the model once, as edged would serve it, and draws what the model finds. If boxes are missing or in the
    wrong place, try other values of family, preprocess.* or thresholds.* with --set. Then give the same settings to
    `edged models add`. For a model of unknown family, --draw shows the shapes and ranges of the outputs instead.

    --try-all is for a model that can be of several families. For each family that accepts the model's tensors it draws
    a tile with the settings and what the family finds. Choose the tile whose boxes are right, and give its settings to
    `edged models add`.

    edged inspect yolo.onnx --draw street.jpg

    edged inspect unknown.onnx --draw street.jpg --try-all

    edged inspect yolo.onnx --draw street.jpg --set thresholds.score=0.1 --set preprocess.color=bgr

    Like `edged models add`, this command reads files next to the model: the characters of a text recogniser, and the
    tokenizer that encodes prompts. If family is not set, the command also reads config.json of Hugging Face or
    metadata.json of anomalib.

    --convert shows the repairs that `edged models add --convert` would make. It also shows whether the repaired model
    gives the same answers, and whether it can be served. The repaired model is not kept.

    If FILE is the folder of an ensemble, the command shows the steps. It also shows whether the models in the folders
    next to FILE fit together.

    The file passes the same stages as in a daemon. Each stage runs in a child process with limits of time and memory,
    so a hostile file does no harm.

    Exit status: 0 the model can be served, 1 edged or the picture failed, 2 the model cannot be served.
    """
    from edged.cli import family_sheet, sample_run  # import OpenCV
    from edged.models.settings import parse_assignments

    if out is not None and draw is None:
        raise InvalidInput("--out needs --draw PICTURE")
    given = parse_assignments(setting or [])
    local = model_options.local_file(model)
    file = local.path
    if language.main_file(file) is not None:
        raise InvalidInput(
            f"{file.name} is a language model, which cannot be inspected; to add it: edged models add --help"
        )
    if file.is_dir() and (info := local_box(seconds=seconds, memory_mb=memory_mb).ensemble(file)) is not None:
        _show_ensemble(file, info, json)
        return
    settings, found = model_options.with_exporter_settings(local, given)
    settings, encoded = model_options.with_token_ids(settings, file.absolute().parent)
    options = RepairOptions.parse(convert, convert_steps or [])
    if options.is_any and draw is not None:
        raise InvalidInput(
            "--draw cannot be used with --convert; leave out --convert, or add the model and use edged infer"
        )
    if try_all:
        family_sheet.check(draw, given)
    if draw is not None and try_all:
        out = family_sheet.default_place(draw, file, out)
    place = None if draw is None else sample_run.place_for(draw, file, out)
    try:
        box = local_box(seconds=seconds, memory_mb=memory_mb)
        admission, record = _examined(box, file, settings, options, samples or ())
    except InvalidInput as error:
        _refuse(file, error, json)
        raise typer.Exit(common.USAGE) from None
    seen: sample_run.PictureResult | FamilySheet | None = None
    if draw is not None and place is not None and admission.model is not None and not admission.refusal:
        with common.working(f"running {file.name} on {draw.name}"):
            if try_all:
                seen = family_sheet.try_all(box, file, settings, admission, draw, place)
            else:
                family = admission.model.recognition.family
                seen = sample_run.run_on_picture(file, settings, draw, place, family, box.families)
    _show(file, admission, record, seen, json)
    for line in () if json else (*found, *encoded):
        common.show(line)
    if admission.refusal:
        raise typer.Exit(common.USAGE)


def _examined(
    box: LocalBox, file: Path, settings: Mapping[str, str], options: RepairOptions, samples: Sequence[Path]
) -> tuple[Admission, Record | None]:
    """Examine a model as it is, or with the requested repairs."""
    with common.working(f"{'repairing' if options.is_any else 'examining'} {file.name}"):
        if options.is_any:
            return box.examine_repaired(file, settings, options, samples)
        return box.examine(file, settings, samples), None


def _show(
    file: Path,
    admission: Admission,
    record: Record | None,
    seen: sample_run.PictureResult | FamilySheet | None,
    json: bool,
) -> None:
    if not json:
        common.show(_table(file, admission, seen))
        for line in model_options.repair_lines(record):
            common.show(f"  {line}")
        return
    facts = _facts(file, admission)
    if seen is not None:
        facts |= seen.facts()
    if record is not None:
        facts["repair"] = msgspec.to_builtins(record)
    common.print_json(msgspec.json.encode(facts))


def _show_ensemble(file: Path, info: ModelInfo, json: bool) -> None:
    """Show an ensemble; exit with status 2 if it cannot be served."""
    finding = Finding(Stage.FILE, Category.SETTINGS, info.reason, "change config.pbtxt") if info.reason else None
    if json:
        facts = {"file": str(file), **_verdict(finding, ()), **_NOTHING_KNOWN, "parts": info.parts}
        facts |= {kind: [each.json() for each in getattr(info, kind)] for kind in ("inputs", "outputs")}
        common.print_json(msgspec.json.encode(facts))
    else:
        tensors = {
            kind: ", ".join(f"{each.name} {each.datatype}{list(each.shape)}" for each in getattr(info, kind)) or "none"
            for kind in ("inputs", "outputs")
        }
        verdict = {"verdict": "the models of the ensemble fit together"} if finding is None else _refusal_rows(finding)
        rows = {"folder": str(file), "ensemble of": ", ".join(info.parts), **tensors, **verdict}
        common.show(common.fact_table({name: formatting.shown(value) for name, value in rows.items()}))
        for note in info.notes:
            common.show(formatting.shown(note))
    if finding is not None:
        raise typer.Exit(common.USAGE)


def _refuse(file: Path, error: EdgedError, json: bool) -> None:
    """Print the error of a file that could not be examined: a line on standard error, or fields for --json."""
    if not json:
        common.say(f"edged: {error}")
        return
    finding = Finding.of(error) or Finding(Stage.FILE, Category.SETTINGS, str(error), "give other options")
    facts = {"file": str(file), **_verdict(finding, ()), **_NOTHING_KNOWN, "size": _size(file)}
    common.print_json(msgspec.json.encode(facts))


def _verdict(finding: Finding | None, warnings: tuple[Finding, ...]) -> dict[str, Any]:
    """Return the fields of the verdict for --json. `stage` is the failed stage, or the last stage if all passed."""
    return {
        "ok": finding is None,
        "stage": (Stage.INFERENCE if finding is None else finding.stage).value,
        "category": None if finding is None else finding.category.value,
        "node": "" if finding is None else finding.node,
        "message": "" if finding is None else finding.message,
        "remedy": "" if finding is None else finding.remedy,
        "warnings": [msgspec.to_builtins(warning) for warning in warnings],
    }


def _size(file: Path) -> int | None:
    try:
        return file.stat().st_size
    except OSError:
        return None


# The keys of `_facts`, with their values for a file that could not be read.
_NOTHING_KNOWN: dict[str, Any] = {
    "digest": "",
    "size": None,
    "ir_version": None,
    "opsets": {},
    "producer": "",
    "metadata": {},
    "inputs": [],
    "optional": [],
    "outputs": [],
    "operators": {},
    "subgraphs": None,
    "functions": None,
    "parameters": None,
    "external": [],
    "family": None,
    "family_reason": "",
    "between": [],
    "kind": "",
    "picture": None,
    "names": [],
    "backends": {},
}
# The keys that are fields of an inspection.
_PLAIN = (
    *("digest", "size", "ir_version", "opsets", "producer", "metadata"),
    *("operators", "subgraphs", "functions", "parameters"),
)


def _facts(file: Path, admission: Admission) -> dict[str, Any]:
    inspection, model = admission.inspection, admission.model
    facts = {"file": str(file), **_verdict(admission.finding, admission.warnings), **_NOTHING_KNOWN}
    facts |= {name: getattr(inspection, name) for name in _PLAIN}
    facts |= {
        "inputs": [_tensor(spec) for spec in inspection.signature.inputs],
        "optional": [_tensor(spec) for spec in inspection.optional],
        "outputs": [_tensor(spec) for spec in inspection.signature.outputs],
        "external": [msgspec.to_builtins(item) for item in inspection.external],
        "backends": {name: {"ok": not why, "message": why} for name, why in admission.backends.items()},
    }
    if model is not None:
        found = model.recognition
        facts |= {"family": found.family, "family_reason": found.reason, "names": found.names}
        facts |= {"between": found.between, "kind": found.kind}
        facts["picture"] = msgspec.to_builtins(found.preprocess)
    return facts


def _tensor(spec: TensorSpec) -> dict[str, Any]:
    return {"name": spec.name, "datatype": spec.datatype, "shape": spec.shape, "dims": spec.dims}


def _table(file: Path, admission: Admission, seen: sample_run.PictureResult | FamilySheet | None) -> Table:
    inspection, model = admission.inspection, admission.model
    opsets = ", ".join(f"{domain} {version}" for domain, version in inspection.opsets.items())
    operators = ", ".join(f"{count} {name}" for name, count in inspection.operators.items())
    rows = {
        "file": f"{file} ({inspection.size / 1e6:.2f} MB)",
        "digest": inspection.digest or "none: the model is incomplete",
        "producer": inspection.producer or "unknown",
        "version": f"IR {inspection.ir_version}, opset {opsets}",
        "inputs": _shapes(inspection.signature.inputs),
        **({"optional": _shapes(inspection.optional)} if inspection.optional else {}),
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
        **_outcome(admission),
        **({} if seen is None else seen.rows()),
    }
    return common.fact_table({name: formatting.shown(value) for name, value in rows.items()})


def _outcome(admission: Admission) -> dict[str, str]:
    warnings = {"warning": "; ".join(warning.line() for warning in admission.warnings)} if admission.warnings else {}
    finding = admission.finding
    if finding is None:
        return {**warnings, "verdict": "can be served here"}
    return {**warnings, **_refusal_rows(finding)}


def _refusal_rows(finding: Finding) -> dict[str, str]:
    return {
        "verdict": f"cannot be served here: {finding.message}",
        "stage": formatting.stage(finding.stage.value, finding.category.value),
        "remedy": finding.remedy,
    }


def _external(file: ExternalFile) -> str:
    return file.problem.removeprefix("external data ") or f"{file.path} ({file.size} bytes)"


def _shapes(specs: tuple[TensorSpec, ...]) -> str:
    return ", ".join(f"{s.name} {s.datatype}[{', '.join(str(d) for d in s.shape)}]" for s in specs) or "none"
