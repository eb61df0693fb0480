"""ModelStatistics of a real daemon: the counts equal the requests."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import grpc
import grpc.aio
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import helper, numpy_helper

from edged.proto import open_inference_pb2 as pb
from tests import models
from tests.integration.daemon import Daemon, wait_for
from tests.integration.inference_calls import Calls, method, refusal, request

_PARTS = ("queue", "compute_input", "compute_infer", "compute_output")


_CONFIGURATION = """
max_batch_size: 32
dynamic_batching { max_queue_delay_microseconds: 2000 default_queue_policy { max_queue_size: 256 } }
"""


def _gathering(folder: Path) -> None:
    """Write y[n] = table[x[n]]: an index outside the table makes the runtime fail."""
    table = np.arange(8, dtype=np.float32)
    node = helper.make_node("Gather", ["table", "x"], ["y"])
    inputs, outputs = [models.value("x", "INT64", ["N", 1])], [models.value("y", "FP32", ["N", 1])]
    proto = models.model([node], inputs, outputs, [numpy_helper.from_array(table, "table")])
    models.save(proto, folder / "1" / "model.onnx")
    (folder / "config.pbtxt").write_text(_CONFIGURATION)


@pytest.fixture(scope="module")
def counted() -> Iterator[Daemon]:
    """A daemon with `rows` and `other`, which take any number of rows, and `broken`, which cannot be served."""
    daemon = Daemon(builds=False)
    _gathering(daemon.models / "rows")
    _gathering(daemon.models / "other")
    (daemon.models / "broken.onnx").write_text("This is not a model.\n")
    with daemon:
        daemon.settled("rows")
        daemon.settled("other")
        yield daemon


@pytest.fixture
def calls(counted: Daemon) -> Iterator[Calls]:
    with Calls(counted.unix) as calls:
        yield calls


def _only(calls: Calls, model: str) -> pb.ModelStatistics:
    (found,) = calls.statistics(model)
    return found


def _indices(rows: int, value: int = 1) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    return np.full((rows, 1), value, np.int64)


def _ask(calls: Calls, model: str, rows: int) -> None:
    calls.infer(request(model, _indices(rows), datatype="INT64"))


def test_statistics_without_a_name_list_every_model_and_version(calls: Calls) -> None:
    found = {each.name: each for each in calls.statistics()}
    assert set(found) == {"rows", "other", "broken"}
    assert all(each.version == "1" for each in found.values())
    assert found["broken"].inference_count == found["broken"].inference_stats.fail.count == 0


@pytest.mark.parametrize(("name", "version"), [("nobody", ""), ("rows", "2"), ("nobody", "1")])
def test_statistics_of_an_unknown_model_are_not_found(calls: Calls, name: str, version: str) -> None:
    assert refusal(calls.statistics, name, version)[0] is grpc.StatusCode.NOT_FOUND


def test_requests_of_a_batch_count_their_rows(calls: Calls) -> None:
    before, other = _only(calls, "rows"), _only(calls, "other")
    for _ in range(7):
        _ask(calls, "rows", 3)
    after = _only(calls, "rows")
    assert after.inference_count - before.inference_count == 21
    assert after.execution_count - before.execution_count == 7
    assert after.inference_stats.success.count - before.inference_stats.success.count == 7
    threes = [{each.batch_size: each for each in found.batch_stats}.get(3) for found in (before, after)]
    assert threes[1] is not None
    assert threes[1].compute_infer.count - (threes[0].compute_infer.count if threes[0] else 0) == 7
    assert _only(calls, "other") == other


def test_statistics_durations_of_parts_add_up_to_at_most_the_total(calls: Calls) -> None:
    _ask(calls, "rows", 1)
    found = _only(calls, "rows").inference_stats
    assert 0 < found.compute_infer.ns <= sum(getattr(found, part).ns for part in _PARTS) <= found.success.ns
    assert (found.cache_hit.count, found.cache_miss.count) == (0, 0)


_KINDS = st.sampled_from(["good", "fails in the runtime", "refused", "cancelled"])


@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(st.tuples(_KINDS, st.integers(1, 9)), min_size=1, max_size=60))
def test_every_request_is_counted_once_with_its_outcome(counted: Daemon, requests: list[tuple[str, int]]) -> None:
    """Concurrent requests: some fail, some are cancelled by their callers."""
    with Calls(counted.unix) as calls:
        before = _at_rest(calls)
        answered = asyncio.run(_all(counted.unix, requests))
        after = _at_rest(calls)
    rows = sum(rows for kind, rows in answered if kind == "good")
    count = Counter(kind for kind, _ in answered)
    cancelled = [rows for kind, rows in answered if kind == "cancelled"]
    # A request that was cancelled may have been answered before the cancellation arrived.
    least, most = count["good"], count["good"] + len(cancelled)
    grown = {part: _grown(before, after, part) for part in ("success", *_PARTS)}
    assert least <= grown["success"] <= most
    assert set(grown.values()) == {grown["success"]}
    assert count["fails in the runtime"] <= _grown(before, after, "fail")
    assert _grown(before, after, "fail") <= count["fails in the runtime"] + count["too many"]
    assert rows <= after.inference_count - before.inference_count <= rows + sum(cancelled)
    _assert_adds_up(after)


def _grown(before: pb.ModelStatistics, after: pb.ModelStatistics, part: str) -> int:
    one, other = (getattr(each.inference_stats, part).count for each in (before, after))
    return int(other - one)


def _assert_adds_up(found: pb.ModelStatistics) -> None:
    """Check that executions equal the sum over batch sizes, and that their rows cover the counted inferences."""
    assert sum(each.compute_infer.count for each in found.batch_stats) == found.execution_count
    assert sum(each.compute_infer.count * each.batch_size for each in found.batch_stats) >= found.inference_count
    for each in found.batch_stats:
        assert each.compute_input.count == each.compute_infer.count == each.compute_output.count


def _at_rest(calls: Calls) -> pb.ModelStatistics:
    """Wait until earlier requests do not change the statistics any more; return the statistics."""
    last = [_only(calls, "rows")]

    def rests() -> bool:
        time.sleep(0.05)
        last.append(_only(calls, "rows"))
        return last[-1] == last[-2]

    wait_for("the statistics do not change any more", rests)
    return last[-1]


async def _all(address: str, requests: list[tuple[str, int]]) -> list[tuple[str, int]]:
    async with grpc.aio.insecure_channel(address) as channel:
        return await asyncio.gather(*(_one(channel, kind, rows) for kind, rows in requests))


async def _one(channel: grpc.aio.Channel, kind: str, rows: int) -> tuple[str, int]:
    """Send a request; return its actual outcome and its rows."""
    value = 99 if kind == "fails in the runtime" else 1
    name = "nonsense" if kind == "refused" else "x"
    call = method(channel, "ModelInfer")(request("rows", _indices(rows, value), name, "INT64"), timeout=60)
    if kind == "cancelled":
        await asyncio.sleep(0.001)
        call.cancel()
    try:
        await call
    except asyncio.CancelledError:
        return "cancelled", rows
    except grpc.aio.AioRpcError as error:
        if error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED:
            return "too many", rows
        if error.code() is grpc.StatusCode.INVALID_ARGUMENT and kind in ("fails in the runtime", "refused"):
            return kind, rows
        raise
    return ("good" if kind == "cancelled" else kind), rows  # the cancellation was too late


def test_reloaded_model_counts_from_zero(counted: Daemon, calls: Calls) -> None:
    _ask(calls, "other", 2)
    assert _only(calls, "other").inference_count >= 2
    shutil.rmtree(counted.models / "other")
    wait_for("other is removed", lambda: "other" not in {each.name for each in calls.statistics()})
    _gathering(counted.models / "other")
    counted.ready("other")
    assert _only(calls, "other").inference_count == 0


def test_responses_are_counted_by_their_place(counted: Daemon, calls: Calls) -> None:
    folder = counted.models / "several"
    _gathering(folder)
    (folder / "config.pbtxt").write_text("max_batch_size: 8\nmodel_transaction_policy { decoupled: true }\n")
    counted.ready("several")
    assert _streamed(counted, "several", 3) == 4  # one per row, and the empty final response
    assert _streamed(counted, "several", 1) == 2
    found = _only(calls, "several")
    reported = {place: (each.success.count, each.empty_response.count) for place, each in found.response_stats.items()}
    assert reported == {"0": (2, 0), "1": (1, 1), "2": (1, 0), "3": (0, 1)}
    assert found.response_stats["0"].compute_infer.ns > 0
    assert found.inference_stats.success.count == 2
    assert not _only(calls, "rows").response_stats


def _streamed(daemon: Daemon, model: str, rows: int) -> int:
    """Return the number of responses to a request that asks for an empty final response."""
    message = request(model, _indices(rows), datatype="INT64")
    message.parameters["triton_enable_empty_final_response"].bool_param = True
    with grpc.insecure_channel(daemon.unix) as channel:
        responses = list(method(channel, "ModelStreamInfer")(iter([message]), timeout=60))
    assert [each.error_message for each in responses] == [""] * len(responses)
    return len(responses)
