"""Language models on disk: their forms, what is known from their files, and what is refused."""

from __future__ import annotations

import errno
import json
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest

from edged.errors import ConfigError, ModelRefused
from edged.models import gguf, language
from edged.models.entries import outside_entries
from edged.models.language import Form, LanguageSettings
from edged.models.repository import Repository
from tests.tiny_language import CONTEXT, write_genai, write_gguf


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_genai(tmp_path / "chat" / "1")


def test_examine_folder_of_genai_reads_its_configuration(folder: Path) -> None:
    found = language.examine(folder / "genai_config.json")
    assert found.forms == (Form("onnxruntime_genai", str(folder / "genai_config.json")),)
    assert (found.kind, found.context, found.has_template, found.takes_pictures) == ("llama", CONTEXT, True, False)
    assert found.token_bytes == 2 * 1 * 1 * 16 * 4


def test_examine_folder_with_pictures(tmp_path: Path) -> None:
    folder = write_genai(tmp_path / "1", pictures=True)
    assert language.examine(folder / "genai_config.json").takes_pictures


def test_examine_gguf_file_reads_its_head(tmp_path: Path) -> None:
    found = language.examine(write_gguf(tmp_path / "tiny.gguf"))
    assert (found.kind, found.context, found.has_template) == ("llama", CONTEXT, True)
    assert found.forms[0].runtime == "openvino_genai"


def test_examine_folder_with_two_forms_offers_both(folder: Path) -> None:
    write_gguf(folder / "tiny.gguf")
    found = language.examine(folder / "genai_config.json")
    assert [form.runtime for form in found.forms] == ["onnxruntime_genai", "openvino_genai"]


def test_digest_covers_every_file(folder: Path) -> None:
    main = folder / "genai_config.json"
    before = language.digest(main)
    (folder / "tokenizer.json").write_text((folder / "tokenizer.json").read_text() + " ")
    assert language.digest(main) != before


def test_folder_that_cannot_be_read_is_not_a_missing_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(path: str) -> NoReturn:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(os, "scandir", fail)
    with pytest.raises(ModelRefused, match="files") as found:
        language.examine(folder / "genai_config.json")
    assert isinstance(found.value.__cause__, OSError)


def test_hidden_folders_do_not_belong_to_a_model(folder: Path) -> None:
    before = language.files(folder / "genai_config.json")
    (folder / ".cache").mkdir()
    (folder / ".cache" / "lock").write_text("")
    (folder / ".cache").chmod(0)
    assert language.files(folder / "genai_config.json") == before


def _spoil(name: str, text: bytes | None) -> Callable[[Path], None]:
    def work(folder: Path) -> None:
        if text is None:
            (folder / name).unlink()
        else:
            (folder / name).write_bytes(text)

    return work


def _outside(folder: Path) -> None:
    config = json.loads((folder / "genai_config.json").read_bytes())
    config["model"]["decoder"]["filename"] = "../../secret.onnx"
    (folder / "genai_config.json").write_text(json.dumps(config))


def _fifo(folder: Path) -> None:
    (folder / "genai_config.json").unlink()
    os.mkfifo(folder / "genai_config.json")


@pytest.mark.parametrize(
    ("spoil", "named"),
    [
        (_spoil("decoder.onnx", None), "decoder.onnx"),
        (_spoil("tokenizer.json", None), "tokenizer"),
        (_spoil("genai_config.json", b"{"), "genai_config.json"),
        (_spoil("genai_config.json", b"{}"), "genai_config.json"),
        (_spoil("genai_config.json", b'{"model": {"decoder": {"head_size": -1}}}'), "head_size"),
        (_spoil("genai_config.json", b"\xff\xfe"), "genai_config.json"),
        (_outside, "outside"),
        (_fifo, "genai_config.json"),
    ],
)
def test_examine_broken_folder_names_the_fault(folder: Path, spoil: Callable[[Path], None], named: str) -> None:
    spoil(folder)
    with pytest.raises(ModelRefused, match=named):
        language.examine(folder / "genai_config.json")


@pytest.mark.parametrize("missing", ["openvino_model.bin", "openvino_tokenizer.xml", "openvino_detokenizer.xml"])
def test_examine_folder_of_openvino_without_a_part_names_it(tmp_path: Path, missing: str) -> None:
    for name in ("openvino_model.xml", "openvino_model.bin", "openvino_tokenizer.xml", "openvino_detokenizer.xml"):
        if name != missing:
            (tmp_path / name).write_bytes(b"x")
    with pytest.raises(ModelRefused, match=missing):
        language.examine(tmp_path / "openvino_model.xml")


def test_examine_folder_of_openvino_reads_config_json(tmp_path: Path) -> None:
    for name in ("openvino_model.xml", "openvino_model.bin", "openvino_tokenizer.xml", "openvino_detokenizer.xml"):
        (tmp_path / name).write_bytes(b"x")
    config = {"model_type": "qwen2", "max_position_embeddings": 99, "num_hidden_layers": 2, "hidden_size": 64}
    (tmp_path / "config.json").write_text(json.dumps({**config, "num_attention_heads": 4, "num_key_value_heads": 2}))
    found = language.examine(tmp_path / "openvino_model.xml")
    assert (found.kind, found.context, found.token_bytes) == ("qwen2", 99, 2 * 2 * 2 * 16 * 4)
    for text, values in (
        ('{"do_sample": true, "temperature": 0.7, "top_p": 0.8}', (0.7, 0.8)),
        ('{"do_sample": true, "top_p": 0}', (1.0, 0.0)),
        ('{"temperature": 0.7}', (0.0, 1.0)),
    ):
        (tmp_path / "generation_config.json").write_text(text)
        found = language.examine(tmp_path / "openvino_model.xml")
        assert (found.temperature, found.top_p) == values


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"GGUF",
        b"GGML" + bytes(20),
        b"GGUF" + struct.pack("<IQQ", 99, 0, 0),
        b"GGUF" + struct.pack("<IQQ", 3, 0, 1 << 60),
        b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 1 << 60),
        b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"a" + struct.pack("<IIQ", 9, 8, 1 << 60),
        b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"a" + struct.pack("<IIQ", 9, 9, 1),
        b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"a" + struct.pack("<I", 77),
        b"GGUF" + struct.pack("<IQQ", 3, 0, 0),
    ],
)
def test_examine_gguf_that_is_none_is_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "x.gguf").write_bytes(data)
    with pytest.raises(ModelRefused):
        language.examine(tmp_path / "x.gguf")


def test_examine_gguf_with_numbers_that_are_none_takes_the_usual_values(tmp_path: Path) -> None:
    data = write_gguf(tmp_path / "tiny.gguf").read_bytes()
    key = b"llama.context_length"
    place = data.index(key) + len(key)
    (tmp_path / "nan.gguf").write_bytes(data[:place] + struct.pack("<If", 6, float("nan")) + data[place + 8 :])
    assert language.examine(tmp_path / "nan.gguf").context == 0


def test_read_facts_of_a_cut_file_raises(tmp_path: Path) -> None:
    whole = write_gguf(tmp_path / "tiny.gguf").read_bytes()
    for length in range(0, 2000, 97):
        (tmp_path / "cut.gguf").write_bytes(whole[:length])
        with pytest.raises(ValueError):
            gguf.read_facts(tmp_path / "cut.gguf")


@pytest.mark.parametrize("missing", [1, 100, 5000])
def test_gguf_file_without_its_end_is_damaged(tmp_path: Path, missing: int) -> None:
    whole = write_gguf(tmp_path / "tiny.gguf").read_bytes()
    (tmp_path / "cut.gguf").write_bytes(whole[:-missing])
    with pytest.raises(ModelRefused, match=f"damaged: it has {len(whole) - missing} bytes of {len(whole)}"):
        language.examine(tmp_path / "cut.gguf")


def test_runtime_that_the_files_are_not_for_is_refused(folder: Path) -> None:
    path = folder / "genai_config.json"
    assert language.check(path, {language.RUNTIME: "onnxruntime_genai"}).forms
    with pytest.raises(ConfigError, match="but the files are for onnxruntime_genai"):
        language.check(path, {language.RUNTIME: "openvino_genai"})


def test_longer_context_than_the_model_has_is_refused(folder: Path) -> None:
    main = folder / "genai_config.json"
    assert language.check(main, {language.CONTEXT: str(CONTEXT)}).context == CONTEXT
    with pytest.raises(ConfigError, match=f"made for {CONTEXT} tokens"):
        language.check(main, {language.CONTEXT: str(CONTEXT + 1)})


@pytest.mark.parametrize(
    ("architectures", "other", "is_refused"),
    [
        (["LlamaForCausalLM"], "model.safetensors", True),
        (["GPT2LMHeadModel"], "pytorch_model.bin", True),
        (["RTDetrForObjectDetection"], "model.safetensors", False),
        (["LlamaForCausalLM"], "model.onnx", False),
        ([7], "model.safetensors", False),
    ],
)
def test_main_file_of_a_model_that_must_be_exported_says_how(
    tmp_path: Path, architectures: list[object], other: str, is_refused: bool
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"architectures": architectures}))
    (tmp_path / other).write_bytes(b"")
    if not is_refused:
        assert language.main_file(tmp_path) is None
        return
    with pytest.raises(ModelRefused, match="optimum-cli export openvino"):
        language.main_file(tmp_path)


def test_memory_estimate_grows_with_context_and_requests(folder: Path) -> None:
    found = language.examine(folder / "genai_config.json")
    usual = found.needed_mb(LanguageSettings())
    assert found.limit(LanguageSettings(context=64)) == 64
    assert found.limit(LanguageSettings(context=1 << 20)) == CONTEXT
    assert found.needed_mb(LanguageSettings(requests=64)) > usual


def test_read_settings_refuses_those_of_other_models() -> None:
    assert language.read_settings({"language.context": "64", "threads": "2"}).context == 64
    with pytest.raises(ConfigError, match=r"thresholds\.score"):
        language.read_settings({"thresholds.score": "0.5"})
    with pytest.raises(ConfigError, match=r"language\.context"):
        language.read_settings({"language.contxt": "64"})


@pytest.mark.parametrize("text", ["2", " 2 ", "2,4", " 2 , 4"])
def test_language_model_uses_the_first_number_of_threads(text: str) -> None:
    assert language.read_settings({"threads": text}).threads == 2


def test_repository_lists_language_models_with_their_versions(tmp_path: Path) -> None:
    repository = Repository(tmp_path / "models")
    write_genai(tmp_path / "models" / "chat" / "1")
    write_genai(tmp_path / "models" / "chat" / "2")
    write_gguf(tmp_path / "models" / "small.gguf")
    found = repository.entries()
    assert {name: entry.version for name, entry in found.items()} == {"chat": "2", "small": "1"}
    assert all(entry.is_language for entry in found.values())


def test_outside_entries_finds_a_language_model_in_a_folder_and_a_file(tmp_path: Path) -> None:
    folder, file = write_genai(tmp_path / "chat"), write_gguf(tmp_path / "small.gguf")
    (entry,) = outside_entries("chat", folder)
    assert (entry.is_language, entry.path) == (True, str(folder / "genai_config.json"))
    before = entry.stamp
    (folder / "tokenizer.json").write_text("{}")
    assert outside_entries("chat", folder)[0].stamp != before
    assert outside_entries("small", file)[0].is_language


def test_repository_adds_replaces_and_restores_a_language_model(tmp_path: Path) -> None:
    repository = Repository(tmp_path / "models")
    source = write_genai(tmp_path / "source")
    main = source / "genai_config.json"
    files = {str(each.relative_to(source)): each for each in (main, *language.files(main)) if each}
    files = {main.name: main, **files}
    first = repository.add("chat", files, {"language.context": "64"}, digest=language.digest(main))
    assert first.name == "genai_config.json"
    second = repository.add("chat", files, {}, replace=True)
    assert (second.parent.name, sorted(os.listdir(second.parent))) == ("2", sorted(os.listdir(source)))
    repository.restore("chat")
    assert repository.entries()["chat"].settings == {"language.context": "64"}
