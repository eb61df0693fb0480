"""Small tokenizers of CLIP and BERT as files of Hugging Face's tokenizers library, with vocabularies of a few words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

WORDS = ("a", "photo", "of", "red", "blue", "car", "café", "don", "'t", "дом", "2")
_PATTERN = r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"


def clip() -> dict[str, Any]:
    """Return the content of tokenizer.json: all bytes, alone and at the end of a word, and a merge for each prefix of
    the words."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    letters = {byte: chr(byte) for byte in visible}
    letters |= {byte: chr(0x100 + n) for n, byte in enumerate(b for b in range(256) if b not in visible)}
    merges: list[tuple[str, str]] = []
    for word in WORDS:
        *pieces, last = (letters[byte] for byte in word.encode())
        pieces.append(f"{last}</w>")
        for at in range(1, len(pieces)):
            merges.append(("".join(pieces[:at]), pieces[at]))
    pieces = [*letters.values(), *(f"{letter}</w>" for letter in letters.values()), *map("".join, merges)]
    pieces += ["<|startoftext|>", "<|endoftext|>"]
    vocabulary = {piece: number for number, piece in enumerate(dict.fromkeys(pieces))}
    start, end = vocabulary["<|startoftext|>"], vocabulary["<|endoftext|>"]
    special = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {
        "version": "1.0",
        "added_tokens": [
            {"id": start, "content": "<|startoftext|>", **special},
            {"id": end, "content": "<|endoftext|>", **special},
            {"id": vocabulary["!"], "content": "!", **special},  # OWL's padding
        ],
        "normalizer": {
            "type": "Sequence",
            "normalizers": [
                {"type": "NFC"},
                {"type": "Replace", "pattern": {"Regex": r"\s+"}, "content": " "},
                {"type": "Lowercase"},
            ],
        },
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": _PATTERN}, "behavior": "Removed", "invert": True},
                {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
            ],
        },
        "post_processor": {
            "type": "RobertaProcessing",
            "sep": ["<|endoftext|>", end],
            "cls": ["<|startoftext|>", start],
            "trim_offsets": False,
            "add_prefix_space": False,
        },
        "decoder": None,
        "truncation": None,
        "padding": None,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": "<|endoftext|>",
            "continuing_subword_prefix": "",
            "end_of_word_suffix": "</w>",
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": vocabulary,
            "merges": [" ".join(pair) for pair in merges],
        },
    }


_PIECES = ("a", "photo", "of", "red", "blue", "car", "cafe", "fire", "##man", "hy", "##dra", "##nt", "дом", "人", "-")


def bert() -> dict[str, Any]:
    """Return the content of tokenizer.json, with the ids of [CLS], [SEP], "." and "?" in BERT's uncased vocabulary."""
    places = {0: "[PAD]", 100: "[UNK]", 101: "[CLS]", 102: "[SEP]", 1012: ".", 1029: "?"}
    places |= {2000 + number: piece for number, piece in enumerate(_PIECES)}
    return {
        "version": "1.0",
        "added_tokens": [],
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": True,
            "strip_accents": None,
            "lowercase": True,
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {"type": "BertProcessing", "sep": ["[SEP]", 102], "cls": ["[CLS]", 101]},
        "decoder": None,
        "truncation": None,
        "padding": None,
        "model": {
            "type": "WordPiece",
            "unk_token": "[UNK]",
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
            "vocab": {places.get(number, f"[unused{number}]"): number for number in range(max(places) + 1)},
        },
    }


def write(folder: Path, content: dict[str, Any]) -> Path:
    """Write tokenizer.json into a folder and return its path."""
    path = folder / "tokenizer.json"
    path.write_text(json.dumps(content))
    return path
