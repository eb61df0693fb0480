"""TensorRT's Python bindings without TensorRT: libraries of the names that they want, with functions that do nothing.

Good for looking at classes and signatures. What is created comes back as a null pointer.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

_MISSING_LIBRARY = re.compile(r"(lib\w+\.so\.\d+): cannot open shared object")
_MISSING_SYMBOL = re.compile(r"undefined symbol: (\w+)")
_MOST_ROUNDS = 60


def has_compiler() -> bool:
    return shutil.which("cc") is not None


class Bindings:
    """One folder that pip filled with `--target`, and stub libraries made until its module can be imported."""

    def __init__(self, folder: Path, scratch: Path) -> None:
        self._folder, self._stubs = folder, scratch / "stubs"
        self._stubs.mkdir(parents=True)
        self._libraries: set[str] = set()
        self._symbols: set[str] = set()
        for _ in range(_MOST_ROUNDS):
            ended = self._run("import tensorrt_bindings")
            if ended.returncode == 0:
                return
            if not self._learn(ended.stderr):
                raise AssertionError(ended.stderr)
        raise AssertionError(f"{folder.name} wants ever more symbols")

    def ask(self, program: str) -> dict[str, object]:
        """Runs a program that has the module as `trt` and leaves its answer in `answer`."""
        ended = self._run(f"import json, tensorrt_bindings as trt\n{program}\nprint(json.dumps(answer))")
        assert ended.returncode == 0, ended.stderr
        answer: dict[str, object] = json.loads(ended.stdout.splitlines()[-1])
        return answer

    def _learn(self, complaint: str) -> bool:
        library, symbol = _MISSING_LIBRARY.search(complaint), _MISSING_SYMBOL.search(complaint)
        if library:
            self._libraries.add(library[1])
        elif symbol:
            self._symbols.add(symbol[1])
        else:
            return False
        source = "".join(f"long {name}(void) {{ return 0; }}\n" for name in sorted(self._symbols))
        for name in self._libraries:
            command = ["cc", "-shared", "-fPIC", "-w", "-x", "c", "-o", str(self._stubs / name), "-"]
            subprocess.run(command, input=source, text=True, check=True, timeout=30)
        return True

    def _run(self, program: str) -> subprocess.CompletedProcess[str]:
        found = {"LD_LIBRARY_PATH": str(self._stubs), "PYTHONPATH": os.pathsep.join([str(self._folder), os.getcwd()])}
        return subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, **found},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
