"""A real daemon's metrics, scraped and read by Prometheus' own parser: they move as what they tell of does."""

from __future__ import annotations

import os
import re
import shutil
import signal
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import grpc
import numpy as np
import pytest

from edged.metrics import names
from edged.shapes import MODEL_PATH, Scene
from tests import models
from tests.integration.asking import Samples, infer, put, scrape, value
from tests.integration.daemon import Daemon, wait_for


class Scraped(Daemon):
    """A daemon with a listener for Prometheus."""

    def __init__(self) -> None:
        super().__init__()
        config = self.home / "edged.toml"
        config.write_text('[metrics]\nlisten = "127.0.0.1:0"\n')
        self._arguments = ("--config", str(config))

    def start(self) -> Scraped:
        super().start()
        assert self._process is not None
        assert self._process.stdout is not None
        self.metrics = self._process.stdout.readline().split()[-1]
        return self

    def now(self) -> Samples:
        return scrape(self.metrics)


@pytest.fixture(scope="module")
def daemon() -> Iterator[Scraped]:
    with Scraped() as started:
        assert isinstance(started, Scraped)
        daemon = started
        with daemon.client() as client:
            client.add_model("one", _saved(daemon), {"backends": "onnxruntime", "threads": "1"})
            daemon.settled("one")
            client.add_model(
                "shapes", MODEL_PATH, {"backends": "tensorrt"}
            )  # which leaves the reference: nothing is built
        daemon.ready("shapes")
        yield daemon


def test_whatever_is_scraped_is_in_the_list_and_the_daemon_tells_of_itself(daemon: Scraped) -> None:
    found = daemon.now()
    listed = {metric.name for metric in names.ALL}
    assert {re.sub(r"_(bucket|sum|count|created)$", "", name) for name, _ in found} <= listed
    assert value(found, "edged_ready") == 1
    assert value(found, "edged_model_ready", model="shapes") == 1
    assert (value(found, "edged_store_engines") or 0) > 0
    assert (value(found, "process_threads") or 0) > 1
    (serving,) = (
        labels
        for (name, labels), on in found.items()
        if name == "edged_engine_serving" and on and ("model", "one") in labels
    )
    assert ("model", "one") in serving
    built = sum(count for (name, labels), count in found.items() if name == "edged_builds_total")
    assert built >= 1
    assert sum(count for (name, _), count in found.items() if name == "edged_cache_misses_total") >= built
    up = [count for (name, _), count in found.items() if name == "edged_host_up"]
    assert sum(up) == len(daemon.hosts())
    assert all(size > 1 << 20 for (name, _), size in found.items() if name == "edged_host_resident_memory_bytes")


def test_a_request_that_is_answered_and_one_that_fails_are_counted_as_what_they_are(daemon: Scraped) -> None:
    put(daemon, "picky", models.gather())
    daemon.ready("picky")
    with grpc.insecure_channel(daemon.unix) as channel:
        before = daemon.now()
        assert value(before, "edged_model_requests_total", model="picky", outcome="success") == 0
        assert infer(channel, "picky", "index", "INT64", np.array([0, 1, 99])) is grpc.StatusCode.INVALID_ARGUMENT
        assert infer(channel, "picky", "index", "INT64", np.array([0, 1, 2])) is grpc.StatusCode.OK
        after = daemon.now()
    assert value(after, "edged_model_requests_total", model="picky", outcome="success") == 1
    assert value(after, "edged_model_requests_total", model="picky", outcome="engine_unusable") == 1
    assert value(after, "edged_model_inference_seconds_count", model="picky") == 1
    assert value(after, "edged_model_request_seconds_bucket", model="picky", le="+Inf") == 1
    shutil.rmtree(daemon.models / "picky")
    wait_for("it has gone", lambda: value(daemon.now(), "edged_model_ready", model="picky") is None)


def test_a_camera_is_told_frame_by_frame(daemon: Scraped) -> None:
    who = {"camera": "door", "model": "shapes"}
    pictures = [Scene(3).frame(number)[0] for number in range(12)]
    with daemon.client() as client:
        results = list(client.stream("shapes", pictures, camera="door"))
    found = daemon.now()
    skipped = sum(
        count
        for (name, labels), count in found.items()
        if name == "edged_camera_frames_skipped_total" and ("camera", "door") in labels
    )
    assert value(found, "edged_camera_frames_received_total", **who) == len(pictures)
    assert value(found, "edged_camera_frames_answered_total", **who) == len(results)
    assert skipped == len(pictures) - len(results)
    assert value(found, "edged_camera_age_seconds_count", **who) == len(results)


def test_a_host_that_is_killed_is_counted_and_its_alarmless_model_is_well_again(daemon: Scraped) -> None:
    before = daemon.now()
    for pid in daemon.hosts():
        os.kill(pid, signal.SIGKILL)

    def again() -> Samples | None:
        found = daemon.now()
        return found if value(found, "edged_ready") == 1 else None

    def lost(samples: Samples) -> float:
        return sum(count for (name, _), count in samples.items() if name == "edged_host_losses_total")

    wait_for("the loss is counted", lambda: lost(daemon.now()) > lost(before))
    wait_for("every model answers", again)


def test_a_model_that_degrades_is_told_with_its_reason(daemon: Scraped) -> None:
    with daemon.client() as client:
        client.add_model("narrow", _saved(daemon), {"backends": "tensorrt"})

        def told() -> Samples | None:
            found = daemon.now()
            is_degraded = value(found, "edged_model_degraded", model="narrow", reason="no_candidate") == 1
            return found if is_degraded and value(found, "edged_model_ready", model="narrow") == 1 else None

        found = wait_for("the alarm is told, and the model answers", told) or {}
        assert value(found, "edged_alarms", kind="no_candidate") == 2
        assert value(found, "edged_alarms_raised_total", kind="no_candidate") == 2
        assert value(found, "edged_model_degraded", model="shapes", reason="no_candidate") == 1
        client.remove_model("narrow")
    wait_for("it is over", lambda: value(daemon.now(), "edged_alarms", kind="no_candidate") == 1)


def _saved(daemon: Scraped) -> Path:
    return models.save(models.matmul(5, 4), daemon.home / "narrow.onnx")


def test_openmetrics_is_given_to_who_accepts_it(daemon: Scraped) -> None:
    request = urllib.request.Request(daemon.metrics, headers={"Accept": "application/openmetrics-text; version=1.0.0"})
    with urllib.request.urlopen(request, timeout=20) as answer:
        assert answer.headers["Content-Type"].startswith("application/openmetrics-text")
        assert answer.read().endswith(b"# EOF\n")
