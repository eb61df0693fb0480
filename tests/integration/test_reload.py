"""Changes of the configuration while the daemon runs, and the effect of SIGHUP."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import signal
import subprocess
import sys
import termios
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import edged
from edged.errors import InvalidInput, NotReady, Refused
from edged.shapes import MODEL_PATH
from tests.integration.daemon import wait_for


class Configured:
    """A configuration file, and the command line of a daemon that uses it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file = folder / "edged.toml"
        self.main = f"unix:{folder}/main.sock"
        self.options = ("--config", str(self.file))

    def write(self, *more: str, listen: tuple[str, ...] = ()) -> None:
        """Replace the file atomically, as editors do: half a file could be a valid configuration."""
        addresses = ", ".join(f'"{address}"' for address in (self.main, *listen))
        new = self.file.with_suffix(".new")
        new.write_text("\n".join((f"listen = [{addresses}]", *more)))
        new.replace(self.file)

    def command(self, *options: str) -> list[str]:
        folders = ("--state", str(self.folder / "state"), "--cache", str(self.folder / "cache"))
        return [sys.executable, "-m", "edged", "serve", *self.options, *folders, *options]


@contextlib.contextmanager
def running(command: list[str], **more: object) -> Iterator[subprocess.Popen[str]]:
    """Run a daemon; yield once it listens, kill it afterwards."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **more)  # type: ignore[call-overload]
    try:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("listening on ")
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.fixture
def configured(tmp_path_factory: pytest.TempPathFactory) -> Configured:
    folder = Path(tmp_path_factory.mktemp("r", numbered=True))
    configured = Configured(folder)
    configured.write()
    return configured


def test_reload_opens_and_closes_changed_addresses(configured: Configured) -> None:
    second, third = f"unix:{configured.folder}/2.sock", f"unix:{configured.folder}/3.sock"
    configured.write(listen=(second,))
    with running(configured.command()), edged.Client(configured.main) as client:
        with client.events(follow=True) as events:
            configured.write(f'[models]\nshapes = "{MODEL_PATH}"', '[http]\nlisten = "localhost:0"', listen=(third,))
            assert [(key.key, key.problem) for key in client.reload()] == [("listen", ""), ("models", ""), ("http", "")]
            assert any(event.model == "shapes" for event in events)  # on the stream from before
        with edged.Client(third) as other:
            assert [model.name for model in other.models()] == ["shapes"]
        with edged.Client(second, timeout=2.0) as gone, pytest.raises(NotReady):
            gone.models()
        assert client.reload() == []
        configured.write()
        assert [key.change for key in client.reload()] == [
            f"listen: {third} removed",
            "models: shapes removed",
            "http.listen: localhost:0 → none",
        ]
        wait_for("the model is removed", lambda: client.models() == [])


def test_reload_answers_calls_at_the_address_it_closes(configured: Configured) -> None:
    second = f"unix:{configured.folder}/2.sock"
    configured.write(listen=(second,))
    with running(configured.command()), edged.Client(second) as client:
        configured.write()
        assert [key.change for key in client.reload()] == [f"listen: {second} removed"]


def test_reload_address_that_cannot_be_opened_is_reported_and_the_rest_applies(configured: Configured) -> None:
    with running(configured.command()), edged.Client(configured.main) as client:
        new = f"unix:{configured.folder}/new.sock"
        taken = f"unix:{configured.folder}/edged.toml"
        configured.write('[http]\nlisten = "1.2.3.4:80"', "[engines]\nbudget_mb = 7", listen=(new, taken))
        found = {key.key: key.problem for key in client.reload()}
        assert "edged.toml exists and is not a socket" in found["listen"]
        assert found["listen"].endswith("the old value stays in force")
        assert "could be reachable from other machines" in found["http"]
        assert found["engines"] == ""
        assert client.status().budget_bytes == 7 << 20
        with edged.Client(new, timeout=2.0) as gone, pytest.raises(NotReady):
            gone.models()  # all new addresses open, or none
        assert {key.key for key in client.reload()} == {"listen", "http"}  # both are tried again


def test_reload_reports_keys_that_need_a_restart_and_rejects_an_invalid_file(configured: Configured) -> None:
    with running(configured.command()), edged.Client(configured.main) as client:
        configured.write("max_message_mb = 5", 'model_control = "none"', "[engines]\nbudget_mb = 7")
        later = {key.key: key.problem for key in client.reload()}
        assert later.pop("engines") == ""
        assert set(later.values()) == {"the change takes effect when the daemon is restarted"}
        for text, words in (("lissen = 5", "did you mean `listen`"), ("[models]\n'a/b' = '/x'", "a/b"), ("]", "TOML")):
            configured.write(text)
            with pytest.raises(InvalidInput, match=words):
                client.reload()
        configured.file.unlink()
        with pytest.raises(InvalidInput, match="cannot be read"):
            client.reload()
        assert client.status().budget_bytes == 7 << 20


def test_options_of_the_command_take_precedence_after_a_reload(configured: Configured) -> None:
    with running(configured.command("--model", f"shapes={MODEL_PATH}")), edged.Client(configured.main) as client:
        configured.write('state = "/nowhere"', '[models]\nshapes = "/nowhere.onnx"\nother = "/nowhere.onnx"')
        assert [key.change for key in client.reload()] == ["models: other is /nowhere.onnx"]


def test_reload_without_a_file_is_refused(configured: Configured) -> None:
    command = [word for word in configured.command("--listen", configured.main) if word not in configured.options]
    with running(command) as process, edged.Client(configured.main) as client:
        process.send_signal(signal.SIGHUP)
        with pytest.raises(Refused, match="without a configuration file"):
            client.reload()


def test_reload_command_prints_changes_and_exits_with_their_status(configured: Configured) -> None:
    with running(configured.command()):
        command = [sys.executable, "-m", "edged", "reload", "--target", configured.main]

        def reload() -> tuple[int, str, str]:
            done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
            return done.returncode, done.stdout, done.stderr

        assert reload() == (0, "nothing changed\n", "")
        configured.write("stop_seconds = 1.5")
        assert reload() == (0, "stop_seconds: 5.0 → 1.5\n", "")
        configured.write("max_message_mb = 5")
        status, output, _ = reload()
        assert (status, output.splitlines()[-1]) == (1, "stop_seconds: 1.5 → 5.0")
        configured.write("stop_seconds = -1.0")
        status, output, complaint = reload()
        assert (status, output) == (2, "")
        assert len(complaint.splitlines()) == 1


def test_sighup_reloads_the_configuration(configured: Configured) -> None:
    with running(configured.command()) as process, edged.Client(configured.main) as client:
        configured.write("[engines]\nbudget_mb = 7")
        process.send_signal(signal.SIGHUP)
        wait_for("the budget applies", lambda: client.status().budget_bytes == 7 << 20)
        configured.write("]")
        process.send_signal(signal.SIGHUP)
        configured.write("[engines]\nbudget_mb = 8")
        process.send_signal(signal.SIGHUP)
        wait_for("the budget applies", lambda: client.status().budget_bytes == 8 << 20)


def _on_terminal(before: Callable[[], None]) -> tuple[dict[str, object], int]:
    """Return options for a process that leads a terminal's session, and the test's end of the terminal."""
    ours, theirs = pty.openpty()

    def become_leader() -> None:
        fcntl.ioctl(theirs, termios.TIOCSCTTY, 0)
        os.close(ours)
        before()

    return {"stdin": theirs, "start_new_session": True, "preexec_fn": become_leader, "pass_fds": (theirs,)}, ours


def test_closed_terminal_stops_the_daemon_cleanly(configured: Configured) -> None:
    options, terminal = _on_terminal(lambda: None)
    with running(configured.command(), **options) as process, edged.Client(configured.main) as client:
        os.close(options["stdin"])  # type: ignore[arg-type]
        configured.write("[engines]\nbudget_mb = 7")
        process.send_signal(signal.SIGHUP)  # while the terminal is open
        wait_for("the budget applies", lambda: client.status().budget_bytes == 7 << 20)
        os.close(terminal)
        assert process.wait(30) == 0


def _as_nohup_does() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)


def test_closed_terminal_under_nohup_reloads_and_does_not_stop(configured: Configured) -> None:
    options, terminal = _on_terminal(_as_nohup_does)
    with running(configured.command(), **options) as process, edged.Client(configured.main) as client:
        os.close(options["stdin"])  # type: ignore[arg-type]
        configured.write("[engines]\nbudget_mb = 7")
        os.close(terminal)
        wait_for("SIGHUP causes a reload", lambda: client.status().budget_bytes == 7 << 20)
        assert process.poll() is None
