"""Options of the commands that examine models: repairs, limits, samples."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from edged.cli import common
from edged.config import child_limits
from edged.errors import InvalidInput
from edged.models import anomalib, dictionary, huggingface, language
from edged.models.repair import Record
from edged.references import kept
from edged.references.kept import Local
from edged.vision.prompts import PROMPTS

File: TypeAlias = Annotated[
    str,
    typer.Argument(
        help="The ONNX file, or a reference to one, such as https://...#sha256=... (docs/references.md); external data"
        " is read from the same folder. Or the folder, or the GGUF file, of a language model."
    ),
]
Convert: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--convert",
        help="Repair problems that keep the model from being served: an opset or IR version too new for the runtimes "
        "here, inputs whose declaration differs from their use.",
    ),
]
Steps: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--convert-step",
        metavar="STEP",
        help="Make this repair even if it is not needed: opset, opset=N, ir, ir=N, dims, sizes (pictures of any size), "
        "simplify; repeatable. With --convert, needed repairs are made too.",
    ),
]


def local_file(text: str, state: Path | None = None) -> Local:
    """Return the file that an argument names by a path or by a reference. If the argument is a reference whose file
    this box does not have yet, fetch the file."""
    with common.working("") as notify:
        return kept.local(text, state, notify)


def with_exporter_settings(local: Local, settings: dict[str, str]) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return all settings: the given ones, and others from the reference and from files next to the model. Also return
    lines that say where the other settings come from. Given settings take precedence.

    If the setting `family` is given, the files of Hugging Face and anomalib are not read. The file with the characters
    of a text recogniser is then read only for the families in `dictionary.FAMILIES`.
    """
    file, pin = local
    if language.main_file(file) is not None:
        return settings, ()
    sources: list[tuple[str, dict[str, str]]] = [] if pin is None else [(pin.reference, pin.settings)]
    if "family" not in settings:
        sources.append((f"{huggingface.CONFIG} and {huggingface.PROCESSOR}", huggingface.read_settings(file)))
        if not sources[-1][1]:
            sources.append((anomalib.METADATA, anomalib.read_settings(file)))
    if settings.get("family") in (None, *dictionary.FAMILIES):
        sources.append(dictionary.read_settings(file))
    lines, merged = [], settings
    for source, found in sources:
        added = [key for key in found if key not in merged]
        lines += [f"settings from {source}: {', '.join(added)}"] if added else []
        merged = {**found, **merged}
    return merged, tuple(lines)


def source_lines(local: Local) -> tuple[str, ...]:
    """Return lines about the source of a fetched file; empty for a file that was not fetched."""
    if local.pin is None:
        return ()
    name = f"{local.pin.reference}#sha256={local.pin.model[1]}"
    return (
        f"from {name}",
        f"kept in {local.path.parents[1]}; remove this folder to fetch the file again",
        *local.pin.notes,
    )


def with_token_ids(settings: dict[str, str], folder: Path) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the settings with the token ids of the prompts. If ids were added, also return a line that shows them.
    `folder` has the tokenizer of the model. Raises ConfigError if a prompt cannot be encoded."""
    if PROMPTS not in settings:
        return settings, ()
    from edged.engines import prompts  # starts children

    found = asyncio.run(prompts.with_token_ids(settings, folder))
    changed = found[PROMPTS] != settings[PROMPTS]
    return found, (f"settings with token ids: {PROMPTS} = {found[PROMPTS]}",) if changed else ()


def repair_lines(record: Record | None) -> tuple[str, ...]:
    """Return the repairs as lines; empty if no repair was requested."""
    if record is None:
        return ()
    left_out = (f"left out: {line}" for line in record.left_out)
    if not record.steps:
        return ("no repair was needed", *left_out)
    return (*(done.line() for done in record.steps), *left_out)


Tokenizer = Annotated[
    Path | None,
    typer.Option(
        "--tokenizer",
        metavar="DIR",
        help="The folder with the model's tokenizer.json, which turns new prompts into token ids.",
    ),
]

Seconds = Annotated[
    float | None,
    typer.Option(
        "--seconds",
        envvar=child_limits.ADMISSION_SECONDS,
        help="Time limit for examining a model of up to 100 MiB; larger models get more time.",
    ),
]
MemoryMb = Annotated[
    int | None,
    typer.Option(
        "--memory-mb",
        envvar=child_limits.ADMISSION_MEMORY_MB,
        help="Memory limit in MiB for examining a model, in addition to three times its size.",
    ),
]

Samples = Annotated[
    list[Path] | None,
    typer.Option(
        "--samples",
        metavar="DIR_OR_FILE",
        help="Samples to verify the model's engines with: JPEG or PNG pictures, *.npz files with an array for each"
        " input, or a folder of these; repeatable, 32 at most.",
    ),
]


def require_no_limits(context: typer.Context) -> None:
    """Raise InvalidInput if the command line sets limits of the examination. Call this function if a daemon examines
    the model, since a daemon has its own limits."""
    for name in ("seconds", "memory_mb"):
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            option = f"--{name.replace('_', '-')}"
            raise InvalidInput(
                f"{option} cannot be used with a daemon; set admission.{name} in the daemon's configuration,"
                " or give --state to use no daemon"
            )
