"""`edged export`: exports a model of a training framework to an ONNX file that answers as the framework does, and adds
the file to boxes."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from edged import formatting
from edged.api_types import RuntimeSupport
from edged.cli import common, model_options, remote
from edged.cli.remote import RemoteCommand
from edged.cli.settling import Served, wait_until_served
from edged.cli.targets import DEFAULT_TARGETS, Targets
from edged.errors import AlreadyExists, InvalidInput, ModelRefused, Refused, Unsuitable
from edged.export.targets import Limits, intersection
from edged.files import unwritable
from edged.models import samples as model_samples
from edged.models.entries import check_name

if TYPE_CHECKING:
    from edged.client.client import Client
    from edged.export import source as sources
    from edged.export.run import Exported

_DYNAMIC = ("batch", "size")


def export(
    source: Annotated[
        str,
        typer.Argument(
            help="An Ultralytics checkpoint (.pt), PACKAGE.MODULE:FACTORY of a torch module, timm:NAME,"
            " torchvision:NAME, rfdetr:NAME, a Keras model (.keras), a folder of Hugging Face, TensorFlow or"
            " PaddlePaddle, or a pickled estimator (.pkl, .joblib); or a reference to a file."
        ),
    ],
    out: Annotated[
        str | None, typer.Option("--out", "-o", metavar="FILE", help="The file to write; default: NAME.onnx.")
    ] = None,
    weights: Annotated[
        str | None, typer.Option("--weights", metavar="FILE", help="The weights of a model that is given by name.")
    ] = None,
    imgsz: Annotated[
        str | None,
        typer.Option("--imgsz", metavar="PIXELS", help="Size of pictures: 640, or HEIGHTxWIDTH; default: the model's."),
    ] = None,
    opset: Annotated[
        int | None, typer.Option("--opset", min=7, max=63, help="The opset; default: one that all boxes support.")
    ] = None,
    dynamic: Annotated[
        str, typer.Option("--dynamic", metavar="WORDS", help="Dimensions to leave open: batch, size, or both.")
    ] = "",
    half: Annotated[bool, typer.Option("--half", help="Write weights and inputs in float16.")] = False,
    trust: Annotated[
        bool, typer.Option("--trust", help="Load a pickled estimator, which may execute any code.")
    ] = False,
    python: Annotated[
        str | None,
        typer.Option("--python", metavar="PATH", help="The Python that has the framework; default: the one of edged."),
    ] = None,
    samples: model_options.Samples = None,
    push: Annotated[
        str,
        typer.Option("--push", metavar="NAME", help="Add the model to the boxes as NAME; wait until it serves."),
    ] = "",
    replace: Annotated[bool, typer.Option("--replace", help="With --push: replace a model of this name.")] = False,
    seconds: Annotated[
        float, typer.Option("--seconds", min=1, max=604_800, help="Time limit of the framework.")
    ] = 1800.0,
    memory_mb: Annotated[int, typer.Option("--memory-mb", min=256, help="Memory limit of the framework, MiB.")] = 8192,
    targets: Targets = DEFAULT_TARGETS,
    json: common.Json = False,
) -> None:
    """Export a model of a training framework to an ONNX file.

    The file is written only if its answers agree with those of the framework.

    The framework runs in your own Python (--python), without network, and may write only to a temporary folder. If a
    package is missing, the command that installs it is shown. A checkpoint's code is not executed. A pickled estimator
    is code, and is loaded only with --trust.

    With --target or --inventory, edged first asks the boxes which ONNX versions their runtimes support, and afterwards
    whether they can serve the file. Without these options and without --push, the file has the exporter's usual opset.

    The exported file is read back, and its opset, IR version, types and open dimensions are checked. If one of them is
    wrong, edged tries another exporter of the framework. If no file is right, edged takes the first file whose only
    fault is a too new opset or IR version. edged converts this file to the older version.

    The answers of the file and of the framework are compared on noise, on drawn pictures and on your --samples. They
    may differ as much as the framework's own answers do when the last bit of the input changes. If they differ more,
    the message names the output, the picture, and the first module that differs.

    Preprocessing, classes and thresholds are written into the file, so that it needs no settings.

    edged export yolo11n.pt --imgsz 640 --target tls:dock:8001 --push doors

    edged export my_package.models:make --weights best.pth --dynamic batch -o doors.onnx

    edged export timm:mobilenetv3_small_100 --weights plates.pth --python ~/train/bin/python
    """
    from edged.export import run
    from edged.export import source as sources
    from edged.export.child import Limits as ChildLimits

    found = sources.find(str(model_options.local_file(source).path))
    words = tuple(filter(None, dynamic.replace(" ", "").split(",")))
    if unknown := [word for word in words if word not in _DYNAMIC]:
        raise InvalidInput(f"--dynamic {unknown[0][:40]!r} is not a known dimension; give batch, size, or batch,size")
    if push:
        check_name(push)
    elif replace:
        raise InvalidInput("--replace can be used only with --push NAME")
    place = Path(out) if out is not None else Path(f"{Path(found.title.rpartition(':')[2]).stem or 'model'}.onnx")
    _check_place(place, found)
    limits = _limits(targets, "" if replace else push, bool(push))
    if opset and limits.opset and opset > limits.opset:
        raise InvalidInput(f"--opset {opset} is too new: {limits.why} supports {limits.opset} at most")
    given = model_options.local_file(weights).path if weights else None
    if given is not None and not given.is_file():
        raise InvalidInput(f"--weights {weights}: this file does not exist")
    wish = run.Wish(
        *(given, _size(imgsz), opset or 0, words, half, trust, _program(python) or sys.executable),
        *(tuple(model_samples.find(samples or ()).values()), ChildLimits(seconds, memory_mb)),
    )
    with tempfile.TemporaryDirectory(prefix="edged-export-") as scratch, common.working("exporting") as notify:
        try:
            done = run.export(found, place, wish, limits, Path(scratch), notify)
        except Unsuitable as error:
            raise Refused(str(error)) from None
    if not json:
        for line in _lines(done, found.title):
            common.show(line)
    boxes = _serve(done, push, replace, targets, json) if targets.named or push else None
    if json and boxes is None:
        common.print_json(msgspec.json.encode(done))


def _check_place(place: Path, source: sources.Source) -> None:
    """Raise InvalidInput if the file cannot be written, if its name does not end in .onnx, or if it is the source."""
    if place.is_dir() or not place.name:
        raise InvalidInput(f"-o {place} is a folder; give the name of a file")
    if place.suffix != ".onnx":
        raise InvalidInput(f"-o {place}: the name must end with .onnx")
    if place.exists() and source.name.startswith(os.sep) and place.samefile(source.name):
        raise InvalidInput(f"-o {place} would overwrite the source; give another name")
    if problem := unwritable(next(each for each in place.absolute().parents if each.exists())):
        raise InvalidInput(f"-o {place}: {problem}")


def _size(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    parts = text.lower().split("x")
    if not (1 <= len(parts) <= 2 and all(part.isdecimal() and 8 <= int(part) <= 16384 for part in parts)):
        raise InvalidInput(
            f"--imgsz {text[:40]!r} is not a size; give 8 to 16384 pixels, or HEIGHTxWIDTH, such as 384x640"
        )
    return int(parts[0]), int(parts[-1])


def _program(python: str | None) -> str | None:
    """Return the absolute path of a program. Links are not followed: the Python of a virtual environment is a link."""
    import shutil

    if python is None:
        return None
    found = shutil.which(str(Path(python).expanduser()))
    if found is None:
        raise InvalidInput(
            f"--python {python}: this is not a program; give the path of a Python, such as ~/train/bin/python"
        )
    return str(Path(found).absolute())


def _limits(targets: Targets, new: str, is_pushed: bool) -> Limits:
    """Return the newest ONNX versions that all boxes support. Boxes are asked only if the user names boxes or pushes
    the model; otherwise there are no limits. Raises AlreadyExists if the only box has a model with the name `new`.
    Raises Refused if one of several boxes has such a model or cannot be asked."""

    def ask(client: Client, report: Callable[[None], None]) -> tuple[RuntimeSupport, ...]:
        if new and any(each.name == new for each in client.models()):
            raise AlreadyExists(f"model {new} already exists; add --replace, or give --push another name")
        return client.device(runtimes=True).runtimes

    if targets.named is None and not is_pushed:
        return Limits()
    boxes = targets.boxes() if targets.is_fleet else ()
    with common.working("asking which opset the boxes support"):
        if not boxes:
            with targets.client() as client:
                return intersection({targets.named or "this box": ask(client, lambda _: None)})
        answers: dict[str, tuple[RuntimeSupport, ...]] = {}
        for each in remote.call_all(boxes, ask):
            if isinstance(each, remote.BoxOutcome):
                if each.answer is None:
                    raise Refused(f"nothing was exported; box {each.box}: {each.error}")
                answers[each.box] = each.answer
        return intersection(answers)


def _lines(done: Exported, title: str) -> list[str]:
    proof, worst, way = done.proof, done.proof.worst, f" ({done.way})" if done.way else ""
    opsets = ", ".join(f"{opset}{_domain(domain)}" for domain, opset in sorted(done.opsets.items()))
    seen = f", {proof.detections} detections" if proof.by == "detections" else ""
    return [
        f"{title} exported as {done.file} by {done.framework}{way} in {done.seconds:g} s with {done.memory_mb} MiB",
        f"  opset {opsets}, IR version {done.ir_version}; {', '.join(done.inputs)} -> {', '.join(done.outputs)}",
        f"  answers as the framework on {proof.inputs} inputs, compared by {proof.by}{seen}: differs by"
        f" {worst.difference:.1g}, at most {worst.allowed:.1g} is allowed (relative L2, {worst.output!r} for"
        f" {worst.picture})",
        *(f"  setting {key} = {formatting.shown(value[:100])}" for key, value in sorted(done.settings.items())),
        *(f"  {note}" for note in done.notes),
    ]


def _domain(domain: str) -> str:
    return "" if domain == "ai.onnx" else f" of {domain}"


def _serve(done: Exported, push: str, replace: bool, targets: Targets, json: bool) -> bool:
    """Add the file to the boxes as model `push` and wait until it serves; with an empty `push`, only ask the boxes
    whether they can serve it."""
    from edged.client.upload import Package

    package = Package.of(push or "export", done.file, None, replace=replace)

    def call(client: Client) -> Served:
        if not push:
            tried = client.try_model(package)
            if tried.problem:
                raise ModelRefused(f"{tried.problem}; {tried.remedy}" if tried.remedy else tried.problem)
            return Served()
        client.upload(package)
        return wait_until_served(client, push)

    def lines(served: Served) -> list[str]:
        if not served.model:
            return ["  the box can serve it"]
        took = f", {served.latency_ms:.3g} ms" if served.latency_ms is not None else ""
        speed = f", {served.speed:.3g} times as fast as unoptimised ONNX Runtime" if served.speed else ""
        return [f"  model {served.model} serves: {served.backend} {served.precision}{took}{speed}"]

    def to_json(served: Served) -> dict[str, Any]:
        return {"export": done, "served": served}

    doing = f"waiting until {push} serves" if push else "asking whether the boxes can serve it"
    remote.run(RemoteCommand(call, lines, to_json, if_interrupted="see: edged models list"), targets, json, doing)
    return True
