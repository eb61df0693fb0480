"""Every model of the zoo has the outcome of its manifest: with the checks of `edged inspect`, and when copied into the
folder of a daemon that serves another model. One of each kind by default; `make test-zoo` runs all.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence, Set
from pathlib import Path
from types import TracebackType

import pytest

from edged.api_types import ModelInfo
from edged.cli.local import LocalBox
from edged.client import Client
from edged.errors import EdgedError
from edged.shapes import MODEL_PATH, Scene
from tests.integration.daemon import Daemon, wait_for
from tests.onnx_backend.served import REFERENCE_ONLY
from tests.waiting import descriptors
from tests.zoo import measure, runtime
from tests.zoo.exhibit import MODEL, SERVED, Exhibit
from tests.zoo.judged import judge
from tests.zoo.manifest import exhibits
from tests.zoo.words import WORDS

pytestmark = pytest.mark.heavy

_SECONDS = 20.0  # time limit for a model on a machine with a free processor
_STARVED = 4  # factor for the time limit on a busy machine
_MOST = 2 << 30  # bytes of memory for all children together
_SPARE = 8  # files that a daemon may open for itself in the meantime
_LONGEST_LINE = 600  # characters
# One of each kind. The installed runtime decides the outcome of some, but not which models exist.
_SHOWN = (
    "type_bf16", "name_unicode", "if_nested", "initializer_listed", "external", "nan_constant",
    "fifo", "text", "truncated_to_50", "nested_by_thousands", "two_models_in_one_file", "cycle_in_a_branch",
    "function_calls_itself", "type_mixed", "map_out", "opset_beyond", "domain_unknown", "attribute_of_a_wrong_type",
    "external_absolute", "external_link_to_a_device", "external_sum_overflows", "output_of_4_tib",
    "row_beyond_the_table", "opset_0", "opset_of_unused_domain", "ir_beyond", "operator_unknown",
    "operator_of_a_later_version", "shape_of_matrices", "always_too_many",
)  # fmt: skip
_DROPPED = (
    "type_fp32", "file_unicode", "nan_constant", "fifo", "html", "nested_by_thousands", "cycle_of_two", "opset_beyond",
    "external_upwards", "external_fifo", "output_of_4_tib", "loop_endless",
)  # fmt: skip
_ALL = {each.name: each for each in exhibits(runtime.Reach(0, 0))}
_EACH = [pytest.param(name, marks=() if name in _SHOWN else pytest.mark.long) for name in _ALL]
_FEW = ("type_fp32", "nan_constant", "html", "cycle_of_two", "external_upwards", "row_beyond_the_table")
# Models that edged refuses although the runtime alone runs them: a request could not name something in them, the answer
# could not be sent, the file is unreadable, or the weights do not match their checksum, which runtimes do not check.
_RUNS = {
    "unreadable", "two_outputs_of_one_name", "two_constants_of_one_name", "input_without_a_name", "sequence_out",
    "map_out", "external_altered", "external_checksum_odd", "function_of_two_opsets", "sequence_out_unsaid",
}  # fmt: skip
_PICKY = {"takes_only_long_inputs", "dims_that_agree_unsaid"}  # accept no size of this test


@pytest.fixture(scope="module")
def zoo() -> Mapping[str, Exhibit]:
    return {exhibit.name: exhibit for exhibit in exhibits(runtime.reach())}


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> LocalBox:
    home = tmp_path_factory.mktemp("box")
    return LocalBox(home / "state", home / "cache")


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A temporary folder for this process and its children. It must be empty after the test."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield folder
    assert not list(folder.rglob("*"))


def _patience() -> float:
    """Return the time limit for a model, in seconds, by the present load."""
    return _SECONDS * (_STARVED if os.getloadavg()[0] > (os.cpu_count() or 1) else 1)


def _made(exhibit: Exhibit, folder: Path) -> Path:
    if exhibit.not_as_root and os.geteuid() == 0:
        pytest.skip("root may read every file")
    place = folder / exhibit.name / "1"
    place.mkdir(parents=True)
    return exhibit.make(place)


def _environment(home: Path) -> dict[str, str]:
    """Return the environment of a command that stores its files below `home` and uses no daemon."""
    return {**os.environ, "EDGED_CACHE": str(home / "cache"), "EDGED_STATE": str(home / "state"), "EDGED_TARGET": ""}


@pytest.mark.parametrize("name", _EACH)
def test_judge_ends_as_in_the_manifest(
    name: str, zoo: Mapping[str, Exhibit], box: LocalBox, tmp_path: Path, scratch: Path
) -> None:
    exhibit = zoo[name]
    path = _made(exhibit, tmp_path)
    files, opened = sorted(tmp_path.rglob("*")), descriptors()
    began = time.monotonic()
    with measure.Tree(os.getpid()) as tree:
        verdict = judge(box, path)
    took = time.monotonic() - began
    left = sorted(tmp_path.rglob("*"))
    shutil.rmtree(tmp_path / name)
    assert verdict.ending in exhibit.endings, f"{exhibit.how}: {verdict}"
    if verdict.ending == SERVED and exhibit.warns is not None:
        assert exhibit.warns in verdict.warnings
    assert WORDS.get(name, "") in verdict.line
    assert len(verdict.line) < _LONGEST_LINE
    assert verdict.line.isprintable()  # and therefore one line
    assert took < _patience()
    assert tree.peak < _MOST
    assert not tree.started()
    assert descriptors() <= opened
    assert left == files


@pytest.mark.parametrize("name", _FEW)
def test_inspect_json_of_every_model_of_the_zoo(name: str, zoo: Mapping[str, Exhibit], tmp_path: Path) -> None:
    exhibit = zoo[name]
    path = _made(exhibit, tmp_path)
    command = [sys.executable, "-m", "edged", "inspect", "--json", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, env=_environment(tmp_path))
    reported = json.loads(done.stdout)
    assert done.stderr == ""
    assert reported["ok"] is exhibit.is_good
    assert done.returncode == (0 if exhibit.is_good else 2)
    if not exhibit.is_good:
        assert any((reported["stage"], reported["category"]) == (e.stage, e.category) for e in exhibit.endings)
        assert reported["message"]
        assert reported["message"].isprintable()
        assert reported["remedy"]


@pytest.mark.long
@pytest.mark.parametrize("name", ["type_fp32", "external", "external_missing", "opset_beyond"])
def test_models_add_is_complete_or_nothing(name: str, zoo: Mapping[str, Exhibit], tmp_path: Path) -> None:
    exhibit = zoo[name]
    path, state = _made(exhibit, tmp_path), tmp_path / "state"
    command = [sys.executable, "-m", "edged", "models", "add", "added", str(path)]
    command += ["--state", str(state)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, env=_environment(tmp_path))
    left = sorted(each.name for each in (state / "models").glob("*")) if state.exists() else []
    if exhibit.is_good:
        assert (done.returncode, left) == (0, ["added"]), done.stderr
    else:
        assert (done.returncode, left) == (2, [])
        assert len(done.stderr.strip().splitlines()) == 1


class _Visitor:
    """Sends requests for one model all the time, in a `with`. `answered` is a counter, `errors` are failures."""

    def __init__(self, daemon: Daemon) -> None:
        self.answered, self.errors = 0, list[str]()
        self._daemon, self._over = daemon, threading.Event()
        self._thread = threading.Thread(target=self._ask, daemon=True)

    def __enter__(self) -> _Visitor:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join(30)

    def _ask(self) -> None:
        picture = Scene(3).frame(0)[0]
        with self._daemon.client() as client:
            while not self._over.wait(0.1):
                try:
                    result = client.infer("shapes", picture)
                    self.answered += result.error is None
                    self.errors += [] if result.error is None else [str(result.error)]
                except EdgedError as error:
                    self.errors.append(str(error))


def _dropped(exhibit: Exhibit, daemon: Daemon) -> str:
    """Put a model into the daemon's folder atomically; return its name there."""
    staged = daemon.home / "staged" / exhibit.name
    if exhibit.file != MODEL:
        staged.mkdir(parents=True)
        path = exhibit.make(staged)
        path.rename(daemon.models / path.name)
        return path.stem
    path = _made(exhibit, staged.parent)
    # Without builds: this test is about admission.
    (staged / "edged.toml").write_text(REFERENCE_ONLY)
    staged.rename(daemon.models / exhibit.name)
    return exhibit.name


def _ended(client: Client, names: Set[str]) -> dict[str, ModelInfo] | None:
    """Return the models by name once none is loading; None before."""
    found = {model.name: model for model in client.models() if model.name in names}
    return found if found.keys() == names and all(model.state != "loading" for model in found.values()) else None


def _states(exhibit: Exhibit) -> set[str]:
    """Return the states in which a daemon may end with the model."""
    return {"ready" if ending == SERVED else "refused" for ending in exhibit.endings}


def _drop_all(chosen: Sequence[Exhibit]) -> None:
    with Daemon("--model", f"shapes={MODEL_PATH}", builds=False) as daemon, daemon.client() as client:
        daemon.ready("shapes")
        before, opened = set(daemon.children().values()), measure.descriptors(daemon.pid)
        with measure.Tree(daemon.pid) as tree, _Visitor(daemon) as visitor:
            names = {_dropped(exhibit, daemon): exhibit for exhibit in chosen}
            # The daemon reads two at a time; some need their whole time limit.
            patience = 30 + _patience() * len(chosen) / 2
            wait_for("every model has its outcome", lambda: _ended(client, names.keys()), patience)
        ended = _ended(client, names.keys()) or {}
        wrong = [
            f"{name}: {model.state}, {model.reason or 'no reason'}"
            for name, model in ended.items()
            if model.state not in _states(names[name])
        ]
        assert not wrong, "\n".join(wrong)
        for model in ended.values():
            assert len(model.reason) < _LONGEST_LINE
            assert model.reason.isprintable()
        assert visitor.answered
        assert not visitor.errors
        assert tree.peak < _MOST
        for name in names:
            (daemon.models / f"{name}.onnx").unlink(missing_ok=True)
            shutil.rmtree(daemon.models / name, ignore_errors=True)
        wait_for("the models are removed", lambda: {model.name for model in client.models()} == {"shapes"})
        # A host may belong to the other model, whose engines may not all exist before.
        wait_for(
            "their children have exited",
            lambda: all("edged.host.main" in line or line in before for line in daemon.children().values()),
            120.0,
        )
        wait_for("their files are closed", lambda: measure.descriptors(daemon.pid) <= opened + _SPARE, 30)
        # Builds of the other model may still run; the cleanup's own lock is there, too.
        stages = daemon.cache / "staging"
        wait_for("the staging folder is empty", lambda: not list(stages.iterdir()), 60)
        assert "Traceback" not in daemon.log.read_text()


@pytest.mark.long
@pytest.mark.timeout(300)
def test_daemon_serves_among_some_models_of_the_zoo(zoo: Mapping[str, Exhibit]) -> None:
    _drop_all([zoo[name] for name in _DROPPED])


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_daemon_serves_among_all_models_of_the_zoo(zoo: Mapping[str, Exhibit]) -> None:
    _drop_all([each for each in zoo.values() if not (each.costly or (each.not_as_root and os.geteuid() == 0))])


@pytest.mark.long
@pytest.mark.timeout(600)
def test_runtime_alone_agrees_with_the_manifest() -> None:
    """The runtime without edged runs every good model and no bad one, apart from the listed exceptions."""
    names = [each.name for each in _ALL.values() if not each.costly]
    command = [sys.executable, "-m", "tests.zoo", "try", *names]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, check=True)
    output = {line.split()[0]: line for line in done.stdout.splitlines()[1:]}
    zoo = {each.name: each for each in exhibits(runtime.reach())}
    assert output.keys() == set(names)
    for name, line in output.items():
        runs = line.endswith((" runs", " runs, not finite"))
        if zoo[name].is_good and " loaded, not run: no numpy type" not in line:
            assert runs or name in _PICKY, line
        elif SERVED not in zoo[name].endings:
            assert not runs or name in _RUNS, line


@pytest.mark.long
def test_models_are_reproducible(tmp_path: Path) -> None:
    for exhibit in _ALL.values():
        if not exhibit.costly and exhibit.is_good:
            first, again = (_made(exhibit, tmp_path / which).read_bytes() for which in ("first", "again"))
            assert first == again, exhibit.name
