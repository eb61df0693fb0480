"""A real daemon under load: the series of the dashboard and the alerts exist, and the log follows its options."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator

import grpc
import numpy as np
import pytest

from edged.shapes import MODEL_PATH, Scene
from tests import models, observed, promql
from tests.integration.asking import Samples, infer, put, scrape
from tests.integration.daemon import Daemon, wait_for

# Runs in every Python process of the daemon: the engine host prints a line as a runtime would.
_TALKER = """
import sys
if "edged.host.main" in sys.orig_argv:
    print("\\x1b[31m[E:nothing:, file.cc:1] it creaks\\x1b[0m", file=sys.stderr)
"""


def _config(form: str, level: str = "info") -> str:
    return f'[metrics]\nlisten = "127.0.0.1:0"\n[log]\nformat = "{form}"\nlevel = "{level}"\n'


class Observed(Daemon):
    """A daemon with metrics and a JSON log, whose hosts print a line."""

    def __init__(self) -> None:
        super().__init__(config=_config("json"), endpoints=1)
        (self.home / "site").mkdir()
        (self.home / "site" / "sitecustomize.py").write_text(_TALKER)
        # A systemd unit that runs this test sets the variable for its own standard error.
        environment = {name: value for name, value in os.environ.items() if name != "JOURNAL_STREAM"}
        path = [str(self.home / "site"), *environment.get("PYTHONPATH", "").split(":")]
        self._environment = {**environment, "PYTHONPATH": ":".join(filter(None, path))}

    @property
    def metrics(self) -> str:
        return self.addresses[2]

    def lines(self) -> list[dict[str, str]]:
        """Return the log's lines as JSON; ValueError if a line is not JSON."""
        return [json.loads(line) for line in self.log.read_text().splitlines()]


@pytest.fixture(scope="module")
def daemon() -> Iterator[Observed]:
    with Observed() as started:
        with started.client() as client:
            small = models.save(models.matmul(5, 4), started.home / "small.onnx")
            client.add_model("small", small, {"backends": "onnxruntime", "threads": "1"})
            started.settled("small", 100)
            client.add_model("shapes", MODEL_PATH, {"backends": "tensorrt"})  # the reference only
            started.ready("shapes")
            list(client.stream("shapes", [Scene(3).frame(number)[0] for number in range(8)], camera="door"))
            for number in range(8):  # a stream may skip some frames
                client.infer("shapes", Scene(3).frame(number)[0])
        put(started, "picky", models.gather())
        started.ready("picky")
        with grpc.insecure_channel(started.unix) as channel:
            infer(channel, "picky", "index", "INT64", np.array([0, 99]))
        yield started


def test_queries_ask_for_metrics_that_exist_or_are_conditional(daemon: Observed) -> None:
    found = scrape(daemon.metrics)
    there = {name for name, _ in found}
    conditional = observed.conditional()
    for query in observed.queries():
        for selector in promql.parse(query.expression).selectors:
            base = selector.name
            for part in ("_bucket", "_sum", "_count"):
                base = base.removesuffix(part)
            assert selector.name in there or base in conditional or selector.name == "up", query.where


def test_queries_ask_for_labels_that_exist(daemon: Observed) -> None:
    found = scrape(daemon.metrics)
    for query in observed.queries():
        for selector in promql.parse(query.expression).selectors:
            for labels in _labels(found, selector.name):
                assert set(selector.matchers) <= labels | {"instance", "job"}, query.where


def _labels(found: Samples, name: str) -> list[set[str]]:
    return [{label for label, _ in labels} for each, labels in found if each == name]


def test_scrape_conditional_series_exist_under_load(daemon: Observed) -> None:
    expected = {"edged_camera_age_seconds_bucket", "edged_camera_frames_answered_total", "edged_builds_total"}
    expected |= {"edged_engine_baseline_seconds", "edged_engine_accepted", "edged_host_losses_total"}
    wait_for("all series exist", lambda: expected <= {name for name, _ in scrape(daemon.metrics)}, 30)


def test_log_every_line_is_an_object_with_its_subject(daemon: Observed) -> None:
    lines = daemon.lines()
    serves = [line for line in lines if line.get("event") == "engine_serves"]
    assert {line["model"] for line in serves} == {"small", "shapes", "picky"}
    assert all(len(line["engine"]) == 12 for line in serves)
    assert {"time", "level", "logger", "message"} <= set.intersection(*(set(line) for line in lines))


def test_log_output_of_a_runtime_is_a_line_of_its_host(daemon: Observed) -> None:
    printed = [line for line in daemon.lines() if "it creaks" in line["message"]]
    assert printed
    assert {(line["logger"], line["level"], line["child"]) for line in printed} == {
        ("edged.host.onnxruntime", "error", "host onnxruntime")
    }
    assert printed[0]["message"] == "[E:nothing:, file.cc:1] it creaks"


@pytest.mark.long
def test_reload_changes_format_and_level_of_the_log(daemon: Observed) -> None:
    before = len(daemon.log.read_text())

    def since() -> str:
        return daemon.log.read_text()[before:]

    with daemon.client() as client:
        daemon.config.write_text(_config("text", "warning"))
        client.reload()
        for pid in daemon.hosts():
            os.kill(pid, signal.SIGKILL)
        wait_for("the loss is logged as text", lambda: " W edged.engines: engine host " in since())
        text = [line for line in since().splitlines() if not line.startswith("{")]
        assert not [line for line in text if " I edged" in line]
        daemon.config.write_text(_config("json"))
        client.reload()
    assert '"message":"reloaded: log' in since()
