"""Zero-shot detectors from files to detections: tokenizer, admission, engines, verification, changed prompts."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

import edged
from edged.backends import registry
from edged.backends.contract import UNOPTIMISED, Recipe
from edged.cli.app import app
from edged.engines.plan import batching
from edged.engines.prompts import with_token_ids
from edged.errors import ConfigError, InvalidInput
from edged.jobs.inspect import inspect
from edged.models.entries import SETTINGS_FILE, plain_entry
from edged.models.huggingface import read_settings
from edged.models.model import Model
from edged.models.settings import read_toml
from edged.store.store import Store
from edged.verification import golden
from edged.verification.standard import Standard
from tests import prompted_models, tokenizer_files
from tests.integration.daemon import Daemon, wait_for

pytestmark = pytest.mark.timeout(240)

PROMPTS = "a photo of a red car, blue"
OWL_IDS = "a photo of a red car [535 320 515 516 320 518 523 536], blue [535 521 536]"
BERT_IDS = "a photo of a red car [101 2000 2001 2002 2000 2003 2005 102], blue [101 2004 102]"
FAMILIES = ("owlvit", "owlv2", "grounding-dino")
SIZE = {"preprocess.width": "64", "preprocess.height": "64"}


def encoded(settings: dict[str, str], folder: Path) -> dict[str, str]:
    return asyncio.run(with_token_ids(settings, folder))


def model_of(path: Path, *, is_reversed: bool = False) -> Model:
    """Return the model with the prompts and their ids, or with the prompts in the other order."""
    settings = {**SIZE, **read_settings(path)}
    listed = (OWL_IDS if settings["family"].startswith("owl") else BERT_IDS).split(", ")
    settings["prompts"] = ", ".join(listed[::-1] if is_reversed else listed)
    return Model.of(plain_entry("squares", path, settings), inspect(path))


# -- the tokenizer --------------------------------------------------------------------------------------------------


def test_with_token_ids_reads_the_tokenizer_in_the_folder_or_above(tmp_path: Path) -> None:
    tokenizer_files.write(tmp_path, tokenizer_files.clip())
    (tmp_path / "onnx").mkdir()
    for folder in (tmp_path, tmp_path / "onnx"):
        assert encoded({"prompts": PROMPTS, "threads": "2"}, folder) == {"prompts": OWL_IDS, "threads": "2"}
    tokenizer_files.write(tmp_path / "onnx", tokenizer_files.bert())
    assert encoded({"prompts": PROMPTS}, tmp_path / "onnx") == {"prompts": BERT_IDS}


def test_with_token_ids_keeps_ids_and_needs_no_tokenizer_for_them(tmp_path: Path) -> None:
    assert encoded({"prompts": "bus [5 6 7]"}, tmp_path) == {"prompts": "bus [5 6 7]"}
    assert encoded({}, tmp_path) == {}
    with pytest.raises(ConfigError, match=r"needs a tokenizer.*tokenizer\.json"):
        encoded({"prompts": "bus [5 6 7], cat"}, tmp_path)
    tokenizer_files.write(tmp_path, tokenizer_files.clip())
    assert encoded({"prompts": "bus [5 6 7], blue"}, tmp_path) == {"prompts": "bus [5 6 7], blue [535 521 536]"}


def test_with_token_ids_of_an_unusable_tokenizer_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text('{"model": {"type": "Unigram"}}')
    with pytest.raises(ConfigError, match="CLIP"):
        encoded({"prompts": PROMPTS}, tmp_path)
    tokenizer_files.write(tmp_path, tokenizer_files.bert())
    with pytest.raises(ConfigError, match="lacks 'unicorn'"):
        encoded({"prompts": "blue, unicorn"}, tmp_path)


# -- engines --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_golden_probes_of_every_kind_have_the_token_ids(family: str, tmp_path: Path) -> None:
    model = model_of(prompted_models.write(tmp_path, family))
    assert model.recognition.family == family
    session = registry.load("onnxruntime").open(model.order(Recipe("onnxruntime", optimization=UNOPTIMISED)))
    made = golden.make(session, model.inspection.signature, model.recognition)
    session.close()
    assert {sample.kind for sample in made.samples} == {"unit", "normal", "wide", "picture"}
    expected = dict(model.recognition.reading.constants)["input_ids"]
    for sample in made.samples:
        assert sample.inputs["input_ids"].tolist() == [list(row) for row in expected]


@pytest.mark.parametrize("family", FAMILIES)
def test_model_has_a_profile_for_its_prompts_and_gets_one_picture_at_a_time(family: str, tmp_path: Path) -> None:
    path = prompted_models.write(tmp_path, family)
    model, other = model_of(path), model_of(path, is_reversed=True)
    assert model.configured_profile.problem() == ""
    assert not model.may_complete_batch
    recipe = Recipe("onnxruntime", profile=str(model.profile))
    assert batching(model, recipe).limit == 1
    assert Standard.of(model, "fp32", {}).golden != Standard.of(other, "fp32", {}).golden


@pytest.mark.parametrize("family", FAMILIES)
def test_load_finds_what_the_prompts_say(family: str, tmp_path: Path) -> None:
    """One family also builds engines, verifies them and answers with the fastest."""
    path = prompted_models.write(tmp_path, family)
    settings = {**SIZE, **read_settings(path), "prompts": PROMPTS, "thresholds.score": "0.5", "threads": "1"}
    is_built = family == "grounding-dino"
    with edged.load(path, settings=settings, cache=tmp_path / "cache", build=is_built) as loaded:
        found = loaded.infer(prompted_models.picture())
    for label, square in (("a photo of a red car", (64, 0, 96, 32)), ("blue", (0, 32, 32, 64))):
        boxes = np.array([(each.x1, each.y1, each.x2, each.y2) for each in found.detections if each.label == label])
        whole = (*boxes[:, :2].min(axis=0), *boxes[:, 2:].max(axis=0))  # a stretched square covers two patches
        np.testing.assert_allclose(whole, square, atol=0.1)
    records = Store(tmp_path / "cache").records().values()
    verdicts = [record.verdict for record in records if record.recipe.backend == "onnxruntime"]
    assert all(verdict.accepted for verdict in verdicts), verdicts
    assert bool(verdicts) == is_built


# -- commands -------------------------------------------------------------------------------------------------------


def call(*line: str | Path) -> Result:
    return CliRunner().invoke(app, list(map(str, line)))


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for variable in ("HOME", "XDG_CACHE_HOME", "XDG_STATE_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.setenv(variable, str(tmp_path / variable))
    return tmp_path


def test_inspect_encodes_prompts_and_draws_what_they_say(home: Path) -> None:
    path = prompted_models.write(home, "owlv2")
    result = call("inspect", path, "--set", f"prompts={PROMPTS}", "--draw", prompted_models.jpeg(home / "squares.png"))
    assert result.exit_code == 0, result.output
    assert "1 blue, 1 a photo of a red car" in result.stdout
    assert f"settings with token ids: prompts = {OWL_IDS}" in result.stdout.replace("\n", " ")
    lacking = call("inspect", path)
    assert lacking.exit_code == 2
    assert "set prompts" in lacking.output


def test_add_and_set_store_prompts_with_their_ids(home: Path) -> None:
    path, state = prompted_models.write(home, "owlvit"), home / "state"
    added = call("models", "add", "owl", path, "--set", f"prompts={PROMPTS}", "--state", state, "--json")
    assert added.exit_code == 0, added.output
    assert json.loads(added.stdout)["settings"]["prompts"] == OWL_IDS
    stored = state / "models" / "owl" / SETTINGS_FILE
    refused = call("models", "set", "owl", "prompts=red", "--state", state)
    assert refused.exit_code != 0
    assert "no token ids" in refused.output
    assert read_toml(stored.read_bytes())["prompts"] == OWL_IDS
    changed = call("models", "set", "owl", "prompts=red", "--tokenizer", home, "--state", state)
    assert changed.exit_code == 0, changed.output
    assert read_toml(stored.read_bytes())["prompts"] == "red [535 518 536]"


def test_daemon_serves_prompts_and_changed_ones(tmp_path: Path) -> None:
    path, picture = prompted_models.write(tmp_path, "owlv2"), prompted_models.picture()
    with Daemon(builds=False) as daemon, daemon.client() as client:
        wanted = ("--set", f"prompts={PROMPTS}", "--set", "thresholds.score=0.5", "--target", daemon.unix)
        added = call("models", "add", "owl", path, *wanted)
        assert added.exit_code == 0, added.output
        daemon.ready("owl")

        def labels() -> set[str]:
            return {each.label for each in client.infer("owl", picture).detections}

        assert labels() == {"a photo of a red car", "blue"}
        with pytest.raises(InvalidInput, match="no token ids"):
            client.set_model("owl", {"prompts": "red"})
        changed = call("models", "set", "owl", "prompts=red", "--tokenizer", tmp_path, "--target", daemon.unix)
        assert changed.exit_code == 0, changed.output
        wait_for("the new prompts are used", lambda: labels() == {"red"})
