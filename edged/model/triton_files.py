"""A model's config.pbtxt and the files that it names, read again only when they have changed."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from pathlib import Path

from edged.errors import ConfigError
from edged.files import read_regular
from edged.model.triton_config import FILE, STATE_FOLDER, WARMUP_FOLDER, TritonConfig

_MOST_LABEL_BYTES = 4 << 20


def read_config(folder: Path, name: str) -> tuple[TritonConfig | None, str]:
    """What the configuration in a model's folder says, None where there is none; and why it cannot be used."""
    try:
        return _read(str(folder / FILE), name, *_mark(folder / FILE))
    except FileNotFoundError:
        return None, ""
    except OSError as error:
        return None, f"{FILE} cannot be read: {error.strerror or error}"


def read_labels(folder: Path, config: TritonConfig) -> tuple[dict[str, tuple[str, ...]], str]:
    """The names of classes by output, as far as there are label files; and why one of them cannot be used."""
    labels = {}
    for output in config.outputs:
        if output.label_file:
            path = folder / output.label_file
            try:
                labels[output.name] = _lines(str(path), *_mark(path))
            except (OSError, ValueError) as error:
                why = getattr(error, "strerror", None) or error
                return {}, f"{FILE}: the labels {output.label_file!r} of output {output.name!r} cannot be read: {why}"
    return labels, ""


def named_files(folder: Path, config: TritonConfig) -> Iterator[Path]:
    """Every file that the configuration names, whether it is there or not."""
    for output in config.outputs:
        if output.label_file:
            yield folder / output.label_file
    for warmup in config.warmups:
        yield from (folder / WARMUP_FOLDER / each.file for each in warmup.inputs if each.file)
    if config.sequence is not None:
        yield from (folder / STATE_FOLDER / each.initial_file for each in config.sequence.states if each.initial_file)


def _mark(path: Path) -> tuple[int, ...]:
    status = os.stat(path)
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


@functools.lru_cache(maxsize=256)
def _read(path: str, name: str, *mark: int) -> tuple[TritonConfig | None, str]:
    from edged.model.triton_text import MOST_BYTES, read_text  # protobuf, which few models need

    if mark[1] > MOST_BYTES:
        return None, f"{FILE}: it has more than {MOST_BYTES >> 10} KiB; a configuration has a few"
    try:
        return read_text(read_regular(Path(path)), name), ""
    except ConfigError as error:
        return None, f"{FILE}: {error}"


@functools.lru_cache(maxsize=64)
def _lines(path: str, *mark: int) -> tuple[str, ...]:
    if mark[1] > _MOST_LABEL_BYTES:
        raise ValueError(f"they have more than {_MOST_LABEL_BYTES >> 20} MiB")
    return tuple(read_regular(Path(path)).decode("utf-8-sig").splitlines())
