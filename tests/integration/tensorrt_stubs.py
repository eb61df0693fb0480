"""TensorRT's Python bindings without TensorRT: stub libraries with the needed names and functions that do nothing.

This is enough to inspect classes and signatures. Every created object is a null pointer.
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
    """A folder that pip filled with `--target`, and stub libraries that make its module importable."""

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
        raise AssertionError(f"{folder.name} needs ever more symbols")

    def ask(self, program: str) -> dict[str, object]:
        """Run a program that has the module as `trt`; return its variable `answer`."""
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
