"""Decoding: types are prepared before several threads decode them, and errors name their place."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import msgspec
import pytest

import edged
from edged import decoding

_ROOT = Path(edged.__file__).parent
_TYPED = {"decode", "convert", "Decoder"}

# In each round, six threads decode a new nested type at the same time. Without `ready` this ends with SIGSEGV.
_STRESS = """
import sys, threading
import msgspec
from edged.decoding import ready

sys.setswitchinterval(1e-6)

def nested(depth):
    kind = int
    for number in range(depth):
        kind = msgspec.defstruct(f"Kind{number}", [("inner", kind), ("names", "dict[str, int] | None", None)])
    return kind

data = b'{"inner":' * 12 + b"1" + b"}" * 12
for _ in range(150):
    kind, start, failures = nested(12), threading.Barrier(6), []

    def decode():
        start.wait()
        try:
            assert msgspec.json.decode(data, type=ready(kind)).inner is not None
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=decode) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures
"""


def test_ready_type_is_decoded_by_threads_at_once() -> None:
    done = subprocess.run([sys.executable, "-c", _STRESS], capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


def test_ready_is_called_for_every_decoded_type() -> None:
    found = list(_not_ready())
    assert found == []


def _not_ready() -> Iterator[str]:
    """Yield each call in a function that decodes to a type without `ready`. Modules run in one thread, so they may."""
    for path in _ROOT.rglob("*.py"):
        if path.name == "decoding.py":
            continue
        for function in ast.walk(ast.parse(path.read_text())):
            if not isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
                continue
            for call in ast.walk(function):
                if isinstance(call, ast.Call) and _is_typed(call):
                    yield f"{path.relative_to(_ROOT)}:{call.lineno}"


def _is_typed(call: ast.Call) -> bool:
    name = ast.unparse(call.func)
    if not name.startswith("msgspec.") or name.rpartition(".")[2] not in _TYPED:
        return False
    named = [each.value for each in call.keywords if each.arg == "type"]
    positional = call.args[0 if name.endswith("Decoder") else 1 :][:1]
    kinds = [ast.unparse(each) for each in (*named, *positional)]
    # Built-in types share nothing between threads.
    return any(
        not kind.removeprefix("decoding.").startswith("ready(") and kind != "dict[str, msgspec.Raw]" for kind in kinds
    )


class Inner(msgspec.Struct):
    name: str
    shape: Annotated[list[int], msgspec.Meta(max_length=4)]


class Outer(msgspec.Struct, forbid_unknown_fields=True):
    inputs: list[Inner] = []
    score: float | None = None
    most: Annotated[int, msgspec.Meta(ge=0)] | None = None
    parameters: dict[str, bool | int | str] = {}


@pytest.mark.parametrize(
    ("text", "output"),
    [
        (b'{"scor": 1}', "unknown name 'scor'; did you mean 'score'?"),
        (b'{"zzz": 1}', "unknown name 'zzz'; known names: inputs, score, most, parameters"),
        (b'{"score": "abc"}', "score: expected a number, got a string"),
        (b'{"most": -1}', "most: expected a whole number >= 0"),
        (b'{"inputs": [{"name": "x"}]}', "inputs[0]: 'shape' is missing"),
        (b'{"inputs": [{"name": 1, "shape": []}]}', "inputs[0].name: expected a string, got a whole number"),
        (
            b'{"inputs": [{"name": "x", "shape": [1, 2.5]}]}',
            "inputs[0].shape[1]: expected a whole number, got a number",
        ),
        (
            b'{"parameters": {"a": []}}',
            "parameters[...]: expected true or false or a whole number or a string, got a list",
        ),
        (b"[]", "expected an object, got a list"),
        (b"{", "input data was truncated"),
    ],
)
def test_explain_names_the_place_and_the_expected_type(text: bytes, output: str) -> None:
    with pytest.raises(msgspec.MsgspecError) as caught:
        msgspec.json.decode(text, type=Outer)
    assert decoding.explain(caught.value, Outer.__struct_fields__) == output
