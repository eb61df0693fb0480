"""`[pipelines.NAME]`: names of pipelines and of their models, and mistakes in one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from edged.config import load
from edged.daemon.locations import named_models
from edged.daemon.preflight import preflight
from edged.errors import ConfigError, InvalidInput

GOOD = '[pipelines.plates]\ndetect = "cars"\nthen = "reader"\n'


def written(folder: Path, text: str) -> Path:
    file = folder / "edged.toml"
    file.write_text(text)
    return file


def test_pipeline_of_models_that_do_not_exist_is_accepted(tmp_path: Path) -> None:
    found = load(written(tmp_path, GOOD)).pipelines["plates"]
    assert (found.detect, found.then, found.crop, found.most, found.classes) == ("cars", "reader", "box", 8, ())


def test_pipeline_from_a_variable_is_accepted() -> None:
    text = '{ plates = { detect = "cars:2", then = "reader", classes = ["plate"] } }'
    assert load(None, {"EDGED_PIPELINES": text}).pipelines["plates"].classes == ("plate",)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[pipelines.plates]\ndetect = "cars"\n', "then is missing"),
        (GOOD.replace('"cars"', '""'), "detect is empty"),
        (GOOD + "most = 0\n", "most"),
        (GOOD + "most = 65\n", "most"),
        (GOOD + "margin = -0.1\n", "margin"),
        (GOOD + 'crop = "circle"\n', "crop"),
        (GOOD + 'class = "plate"\n', "did you mean `classes`?"),
        (GOOD.replace("plates", '"a/b"'), "invalid name"),
        (GOOD.replace("plates", '"plates:1"'), "invalid name"),
        (GOOD.replace('"reader"', '"plates"'), "is set to a pipeline"),
        (GOOD + '[pipelines.other]\ndetect = "plates"\nthen = "reader"\n', "is set to a pipeline"),
        (GOOD.replace('"reader"', '"b"') + '[pipelines.b]\ndetect = "cars"\nthen = "plates"\n', "is set to a pipeline"),
    ],
)
def test_pipeline_with_an_invalid_key_is_refused_in_one_line(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(ConfigError, match="pipelines") as caught:
        load(written(tmp_path, text))
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_pipeline_with_the_name_of_a_configured_model_is_refused(tmp_path: Path) -> None:
    model = tmp_path / "m.onnx"
    model.write_bytes(b"m")
    config = load(written(tmp_path, GOOD + f'[models]\nplates = "{model}"\n'))
    with pytest.raises(InvalidInput, match="plates"):
        named_models(config)
    assert [path for path, _ in preflight(config)] == [("models", "plates")]
