"""Configuration from environment variables, and the precedence of sources."""

from __future__ import annotations

from pathlib import Path

import pytest

from edged.config import Config, Engines, Frigate, Reading, load, read
from edged.config.checking import Origin
from edged.errors import ConfigError


def of(tmp_path: Path, text: str, environment: dict[str, str], **options: object) -> Reading:
    file = tmp_path / "edged.toml"
    file.write_text(text)
    return read(file, environment, {name: (f"--{name}", value) for name, value in options.items()})


@pytest.mark.parametrize(
    ("environment", "config"),
    [
        ({}, Config()),
        ({"EDGED_STATE": ""}, Config()),
        ({"EDGED_STATE": "  "}, Config()),
        ({"EDGED_STATE": "/s"}, Config(state="/s")),
        ({"EDGED_STATE": '"/s"'}, Config(state="/s")),
        ({"EDGED_STATE": "5"}, Config(state="5")),
        ({"EDGED_LISTEN": "unix:/a, localhost:1,"}, Config(listen=("unix:/a", "localhost:1"))),
        ({"EDGED_LISTEN": '["unix:/a,b", "c"]'}, Config(listen=("unix:/a,b", "c"))),
        ({"EDGED_LISTEN": "[::1]:80,[::1]:81"}, Config(listen=("[::1]:80", "[::1]:81"))),
        ({"EDGED_LISTEN": "[]"}, Config()),
        ({"EDGED_STOP_SECONDS": "3"}, Config(stop_seconds=3.0)),
        ({"EDGED_STOP_SECONDS": " 1e1 "}, Config(stop_seconds=10.0)),
        ({"EDGED_MAX_MESSAGE_MB": "1_0"}, Config(max_message_mb=10)),
        ({"EDGED_ALLOW_SHARED_MEMORY_OVER_TCP": "true"}, Config(allow_shared_memory_over_tcp=True)),
        ({"EDGED_MODEL_CONTROL": "none"}, Config(model_control="none")),
        ({"EDGED_ENGINES_BUDGET_MB": "5"}, Config(engines=Engines(budget_mb=5))),
        ({"EDGED_MODELS": '{ a = "/a.onnx", "b c" = "/b" }'}, Config(models={"a": "/a.onnx", "b c": "/b"})),
        ({"EDGED_FRIGATE": "{}"}, Config(frigate=Frigate())),
        ({"EDGED_FRIGATE_SCORE": "0.5"}, Config(frigate=Frigate(score=0.5))),
        (
            {"EDGED_FRIGATE_LABELS": "5", "EDGED_FRIGATE": "{ labels = 3, uploads = true }"},
            Config(frigate=Frigate(labels=5, uploads=True)),
        ),
        ({"EDGED_TARGET": "x", "EDGED_TOKEN": "x", "HOME": "/", "EDGED_KEY": "x"}, Config()),
    ],
)
def test_read_variables(environment: dict[str, str], config: Config) -> None:
    reading = read(None, environment)
    assert (reading.problems, reading.warnings) == ((), ())
    assert reading.config == config


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        (
            {"EDGED_ENGINES_BUDGET_MB": "lots"},
            'EDGED_ENGINES_BUDGET_MB: engines.budget_mb: expected a whole number from 0 to 1073741824, got "lots"',
        ),
        ({"EDGED_STOP_SECONDS": "5\nstate = '/x'"}, "EDGED_STOP_SECONDS: stop_seconds: expected a number"),
        ({"EDGED_STOP_SECONDS": '"5"'}, 'got "5"'),
        ({"EDGED_MAX_MESSAGE_MB": "0"}, "from 1 to 1500, got 0"),
        ({"EDGED_HEALTH_STRICT_READINESS": "yes"}, 'expected true or false, got "yes"'),
        ({"EDGED_MODEL_CONTROL": "all"}, 'expected "poll", "none" or "explicit", got "all"'),
        (
            {"EDGED_MODELS": "door=/x"},
            'EDGED_MODELS: models: expected a table, each value a string in quotes, got "door=/x"',
        ),
        ({"EDGED_MODELS": "{ a = 5 }"}, "EDGED_MODELS: models.a: expected a string in quotes, got 5"),
        ({"EDGED_FRIGATE": "yes", "EDGED_FRIGATE_LABELS": "5"}, "EDGED_FRIGATE: frigate: expected a table"),
        (
            {"EDGED_FRIGATE": "{ label = 3 }"},
            "EDGED_FRIGATE: frigate.label: unknown key; did you mean `labels`?",
        ),
        ({"EDGED_STARTUP_MODELS": "m"}, "EDGED_STARTUP_MODELS: startup_models needs model_control"),
        (
            {"EDGED_ENGINES_BUDGET": "5"},
            "EDGED_ENGINES_BUDGET: unknown variable; did you mean EDGED_ENGINES_BUDGET_MB?",
        ),
        ({"EDGED_ACCESS": "{ loopback = [] }"}, "EDGED_ACCESS: unknown variable"),
        ({"EDGED_STATE": "/data/\udcff"}, "EDGED_STATE: the value is not valid UTF-8"),
        ({"EDGED_ENGINES_\udcff": "5"}, "EDGED_ENGINES_\\udcff: unknown variable"),
        ({"EDGED_MODELS_DOOR": "/x"}, "EDGED_MODELS_DOOR: unknown variable; did you mean EDGED_MODELS?"),
    ],
)
def test_read_mistakes_name_the_variable(environment: dict[str, str], words: str) -> None:
    (problem,) = read(None, environment).problems
    assert words in str(problem)
    assert "\n" not in str(problem)
    with pytest.raises(ConfigError) as raised:
        load(None, environment)
    assert words in str(raised.value)


def test_read_unknown_variables_are_warnings() -> None:
    reading = read(
        None, {"EDGED_LISTN": "x", "EDGED_QQQQQQQQQQQQ": "x", "EDGEDX": "x", "EDGED_TEST_WHATEVER_THIS_IS": ""}
    )
    assert reading.problems == ()
    assert reading.warnings == (
        "EDGED_LISTN in the environment is unknown to edged; did you mean EDGED_LISTEN?",
        "EDGED_QQQQQQQQQQQQ in the environment is unknown to edged",
        "EDGED_TEST_WHATEVER_THIS_IS in the environment is unknown to edged",
    )


def test_read_option_overrides_variable_overrides_file(tmp_path: Path) -> None:
    text = 'state = "/file"\ncache = "/file"\nlisten = ["unix:/file"]\n[models]\na = "/file"\nb = "/file"\nc = "/file"'
    environment = {
        "EDGED_CACHE": "/variable",
        "EDGED_LISTEN": "unix:/variable",
        "EDGED_MODELS": '{ b = "/variable", c = "/variable" }',
    }
    reading = of(tmp_path, text, environment, listen=["unix:/option"], models={"c": "/option"})
    config = reading.required()
    assert (config.state, config.cache, config.listen) == ("/file", "/variable", ("unix:/option",))
    assert config.models == {"a": "/file", "b": "/variable", "c": "/option"}
    file = str(tmp_path / "edged.toml")
    assert reading.origin(("state",)) == Origin("file", file, 1)
    assert reading.origin(("cache",)) == Origin("environment", "EDGED_CACHE")
    assert reading.origin(("listen[0]",)) == Origin("command line", "--listen")
    assert [str(reading.origin(("models", name))) for name in "abc"] == [f"{file}:5", "EDGED_MODELS", "--models"]
    assert str(reading.origin(("stop_seconds",))) == "default"
    assert (
        reading.summary()
        == f"{file}; environment: EDGED_CACHE, EDGED_LISTEN, EDGED_MODELS; command line: --listen, --models"
    )


def test_read_contradicting_keys_of_two_sources(tmp_path: Path) -> None:
    text = 'startup_models = ["m"]\nmodel_control = "explicit"'
    assert of(tmp_path, text, {}).problems == ()
    (problem,) = of(tmp_path, text, {"EDGED_MODEL_CONTROL": "poll"}).problems
    assert str(problem).startswith(f"{tmp_path}/edged.toml:1: startup_models needs")


def test_read_mistake_in_a_file_is_reported_even_if_a_variable_overrides_it(tmp_path: Path) -> None:
    reading = of(tmp_path, "stop_seconds = 'x'", {"EDGED_STOP_SECONDS": "3"})
    assert [problem.origin.line for problem in reading.problems] == [1]
