"""Converts texts to token ids as CLIP and BERT do. Runs in a child, because tokenizer files may be hostile.

A tokenizer is read from `vocab.json` and `merges.txt` (CLIP), from `vocab.txt` (BERT), or from `tokenizer.json` of
Hugging Face's tokenizers library. `tokenizer.json` must have the model BPE (CLIP) or WordPiece (BERT, lower case). A
file with other steps is refused, because with wrong ids the model would detect other things.

    CLIP   NFC, lower case, split into words; each word as the characters of its bytes, the last one with </w>, merged
           pair by pair; all pieces between <|startoftext|> and <|endoftext|>
    BERT   lower case without accents, split at spaces and punctuation; each word as its longest known pieces, with ##
           before every piece except the first; all pieces between [CLS] and [SEP]

edged does not use the tokenizers library, because it needs 15 other packages (25 MB), one of them a client of a model
hub. Sources: the library's file format, `tokenization_clip.py` of transformers (commit 01f287b), and comparison with
tokenizers 0.23.3. With CLIP's own vocabulary the ids agree in 6880 of 6880 random texts in many scripts, with a
vocabulary for BERT in 4449 of 4471. The 22 other texts have characters that are newer than the library's tables of
Unicode.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Protocol, TypeVar

import msgspec

from edged.decoding import ready
from edged.errors import ConfigError
from edged.files import read_regular

JSON, VOCABULARY, MERGES, WORDS = "tokenizer.json", "vocab.json", "merges.txt", "vocab.txt"
_MOST_BYTES = 64 << 20  # of one file
_START, _END = "<|startoftext|>", "<|endoftext|>"
_CLS, _SEP = "[CLS]", "[SEP]"
_CONTRACTIONS = ("'s", "'t", "'re", "'ve", "'m", "'ll", "'d")
_GIVE_IDS = 'give token ids: prompts = "a cat [49406 320 2368 49407]"'
_LONGEST_WORD = 100  # characters; a longer word is unknown to BERT
# Code points that BERT treats as words of one character.
_IDEOGRAPHS = (
    *((0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x20000, 0x2A6DF), (0x2A700, 0x2B73F), (0x2B740, 0x2B81F)),
    *((0x2B820, 0x2CEAF), (0xF900, 0xFAFF), (0x2F800, 0x2FA1F)),
)

_T = TypeVar("_T")
_Id = Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]


class Tokenizer(Protocol):
    """Encodes a text as token ids, with the ids of the start and end tokens around it. Raises ConfigError if the text
    has no words, unknown words or reserved texts."""

    def encode(self, text: str) -> tuple[int, ...]: ...


def load(paths: Iterable[Path]) -> Tokenizer:
    """Read a tokenizer from files. The file names decide the format (see the module's docstring). Raises ConfigError if
    the files cannot be read, or do not belong to a tokenizer of CLIP or BERT."""
    files = {path.name: path for path in paths}
    if JSON in files:
        return _from_json(_json(files[JSON], _File))
    if VOCABULARY in files and MERGES in files:
        lines = _text(files[MERGES]).splitlines()
        merges = [line for line in lines if line and not line.startswith("#version")]
        return Clip(_json(files[VOCABULARY], dict[str, _Id]), _pairs(merges), (_START, _END, "!"))
    if WORDS in files:
        words = _text(files[WORDS]).split("\n")
        if any(word != word.lower() for word in words if not word.startswith("[")):
            raise ConfigError(f"{WORDS} has words in upper case; only vocabularies in lower case are supported")
        return Bert({word.rstrip("\r"): number for number, word in enumerate(words) if word})
    raise ConfigError(f"no tokenizer was found: {JSON}, {VOCABULARY} with {MERGES}, or {WORDS} is needed")


class Clip:
    """CLIP's tokenizer. `special` are reserved texts, which a prompt must not contain."""

    def __init__(
        self, vocabulary: Mapping[str, int], merges: Sequence[tuple[str, str]], special: Iterable[str] = ()
    ) -> None:
        self._ids, self._ranks = vocabulary, {pair: rank for rank, pair in enumerate(merges)}
        self._ends = _ids_of((_START, _END), vocabulary)
        self._special, self._letters = tuple(special), _byte_letters()

    def encode(self, text: str) -> tuple[int, ...]:
        text = _lower(unicodedata.normalize("NFC", text))
        found = next((each for each in self._special if each and each in text), None)
        if found is not None:
            raise ConfigError(f"prompt {text[:60]!r} contains {found!r}, which the tokenizer reserves; leave it out")
        pieces = [piece for word in _clip_words(text) for piece in self._merged(word)]
        start, end = self._ends
        return start, *_known(pieces, self._ids, text), end

    def _merged(self, word: str) -> list[str]:
        pieces = [self._letters[byte] for byte in word.encode()]
        pieces[-1] += "</w>"
        while len(pieces) > 1:
            pairs = list(pairwise(pieces))
            best = min(pairs, key=lambda pair: self._ranks.get(pair, len(self._ranks)))
            if best not in self._ranks:
                break
            at = pairs.index(best)
            pieces[at : at + 2] = ["".join(best)]
        return pieces


def _clip_words(text: str) -> Iterator[str]:
    """Split a text into contractions, runs of letters, single digits, and runs of other characters."""
    at = 0
    while at < len(text):
        short = next((each for each in _CONTRACTIONS if text.startswith(each, at)), "")
        end = at + max(len(short), 1)
        kind = _kind(text[at])
        if not short and kind != "N":
            while end < len(text) and _kind(text[end]) == kind:
                end += 1
        if kind != " ":
            yield text[at:end]
        at = end


def _kind(character: str) -> str:
    """Return L for a letter, N for a number, a space for a space, and an empty text for any other character."""
    kind = unicodedata.category(character)[0]
    return kind if kind in "LN" else " " if character.isspace() else ""


def _byte_letters() -> tuple[str, ...]:
    """Return a character for each byte: the Latin-1 character if visible, otherwise a character from U+0100 on."""
    visible = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = {byte: 0x100 + number for number, byte in enumerate(b for b in range(256) if b not in visible)}
    return tuple(chr(others.get(byte, byte)) for byte in range(256))


class Bert:
    """BERT's tokenizer with a vocabulary in lower case."""

    def __init__(self, vocabulary: Mapping[str, int]) -> None:
        self._ids, self._ends = vocabulary, _ids_of((_CLS, _SEP), vocabulary)

    def encode(self, text: str) -> tuple[int, ...]:
        plain = (c for c in unicodedata.normalize("NFD", text) if unicodedata.category(c) != "Mn" and c != "\ufffd")
        pieces = [piece for word in _bert_words(_lower(plain)) for piece in self._pieces(word, text)]
        start, end = self._ends
        return start, *_known(pieces, self._ids, text), end

    def _pieces(self, word: str, text: str) -> Iterator[str]:
        at = 0
        while at < len(word):
            prefix = "##" if at else ""
            ends = range(len(word), at, -1) if len(word) <= _LONGEST_WORD else ()
            end = next((end for end in ends if prefix + word[at:end] in self._ids), None)
            if end is None:
                raise _unknown(word, text)
            yield prefix + word[at:end]
            at = end


def _bert_words(text: str) -> Iterator[str]:
    """Split a text at spaces. Each punctuation character and each ideograph is a separate word."""
    word = ""
    for each in text:
        is_alone = _is_alone(each)
        if not is_alone and not each.isspace():
            word += each
            continue
        yield from filter(None, (word, each if is_alone else ""))
        word = ""
    if word:
        yield word


def _is_alone(character: str) -> bool:
    is_sign = character.isascii() and not character.isalnum() and not character.isspace()
    if is_sign or unicodedata.category(character)[0] == "P":
        return True
    return any(first <= ord(character) <= last for first, last in _IDEOGRAPHS)


def _lower(characters: Iterable[str]) -> str:
    """Convert each character to lower case. In a whole text, str.lower() changes a sigma at a word's end."""
    return "".join(each.lower() for each in characters)


def _known(pieces: Sequence[str], vocabulary: Mapping[str, int], text: str) -> list[int]:
    unknown = next((piece for piece in pieces if piece not in vocabulary), None)
    if unknown is not None:
        raise _unknown(unknown, text)
    if not pieces:
        raise ConfigError(f"prompt {text[:60]!r} has no words; write what to look for")
    return [vocabulary[piece] for piece in pieces]


def _unknown(word: str, text: str) -> ConfigError:
    return ConfigError(f"prompt {text[:60]!r}: the tokenizer's vocabulary lacks {word[:40]!r}; use other words")


def _ids_of(names: tuple[str, str], vocabulary: Mapping[str, int]) -> tuple[int, int]:
    missing = next((name for name in names if name not in vocabulary), None)
    if missing is not None:
        raise ConfigError(
            f"the tokenizer's vocabulary lacks {missing}, so it is neither CLIP's nor BERT's; {_GIVE_IDS}"
        )
    return vocabulary[names[0]], vocabulary[names[1]]


# -- files ----------------------------------------------------------------------------------------------------------


class _Model(msgspec.Struct):
    type: str = ""
    vocab: dict[str, _Id] = {}
    merges: list[str | tuple[str, str]] = []
    end_of_word_suffix: str | None = None
    continuing_subword_prefix: str | None = None
    max_input_chars_per_word: int = _LONGEST_WORD


class _Step(msgspec.Struct):
    type: str = ""
    normalizers: list[_Step] = []
    pretokenizers: list[_Step] = []
    lowercase: bool = True
    strip_accents: bool | None = None
    handle_chinese_chars: bool = True

    def names(self) -> set[str]:
        """Return the types of a component's steps, or its own type if it is not a sequence."""
        return {step.type for step in (*self.normalizers, *self.pretokenizers)} or {self.type}


class _Added(msgspec.Struct):
    id: _Id
    content: str


class _File(msgspec.Struct):
    model: _Model
    normalizer: _Step | None = None
    pre_tokenizer: _Step | None = None
    added_tokens: list[_Added] = []


def _from_json(file: _File) -> Tokenizer:
    model, normal, split = file.model, file.normalizer or _Step(), file.pre_tokenizer or _Step()
    kind = model.type, frozenset(normal.names()), frozenset(split.names())
    added = {token.content: token.id for token in file.added_tokens}
    if kind == _CLIP and model.end_of_word_suffix == "</w>" and not model.continuing_subword_prefix:
        return Clip({**model.vocab, **added}, _pairs(model.merges), added)
    is_plain = normal.lowercase and normal.strip_accents is not False and normal.handle_chinese_chars
    is_usual = model.continuing_subword_prefix == "##" and model.max_input_chars_per_word == _LONGEST_WORD
    if kind == _BERT and is_plain and is_usual:
        return Bert({**model.vocab, **added})
    steps = ", ".join((model.type, *sorted(normal.names()), *sorted(split.names())))
    raise ConfigError(f"{JSON} is no tokenizer of CLIP, or of BERT in lower case (steps: {steps[:200]}); {_GIVE_IDS}")


_CLIP = "BPE", frozenset({"NFC", "Replace", "Lowercase"}), frozenset({"Split", "ByteLevel"})
_BERT = "WordPiece", frozenset({"BertNormalizer"}), frozenset({"BertPreTokenizer"})


def _pairs(merges: Iterable[str | tuple[str, str]]) -> list[tuple[str, str]]:
    pairs = [tuple(each.split(" ")) if isinstance(each, str) else each for each in merges]
    if any(len(pair) != 2 for pair in pairs):
        raise ConfigError(f"{JSON} or {MERGES} has a merge that is not two pieces; export the tokenizer again")
    return [(pair[0], pair[1]) for pair in pairs]


def _json(path: Path, kind: type[_T]) -> _T:
    try:
        return msgspec.json.decode(_bytes(path), type=ready(kind))
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ConfigError(f"{path.name} cannot be read as a tokenizer: {error}") from error


def _text(path: Path) -> str:
    try:
        return _bytes(path).decode()
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path.name} is not UTF-8: {error.reason}") from error


def _bytes(path: Path) -> bytes:
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise ConfigError(
                f"{path.name} is larger than {_MOST_BYTES >> 20} MiB, so it is not a tokenizer of CLIP or BERT"
            )
        return read_regular(path)
    except OSError as error:
        raise ConfigError(f"{path.name} cannot be read: {error.strerror or error}") from error
