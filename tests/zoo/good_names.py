"""Names of tensors, nodes and files that people and programs use."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import onnx

from tests.zoo.exhibit import SERVED, Hall
from tests.zoo.parts import chain, node, relu, value

HALL = Hall()


def _named(name: str) -> onnx.ModelProto:
    """Return a model in which the input, the node, an inner tensor and the output have the name or begin with it."""
    first = node("Relu", [name], [f"{name} inner"], name=name)
    second = node("Neg", [f"{name} inner"], [f"{name} out"], name=f"{name} again")
    return chain(first, second, inputs=[value(name)], outputs=[value(f"{name} out")])


_NAMES = {
    "name_unicode": ("in several scripts", "größe/模型/вход"),
    "name_emoji": ("beyond the basic plane", "\N{CAMERA}\N{ZERO WIDTH JOINER}\N{ROCKET}"),
    "name_spaces": ("with spaces at both ends", "  an input  "),
    "name_punctuation": ("as PyTorch and TensorFlow write them", "model/layer.0/conv2d:0|a=b,{c}[d]"),
    "name_quotes": ("with quotes, backslashes and percent signs", 'it\'s "x" \\n %s %d {0}'),
    "name_newline": ("of two lines", "first\nsecond\ttab"),
    "name_long": ("of ten thousand letters", "long" * 2_500),
    "name_number": ("that is a number", "0"),
    "name_right_to_left": ("that is read from right to left", "\N{RIGHT-TO-LEFT OVERRIDE}מודל"),
}
for _key, (_how, _text) in _NAMES.items():
    HALL.add(_key, f"tensors and nodes with a name {_how}", partial(_named, _text), SERVED)

for _key, _file in {
    "file_unicode": "Größe-模型.onnx",
    "file_spaces": "a model with spaces.onnx",
    "file_dots": "v1.2.3+int8@edge.onnx",
    "file_long": f"{'long' * 30}.onnx",
}.items():
    HALL.add(_key, f"a file called {_file[:40]}", relu, SERVED, file=_file)


@HALL.file(SERVED)
def file_is_a_link(path: Path) -> None:
    """A model file that is a symbolic link to the real file"""
    target = path.parent / "the file itself"
    target.write_bytes(relu().SerializeToString())
    path.symlink_to(target.name)
