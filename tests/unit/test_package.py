"""The package for users: type annotations, and protocol files for other languages."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

PROTOS = Path(__file__).parents[2] / "protos"

USER = """
import edged
from edged.client import AsyncClient, Client, Result, open_source

def ages(client: Client) -> list[float]:
    result: Result = client.infer("doors", "street.jpg")
    streamed = client.stream("doors", open_source("street.jpg"), camera="hall")
    return [result.age_ms, *(found.age_ms for found in streamed)]

async def ask() -> None:
    async with AsyncClient() as client:
        print((await client.infer("doors", "street.jpg")).detections)

with edged.Client() as client:
    reveal_type(ages(client))
    reveal_type(edged.load("doors.onnx").infer("street.jpg"))
"""


def test_package_strict_type_check_of_a_users_program_passes(tmp_path: Path) -> None:
    program = tmp_path / "user.py"
    program.write_text(USER)
    command = [sys.executable, "-m", "mypy", "--strict", f"--cache-dir={tmp_path / 'cache'}", program.name]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout
    assert 'Revealed type is "edged.client.result.Result"' in done.stdout


def test_protos_import_each_other_from_their_folder() -> None:
    """This makes protos/ an include root for every language: `protoc -I protos protos/*.proto` works."""
    found = [name for path in PROTOS.glob("*.proto") for name in re.findall(r'^import "(.+)";', path.read_text(), re.M)]
    assert found
    assert [name for name in found if not name.startswith("google/") and not (PROTOS / name).is_file()] == []
