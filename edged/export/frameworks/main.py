"""Runs in the user's Python: loads a model, exports it, and computes the framework's answers. `edged/export/child.py`
starts it.

Each line of standard input is a request, a JSON object. Each answer is a JSON object on one line of the original
standard output. File descriptor 1 is redirected to standard error, because frameworks print to standard output.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import resource
import sys
import traceback
import types


def main() -> None:
    """Answer requests until standard input ends. The first argument is the folder of the user's modules."""
    channel = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    folder = os.path.dirname(os.path.abspath(__file__))
    # This folder must not be on the path: its files are named after the frameworks.
    sys.path[:] = [sys.argv[1], *(path for path in sys.path if os.path.abspath(path or ".") != folder)]
    package = types.ModuleType("edged_frameworks")
    package.__path__ = [folder]
    sys.modules["edged_frameworks"] = package
    worker = _Worker()
    for line in sys.stdin:
        channel.write(json.dumps(_answered(worker, json.loads(line))) + "\n")
        channel.flush()


def _answered(worker: _Worker, request: dict) -> dict:
    from edged_frameworks.contract import Refused

    try:
        done = getattr(worker, "do_" + request.pop("do"))(**request)
        return {**done, "memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10}
    except Refused as error:
        return {"error": "refused", "message": str(error)}
    except PermissionError as error:
        hint = "an export has no network and reads only the source, this folder and packages; give --weights FILE"
        return {"error": "failed", "message": f"PermissionError: {error}; {hint}"}
    except ModuleNotFoundError as error:
        return {"error": "missing", "message": str(error), "module": error.name or ""}
    except MemoryError:
        return {"error": "memory", "message": "out of memory"}
    except Exception as error:  # frameworks raise anything
        traceback.print_exc()
        text = " ".join(re.sub(r"\x1b\[[0-9;]*m", "", str(error)).split())
        return {"error": "failed", "message": f"{type(error).__name__}: {text[:600]}"}


class _Worker:
    def do_load(self, kind: str, request: dict) -> dict:
        from edged_frameworks.contract import Request

        module = importlib.import_module("edged_frameworks." + kind)
        self._loaded = loaded = module.load(Request(**request))
        inputs = {name: [each.dtype, list(each.shape), each.open] for name, each in loaded.inputs.items()}
        return {
            "framework": loaded.framework,
            "inputs": inputs,
            "settings": loaded.settings,
            "ways": list(loaded.ways),
            "notes": loaded.notes,
            "has_layers": loaded.layers is not None,
        }

    def do_export(self, out: str, opset: int | None, way: str) -> dict:
        self._loaded.export(out, opset, way)
        return {}

    def do_answer(self, inputs: str, outputs: str) -> dict:
        return self._run(self._loaded.answer, inputs, outputs)

    def do_layers(self, inputs: str, outputs: str) -> dict:
        return self._run(self._loaded.layers, inputs, outputs)

    def _run(self, what, inputs: str, outputs: str) -> dict:
        import numpy as np

        with np.load(inputs, allow_pickle=False) as given:
            found = what({name[1:]: given[name] for name in given.files})
        # The arrays are numbered, because names of outputs may be invalid as names of files in the archive.
        np.savez(outputs, **{str(number): value for number, value in enumerate(found.values())})
        return {"names": list(found)}


if __name__ == "__main__":
    main()
