"""Models that go beyond what a request may take, each in one way and only when it is asked to.

What they are asked when they are read and verified is harmless: an input at or below `EDGE` does nothing unusual.
"""

from __future__ import annotations

from pathlib import Path

from onnx import ModelProto

from tests import models

EDGE = 1e6


def _parse(output: str, nodes: str, constants: str = "") -> ModelProto:
    """`n` is how far x is above the edge, as a number of elements or rounds."""
    above = "d = Sub(x, edge) above = Relu(d) n = Cast<to = 7>(above)"
    known = f"<float[1] edge = {{{EDGE}}}, int64[1] one = {{1}}{constants}>"
    return models.parse(f"(float[1] x) => ({output} y) {known} {{ {above} {nodes} }}")


def endless(marked_mb: int = 0) -> ModelProto:
    """A Loop of as many rounds as x is above the edge; y depends on every round, so that none can be left out.

    With `marked_mb` it takes so many mebibytes first, but not for what is at the edge: its host can be told by them.
    """
    loop = """y = Loop(rounds, , start) <body = body (int64 i, bool c, float[1] v) => (bool c_out, float[1] v_out)
        <float[1] step = {1}> { c_out = Identity(c) s = Sin(v) v_out = Add(s, step) }>"""
    size = "few = Min(n, most) size = Add(few, one) wide = Expand(x, size)"
    start = "start = ReduceMax<keepdims = 1>(wide) rounds = Squeeze(n)"
    return _parse("float[1]", f"{size} {start} {loop}", f", int64[1] most = {{{marked_mb << 18}}}")


def large() -> ModelProto:
    """y is as many zeros as x is above the edge, and one."""
    return _parse("float[n]", "size = Add(n, one) y = ConstantOfShape(size)")


def greedy() -> ModelProto:
    """y is small, and on the way to it x is expanded to as many elements as it is above the edge."""
    sums = "size = Add(n, one) wide = Expand(x, size) sums = CumSum(wide, axis)"
    return _parse("float[1]", f"{sums} y = ReduceMax<keepdims = 1>(sums)", ", int64 axis = {0}")


def logarithm() -> ModelProto:
    """y = log(x), which is NaN below zero and -inf at zero, and z = x."""
    return models.parse("(float[1] x) => (float[1] y, float[1] z) { y = Log(x) z = Identity(x) }")


def place(folder: Path, name: str, proto: ModelProto, **settings: str) -> None:
    """Puts a model and its settings into a daemon's folder, served by the runtime that can be stopped."""
    models.save(proto, folder / name / "1" / "model.onnx")
    output = {"backends": "onnxruntime", **{key.replace("__", "."): word for key, word in settings.items()}}
    (folder / name / "edged.toml").write_text("".join(f'"{key}" = "{word}"\n' for key, word in output.items()))
