"""Print the performance table as Markdown: ratios, with the alternatives measured in turns (docs/performance.md)."""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import traceback
from pathlib import Path

from tests.bench.rows import ROWS, Bench
from tests.bench.table import Line, Skipped, as_json, markdown

_PACKAGES = ("edged", "grpcio", "numpy", "onnxruntime", "openvino", "opencv-python-headless")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("--only", action="append", choices=ROWS, help="a row to measure (default: all)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each measurement")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the table as JSON")
    parser.add_argument("--before", type=Path, metavar="FOLDER", help="another checkout to compare, with its own .venv")
    arguments = parser.parse_args()
    if arguments.rounds < 1:
        parser.error("--rounds must be at least 1")
    before = arguments.before.absolute() if arguments.before else None
    if before is not None and (reason := _not_a_checkout(before)):
        parser.error(f"--before {before}: {reason}")
    bench = Bench(arguments.rounds, arguments.seconds, before)
    lines: list[Line | Skipped] = []
    for name in arguments.only or ROWS:
        print(f"measuring {name}", file=sys.stderr, flush=True)
        try:
            for line in ROWS[name](bench):  # what was measured before a failure is kept
                lines.append(line)
        except Exception as error:
            traceback.print_exc()
            lines.append(Skipped(name, f"{type(error).__name__}: {error}".splitlines()[0][:200]))
    machine = _machine(bench)
    print(markdown(machine, lines))
    if arguments.json:
        arguments.json.write_text(json.dumps(as_json(machine, lines), indent=1) + "\n")
    return int(any(isinstance(line, Skipped) for line in lines))


def _not_a_checkout(folder: Path) -> str:
    """Return why the daemon of a folder cannot run, or "". An installed edged must not be measured in its place."""
    python = folder / ".venv" / "bin" / "python"
    if not python.exists():
        return f"{python} does not exist"
    command = [python, "-c", "import edged; print(edged.__file__)"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if done.returncode:
        return done.stderr.strip().splitlines()[-1]
    found = Path(done.stdout.strip()).resolve()
    return "" if found.is_relative_to(folder.resolve()) else f"its Python imports {found}"


def _machine(bench: Bench) -> dict[str, str]:
    cpu = next((line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")), "")
    versions = {}
    for name in _PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {
        "machine": f"{cpu.partition(':')[2].strip() or platform.machine()}, {len(os.sched_getaffinity(0))} cores",
        "load before the end": f"{os.getloadavg()[0]:.1f} over the last minute",
        "kernel, Python": f"{platform.release()}, {platform.python_version()}",
        "versions": ", ".join(f"{name} {version}" for name, version in versions.items()),
        "rounds": f"{bench.rounds} of {bench.seconds:g} s each way, after one to warm up",
        "before": str(bench.before or "not measured"),
    }


if __name__ == "__main__":
    sys.exit(main())
