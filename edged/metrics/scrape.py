"""Collects the metrics for a scrape. The event loop collects the state that only the event loop may read. A thread
collects the rest and writes the text."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import math
import os
import re
import resource
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import get_args

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric as Family

from edged import tasks
from edged.api.auth.guard import Guard
from edged.api.auth.limits import Kind
from edged.cameras.supervisor import CameraStatus, CameraSupervisor
from edged.engines.alarms import Alarm, AlarmKind
from edged.engines.controller import Controller
from edged.engines.drift import Watched
from edged.engines.drift_files import OUTCOMES
from edged.engines.ensembles import PlannedEnsemble
from edged.engines.plan import PlannedModel
from edged.engines.readiness import Readiness, ReadyState, readiness
from edged.ipc.capture_messages import State
from edged.ipc.finite import watched
from edged.language.host import LanguageHost
from edged.language.model import LanguageState, PlannedLanguageModel
from edged.metrics import names
from edged.metrics.names import ALL, Metric
from edged.metrics.sources import STARTED, EventCounts, Readings, Sensors, resident_bytes
from edged.serving.camera import Cameras
from edged.serving.link import HostLink
from edged.serving.statistics import Histogram, Statistics
from edged.store import sealed
from edged.version import __version__

_FAMILIES = {"gauge": GaugeMetricFamily, "counter": CounterMetricFamily}
_POWER_MODE = "jetson.power_mode"
_MAX_CAMERAS = 256  # cameras with separate metrics; clients could add any number, because they choose the ids
_KEY_LENGTH = 12  # characters of a key that are shown, as in the command line
_CAPITAL = re.compile(r"(?<!^)(?=[A-Z])")
_REFUSED_STATUSES = {"unauthenticated": "UNAUTHENTICATED", "denied": "PERMISSION_DENIED"}


class Samples:
    """The samples of one scrape; `prometheus_client.exposition` reads it as a registry."""

    def __init__(self) -> None:
        self._values: dict[str, dict[tuple[str, ...], float]] = {metric.name: {} for metric in ALL}
        self._histograms: dict[str, dict[tuple[str, ...], tuple[list[tuple[float, int]], float]]] = {}

    def put(self, metric: Metric, value: float, *labels: str) -> None:
        """Set the sample of a metric with these label values."""
        self._values[metric.name][labels] = value

    def add(self, metric: Metric, value: float, *labels: str) -> None:
        """Add `value` to the sample of a metric with these label values. A sample starts at 0."""
        known = self._values[metric.name]
        known[labels] = known.get(labels, 0.0) + value

    def put_histogram(self, metric: Metric, histogram: Histogram, *labels: str) -> None:
        """Set a histogram's samples to its current contents."""
        self._histograms.setdefault(metric.name, {})[labels] = (histogram.cumulative(), histogram.total)

    def collect(self) -> Iterator[Family]:
        """Yield the metric families in the order of `names.ALL`."""
        for metric in ALL:
            if metric.kind == "histogram":
                yield self._histogram_family(metric)
                continue
            family = _FAMILIES[metric.kind](metric.name, metric.help, labels=metric.labels)
            for labels, value in self._values[metric.name].items():
                family.add_metric(labels, value)
            yield family

    def _histogram_family(self, metric: Metric) -> Family:
        family = HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
        for labels, (buckets, total) in self._histograms.get(metric.name, {}).items():
            named = [("+Inf" if math.isinf(bound) else repr(bound), float(count)) for bound, count in buckets]
            family.add_metric(labels, named, total)
        return family


class Scraper:
    """Collects the metrics of the daemon. One scrape runs at a time; further scrapes wait."""

    def __init__(
        self,
        controller: Controller,
        cameras: Cameras,
        counts: EventCounts,
        guard: Guard,
        supervisor: CameraSupervisor,
    ) -> None:
        self._controller, self._cameras, self._counts, self._guard = controller, cameras, counts, guard
        self._supervisor = supervisor
        self._sensors = Sensors()
        self._lock = asyncio.Lock()

    async def scrape(self, accept: str, compressed: bool) -> tuple[bytes, str]:
        """Return the metrics as text (with gzip if `compressed`), and the content type, which depends on `accept`."""
        async with self._lock:
            readings = await asyncio.to_thread(self._sensors.read)
            samples = self._gathered()
            controller = self._controller
            device(samples, controller.load.busy, controller.fingerprint.facts.get(_POWER_MODE, ""), readings)
            encode, content_type = choose_encoder(accept)
            links = controller.links()
            planned = controller.language.models.values()
            language_hosts = [each.host for each in planned if each.host is not None]

            def write() -> bytes:
                process(samples)
                hosts(samples, links, language_hosts, self._counts)
                text: bytes = encode(samples)
                return gzip.compress(text, 5) if compressed else text

            return await asyncio.to_thread(write), content_type

    def _gathered(self) -> Samples:
        """Collect the state that only the event loop may read."""
        samples, controller = Samples(), self._controller
        samples.put(names.INFO, 1, __version__)
        samples.put(names.UPTIME, time.monotonic() - controller.started)
        samples.put(names.READY, controller.is_ready)
        samples.put(names.TASKS, len(asyncio.all_tasks()))
        raised = controller.alarms.active()
        for name, planned in controller.models.items():
            model(samples, name, planned, readiness(planned, controller.health), raised)
            engines(samples, name, planned)
        for name, each in controller.ensembles.items():
            ensemble(samples, name, each, controller.readiness(each), raised)
        for name, chats in controller.language.models.items():
            language(samples, name, chats, raised)
        pipelines(samples, controller)
        drift(samples, controller.drift.watched)
        cameras(samples, self._cameras)
        configured_cameras(samples, self._supervisor.status())
        builds(samples, controller, self._counts)
        access(samples, self._guard)
        alarms(samples, raised, self._counts)
        return samples


# -- collectors, one for each subject ----------------------------------------------------------------------------------


def model(samples: Samples, name: str, planned: PlannedModel, ready: Readiness, raised: tuple[Alarm, ...]) -> None:
    """Collect one model: readiness, requests, times. `raised` has the alarms of all models, not only of this one."""
    slot, statistics = planned.slot, planned.slot.statistics
    _served(samples, name, statistics, ready, raised)
    if answering := planned.answering:
        for output in watched(answering.limits, answering.inspection.signature.outputs):
            samples.put(names.MODEL_NOT_FINITE, 0, name, output.name)
    for output_name, count in slot.finite.counts.items():
        samples.put(names.MODEL_NOT_FINITE, count, name, output_name)
    samples.put(names.MODEL_QUEUE_DEPTH, slot.waiting + planned.fallback.waiting, name)
    samples.put_histogram(names.MODEL_INFERENCE, statistics.infer_seconds, name)
    samples.put(names.MODEL_SWAPS, slot.swaps, name)


def ensemble(
    samples: Samples, name: str, planned: PlannedEnsemble, ready: Readiness, raised: tuple[Alarm, ...]
) -> None:
    """Collect one ensemble. The metrics of queues and engines are collected for the models of the ensemble."""
    _served(samples, name, planned.statistics, ready, raised)


def language(samples: Samples, name: str, planned: PlannedLanguageModel, raised: tuple[Alarm, ...]) -> None:
    """Collect one language model: readiness, requests, tokens."""
    counts, state = planned.counts, planned.state.value
    samples.put(names.MODEL_READY, planned.state is LanguageState.READY, name)
    for each in ReadyState:
        samples.put(names.MODEL_STATE, each.value == state, name, each.value)
    for alarm in raised:
        if alarm.model == name:
            samples.put(names.MODEL_DEGRADED, 1, name, alarm.kind.value)
    samples.put(names.MODEL_REQUESTS, counts.requests - counts.failed, name, "success")
    samples.put(names.MODEL_REQUESTS, counts.failed, name, "failed")
    samples.put(names.MODEL_QUEUE_DEPTH, planned.turns.queued, name)
    samples.put(names.MODEL_SWAPS, planned.swaps, name)
    for kind, tokens in (("prompt", counts.prompt_tokens), ("cached", counts.cached_tokens), ("answer", counts.tokens)):
        samples.put(names.LANGUAGE_TOKENS, tokens, name, kind)


def _served(samples: Samples, name: str, statistics: Statistics, ready: Readiness, raised: tuple[Alarm, ...]) -> None:
    """Collect the metrics that models and ensembles both have."""
    samples.put(names.MODEL_READY, ready.is_ready, name)
    for state in ReadyState:
        samples.put(names.MODEL_STATE, state is ready.state, name, state.value)
    for alarm in raised:
        if alarm.model == name:
            samples.put(names.MODEL_DEGRADED, 1, name, alarm.kind.value)
    samples.put(names.MODEL_REQUESTS, statistics.success.count, name, "success")
    for error, count in statistics.failures.items():
        samples.put(names.MODEL_REQUESTS, count, name, _CAPITAL.sub("_", error).lower())
    samples.put_histogram(names.MODEL_REQUEST, statistics.request_seconds, name)
    samples.put(names.MODEL_LAST, statistics.last_inference_ms / 1e3, name)


def engines(samples: Samples, name: str, planned: PlannedModel) -> None:
    """Collect one model's planned engines. Also collect the serving engine if it was planned for an earlier state of
    the device and is no longer planned."""
    for key, engine in planned.engines.items():
        labels = (name, key[:_KEY_LENGTH], engine.recipe.backend)
        samples.put(names.ENGINE_STATE, 1, *labels, engine.state.value)
        samples.put(names.ENGINE_SERVING, key == planned.serving, *labels)
        record = engine.record
        if record is not None:
            samples.put(names.ENGINE_ACCEPTED, record.verdict.accepted, *labels)
            if record.cost is not None:
                samples.put(names.ENGINE_COST, record.cost, *labels)
        if engine.usual_ms:
            samples.put(names.ENGINE_BASELINE, engine.usual_ms / 1e3, *labels)
        built = record.composition.fallback if record is not None else ()
        samples.put(names.ENGINE_FALLBACK, len(built) + len(engine.misplaced), *labels)
    current = planned.slot.current
    if current is not None and current.engine.key not in planned.engines:
        samples.put(names.ENGINE_SERVING, 1, name, current.engine.key[:_KEY_LENGTH], current.engine.backend)


def pipelines(samples: Samples, controller: Controller) -> None:
    """Collect the states and counts of pipelines. The count of an outcome that has not occurred is 0."""
    for name, ready in controller.pipelines.readiness(controller.health).items():
        counts = controller.pipelines.counts[name]
        samples.put(names.PIPELINE_READY, ready.is_ready, name)
        samples.put(names.PIPELINE_FRAMES, counts.answered, name, "answered")
        samples.put(names.PIPELINE_FRAMES, counts.failed, name, "failed")
        samples.put(names.PIPELINE_CROPS, counts.crops_answered, name, "answered")
        samples.put(names.PIPELINE_CROPS, counts.crops_failed, name, "failed")
        samples.put(names.PIPELINE_CROPS, counts.crops_left_out, name, "left_out")


def drift(samples: Samples, watched: Mapping[str, Watched]) -> None:
    """Collect the checks for drift. The count of an outcome that has not occurred is 0."""
    for name, each in watched.items():
        for outcome in OUTCOMES:
            samples.put(names.DRIFT_CHECKS, each.counts[outcome], name, outcome)
        samples.put(names.DRIFT_CPU, each.cpu_s, name)
        if (agreement := each.history.answers.agreement) is not None:
            samples.put(names.DRIFT_AGREEMENT, agreement, name)


def cameras(samples: Samples, known: Cameras) -> None:
    """Collect the number of all cameras, and the metrics of at most 256 cameras. These are the cameras that were active
    most recently."""
    records = known.records()
    samples.put(names.CAMERAS, len(records))
    for record in sorted(records, key=lambda record: record.seen, reverse=True)[:_MAX_CAMERAS]:
        labels = (record.camera, record.model)
        samples.put(names.CAMERA_RECEIVED, record.received, *labels)
        samples.put(names.CAMERA_ANSWERED, record.answered, *labels)
        samples.put(names.CAMERA_FAILED, record.failed, *labels)
        samples.put(names.CAMERA_DROPPED, record.dropped, *labels)
        for reason, count in record.skipped.items():
            samples.put(names.CAMERA_SKIPPED, count, *labels, reason)
        samples.put_histogram(names.CAMERA_AGE, record.age_seconds, *labels)


def configured_cameras(samples: Samples, known: Mapping[str, CameraStatus]) -> None:
    """Collect the state of cameras that the daemon opens itself, their zones and lines."""
    for camera, status in known.items():
        model, report = status.definition.camera.model, status.report
        for state in State:
            samples.put(names.CAMERA_STATE, state is report.state, camera, model, state.value)
        samples.put(names.CAMERA_RECONNECTIONS, report.reconnections, camera, model)
        for zone, found in report.zones.items():
            samples.put(names.ZONE_OCCUPIED, found.occupied, camera, zone)
            samples.put(names.ZONE_VISITS, found.visits, camera, zone)
            for label, count in found.counts.items():
                samples.put(names.ZONE_OBJECTS, count, camera, zone, label)
        for line, crossed in report.lines.items():
            for direction, counts in (("in", crossed.entered), ("out", crossed.left)):
                for label, count in counts.items():
                    samples.put(names.LINE_CROSSINGS, count, camera, line, direction, label)


def builds(samples: Samples, controller: Controller, counts: EventCounts) -> None:
    """Collect the outcomes of builds, and the state of the store."""
    for (backend, outcome), count in counts.builds.items():
        samples.put(names.BUILDS, count, backend, outcome)
    for backend, seconds in counts.build_seconds.items():
        samples.put_histogram(names.BUILD_SECONDS, seconds, backend)
    store, eviction = controller.store, controller.maker.eviction
    samples.put(names.BUILDING, len(controller.maker.busy))
    samples.put(names.PAUSED, bool(eviction.paused))
    samples.put(names.CACHE_HITS, store.counts.hits)
    for reason, count in controller.misses.items():
        samples.put(names.CACHE_MISSES, count, reason)
    samples.put(names.CACHE_DAMAGED, store.counts.damaged)
    for what, count in sealed.DAMAGED.items():
        samples.put(names.STATE_DAMAGED, count, what)
    records = store.records()
    samples.put(names.STORE_ENGINES, sum(bool(record.files) for record in records.values()))
    samples.put(names.STORE_BYTES, sum(record.size for record in records.values()))
    samples.put(names.STORE_FREE, eviction.free_bytes)


def access(samples: Samples, guard: Guard) -> None:
    """Collect running and refused calls. Every reason has a sample, so that an alert rule can refer to it."""
    for reason, status in _REFUSED_STATUSES.items():
        samples.put(names.REFUSED, guard.refused[status], reason)
    for kind in get_args(Kind):
        samples.put(names.REFUSED, guard.limits.refused[kind], kind)
    together = guard.limits.together()
    samples.put(names.CALLS_OPEN, together.streams, "streams")
    samples.put(names.CALLS_OPEN, together.requests, "requests")
    samples.put(names.CALL_BYTES, together.size)
    samples.put(names.AUDIT_LOST, guard.audit.lost)


def alarms(samples: Samples, raised: tuple[Alarm, ...], counts: EventCounts) -> None:
    """Collect alarms. Every kind has a sample, so that an alert rule can refer to it."""
    for kind in AlarmKind:
        samples.put(names.ALARMS, sum(alarm.kind is kind for alarm in raised), kind.value)
        samples.put(names.ALARMS_RAISED, counts.alarms[kind.value], kind.value)


def hosts(
    samples: Samples, links: Iterable[HostLink], language_hosts: Iterable[LanguageHost], counts: EventCounts
) -> None:
    """Collect the hosts of each backend, and the language hosts of each runtime. After libraries have changed, a
    backend may have hosts of two generations. The numbers of hosts and sessions and the memory are then sums over both
    generations."""
    for link in links:
        samples.add(names.HOST_UP, 1, link.backend)
        samples.add(names.HOST_SESSIONS, len(link.sessions), link.backend)
        samples.add(names.HOST_MEMORY, resident_bytes(link.pid) or 0, link.backend)
        samples.put(names.HOST_LIMIT, link.memory_mb << 20, link.backend)
        samples.put(names.HOST_LOSSES, 0, link.backend)
    for host in language_hosts:
        samples.add(names.HOST_UP, 1, host.form.runtime)
        samples.add(names.HOST_MEMORY, resident_bytes(host.pid) or 0, host.form.runtime)
        samples.put(names.HOST_LOSSES, 0, host.form.runtime)
    for backend, count in counts.losses.items():
        samples.add(names.HOST_UP, 0, backend)
        samples.put(names.HOST_LOSSES, count, backend)


def device(samples: Samples, busy: float, power_mode: str, readings: Readings) -> None:
    """Collect the state of the box: load, power mode, temperatures and clock rates. `busy` is the share of the
    processors in use; `power_mode` is empty if the box has none."""
    samples.put(names.BUSY, busy)
    if power_mode:
        samples.put(names.POWER_MODE, 1, power_mode)
    for zone, celsius in readings.temperatures.items():
        samples.put(names.TEMPERATURE, celsius, zone)
    for cpu, hertz in readings.clocks.items():
        samples.put(names.CPU_FREQUENCY, hertz, cpu)
    for cpu, hertz in readings.highest.items():
        samples.put(names.CPU_FREQUENCY_MOST, hertz, cpu)


def process(samples: Samples) -> None:
    """Collect the daemon's process under Prometheus' standard names. Values that cannot be read are left out."""
    memory = resident_bytes(os.getpid())
    if memory is not None:
        samples.put(names.PROCESS_MEMORY, memory)
    spent = os.times()
    samples.put(names.PROCESS_CPU, spent.user + spent.system)
    with contextlib.suppress(OSError):
        samples.put(names.PROCESS_FILES, len(os.listdir("/proc/self/fd")))
    samples.put(names.PROCESS_MOST_FILES, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    samples.put(names.PROCESS_THREADS, _thread_count())
    samples.put(names.PROCESS_STARTED, STARTED)
    for task, count in tasks.FAILURES.items():
        samples.put(names.TASK_FAILURES, count, task)


def _thread_count() -> int:
    """Return the number of threads of this process; without /proc, only the number of Python's own threads."""
    with contextlib.suppress(OSError):
        return len(os.listdir("/proc/self/task"))
    return threading.active_count()
