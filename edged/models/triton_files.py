"""A model's config.pbtxt and the files that it names, read again only when they have changed."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from edged.errors import ConfigError
from edged.files import read_inside, status_inside
from edged.models.triton_config import FILE, STATE_FOLDER, WARMUP_FOLDER, TritonConfig

_MOST_LABEL_BYTES = 4 << 20


def read_config(folder: Path, name: str) -> tuple[TritonConfig | None, str]:
    """What the configuration in a model's folder says, None where there is none; and why it cannot be used."""
    try:
        return _read(folder, name, *_mark(folder, FILE))
    except FileNotFoundError:
        return None, ""
    except OSError as error:
        return None, f"{FILE} cannot be read: {error.strerror or error}"


def read_labels(folder: Path, config: TritonConfig) -> tuple[dict[str, tuple[str, ...]], str]:
    """The names of classes by output, as far as there are label files; and why one of them cannot be used."""
    labels = {}
    for output in config.outputs:
        if output.label_file:
            try:
                labels[output.name] = _lines(folder, output.label_file, *_mark(folder, output.label_file))
            except (OSError, ValueError) as error:
                why = getattr(error, "strerror", None) or error
                return {}, f"{FILE}: the labels {output.label_file!r} of output {output.name!r} cannot be read: {why}"
    return labels, ""


def unusable(folder: Path, name: PurePosixPath) -> str:
    """Why a file that the configuration names cannot be used; empty if it can."""
    try:
        status_inside(folder, name)
    except FileNotFoundError:
        return f"{FILE} names {name.name}, which is not there"
    except OSError as error:
        return f"{FILE} names {str(name)!r}, which cannot be read: {error.strerror or error}"
    return ""


def named_files(config: TritonConfig) -> Iterator[PurePosixPath]:
    """Every file that the configuration names, by its path in the model's folder, whether it is there or not."""
    for output in config.outputs:
        if output.label_file:
            yield PurePosixPath(output.label_file)
    for warmup in config.warmups:
        yield from (PurePosixPath(WARMUP_FOLDER, each.file) for each in warmup.inputs if each.file)
    if config.sequence is not None:
        states = config.sequence.states
        yield from (PurePosixPath(STATE_FOLDER, each.initial_file) for each in states if each.initial_file)


def _mark(folder: Path, name: str) -> tuple[int, ...]:
    status = status_inside(folder, name)
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


@functools.lru_cache(maxsize=256)
def _read(folder: Path, name: str, *mark: int) -> tuple[TritonConfig | None, str]:
    from edged.models.triton_text import MOST_BYTES, read_text  # protobuf, which few models need

    if mark[1] > MOST_BYTES:
        return None, f"{FILE}: it has more than {MOST_BYTES >> 10} KiB; a configuration has a few"
    try:
        return read_text(read_inside(folder, FILE), name), ""
    except ConfigError as error:
        return None, f"{FILE}: {error}"


@functools.lru_cache(maxsize=64)
def _lines(folder: Path, name: str, *mark: int) -> tuple[str, ...]:
    if mark[1] > _MOST_LABEL_BYTES:
        raise ValueError(f"they have more than {_MOST_LABEL_BYTES >> 20} MiB")
    return tuple(read_inside(folder, name).decode("utf-8-sig").splitlines())
