"""Building one engine: golden answers, build, verification, timing, commit to the store."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from edged.backends import registry
from edged.backends.contract import REFERENCE, Recipe
from edged.config.child_limits import Limits
from edged.device.fingerprint import Fingerprint
from edged.engines import builder as builder_module
from edged.engines.admission import admit, examine
from edged.engines.builder import Builder, Task
from edged.engines.desired import candidates, reference_recipe
from edged.errors import BuildFailed, EngineUnusable, ModelRefused, OutOfSpace, Refused, Superseded
from edged.ipc.job_messages import Job, Progress
from edged.jobs.inspect import inspect
from edged.models.entries import plain_entry
from edged.models.finding import Category, Reason
from edged.models.model import Model
from edged.store import sealed
from edged.store.key import EngineKey
from edged.store.record import BuildFacts, EngineRecord, Verdict
from edged.store.store import Store
from edged.verification import golden
from edged.verification.verify import NO_VALUES
from tests import models
from tests.spoiled import spoil
from tests.waiting import run, workers

LIMITS = Limits(seconds=60, memory_mb=4096)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "cache")


@pytest.fixture
def builder(store: Store, tmp_path: Path) -> Builder:
    return Builder(store, tmp_path / "cache", LIMITS)


def read(path: Path) -> Model:
    return Model.of(plain_entry("m", path, {}), inspect(path))


def task(model: Model, recipe: Recipe, facts: dict[str, str] | None = None) -> Task:
    return Task(model, recipe, EngineKey.of(model.digest, recipe, Fingerprint(facts or {})))


def ignore(progress: Progress) -> None:
    pass


@pytest.fixture
def conv(tmp_path: Path) -> Model:
    return read(models.save(models.conv(), tmp_path / "model.onnx"))


@pytest.fixture
def matmul(tmp_path: Path) -> Model:
    return read(models.save(models.matmul(), tmp_path / "model.onnx"))


ORT, NULL = Recipe("onnxruntime"), Recipe("null")


def staged(folder: Path) -> list[Path]:
    return [path for path in (folder / "cache" / "staging").iterdir() if path.is_dir()]


def files(folder: Path, key: str) -> list[str]:
    return [path.name for path in (folder / "cache" / "engines" / key).iterdir()]


async def plenty(need: int) -> int:
    return 0


def make(builder: Builder, model: Model, recipe: Recipe) -> tuple[EngineRecord, str, list[str]]:
    phases: list[str] = []
    wanted = task(model, recipe)
    record = run(builder.make(wanted, lambda progress: phases.append(progress.phase), plenty), 60)
    return record, wanted.key.digest, list(dict.fromkeys(phases))


def test_make_engine_is_built_verified_timed_and_stored(
    builder: Builder, store: Store, tmp_path: Path, conv: Model
) -> None:
    record, key, phases = make(builder, conv, ORT)
    assert [p for p in phases if p in ("asking the reference", "building", "verifying")] == [
        "asking the reference",
        "building",
        "verifying",
    ]
    assert record.verdict.accepted, record.verdict.reason
    assert record.latency_ms is not None
    assert store.find(key) == record
    store.artefact(key).check()
    assert list((tmp_path / "cache" / "golden").iterdir())
    assert staged(tmp_path) == []
    builder.forget_others(set())
    assert list((tmp_path / "cache" / "golden").iterdir()), "a stored engine still needs them"
    store.remove(key)
    builder.forget_others(set())
    assert not list((tmp_path / "cache" / "golden").iterdir())


def test_make_engine_whose_timing_is_killed_is_timed_with_one_instance(
    builder: Builder, conv: Model, caplog: pytest.LogCaptureFixture
) -> None:
    killed: list[int] = []

    def kill_once(progress: Progress) -> None:
        if progress.phase == "timing" and not killed:  # as the kernel does if memory runs out
            killed.extend(workers())
            for child in killed:
                os.kill(child, signal.SIGKILL)

    record = run(builder.make(task(conv, ORT), kill_once, plenty), 60)
    assert killed
    assert record.verdict.accepted
    assert [speed.instances for speed in record.speeds] == [1]
    assert "trying one instance" in caplog.text


def test_reference_recipe_has_the_first_number_of_threads() -> None:
    settings = {"threads": "2,1"}
    assert reference_recipe(settings) == candidates(settings, {})[0] == msgspec.structs.replace(REFERENCE, threads=2)


def test_make_engine_with_another_reference_asks_it_again_and_removes_its_old_answers(
    builder: Builder, tmp_path: Path, matmul: Model
) -> None:
    version = registry.load("onnxruntime").version()
    facts = {"runtime.onnxruntime": version, "cpu.isa": "avx2", "nvidia.driver": "1"}
    builder.facts = lambda: facts
    first, _, phases = make(builder, matmul, NULL)
    assert "asking the reference" in phases
    (before,) = (tmp_path / "cache" / "golden").iterdir()
    assert builder.recorded(matmul)
    facts |= {"nvidia.driver": "2"}
    again, _, phases = make(builder, matmul, NULL)
    assert "asking the reference" not in phases
    assert again.standard == first.standard
    facts |= {"cpu.isa": "avx2 avx512f"}
    assert not builder.recorded(matmul)
    last, _, phases = make(builder, matmul, NULL)
    assert "asking the reference" in phases
    assert last.standard != first.standard
    (after,) = (tmp_path / "cache" / "golden").iterdir()
    assert after != before
    assert builder.recorded(matmul)


def test_make_engine_of_a_model_that_finds_nothing_says_that_nothing_was_compared(
    builder: Builder, tmp_path: Path
) -> None:
    zeros = "z = Sub(x, x) rows = NonZero(z) found = Transpose(rows) y = Cast<to = 1>(found)"
    model = read(models.save(models.parse(f"(float[1,4] x) => (float[n,2] y) {{ {zeros} }}", {}), tmp_path / "m.onnx"))
    record, _, _ = make(builder, model, ORT)
    assert record.verdict.accepted
    assert record.verdict.figures[NO_VALUES] == 1.0
    reference, _, _ = make(builder, model, REFERENCE)
    assert reference.verdict.accepted
    assert reference.latency_ms is not None


def test_make_engine_with_a_reference_that_changed_on_disk_is_superseded(
    builder: Builder, tmp_path: Path, matmul: Model
) -> None:
    builder.facts = lambda: {"runtime.onnxruntime": "0.1"}
    with pytest.raises(Superseded, match="onnxruntime"):
        make(builder, matmul, NULL)
    assert not list((tmp_path / "cache" / "golden").iterdir())


def test_builder_that_shares_a_cache_leaves_unfinished_files_of_running_builds(
    builder: Builder, store: Store, tmp_path: Path, conv: Model
) -> None:
    wanted, unfinished, seen = task(conv, ORT), tmp_path / "cache" / "unfinished", list[int]()

    def start_command(progress: Progress) -> None:
        seen.append(len(list(unfinished.iterdir())))
        Builder(store, tmp_path / "cache", LIMITS)  # as `edged inspect` does while a daemon builds

    record = run(builder.make(wanted, start_command, plenty), 60)
    assert record.verdict.accepted
    assert max(seen) == 1
    assert list(unfinished.iterdir()) == []


def test_builder_removes_unfinished_files_of_a_killed_builder(store: Store, tmp_path: Path) -> None:
    left = tmp_path / "cache" / "unfinished" / "killed"
    left.mkdir(parents=True)
    (left / "half.golden").write_bytes(b"half")
    Builder(store, tmp_path / "cache", LIMITS)
    assert not left.exists()


def test_make_golden_answers_have_the_shapes_of_the_models_settings(builder: Builder, tmp_path: Path) -> None:
    path = models.save(models.dynamic(), tmp_path / "model.onnx")
    settings = {"preprocess.width": "32", "preprocess.height": "32", "profile.x": "1x3x32x32 2x3x32x48 4x3x64x64"}
    model = Model.of(plain_entry("m", path, settings), inspect(path))
    record, _, _ = make(builder, model, ORT)
    assert record.verdict.accepted, record.verdict.reason
    (file,) = (tmp_path / "cache" / "golden").iterdir()
    shapes = [sample.inputs["x"].shape for sample in golden.load(file).samples]
    edges = [(4, 3, 32, 48), (1, 3, 32, 32), (4, 3, 64, 64)]
    assert shapes[:6] == [(2, 3, 32, 48)] * 3 + edges
    assert set(shapes[6:]) == {(1, 3, 32, 32)}


def test_make_reference_is_timed_and_has_no_files(builder: Builder, store: Store, matmul: Model) -> None:
    record, key, _ = make(builder, matmul, REFERENCE)
    assert record.verdict.accepted
    assert record.files == {}
    assert store.find(key) == record


def test_make_wrong_answers_leave_only_the_record(
    builder: Builder, store: Store, tmp_path: Path, matmul: Model
) -> None:
    record, key, _ = make(builder, matmul, NULL)
    assert not record.verdict.accepted
    assert record.verdict.reason
    assert record.latency_ms is None
    assert store.find(key) == record
    assert files(tmp_path, key) == ["record.json"]


def test_make_failed_build_leaves_nothing(builder: Builder, store: Store, tmp_path: Path) -> None:
    model = read(models.save(models.identity("INT64"), tmp_path / "model.onnx"))
    with pytest.raises(EngineUnusable, match="INT64"):
        make(builder, model, Recipe("openvino"))
    assert store.records() == {}
    assert staged(tmp_path) == []


def test_make_full_disk_is_out_of_space(small_disk: Path, fill: Callable[[Path], Path], matmul: Model) -> None:
    store = Store(small_disk)
    builder = Builder(store, small_disk, LIMITS)
    make(builder, matmul, REFERENCE)
    fill(small_disk)
    with pytest.raises(OutOfSpace):
        make(builder, matmul, NULL)
    assert len(store.records()) == 1


def test_make_read_only_disk_is_out_of_space(
    small_disk: Path, make_read_only: Callable[[Path], None], matmul: Model
) -> None:
    builder = Builder(Store(small_disk), small_disk, LIMITS)
    make_read_only(small_disk)
    with pytest.raises(OutOfSpace):
        make(builder, matmul, REFERENCE)


def test_inspect_result_is_cached_until_the_file_changes(builder: Builder, tmp_path: Path) -> None:
    path = models.save(models.matmul(seed=1), tmp_path / "model.onnx")
    first = run(builder.inspect(path))
    (known,) = (tmp_path / "cache" / "inspections").glob(f"{first.graph_digest}*.json")
    sealed.write(known, msgspec.structs.replace(first, producer="from-memory 1"))
    assert run(builder.inspect(path)).producer == "from-memory 1"
    models.save(models.matmul(seed=2), path)
    assert run(builder.inspect(path)).digest != first.digest


@pytest.mark.parametrize("damaged", [b"{", b'{"digest": "\xff"}', b"[" * 100_000])
def test_inspect_damaged_result_is_read_again(builder: Builder, tmp_path: Path, damaged: bytes) -> None:
    path = models.save(models.matmul(), tmp_path / "model.onnx")
    first = run(builder.inspect(path))
    (known,) = (tmp_path / "cache" / "inspections").glob(f"{first.graph_digest}*.json")
    known.write_bytes(damaged)
    assert run(builder.inspect(path)) == first


def test_inspect_reads_external_data_every_time(builder: Builder, tmp_path: Path) -> None:
    path = models.external(tmp_path / "m")
    first = run(builder.inspect(path))
    weights = path.parent / "weights.bin"
    weights.write_bytes(weights.read_bytes()[::-1])
    assert run(builder.inspect(path)).digest != first.digest
    weights.unlink()
    assert "weights.bin" in run(builder.inspect(path)).refusal


def test_inspect_too_large_file_is_refused_before_it_is_read(builder: Builder, tmp_path: Path) -> None:
    path = models.save(models.matmul(), tmp_path / "model.onnx")
    os.truncate(path, 3 << 30)
    before = _bytes_read()
    with pytest.raises(ModelRefused) as refused:
        run(builder.inspect(path))
    assert Reason.of(refused.value) == Reason("too_large", "file")
    assert _bytes_read() - before < 1 << 28  # of a refused file, 64 MiB are read to test the disk


def _bytes_read() -> int:
    """Return the number of bytes that this process has read so far."""
    return int(Path("/proc/self/io").read_text().split()[1])


def test_examine_checks_each_backend_and_needs_the_reference(builder: Builder, tmp_path: Path) -> None:
    path = models.save(models.matmul(), tmp_path / "model.onnx")
    admission = run(examine(builder, path, {}, ["onnxruntime", "openvino"]), 60)
    assert admission.backends == {"onnxruntime": "", "openvino": ""}
    assert (admission.finding, admission.warnings) == (None, ())
    assert run(admit(builder, path, {}, ["onnxruntime", "openvino"]), 60).backends == {"onnxruntime": ""}
    without = run(examine(builder, path, {}, ["openvino"]), 60)
    assert without.finding is not None
    assert without.finding.category is Category.NO_RUNTIME


# -- stored engines, and engines of another driver ------------------------------------------------------------------


def test_verify_stored_engine_keeps_its_files(builder: Builder, store: Store, conv: Model) -> None:
    built, key, _ = make(builder, conv, ORT)
    again = run(builder.verify(task(conv, ORT), ignore), 60)
    assert again == store.find(key)
    assert (again.files, again.build, again.verdict.accepted) == (built.files, built.build, True)


def test_verify_rejected_engine_loses_its_files(builder: Builder, store: Store, tmp_path: Path, conv: Model) -> None:
    _, key, _ = make(builder, conv, ORT)
    spoil(tmp_path / "cache" / "engines" / key)
    store.rescan()
    record = run(builder.verify(task(conv, ORT), ignore), 60)
    assert not record.verdict.accepted
    assert record.files == {}
    assert files(tmp_path, key) == ["record.json"]


def test_verify_unknown_engine_is_a_key_error(builder: Builder, conv: Model) -> None:
    with pytest.raises(KeyError):
        run(builder.verify(task(conv, ORT), ignore), 60)


def test_adopt_engine_of_another_driver_shares_its_files(builder: Builder, store: Store, conv: Model) -> None:
    built, old, _ = make(builder, conv, ORT)
    wanted = task(conv, ORT, {"cpu.model": "another"})
    record = run(builder.adopt(wanted, old, ignore, plenty), 60)
    assert record.adopted_from == old
    assert (record.files, record.build, record.parts) == (built.files, built.build, wanted.key.parts)
    store.artefact(wanted.key.digest).check()
    store.artefact(old).check()
    store.remove(old)
    store.artefact(wanted.key.digest).check()


@pytest.mark.long
def test_adopt_engine_that_answers_wrongly_is_unusable(
    builder: Builder, store: Store, tmp_path: Path, conv: Model
) -> None:
    _, old, _ = make(builder, conv, ORT)
    spoil(tmp_path / "cache" / "engines" / old)
    store.rescan()
    wanted = task(conv, ORT, {"cpu.model": "another"})
    with pytest.raises(EngineUnusable, match="reference"):
        run(builder.adopt(wanted, old, ignore, plenty), 60)
    assert list(store.records()) == [old]
    assert staged(tmp_path) == []


def test_make_rejected_build_keeps_a_good_one_with_the_same_key(builder: Builder, store: Store, matmul: Model) -> None:
    wanted = task(matmul, NULL)  # answers wrongly, as a rebuild may if the builder is not deterministic
    good = EngineRecord(wanted.key.parts, "m", wanted.recipe, {}, BuildFacts(1.0, 2.0, 3.0, "0"), Verdict(True, "", {}))
    with store.stage() as out:
        store.commit(out, good)
    record = run(builder.make(wanted, ignore, plenty), 60)
    assert not record.verdict.accepted
    assert store.find(wanted.key.digest) == good


def test_make_without_space_builds_nothing(builder: Builder, store: Store, conv: Model) -> None:

    async def none(need: int) -> int:
        assert need > 0
        raise OutOfSpace("full")

    with pytest.raises(OutOfSpace):
        run(builder.make(task(conv, ORT), ignore, none), 60)
    assert store.records() == {}


@pytest.mark.parametrize(
    ("disk_mb", "free", "limit_mb"), [(1, 5 << 20, 1), (5, 1 << 20, 1), (0, 3 << 20, 3), (5, 0, 5), (5, 100, 1)]
)
def test_make_file_limit_is_the_smaller_of_the_setting_and_the_free_space(
    builder: Builder, monkeypatch: pytest.MonkeyPatch, conv: Model, disk_mb: int, free: int, limit_mb: int
) -> None:
    builder.reconfigure(msgspec.structs.replace(LIMITS, disk_mb=disk_mb))

    async def start(job: Job, answer: type[object], limits: Limits, **options: object) -> object:
        raise BuildFailed(f"{limits.disk_mb} MiB")

    async def reserve(need: int) -> int:
        return free

    monkeypatch.setattr(builder_module, "run", start)
    with pytest.raises(BuildFailed, match=f"^{limit_mb} MiB$"):
        run(builder.make_ahead(task(conv, ORT), "a box", "8.7", ignore, reserve), 60)


@pytest.mark.long
def test_expected_seconds_are_those_of_earlier_builds(builder: Builder, conv: Model) -> None:
    wanted = task(conv, ORT)
    assert builder.expected_seconds(wanted) is None
    built, _, _ = make(builder, conv, ORT)
    assert builder.expected_seconds(wanted) == built.build.total_s > built.build.build_s


def test_make_ahead_engine_is_unproven_until_it_is_adopted(
    builder: Builder, store: Store, tmp_path: Path, conv: Model
) -> None:
    wanted = task(conv, ORT, {"cpu.model": "another"})
    record = run(builder.make_ahead(wanted, "another box", "8.6", ignore, plenty), 60)
    key = wanted.key.digest
    assert store.find(key) == record
    assert (record.is_unproven, record.is_usable, record.verdict.accepted) == (True, False, False)
    assert "built ahead for another box" in record.verdict.reason
    assert record.latency_ms is None
    store.artefact(key).check()
    assert Store(tmp_path / "cache").records() == {key: record}
    proven = run(builder.adopt(wanted, key, ignore, plenty), 60)
    assert (proven.is_unproven, proven.is_usable, proven.adopted_from) == (False, True, key)
    assert (proven.files, proven.ahead) == (record.files, "another box")
    assert proven.latency_ms is not None
    store.artefact(key).check()
    assert Store(tmp_path / "cache").records() == {key: proven}


def test_make_ahead_proven_engine_is_never_replaced(
    builder: Builder, store: Store, tmp_path: Path, conv: Model
) -> None:
    record, key, _ = make(builder, conv, ORT)
    elsewhere = Builder(Store(tmp_path / "cache"), tmp_path / "cache", LIMITS)  # as in another process
    with pytest.raises(Refused, match="already"):
        run(elsewhere.make_ahead(task(conv, ORT), "a twin", "8.6", ignore, plenty), 60)
    assert Store(tmp_path / "cache").records() == {key: record}
    store.artefact(key).check()
    assert staged(tmp_path) == []
