"""`edged models`: list, show, add, change, remove and restore models."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from edged import formatting
from edged.api_types import DriftInfo, ModelInfo, ShapeRange, Shapes, TensorInfo
from edged.cli import common, model_options, remote
from edged.cli.remote import RemoteCommand
from edged.cli.samples import summary
from edged.cli.targets import (
    DEFAULT_TARGETS,
    CacheOption,
    StateOption,
    Targets,
    is_daemon_addressed,
    local_box,
)
from edged.errors import ModelNotFound
from edged.models.repair import Record, RepairOptions

if TYPE_CHECKING:
    from edged.client.client import Client

_UPLOAD_S = 600.0  # a model may be gigabytes
_NAME = typer.Argument(help="The model's name for clients: letters, digits and . _ - + @")


def add(
    context: typer.Context,
    name: Annotated[str, _NAME],
    file: model_options.File,
    setting: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A model setting, such as thresholds.score=0.4; repeatable."),
    ] = None,
    samples: model_options.Samples = None,
    convert: model_options.Convert = False,
    convert_steps: model_options.Steps = None,
    replace: Annotated[
        bool,
        typer.Option("--replace", help="Replace a model of this name while it serves, and keep its settings."),
    ] = False,
    targets: Targets = DEFAULT_TARGETS,
    state: StateOption = None,
    cache: CacheOption = None,
    seconds: model_options.Seconds = None,
    memory_mb: model_options.MemoryMb = None,
    json: common.Json = False,
) -> None:
    """Add a model, if this box can serve it.

    The model is sent to the running daemon, or copied to the folder of models if no daemon runs.

    --convert repairs a model that cannot be served unchanged. The repaired model is added only if its answers agree
    with those of the original. Your file is not changed. To see the repairs, run: edged models show NAME

    edged models add yolo yolo.onnx --convert

    edged models add yolo yolo.onnx --convert --convert-step simplify

    With --replace, the old model serves until the new one is ready. The old model is then kept in models/.removed.

    edged models add yolo yolo-v2.onnx --replace

    Settings such as family and names are taken from config.json of Hugging Face or metadata.json of anomalib next to
    the file, unless family is set. The characters of a text recogniser are taken from its dictionary, such as
    ppocr_keys_v1.txt, or from inference.yml. With --replace, these files are not read. The prompts of a zero-shot
    detector are encoded with tokenizer.json next to the file, or in the folder above:

    edged models add owl onnx/model.onnx --set "prompts=a photo of a cat, a photo of a dog"

    A folder with genai_config.json or openvino_model.xml, or a GGUF file, is a language model (docs/language.md). Its
    settings are language.{context,output_tokens,requests,waiting,memory_mb,runtime,system,verify}, threads and
    limits.seconds:

    edged models add qwen qwen2.5-0.5b-instruct/ --set language.context=2048

    Settings: family, names, prompts, backends, threads, precisions, performance, int8.repair_s,
    thresholds.{score,iou,max_detections,class_agnostic},
    preprocess.{width,height,color,fit,scale,mean,std,pad,zoom,antialias,reduce},
    decode.{activation,anchors,background,blank,boxes,characters,layout,scores,unclip}, and
    verify.{cosine,relative_l2,element,outliers,unequal,finite,top1,boxes,box_score,class_score,class_map,depth,
    embedding,text,anomaly,recall,precision,recall_75,precision_75,score_drift,masks,keypoints,top5,objects} for all
    precisions, or verify.PRECISION.FIGURE for one. For a model with open dimensions: profile.INPUT (the smallest, usual
    and largest shape for which engines are built), shapes.policy (any, refuse or learn: what happens to requests
    outside this range) and, for learn, shapes.{quiet_s,most_mb,per_hour}.
    """
    from edged.models.settings import parse_assignments

    settings, options = parse_assignments(setting or []), RepairOptions.parse(convert, convert_steps or [])
    found: tuple[str, ...] = ()
    local = model_options.local_file(file, state)
    path = local.path
    if not replace:
        settings, found = model_options.with_exporter_settings(local, settings)
    settings, encoded = model_options.with_token_ids(settings, path.absolute().parent)
    doing = f"{'repairing' if options.is_any else 'examining'} {path.name}"

    def lines_of(added: tuple[str, Record | None]) -> list[str]:
        digest, record = added
        repairs = model_options.repair_lines(record) or (("no repair was needed",) if options.is_any else ())
        return [
            f"model {name} added, digest {digest[:12]}",
            *(f"  {line}" for line in (*model_options.source_lines(local), *found, *encoded, *repairs)),
        ]

    def to_json(added: tuple[str, Record | None]) -> dict[str, Any]:
        digest, record = added
        return {"name": name, "digest": digest, "settings": settings, "repair": record}

    if is_daemon_addressed(targets.named, state, cache):
        model_options.require_no_limits(context)
        from edged.client.upload import Package

        with common.working(f"reading {path.name}"):
            package = Package.of(name, path, settings, samples or (), options, replace=replace)

        def upload(client: Client) -> tuple[str, Record | None]:
            uploaded = client.upload(package, timeout=targets.timeout or _UPLOAD_S)
            return uploaded.digest, uploaded.repair

        lasting = "an interrupted upload leaves nothing behind; see: edged models list"
        command = RemoteCommand(upload, lines_of, to_json, if_interrupted=lasting)
        remote.run(command, targets, json, doing)
    else:
        with common.working(doing):
            box = local_box(state, cache, seconds, memory_mb)
            added = box.add(name, path, settings, samples or (), options, replace=replace)
        RemoteCommand(lambda _: added, lines_of, to_json).show(added, json)


def set_(
    name: Annotated[str, typer.Argument(help="The model's name.")],
    setting: Annotated[
        list[str], typer.Argument(metavar="KEY=VALUE...", help="As for --set of models add; KEY= removes a setting.")
    ],
    tokenizer: model_options.Tokenizer = None,
    targets: Targets = DEFAULT_TARGETS,
    state: StateOption = None,
    json: common.Json = False,
) -> None:
    """Change settings of a model while it serves.

    The model is first examined with the new settings. It serves with the old settings until the new ones are in use.

    edged models set doors thresholds.score=0.4

    edged models set doors names=                # removes the setting

    edged models set doors precisions=int8       # see docs/int8.md

    edged models add --help lists the settings.
    """
    from edged.models.settings import parse_assignments

    changes = parse_assignments(setting)
    if tokenizer is not None:
        changes, _ = model_options.with_token_ids(changes, tokenizer.absolute())
    command: RemoteCommand[Mapping[str, str]] = RemoteCommand(
        call=lambda client: client.set_model(name, changes).settings,
        render=lambda settings: [f"model {name}: {_listed(settings)}"],
        to_json=lambda settings: {"name": name, "settings": settings},
    )
    doing = f"examining {name} with these settings"
    remote.run_or_read(command, targets, (state,), lambda: local_box(state).change(name, changes), json, doing)


def _listed(settings: Mapping[str, str]) -> str:
    return ", ".join(f"{key} = {value}" for key, value in sorted(settings.items())) or "no settings"


def list_(targets: Targets = DEFAULT_TARGETS, state: StateOption = None, json: common.Json = False) -> None:
    """Show the models, the engines that serve them, and their problems."""
    command = remote.list_command(
        lambda client: list(client.models()),
        _COLUMNS,
        lambda models: {"models": [model.json() for model in models]},
        empty="no models yet; add one: edged models add NAME FILE.onnx",
    )
    remote.run_or_read(command, targets, (state,), lambda: local_box(state).models(), json)


def show(
    name: Annotated[str, typer.Argument(help="The model's name, or NAME:VERSION.")],
    targets: Targets = DEFAULT_TARGETS,
    state: StateOption = None,
    json: common.Json = False,
) -> None:
    """Show one model: tensors, settings, and the engine that serves it.

    It also shows the sizes that open dimensions had in requests, and the parts of the model's config.pbtxt that edged
    does not use.
    """
    command = RemoteCommand(
        call=lambda client: _named(client.models(), name),
        render=lambda model: [_facts(model)],
        to_json=ModelInfo.json,
    )
    remote.run_or_read(command, targets, (state,), lambda: _named(local_box(state).models(), name), json)


def remove(
    name: Annotated[str, typer.Argument(help="The model's name.")],
    delete: Annotated[bool, typer.Option("--delete", help="Delete the model's files permanently.")] = False,
    targets: Targets = DEFAULT_TARGETS,
    state: StateOption = None,
    json: common.Json = False,
) -> None:
    """Remove a model; it can be restored.

    Its engines stay in the store until space is needed. Its files are moved to models/.removed in the state folder;
    edged models restore puts them back. That folder keeps the last 10 models, at most 4 GiB. --delete keeps no files.
    """
    command: RemoteCommand[str] = RemoteCommand(
        call=lambda client: client.remove_model(name, delete=delete),
        render=lambda folder: [_removed(name, folder)],
        to_json=lambda folder: {"name": name, "kept": folder},
    )
    remote.run_or_read(command, targets, (state,), lambda: local_box(state).remove(name, delete=delete), json)


def restore(
    name: Annotated[str, typer.Argument(help="The model's name.")],
    targets: Targets = DEFAULT_TARGETS,
    state: StateOption = None,
    json: common.Json = False,
) -> None:
    """Put back the model that was removed or replaced last.

    If a model of this name exists, the two are exchanged, so a second call undoes the first.
    """
    command: RemoteCommand[str] = RemoteCommand(
        call=lambda client: client.restore_model(name).digest,
        render=lambda digest: [f"model {name} restored" + (f", digest {digest[:12]}" if digest else "")],
        to_json=lambda digest: {"name": name, "digest": digest},
    )
    remote.run_or_read(command, targets, (state,), lambda: local_box(state).restore(name), json)


def _removed(name: str, folder: str) -> str:
    """Return the line about a removed model. Its files were moved to `folder`, or deleted if `folder` is empty."""
    if not folder:
        return f"model {name} removed, its files deleted"
    return f"model {name} removed; its files are kept; to restore it: edged models restore {name}"


def _named(models: Sequence[ModelInfo], name: str) -> ModelInfo:
    found = next((model for model in models if model.name == name), None)
    if found is None:
        raise ModelNotFound(f"no model {name!r}; see: edged models list")
    return found


def _alarms(model: ModelInfo) -> str:
    """Return the model's alarms, except those that repeat the reason for its state."""
    return "; ".join(a.message for a in model.alarms if not model.reason or model.reason not in a.message)


def _facts(model: ModelInfo) -> Table:
    rows = {
        "model": model.name,
        "version": model.version,
        "state": f"{_state(model)}: {model.reason}" if model.reason else _state(model),
        **({"stage": formatting.stage(model.stage, model.category)} if model.category else {}),
        **({"ensemble of": "\n".join(model.parts)} if model.parts else _engine_facts(model)),
        "inputs": _tensors(model.inputs),
        "outputs": _tensors(model.outputs),
        **({} if model.shapes is None else _open_dimensions(model.shapes)),
        "settings": "\n".join(f"{key} = {value}" for key, value in sorted(model.settings.items())) or "none",
        **({} if model.drift is None else {"drift": _drift(model.drift)}),
        "alarms": "\n".join(alarm.message for alarm in model.alarms) or "none",
    }
    if model.frames is not None:
        rows["frames"] = summary(model.frames)
    if model.repair is not None:
        rows["repaired"] = "\n".join(model.repair.lines())
    if model.notes:
        rows["notes"] = "\n".join(model.notes)
    return common.fact_table(
        {name: "\n".join(map(formatting.shown, value.split("\n"))) for name, value in rows.items()}
    )


def _drift(found: DriftInfo) -> str:
    """Return a few lines about the drift checks, which compare live answers with those of the reference."""
    counts = f"{formatting.many(found.checks, 'check')}, {found.differed} differed, {found.failed} failed"
    agreement = "" if found.agreement is None else f"; agreement {found.agreement:.1%}"
    lines = [f"{counts}{agreement}; every {formatting.span(found.every_s)}"]
    if found.last_unix_s:
        why = f": {found.reason}" if found.reason else ""
        lines.append(f"last {formatting.moment(found.last_unix_s)}, camera {found.camera}, {found.outcome}{why}")
    return "\n".join([*lines, f"waiting: {found.waiting}"] if found.waiting else lines)


def _engine_facts(model: ModelInfo) -> dict[str, str]:
    engine = (
        f"{model.engine[:12]} ({model.backend}), {formatting.many(model.swaps, 'swap')}" if model.engine else "none"
    )
    return {
        "digest": model.digest or "none",
        "family": model.family or "raw tensors",
        "engine": engine,
        **({"precision": _precision(model)} if model.precision else {}),
    }


def _precision(model: ModelInfo) -> str:
    return f"{model.precision} ({model.precision_reason})" if model.precision_reason else model.precision


def _state(model: ModelInfo) -> str:
    """Return the model's state. The state of a ready model with alarms ends with `, degraded`."""
    return f"{model.state}, degraded" if model.state == "ready" and model.alarms else model.state


def _kind(model: ModelInfo) -> str:
    if model.parts:
        return f"ensemble of {', '.join(map(formatting.shown, model.parts))}"
    return model.family or ("raw tensors" if model.digest else "")


def _inputs(model: ModelInfo) -> str:
    return ", ".join(f"{formatting.shown(t.name)} {t.datatype}{list(t.shape)}" for t in model.inputs)


_COLUMNS: tuple[remote.Column[ModelInfo], ...] = (
    remote.Column("model", lambda model: model.name),
    remote.Column("state", _state),
    remote.Column("family", _kind),
    remote.Column("backend", lambda model: model.backend),
    remote.Column("precision", _precision),
    remote.Column("engine", lambda model: model.engine[:12]),
    remote.Column("inputs", lambda model: model.reason or _inputs(model)),
    remote.Column("alarms", _alarms, is_optional=True),
    remote.Column(
        "notes",
        lambda model: f"{len(model.notes)}: edged models show {model.name}" if model.notes else "",
        is_optional=True,
    ),
)


def _tensors(tensors: tuple[TensorInfo, ...]) -> str:
    return "\n".join(f"{formatting.shown(t.name)} {t.datatype}{list(t.shape)}" for t in tensors) or "none"


def _open_dimensions(shapes: Shapes) -> dict[str, str]:
    lines = [f"{formatting.shown(each.name)}[{', '.join(each.dims)}]" for each in shapes.inputs]
    lines += [f"equal: {tie}" for tie in shapes.ties]
    seen = _ranges((each.name, each.seen) for each in shapes.inputs)
    return {
        "open": "\n".join(lines),
        "  engines for": _ranges((each.name, each.wanted) for each in shapes.inputs)
        or _UNKNOWN.get(shapes.policy, _UNKNOWN["any"]),
        "  serving": _ranges((each.name, each.serving) for each in shapes.inputs) or "any shape",
        "  requests": f"{shapes.requests} answered\n{seen}".strip(),
        "  policy": shapes.policy + (f": {shapes.learning}" if shapes.learning else ""),
    }


_UNKNOWN = {
    "any": "no range is known: set profile.INPUT or shapes.policy=learn",
    "learn": "no range is known until requests arrive",
}


def _ranges(named: Iterable[tuple[str, ShapeRange | None]]) -> str:
    return "\n".join(f"{formatting.shown(name)} {_range(found)}" for name, found in named if found is not None)


def _range(found: ShapeRange) -> str:
    least, usual, most = ("x".join(map(str, shape)) for shape in (found.minimum, found.usual, found.maximum))
    return least if least == usual == most else f"{least} to {most}, mostly {usual}"


COMMANDS = (add, list_, show, set_, remove, restore)
