"""Tokenizers of CLIP and BERT. The expected ids are those of the tokenizers library, version 0.23.3."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edged.errors import ConfigError
from edged.ipc import job_messages as jobs
from edged.jobs import tasks
from edged.jobs.tokenizer import Tokenizer, load
from edged.vision.prompts import MOST_CHARACTERS
from tests import tokenizer_files

CLIP, BERT = tokenizer_files.clip(), tokenizer_files.bert()


def loaded(folder: Path, content: dict[str, Any]) -> Tokenizer:
    return load([tokenizer_files.write(folder, content)])


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("a photo of a red car", (320, 515, 516, 320, 518, 523)),
        ("A Photo", (320, 515)),
        ("don't", (528, 529)),
        ("café", (526,)),
        ("cafe\u0301", (526,)),
        ("ДОМ", (534,)),
        ("22", (273, 273)),
        ("redcar", (517, 67, 523)),
        ("a-b", (320, 268, 321)),
        ("№ ½", (158, 226, 500, 126, 377)),
        ("😀", (172, 253, 246, 478)),
        ("ΟΔΟΣ", (138, 123, 138, 112, 138, 123, 139, 481)),
        ("İ", (328, 136, 485)),
        ("x\u0301", (343, 136, 479)),
    ],
)
def test_clip_encodes_as_the_tokenizers_library(tmp_path: Path, text: str, ids: tuple[int, ...]) -> None:
    assert loaded(tmp_path, CLIP).encode(text) == (535, *ids, 536)


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("a photo of a red car", (2000, 2001, 2002, 2000, 2003, 2005)),
        ("Fireman", (2007, 2008)),
        ("hydrant", (2009, 2010, 2011)),
        ("Café", (2006,)),
        ("cafe\u0301", (2006,)),
        ("ДОМ", (2012,)),
        ("人人", (2013, 2013)),
        ("a人of", (2000, 2013, 2002)),
        ("red-blue", (2003, 2014, 2004)),
        ("red.", (2003, 1012)),
    ],
)
def test_bert_encodes_as_the_tokenizers_library(tmp_path: Path, text: str, ids: tuple[int, ...]) -> None:
    assert loaded(tmp_path, BERT).encode(text) == (101, *ids, 102)


def test_load_earlier_files_encode_alike(tmp_path: Path) -> None:
    model = CLIP["model"]
    (tmp_path / "vocab.json").write_text(json.dumps(model["vocab"]))
    (tmp_path / "merges.txt").write_text("\n".join(["#version: 0.2", *model["merges"], ""]))
    (tmp_path / "vocab.txt").write_text("\n".join(BERT["model"]["vocab"]) + "\n")
    text = "a photo of a red car"
    clip = load([tmp_path / "vocab.json", tmp_path / "merges.txt"])
    assert clip.encode(text) == loaded(tmp_path, CLIP).encode(text)
    assert load([tmp_path / "vocab.txt"]).encode(text) == loaded(tmp_path, BERT).encode(text)


def test_do_tokenize_answers_with_the_ids_of_each_text(tmp_path: Path) -> None:
    path = tokenizer_files.write(tmp_path, BERT)
    answer = tasks.do(jobs.Tokenize((str(path),), ("red car", "blue")), lambda _: None)
    assert answer == jobs.Tokenized(((101, 2003, 2005, 102), (101, 2004, 102)))


def test_load_merges_as_pairs_encode_alike(tmp_path: Path) -> None:
    pairs = {**CLIP, "model": {**CLIP["model"], "merges": [merge.split() for merge in CLIP["model"]["merges"]]}}
    assert loaded(tmp_path, pairs).encode("photo") == (535, 515, 536)


@pytest.mark.parametrize("text", ["stop!", "a <|endoftext|>", "A <|STARTOFTEXT|>"])
def test_clip_text_with_a_reserved_token_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match="reserves"):
        loaded(tmp_path, CLIP).encode(text)


@pytest.mark.parametrize("text", ["unknown", "red x", "redblue" * 20])
def test_bert_text_with_an_unknown_word_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match="lacks"):
        loaded(tmp_path, BERT).encode(text)


@pytest.mark.parametrize("content", [CLIP, BERT])
def test_encode_text_without_words_is_refused(tmp_path: Path, content: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="no words"):
        loaded(tmp_path, content).encode(" ")


def changed(content: dict[str, Any], part: str, **changes: object) -> dict[str, Any]:
    return {**content, part: {**content[part], **changes}}


OTHERS = {
    "another model": changed(CLIP, "model", type="Unigram"),
    "no end of words": changed(CLIP, "model", end_of_word_suffix=None),
    "another split": {**CLIP, "pre_tokenizer": {"type": "Whitespace"}},
    "no normalizer": {**CLIP, "normalizer": None},
    "a vocabulary with cases": changed(BERT, "normalizer", lowercase=False),
    "accents": changed(BERT, "normalizer", strip_accents=False),
    "no start": changed({**BERT, "added_tokens": []}, "model", vocab={"a": 0}),
    "a merge of three": changed(CLIP, "model", merges=["a b c"]),
    "an id below zero": changed(BERT, "model", vocab={"[CLS]": -1}),
    "an id of 64 bits": changed(BERT, "model", vocab={"[CLS]": 1 << 62}),
    "no vocabulary": changed(BERT, "model", vocab=[1, 2]),
    "no model": {},
}


@pytest.mark.parametrize("content", OTHERS.values(), ids=OTHERS)
def test_load_other_tokenizers_are_refused(tmp_path: Path, content: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        loaded(tmp_path, content)


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b"[" * 100_000, b'{"model": "\xff"}'])
def test_load_files_that_are_no_json_are_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "tokenizer.json").write_bytes(content)
    with pytest.raises(ConfigError, match=r"tokenizer\.json"):
        load([tmp_path / "tokenizer.json"])


def test_load_vocabulary_in_upper_case_and_other_bytes_are_refused(tmp_path: Path) -> None:
    words = tmp_path / "vocab.txt"
    words.write_text("[CLS]\n[SEP]\nCat\n")
    with pytest.raises(ConfigError, match="upper case"):
        load([words])
    words.write_bytes(b"[CLS]\n\xff\n")
    with pytest.raises(ConfigError, match="UTF-8"):
        load([words])
    words.unlink()
    with pytest.raises(ConfigError, match="cannot be read"):
        load([words])
    with pytest.raises(ConfigError, match="no tokenizer"):
        load([])


with tempfile.TemporaryDirectory() as _folder:
    SMALL_CLIP, SMALL_BERT = loaded(Path(_folder), CLIP), loaded(Path(_folder), BERT)


@settings(max_examples=200, deadline=None)
@given(text=st.text(min_size=1, max_size=MOST_CHARACTERS))
def test_encode_any_text_gives_ids_of_the_vocabulary_or_an_error(text: str) -> None:
    for tokenizer, content in ((SMALL_CLIP, CLIP), (SMALL_BERT, BERT)):
        known = set(content["model"]["vocab"].values())
        try:
            ids = tokenizer.encode(text)
        except ConfigError:
            continue
        assert known.issuperset(ids)
