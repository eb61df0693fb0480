"""Model digests: two models have equal digests if their files and external data are equal."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edged.backends.contract import REFERENCE, Order, Signature
from edged.errors import ModelRefused, Superseded
from edged.models.identity import file_digest, model_digest, require_same
from tests.waiting import ends_despite_fifo


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "model.onnx").write_bytes(b"graph")
    (tmp_path / "a.bin").write_bytes(b"one")
    (tmp_path / "b.bin").write_bytes(b"two")
    return tmp_path / "model.onnx"


def test_model_digest_without_external_data_is_that_of_the_file(model: Path) -> None:
    assert model_digest(model, []) == file_digest(model) == hashlib.sha256(b"graph").hexdigest()


def test_file_digest_of_a_large_file_is_sha256(tmp_path: Path) -> None:
    content = bytes(range(256)) * 8200  # a bit more than 2 MiB
    (tmp_path / "large").write_bytes(content)
    assert file_digest(tmp_path / "large") == hashlib.sha256(content).hexdigest()


def test_model_digest_ignores_order_and_repetition(model: Path) -> None:
    assert model_digest(model, ["b.bin", "a.bin", "a.bin"]) == model_digest(model, ["a.bin", "b.bin"])


def test_model_digest_depends_on_content_names_and_number(model: Path) -> None:
    digests = {model_digest(model, names) for names in ([], ["a.bin"], ["b.bin"], ["a.bin", "b.bin"])}
    (model.parent / "a.bin").write_bytes(b"two")
    (model.parent / "b.bin").write_bytes(b"one")
    digests.add(model_digest(model, ["a.bin", "b.bin"]))
    (model.parent / "c.bin").write_bytes(b"two")
    digests.add(model_digest(model, ["c.bin"]))
    model.write_bytes(b"another graph")
    digests.add(model_digest(model, ["c.bin"]))
    assert len(digests) == 7


def test_model_digest_accepts_a_known_digest_of_the_graph(model: Path) -> None:
    known = file_digest(model)
    assert model_digest(model, ["a.bin"], graph_digest=known) == model_digest(model, ["a.bin"])


def test_model_digest_unreadable_file_is_refused_by_name(model: Path) -> None:
    with pytest.raises(ModelRefused, match=r"gone\.bin cannot be read"):
        model_digest(model, ["gone.bin"])


CONTENTS = st.dictionaries(st.text("ab", min_size=1, max_size=2), st.binary(max_size=2), min_size=1, max_size=3)


@given(CONTENTS, CONTENTS)
def test_model_digest_differs_if_and_only_if_contents_differ(
    tmp_path: Path, one: dict[str, bytes], other: dict[str, bytes]
) -> None:
    (tmp_path / "model.onnx").write_bytes(b"graph")
    digests = []
    for files in (one, other):
        for name, content in files.items():
            (tmp_path / name).write_bytes(content)
        digests.append(model_digest(tmp_path / "model.onnx", files))
    assert (digests[0] == digests[1]) == (one == other)


def test_require_same_of_a_missing_file_is_superseded(tmp_path: Path) -> None:
    """It must not be an error that counts against the model."""
    order = Order(str(tmp_path / "model.onnx"), Signature((), ()), REFERENCE, digest="0" * 64)
    with pytest.raises(Superseded, match="removed"):
        require_same(order)


def test_file_digest_of_a_fifo_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "model.onnx")
    assert ends_despite_fifo(lambda: file_digest(tmp_path / "model.onnx"), tmp_path / "model.onnx")
