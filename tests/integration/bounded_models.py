"""Models that exceed the bounds of a request, each in one way, but only for inputs above `EDGE`.

When edged inspects and verifies a model, the inputs are at or below `EDGE`, and nothing unusual happens.
"""

from __future__ import annotations

from pathlib import Path

from onnx import ModelProto

from tests import models

EDGE = 1e6


def _parse(output: str, nodes: str, constants: str = "") -> ModelProto:
    """Parse a model in which `n` is the distance of x above the edge, as a number of elements or rounds."""
    above = "d = Sub(x, edge) above = Relu(d) n = Cast<to = 7>(above)"
    known = f"<float[1] edge = {{{EDGE}}}, int64[1] one = {{1}}{constants}>"
    return models.parse(f"(float[1] x) => ({output} y) {known} {{ {above} {nodes} }}")


def endless(marked_mb: int = 0) -> ModelProto:
    """Return a Loop with as many rounds as x is above the edge. y depends on every round, so none can be skipped.

    With `marked_mb` it first takes so many mebibytes if x is above the edge, which makes its host recognisable.
    """
    loop = """y = Loop(rounds, , start) <body = body (int64 i, bool c, float[1] v) => (bool c_out, float[1] v_out)
        <float[1] step = {1}> { c_out = Identity(c) s = Sin(v) v_out = Add(s, step) }>"""
    size = "few = Min(n, most) size = Add(few, one) wide = Expand(x, size)"
    start = "start = ReduceMax<keepdims = 1>(wide) rounds = Squeeze(n)"
    return _parse("float[1]", f"{size} {start} {loop}", f", int64[1] most = {{{marked_mb << 18}}}")


def large() -> ModelProto:
    """Return a model whose output has as many zeros as x is above the edge, plus one."""
    return _parse("float[n]", "size = Add(n, one) y = ConstantOfShape(size)")


def greedy() -> ModelProto:
    """Return a model with a small output that first expands x to as many elements as it is above the edge."""
    sums = "size = Add(n, one) wide = Expand(x, size) sums = CumSum(wide, axis)"
    return _parse("float[1]", f"{sums} y = ReduceMax<keepdims = 1>(sums)", ", int64 axis = {0}")


def logarithm() -> ModelProto:
    """Return y = log(x), which is NaN below zero and -inf at zero, and z = x."""
    return models.parse("(float[1] x) => (float[1] y, float[1] z) { y = Log(x) z = Identity(x) }")


def place(folder: Path, name: str, proto: ModelProto, **settings: str) -> None:
    """Put a model and its settings into a daemon's folder, for ONNX Runtime, whose runs can be cancelled."""
    models.save(proto, folder / name / "1" / "model.onnx")
    output = {"backends": "onnxruntime", **{key.replace("__", "."): word for key, word in settings.items()}}
    (folder / name / "edged.toml").write_text("".join(f'"{key}" = "{word}"\n' for key, word in output.items()))
