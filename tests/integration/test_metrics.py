"""A real daemon's metrics, scraped and read by Prometheus' own parser."""

from __future__ import annotations

import os
import re
import shutil
import signal
import urllib.request
from collections.abc import Iterator

import grpc
import numpy as np
import pytest

from edged.metrics import names
from edged.shapes import MODEL_PATH
from tests import models
from tests.integration.asking import Samples, infer, put, scrape, value
from tests.integration.daemon import Daemon, wait_for


class Scraped(Daemon):
    """A daemon that serves metrics."""

    def now(self) -> Samples:
        return scrape(self.addresses[2])


@pytest.fixture(scope="module")
def daemon() -> Iterator[Scraped]:
    with Scraped(config='[metrics]\nlisten = "127.0.0.1:0"\n', endpoints=1) as daemon:
        with daemon.client() as client:
            narrow = models.save(models.matmul(5, 4), daemon.home / "narrow.onnx")
            client.add_model("one", narrow, {"backends": "onnxruntime", "threads": "1"})
            daemon.settled("one")
            client.add_model("shapes", MODEL_PATH, {"backends": "tensorrt"})  # the reference only: nothing is built
        daemon.ready("shapes")
        yield daemon


def test_scrape_has_listed_metrics_of_daemon_engines_and_hosts(daemon: Scraped) -> None:
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


def test_scrape_counts_requests_by_outcome(daemon: Scraped) -> None:
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
    wait_for("the model's metrics are removed", lambda: value(daemon.now(), "edged_model_ready", model="picky") is None)


def test_scrape_killed_host_is_counted_and_models_recover(daemon: Scraped) -> None:
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


def test_scrape_openmetrics_if_accepted(daemon: Scraped) -> None:
    request = urllib.request.Request(
        daemon.addresses[2], headers={"Accept": "application/openmetrics-text; version=1.0.0"}
    )
    with urllib.request.urlopen(request, timeout=20) as answer:
        assert answer.headers["Content-Type"].startswith("application/openmetrics-text")
        assert answer.read().endswith(b"# EOF\n")
