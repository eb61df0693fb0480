"""Language models on disk: their forms, the facts in their configuration files, and their settings.

A form is a file that a runtime opens, together with the other files of its folder:

    genai_config.json                     ONNX Runtime GenAI, also for models that take pictures
    openvino_model.xml                    OpenVINO GenAI, with openvino_tokenizer.xml and openvino_detokenizer.xml
    NAME.gguf                             OpenVINO GenAI

If a folder has forms for several runtimes, edged uses the runtime that is faster on this box.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Final, TypeVar

import msgspec
from msgspec import Meta

from edged.decoding import explain, ready
from edged.errors import ConfigError, ModelRefused
from edged.files import NOT_JSON, leads_outside, read_regular
from edged.models import gguf, limits
from edged.models.identity import file_digest
from edged.vision.settings import boolean, choice, integer, nearest, number

GENAI, OPENVINO, GGUF = "genai_config.json", "openvino_model.xml", ".gguf"
_PICTURES = "openvino_language_model.xml"
ORT_RUNTIME, OPENVINO_RUNTIME = "onnxruntime_genai", "openvino_genai"
_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt")
_CONFIG, _TOKENIZER_CONFIG, _GENERATION = "config.json", "tokenizer_config.json", "generation_config.json"
_TEMPLATES = ("chat_template.jinja", "chat_template.json", _TOKENIZER_CONFIG)
_LARGEST_JSON = 8 << 20
_MOST_COUNTED = 1 << 30
_FLOAT_BYTES = 4  # of a number in the KV cache; some runtimes use 2
_BASE_MB = 200  # memory of a runtime without a model
_WEIGHTS_SHARE = 1.15  # runtimes keep some weights twice

PREFIX: Final = "language."
CONTEXT, OUTPUT_TOKENS = f"{PREFIX}context", f"{PREFIX}output_tokens"
REQUESTS, WAITING = f"{PREFIX}requests", f"{PREFIX}waiting"
MEMORY_MB, RUNTIME, SYSTEM, VERIFY = (f"{PREFIX}{name}" for name in ("memory_mb", "runtime", "system", "verify"))
NAMES: Final = (CONTEXT, OUTPUT_TOKENS, REQUESTS, WAITING, MEMORY_MB, RUNTIME, SYSTEM, VERIFY)
THREADS: Final = "threads"
_OTHERS: Final = (THREADS, limits.SECONDS, "versions")
_USUAL_CONTEXT, _USUAL_OUTPUT, _USUAL_REQUESTS, _USUAL_WAITING, _USUAL_SECONDS = 4096, 1024, 4, 32, 300.0
_MOST_SYSTEM = 16 << 10

T = TypeVar("T")


class LanguageSettings(msgspec.Struct, frozen=True):
    """Settings of a language model. `context` is the largest number of tokens of a prompt with its answer, 0 for the
    default. `output_tokens` is the largest number of tokens of an answer, and the default for requests that set no
    number. `requests` is the largest number of concurrent requests, `waiting` that of queued requests. `memory_mb` is
    the memory of the host in MiB, 0 for an estimate. `runtime` is empty for the faster runtime. `system` is the system
    message of chats that have none. `threads` is the number of CPU threads, 0 for all processors but one. If the
    setting `threads` lists several numbers, only the first is used. `seconds` is the time limit of a request. If
    `verifies` is true, a new version of the runtime must answer like the previous version."""

    context: int = 0
    output_tokens: int = _USUAL_OUTPUT
    requests: int = _USUAL_REQUESTS
    waiting: int = _USUAL_WAITING
    memory_mb: int = 0
    runtime: str = ""
    system: str = ""
    threads: int = 0
    seconds: float = _USUAL_SECONDS
    verifies: bool = True


def read_settings(settings: Mapping[str, str]) -> LanguageSettings:
    """Read the settings of a language model. Raises ConfigError for a setting that language models do not have, and for
    an invalid value."""
    for key in settings:
        if key not in (*NAMES, *_OTHERS):
            raise ConfigError(f"setting {key[:60]!r} is not for language models; {nearest(key, (*NAMES, *_OTHERS))}")
    return check_settings(settings)


def check_settings(settings: Mapping[str, str]) -> LanguageSettings:
    """Read the settings of a language model, and ignore settings of other models. Raises ConfigError for an unknown
    setting below `language.`, and for an invalid value."""
    for key in (key for key in settings if key.startswith(PREFIX)):
        if key not in NAMES:
            raise ConfigError(f"unknown setting {key[:60]!r}; {nearest(key, NAMES)}")
    system, threads = settings.get(SYSTEM, ""), settings.get(THREADS, "0").split(",")[0].strip()
    if len(system) > _MOST_SYSTEM:
        raise ConfigError(f"setting {SYSTEM} has {len(system)} characters; use at most {_MOST_SYSTEM}")
    return LanguageSettings(
        integer(settings, CONTEXT, 16, 1 << 20) or 0,
        integer(settings, OUTPUT_TOKENS, 1, 1 << 20) or _USUAL_OUTPUT,
        integer(settings, REQUESTS, 1, 64) or _USUAL_REQUESTS,
        _or(integer(settings, WAITING, 0, 4096), _USUAL_WAITING),
        integer(settings, MEMORY_MB, 64, 1 << 22) or 0,
        choice(settings, RUNTIME, (ORT_RUNTIME, OPENVINO_RUNTIME)) or "",
        system,
        int(threads) if threads.isdecimal() else 0,
        number(settings, limits.SECONDS, 0.05, 86400.0) or _USUAL_SECONDS,
        boolean(settings, VERIFY) is not False,
    )


def _or(value: T | None, usual: T) -> T:
    return usual if value is None else value


class Form(msgspec.Struct, frozen=True):
    """A file of a language model, and the name of the runtime that opens it."""

    runtime: str
    path: str


class LanguageFiles(msgspec.Struct, frozen=True):
    """The facts in the files of a language model. `kind` is the model's architecture. `context` is the largest number
    of tokens that the model was made for, 0 if unknown. `token_bytes` is the size in bytes of a token in the KV cache.
    `weights_mb` is the size of the files with weights, in MiB. `temperature` and `top_p` are defaults for requests."""

    forms: tuple[Form, ...]
    kind: str
    context: int
    token_bytes: int
    weights_mb: int
    has_template: bool
    takes_pictures: bool
    temperature: float = 0.0
    top_p: float = 1.0

    def limit(self, settings: LanguageSettings) -> int:
        """Return the largest number of tokens of a prompt with its answer."""
        return min(filter(None, (settings.context or _USUAL_CONTEXT, self.context)))

    def cache_mb(self, settings: LanguageSettings) -> int:
        """Return the memory for the tokens of all concurrent requests (the KV cache), in MiB."""
        return -(-self.token_bytes * self.limit(settings) * settings.requests >> 20)

    def needed_mb(self, settings: LanguageSettings) -> int:
        """Estimate the memory that the process of the model needs, in MiB."""
        return _BASE_MB + round(self.weights_mb * _WEIGHTS_SHARE) + self.cache_mb(settings)


def check_fits(files: LanguageFiles, settings: LanguageSettings) -> None:
    """Raise ConfigError if the settings name a runtime for which there is no form, or a context longer than the model
    was made for."""
    if files.context and settings.context > files.context:
        raise ConfigError(
            f"setting {CONTEXT} is {settings.context}, but the model was made for {files.context} tokens;"
            " lower the setting"
        )
    runtimes = [form.runtime for form in files.forms]
    if settings.runtime and settings.runtime not in runtimes:
        raise ConfigError(
            f"setting {RUNTIME} is {settings.runtime}, but the files are for {' and '.join(runtimes)};"
            " change or remove the setting"
        )


def check(path: Path, settings: Mapping[str, str]) -> LanguageFiles:
    """Examine a language model and its settings. Raises ModelRefused or ConfigError."""
    files = examine(path)
    check_fits(files, read_settings(settings))
    return files


def language_file(folder: Path) -> str:
    """Return the name of the file that shows that a folder is a language model; empty without such a file. Raises
    OSError if the folder cannot be read."""
    names = sorted(os.listdir(folder))
    for name in (GENAI, OPENVINO, _PICTURES):
        if name in names:
            return name
    return next((name for name in names if is_gguf(name)), "")


def main_file(path: Path) -> Path | None:
    """Return the main file of the language model at `path` (a folder or a file); None if no language model is there.
    Raises ModelRefused for a language model that must be exported first."""
    try:
        if path.is_dir():
            name = language_file(path)
            if not name:
                _check_exported(path)
            return path / name if name else None
    except OSError:
        return None
    return path if is_language(str(path)) else None


def _check_exported(folder: Path) -> None:
    """Raise ModelRefused if a folder has a language model of Hugging Face's transformers that was not exported. Raises
    OSError if the folder cannot be read."""
    names = os.listdir(folder)
    if _CONFIG not in names or any(name.endswith(".onnx") for name in names):
        return
    try:
        found = _json(folder / _CONFIG, _Transformer).architectures
    except ModelRefused:
        return
    kind = next((each for each in found if each.endswith(("ForCausalLM", "LMHeadModel"))), "")
    if kind:
        raise ModelRefused(
            f"{folder.name} is a {kind[:60]} for Hugging Face's transformers, which edged does not run;"
            f" export it first: optimum-cli export openvino --model {folder} NEW_FOLDER"
        )


def is_language(path: str) -> bool:
    """Whether the name of the file at `path` shows that the file, or its folder, is a language model."""
    name = path.rpartition("/")[2]
    return name in (GENAI, OPENVINO, _PICTURES) or is_gguf(name)


def is_gguf(name: str) -> bool:
    return name.lower().endswith(GGUF)


def examine(path: Path) -> LanguageFiles:
    """Examine the language model that the file `path` belongs to. Raises ModelRefused if a file is missing or
    unusable."""
    folder, names = path.parent, _names(path)
    found = [_genai(folder)] if GENAI in names else []
    if OPENVINO in names:
        found.append(_openvino(folder, names))
    found += [_gguf(folder / name) for name in names if is_gguf(name)][:1]
    if not found:
        if _PICTURES in names:
            raise ModelRefused(
                f"{folder.name} is a vision-language model of OpenVINO, which edged does not serve;"
                f" export it for ONNX Runtime GenAI, as a folder with {GENAI}"
            )
        raise ModelRefused(
            f"{path.name} is not a language model; give a folder with {GENAI} or {OPENVINO}, or a GGUF file"
        )
    first = found[0]
    return LanguageFiles(
        tuple(form for each in found for form in each.forms),
        first.kind,
        first.context,
        max(each.token_bytes for each in found),
        max(each.weights_mb for each in found),
        first.has_template,
        first.takes_pictures,
        first.temperature,
        first.top_p,
    )


def digest(path: Path) -> str:
    """Return the sha256 over the names and contents of all files of a language model. Raises ModelRefused if a file
    cannot be read."""
    found = hashlib.sha256()
    for name in _names(path):
        found.update(f"{name}\0{file_digest(path.parent / name)}\0".encode())
    return found.hexdigest()


def files(path: Path) -> list[Path]:
    """Return all files of the language model that `path` belongs to. Raises ModelRefused if a folder cannot be read."""
    return [path.parent / name for name in _names(path)]


def _names(path: Path) -> list[str]:
    """Return the paths of a model's files, relative to the folder of `path`. A GGUF file that is not in the folder of a
    version is the model's only file: the files next to it belong to other models."""
    if is_gguf(path.name) and not path.parent.name.isdecimal():
        return [path.name]
    try:
        found = list[str]()
        for parent, folders, names in os.walk(path.parent, onerror=_raise):
            folders[:] = [name for name in folders if not name.startswith(".")]
            shown = (Path(parent) / name for name in names if not name.startswith("."))
            found += [str(each.relative_to(path.parent)) for each in shown]
    except OSError as error:
        raise ModelRefused(f"{path.parent.name} cannot be read: {error.strerror}") from error
    if path.name not in found:
        raise ModelRefused(f"{path.name} does not exist")
    return sorted(found)


def _raise(error: OSError) -> None:
    raise error


# -- ONNX Runtime GenAI ------------------------------------------------------------------------------------------------

_Count = Annotated[int, Meta(ge=0, le=1 << 30)]


class _Part(msgspec.Struct):
    filename: str = ""
    config_filename: str = ""


class _Decoder(_Part):
    num_hidden_layers: _Count = 0
    num_key_value_heads: _Count = 0
    head_size: _Count = 0


class _Model(msgspec.Struct):
    type: str = ""
    context_length: _Count = 0
    decoder: _Decoder = msgspec.field(default_factory=_Decoder)
    vision: _Part | None = None
    embedding: _Part | None = None
    speech: _Part | None = None


class _Sampling(msgspec.Struct):
    """Settings of sampling: `search` in genai_config.json, or the whole generation_config.json of Hugging Face."""

    do_sample: bool = False
    temperature: Annotated[float, Meta(ge=0, le=100)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None

    @property
    def values(self) -> tuple[float, float]:
        """Temperature and top_p."""
        return _or(self.temperature, 1.0) if self.do_sample else 0.0, _or(self.top_p, 1.0)


class _Genai(msgspec.Struct):
    model: _Model
    search: _Sampling = msgspec.field(default_factory=_Sampling)


def _genai(folder: Path) -> LanguageFiles:
    config = _json(folder / GENAI, _Genai)
    model = config.model
    parts = [model.decoder, *(part for part in (model.vision, model.embedding, model.speech) if part is not None)]
    if not model.decoder.filename:
        raise ModelRefused(f"{GENAI} has no field 'model.decoder.filename'; export the model again")
    for name in (name for part in parts for name in (part.filename, part.config_filename) if name):
        if leads_outside(name):
            raise ModelRefused(f"{GENAI} names the file {name[:80]!r}, which is outside the model's folder")
        if not (folder / name).is_file():
            raise ModelRefused(f"{GENAI} names the file {name[:80]!r}, which does not exist; copy all files")
    if not any((folder / name).is_file() for name in _TOKENIZERS):
        raise ModelRefused(
            f"the model has no tokenizer: its folder has none of {', '.join(_TOKENIZERS)}; copy all files"
        )
    decoder = model.decoder
    return LanguageFiles(
        (Form(ORT_RUNTIME, str(folder / GENAI)),),
        model.type,
        model.context_length,
        2 * decoder.num_hidden_layers * decoder.num_key_value_heads * decoder.head_size * _FLOAT_BYTES,
        _megabytes(folder, (".onnx", ".data", ".bin")),
        _has_template(folder),
        model.vision is not None,
        *config.search.values,
    )


# -- OpenVINO GenAI ----------------------------------------------------------------------------------------------------


class _Transformer(msgspec.Struct):
    """The fields of Hugging Face's config.json that edged reads."""

    model_type: str = ""
    architectures: tuple[str, ...] = ()
    max_position_embeddings: _Count = 0
    num_hidden_layers: _Count = 0
    num_attention_heads: _Count = 0
    num_key_value_heads: _Count | None = None
    hidden_size: _Count = 0
    head_dim: _Count | None = None


def _openvino(folder: Path, names: Sequence[str]) -> LanguageFiles:
    for name in ("openvino_model.bin", "openvino_tokenizer.xml", "openvino_detokenizer.xml"):
        if name not in names:
            what = "weights" if name.endswith(".bin") else "tokenizer"
            raise ModelRefused(
                f"the model has no {what}: {name} is missing; export the model with optimum-cli export openvino"
            )
    config = _json(folder / _CONFIG, _Transformer) if _CONFIG in names else _Transformer()
    heads = config.num_key_value_heads or config.num_attention_heads
    usual = _json(folder / _GENERATION, _Sampling) if _GENERATION in names else _Sampling()
    size = config.head_dim or (config.hidden_size // config.num_attention_heads if config.num_attention_heads else 0)
    return LanguageFiles(
        (Form(OPENVINO_RUNTIME, str(folder / OPENVINO)),),
        config.model_type,
        config.max_position_embeddings,
        2 * config.num_hidden_layers * heads * size * _FLOAT_BYTES,
        _megabytes(folder, (".bin",)),
        _has_template(folder),
        False,
        *usual.values,
    )


def _gguf(path: Path) -> LanguageFiles:
    try:
        facts = gguf.read_facts(path)
        size = path.stat().st_size
    except OSError as error:
        raise ModelRefused(f"{path.name} cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise ModelRefused(f"{path.name} cannot be read: {error}") from error
    kind = str(facts.get("general.architecture", ""))

    def number_of(key: str) -> int:
        value = facts.get(f"{kind}.{key}", 0)
        return value if isinstance(value, int) and 0 <= value < _MOST_COUNTED else 0

    heads = number_of("attention.head_count")
    length = number_of("attention.key_length") or (number_of("embedding_length") // heads if heads else 0)
    shared = number_of("attention.head_count_kv") or heads
    if not any(key.startswith("tokenizer.") for key in facts):
        raise ModelRefused(f"{path.name} has no tokenizer; convert the model again, with its tokenizer")
    return LanguageFiles(
        (Form(OPENVINO_RUNTIME, str(path)),),
        kind,
        number_of("context_length"),
        2 * number_of("block_count") * shared * length * _FLOAT_BYTES,
        size >> 20,
        bool(facts.get("tokenizer.chat_template")),
        False,
    )


# -- files -------------------------------------------------------------------------------------------------------------


def _json(path: Path, kind: type[T]) -> T:
    try:
        if path.stat().st_size > _LARGEST_JSON:
            raise ModelRefused(f"{path.name} is larger than {_LARGEST_JSON >> 20} MiB, the limit")
        return msgspec.json.decode(read_regular(path), type=ready(kind))
    except OSError as error:
        raise ModelRefused(f"{path.name} cannot be read: {error.strerror or error}") from error
    except NOT_JSON as error:
        raise ModelRefused(f"{path.name} cannot be used: {explain(error)}") from error


def _has_template(folder: Path) -> bool:
    for name in _TEMPLATES:
        try:
            text = read_regular(folder / name)
        except OSError:
            continue
        if name != _TOKENIZER_CONFIG or b'"chat_template"' in text:
            return True
    return False


def _megabytes(folder: Path, suffixes: tuple[str, ...]) -> int:
    found = (Path(parent) / name for parent, _, names in os.walk(folder) for name in names if name.endswith(suffixes))
    total = 0
    for each in found:
        with contextlib.suppress(OSError):  # the file was just removed; the next scan notices that
            total += each.stat().st_size
    return total >> 20
