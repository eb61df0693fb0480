"""`edged config`: output, files, reported mistakes, exit status."""

from __future__ import annotations

import json
import os
import re
import stat
from pathlib import Path

import pytest
from typer.testing import CliRunner

from edged import paths
from edged.cli.app import app
from edged.config.template import template


@pytest.fixture(autouse=True)
def box(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A box without a service and without edged's variables."""
    for name in [name for name in os.environ if name.startswith("EDGED_") or name == "CONFIGURATION_DIRECTORY"]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(paths, "SERVICE_CONFIG", tmp_path / "etc" / "edged.toml")
    monkeypatch.setenv("RUNTIME_DIRECTORY", str(tmp_path / "run"))
    return tmp_path


def call(*words: object) -> tuple[int, str, str]:
    """Run `edged config`. Return exit status, standard output and standard error."""
    result = CliRunner().invoke(app, ["config", *map(str, words)])
    return result.exit_code, result.stdout, result.stderr


def written(folder: Path, text: str) -> Path:
    file = folder / "my.toml"
    file.write_text(text)
    return file


# --- init -----------------------------------------------------------------------------------------------------------


def test_init_prints_the_file() -> None:
    assert call("init") == (0, template(), "")


def test_init_out_writes_a_new_file_and_replaces_one_only_with_force(tmp_path: Path) -> None:
    file = tmp_path / "new.toml"
    before = os.umask(0)
    try:
        assert call("init", "--out", file)[0] == 0
    finally:
        os.umask(before)
    assert (file.read_text(), stat.S_IMODE(file.stat().st_mode)) == (template(), 0o640)
    file.write_text("stop_seconds = 1")
    status, _, err = call("init", "--out", file)
    assert (status, err) == (1, f"edged: {file} already exists; use --force to replace it\n")
    assert file.read_text() == "stop_seconds = 1"
    assert call("init", "--out", file, "--force")[0] == 0
    assert file.read_text() == template()
    assert sorted(tmp_path.iterdir()) == [file]


def test_init_out_link_is_followed_only_with_force(tmp_path: Path) -> None:
    dangling, link, file = tmp_path / "dangling.toml", tmp_path / "link.toml", written(tmp_path, "stop_seconds = 1")
    dangling.symlink_to(tmp_path / "elsewhere")
    link.symlink_to(file)
    assert call("init", "--out", dangling)[0] == 1
    assert not (tmp_path / "elsewhere").exists()
    assert call("init", "--out", link, "--force")[0] == 0
    assert (link.is_symlink(), file.read_text()) == (True, template())


@pytest.mark.parametrize("force", [(), ("--force",)])
def test_init_out_unusable_path_is_refused(tmp_path: Path, force: tuple[str, ...]) -> None:
    status, _, err = call("init", "--out", tmp_path / "none" / "x.toml", *force)
    assert (status, "none/x.toml: No such file or directory" in err) == (1, True)
    pipe = tmp_path / "pipe"  # for example /dev/null, which root could replace
    os.mkfifo(pipe)
    status, _, err = call("init", "--out", pipe, *force)
    assert (status, err) == (2, f"edged: {pipe} is not a regular file; give --out another name\n")
    assert stat.S_ISFIFO(pipe.stat().st_mode)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_init_force_by_root_keeps_the_owner(tmp_path: Path) -> None:
    file = written(tmp_path, "")
    os.chown(file, 1234, 2345)
    assert call("init", "--out", file, "--force")[0] == 0
    assert (file.stat().st_uid, file.stat().st_gid) == (1234, 2345)


# --- check ----------------------------------------------------------------------------------------------------------


def test_check_prints_every_mistake_in_the_order_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "taken").touch()
    file = written(
        tmp_path,
        f"""stop-seconds = 4
listen = ["unix:{tmp_path}/taken", "nonsense"]

[engines]
budget_mb = "lots"
listen = "x"
attempts = 0
[engine]
[models]
door = "/nowhere/door.onnx"
yard = 5
""",
    )
    status, printed, err = call("check", file)
    assert (status, err) == (2, "")
    assert printed.splitlines() == [
        f"{file}:1: stop-seconds: unknown key; did you mean `stop_seconds`?",
        f"{file}:2: listen[0]: {tmp_path}/taken exists and is not a socket; remove the file, or listen elsewhere",
        f"{file}:2: listen[1]: listen address 'nonsense' is neither unix:PATH nor HOST:PORT",
        f'{file}:5: engines.budget_mb: expected a whole number from 0 to 1073741824, got "lots"',
        f"{file}:6: engines.listen: unknown key;"
        " it is a key of [http], [page], [metrics] or the top of the file, before any table",
        f"{file}:7: engines.attempts: expected a whole number from 1 to 1000, got 0",
        f"{file}:8: engine: unknown key; did you mean `engines`?",
        f"{file}:10: models.door: /nowhere/door.onnx cannot be read: No such file or directory; correct the path",
        f"{file}:11: models.yard: expected a string in quotes, got 5",
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a = 1\nb =\n", ":2: not valid TOML: Invalid value"),
        ("a = [", ": not valid TOML: "),
        ("x = " + "[" * 100000, ": not valid TOML: "),
        ("[zmq]\nbodymb = 5", ":2: zmq.bodymb: unknown key; did you mean `body_mb` of [http]?"),
        (
            "[hosts]\nseconds = 5",
            "it is a key of [admission], [build] or [describe.NAME]; did you mean `job_seconds` here?",
        ),
        ("zzzz = 5", "known keys: listen, state"),
        ('"a.b" = 5', '"a.b": unknown key'),
        ("[access]\nunix = ['infr']", 'access.unix[0]: expected "read", "infer" or "operate", got "infr"'),
        ('[access.grants]\n"[::1]:1" = ["x"]', ':2: access.grants."[::1]:1"[0]: expected'),
        ("engines = 5", ":1: engines: expected a table, got 5"),
        ("models = { a = 1 }", ":1: models.a: expected a string in quotes, got 1"),
        ("stop_seconds = 1979-05-27", "got 1979-05-27"),
        (f'model_control = "{"x" * 200}"', "x…"),
    ],
)
def test_check_mistake_has_its_line_and_a_remedy(tmp_path: Path, text: str, words: str) -> None:
    status, printed, _ = call("check", written(tmp_path, text))
    assert status == 2
    assert words in printed.splitlines()[0]


def test_check_without_argument_reads_the_services_file(box: Path) -> None:
    service = box / "etc" / "edged.toml"
    assert call("check") == (0, f"the defaults, because there is no {service}: ok\n", "")
    service.parent.mkdir()
    service.write_text("stop_seconds = 5")
    assert call("check") == (0, f"{service}: ok\n", "")


def test_check_reads_the_environment_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGED_HTTP_BODY_MB", "lots")
    monkeypatch.setenv("EDGED_LISTN", "x")
    status, printed, err = call("check")
    assert status == 2
    assert printed.startswith("EDGED_HTTP_BODY_MB: http.body_mb: expected a whole number from 1 to 1024,")
    assert err == "edged: EDGED_LISTN in the environment is unknown to edged; did you mean EDGED_LISTEN?\n"


def test_check_missing_file_or_fifo_is_a_mistake(tmp_path: Path) -> None:
    missing = "/nowhere/x.toml: cannot be read: No such file or directory\n"
    assert call("check", "/nowhere/x.toml") == (2, missing, "")
    os.mkfifo(tmp_path / "fifo")
    assert "is not a regular file" in call("check", tmp_path / "fifo")[1]


# --- show -----------------------------------------------------------------------------------------------------------


def test_show_prints_values_as_an_equal_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = written(
        tmp_path, '[engines]\nbudget_mb = 5\n[models]\n"a b" = "/a"\n[access]\ngrants = {"[::1]:1" = ["infer"]}\n'
    )
    monkeypatch.setenv("EDGED_FRIGATE_SCORE", "0.5")
    monkeypatch.setenv("EDGED_MODELS", '{ c = "/c" }')
    shown = call("show", "--config", file)[1]
    again = written(tmp_path, shown)
    for name in ("EDGED_FRIGATE_SCORE", "EDGED_MODELS"):
        monkeypatch.delenv(name)
    assert call("show", "--config", again)[1] == shown
    with_origin = call("show", "--config", again, "--origin")[1]
    assert re.sub(r"  # [^ \n]*$", "", with_origin, flags=re.MULTILINE) == shown
    assert f'\n"a b" = "/a"  # {again}:' in with_origin
    assert "\nscore = 0.5  # " in with_origin


def test_show_origin_of_each_value(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = written(tmp_path, "stop_seconds = 1\n[engines]\nbudget_mb = 5\n")
    monkeypatch.setenv("EDGED_ENGINES_ATTEMPTS", "2")
    lines = call("show", "--config", file, "--origin")[1].splitlines()
    assert f"stop_seconds = 1.0  # {file}:1" in lines
    assert f"budget_mb = 5  # {file}:3" in lines
    assert "attempts = 2  # EDGED_ENGINES_ATTEMPTS" in lines
    assert "keep_free_mb = 200  # default" in lines
    assert "# [frigate] is absent" in lines
    printed = json.loads(call("show", "--config", file, "--json")[1])
    assert printed["file"] == str(file)
    rows = {row.pop("key"): row for row in printed["keys"]}
    assert rows["engines.budget_mb"] == {
        "value": 5,
        "origin": "file",
        "name": str(file),
        "line": 3,
        "variable": "EDGED_ENGINES_BUDGET_MB",
    }
    assert rows["listen"] == {"value": [], "origin": "default", "name": "", "line": None, "variable": "EDGED_LISTEN"}
    assert not any(key.startswith("frigate") for key in rows)


def test_show_invalid_file_shows_only_the_mistakes(tmp_path: Path) -> None:
    file = written(tmp_path, "stop_seconds = 'x'\nlissen = 1")
    status, printed, err = call("show", "-c", file)
    assert (status, printed) == (2, "")
    assert err.startswith(f"edged: configuration {file}:1: stop_seconds: expected a number")
    assert err.endswith(f" (and 1 more; see: edged config check {file})\n")
