"""`edged models`: which models there are, looking at one, adding one, removing one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.table import Table

from edged.cli import common, local
from edged.client.operations import ModelInfo, TensorInfo
from edged.control.plan import PlannedModel
from edged.errors import NotFound

_NAME = typer.Argument(help="The name it serves under: letters, digits and . _ - + @")


def add(
    name: Annotated[str, _NAME],
    file: Annotated[Path, typer.Argument(help="The ONNX file; external data is taken from beside it.")],
    setting: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A model setting, such as thresholds.score=0.4; repeatable."),
    ] = None,
    samples: Annotated[
        list[Path] | None,
        typer.Option(
            "--samples",
            metavar="DIR_OR_FILE",
            help="JPEG or PNG pictures to verify its engines with, or a folder of them; repeatable, 32 at most.",
        ),
    ] = None,
    target: common.Target = None,
    state: local.State = None,
    json: common.Json = False,
) -> None:
    """Take a model in, if it can be served here: into a running daemon, or into the folder of models.

    Settings: family, names, backends, threads, precisions, thresholds.{score,iou,max_detections,class_agnostic},
    preprocess.{width,height,color,fit,scale,mean,std,pad,zoom}, decode.{anchors,boxes,scores,background}, and, for all
    precisions or as verify.PRECISION.FIGURE for one,
    verify.{cosine,relative_l2,element,outliers,unequal,finite,top1,boxes,box_score}.
    """
    from edged.model.settings import parse_assignments

    settings = parse_assignments(setting or [])
    with common.working(f"examining {file.name}"):
        if local.daemon_is_meant(target, state):
            from edged.client.client import Client

            with Client(target) as client:
                digest = client.add_model(name, file, settings, samples=samples or ()).digest
        else:
            digest = local.Box(state).add(name, file, settings, samples or ()).digest
    if json:
        common.print_json(msgspec.json.encode({"name": name, "digest": digest, "settings": settings}))
    else:
        common.show(f"model {name} added, digest {digest[:12]}")


def list_(target: common.Target = None, state: local.State = None, json: common.Json = False) -> None:
    """Show the models, what serves them, and what is wrong with them."""
    models = _all(target, state)
    if json:
        common.print_json(msgspec.json.encode({"models": [model.json() for model in models]}))
    else:
        common.show(_table(models) if models else "no models yet; add one: edged models add NAME FILE.onnx")


def show(
    name: Annotated[str, typer.Argument(help="The model's name, or NAME:VERSION.")],
    target: common.Target = None,
    state: local.State = None,
    json: common.Json = False,
) -> None:
    """Show one model: its tensors, its settings, what serves it, and what of its config.pbtxt is not used."""
    found = next((model for model in _all(target, state) if model.name == name), None)
    if found is None:
        raise NotFound(f"there is no model {name!r}; see: edged models list")
    if json:
        common.print_json(msgspec.json.encode(found.json()))
    else:
        common.show(_facts(found))


def remove(
    name: Annotated[str, typer.Argument(help="The model's name.")],
    target: common.Target = None,
    state: local.State = None,
) -> None:
    """Take a model out; its engines stay in the store until space is needed."""
    if local.daemon_is_meant(target, state):
        from edged.client.client import Client

        with Client(target) as client:
            client.remove_model(name)
    else:
        local.Box(state).remove(name)
    common.show(f"model {name} removed")


def register(app: typer.Typer) -> None:
    models = typer.Typer(no_args_is_help=True, help="Which models there are; look at one, add one, remove one.")
    models.command("add")(common.command(add))
    models.command("list")(common.command(list_))
    models.command("show")(common.command(show))
    models.command("remove")(common.command(remove))
    app.add_typer(models, name="models")


def _all(target: str | None, state: Path | None) -> list[ModelInfo]:
    """Those of a daemon, or of the folder of models."""
    if local.daemon_is_meant(target, state):
        from edged.client.client import Client

        with Client(target) as client:
            return list(client.models())
    return [_offline(name, planned) for name, planned in sorted(local.Box(state).plans().items())]


def _offline(name: str, planned: PlannedModel) -> ModelInfo:
    """A model as the disk has it: no daemon serves it."""
    model = planned.model
    signature = model.inspection.signature if model else None
    return ModelInfo(
        name=name,
        version=planned.entry.version,
        digest=model.digest if model else "",
        state="refused" if planned.problem else "stored",
        reason=str(planned.problem or ""),
        family=(model.recognition.family or "") if model else "",
        engine="",
        backend="",
        inputs=tuple(TensorInfo(s.name, s.datatype, s.dims) for s in signature.inputs) if signature else (),
        outputs=tuple(TensorInfo(s.name, s.datatype, s.dims) for s in signature.outputs) if signature else (),
        settings=planned.entry.settings,
        swaps=0,
        notes=model.notes if model else (),
    )


def _table(models: list[ModelInfo]) -> Table:
    titles = ("model", "state", "family", "backend", "engine", "inputs")
    alarming, noting = any(model.alarms for model in models), any(model.notes for model in models)
    more = [*(["alarms"] if alarming else []), *(["config.pbtxt"] if noting else [])]
    table = Table(*titles, *more, box=None, pad_edge=False)
    for model in models:
        inputs = ", ".join(f"{t.name} {t.datatype}{list(t.shape)}" for t in model.inputs)
        family = model.family or ("raw tensors" if model.digest else "")
        alarms = ["; ".join(alarm.message for alarm in model.alarms)] if alarming else []
        told = model.reason or inputs
        unused = f"{len(model.notes)} unused: edged models show {model.name}" if model.notes else ""
        notes = [unused] if noting else []
        table.add_row(model.name, model.state, family, model.backend, model.engine[:12], told, *alarms, *notes)
    return table


def _facts(model: ModelInfo) -> Table:
    table = Table(show_header=False, box=None, pad_edge=False)
    rows = {
        "model": model.name,
        "version": model.version,
        "state": f"{model.state}: {model.reason}" if model.reason else model.state,
        "digest": model.digest or "none",
        "family": model.family or "raw tensors",
        "engine": f"{model.engine[:12]} ({model.backend}), swapped {model.swaps} times" if model.engine else "none",
        "inputs": _tensors(model.inputs),
        "outputs": _tensors(model.outputs),
        "settings": "\n".join(f"{key} = {value}" for key, value in sorted(model.settings.items())) or "none",
        "alarms": "\n".join(alarm.message for alarm in model.alarms) or "none",
    }
    if model.notes:
        rows["config.pbtxt"] = "\n".join(model.notes)
    for name, value in rows.items():
        table.add_row(name, value)
    return table


def _tensors(tensors: tuple[TensorInfo, ...]) -> str:
    return "\n".join(f"{t.name} {t.datatype}{list(t.shape)}" for t in tensors) or "none"
