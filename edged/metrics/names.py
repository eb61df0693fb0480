"""The list of all metrics. Dashboards and alert rules depend on names and labels; docs/metrics.md has the same list.

Units are Prometheus' base units: seconds, bytes, ratios from 0 to 1. Counters start at 0 with the daemon. A model's
counters, except its swaps, restart at 0 when the model changes.
"""

from __future__ import annotations

import functools
from typing import Literal, TypeAlias

import msgspec

Kind: TypeAlias = Literal["gauge", "counter", "histogram"]


class Metric(msgspec.Struct, frozen=True):
    """One metric. `name` is the scraped name, to which a histogram's samples add `_bucket`, `_sum` and `_count`."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()


ALL: list[Metric] = []


def _listed(kind: Kind, name: str, text: str, *labels: str) -> Metric:
    ALL.append(Metric(name, kind, text, labels))
    return ALL[-1]


_gauge = functools.partial(_listed, "gauge")
_counter = functools.partial(_listed, "counter")
_histogram = functools.partial(_listed, "histogram")

INFO = _gauge("edged_info", "1, with the version of the daemon.", "version")
UPTIME = _gauge("edged_uptime_seconds", "Time since the daemon started.")
READY = _gauge("edged_ready", "1 while every model that can be served is ready, otherwise 0.")

MODEL_READY = _gauge("edged_model_ready", "1 while a model answers, otherwise 0.", "model")
MODEL_STATE = _gauge(
    "edged_model_state", "1 for the current state of a model, 0 for its other states.", "model", "state"
)
MODEL_DEGRADED = _gauge("edged_model_degraded", "1 for each kind of active alarm of a model.", "model", "reason")
MODEL_REQUESTS = _counter(
    "edged_model_requests_total",
    "Frames and tensor requests to a model, by outcome.",
    "model",
    "outcome",
)
MODEL_NOT_FINITE = _counter(
    "edged_model_not_finite_total", "Answers in which an output held NaN or infinity.", "model", "output"
)
MODEL_QUEUE_DEPTH = _gauge("edged_model_queue_depth", "Requests and frames that wait in a model's queue.", "model")
MODEL_INFERENCE = _histogram("edged_model_inference_seconds", "Time of one run of a model's engine.", "model")
MODEL_REQUEST = _histogram(
    "edged_model_request_seconds", "Time from the arrival of a request or frame to its answer.", "model"
)
MODEL_LAST = _gauge(
    "edged_model_last_inference_timestamp_seconds", "When a model's engine last ran; 0 for never.", "model"
)
MODEL_SWAPS = _counter("edged_model_swaps_total", "Engines that replaced another as the serving engine.", "model")

DRIFT_CHECKS = _counter(
    "edged_drift_checks_total", "Frames that the reference also answered, by outcome.", "model", "outcome"
)
DRIFT_AGREEMENT = _gauge(
    "edged_drift_agreement_ratio", "Mean agreement of the last served answers with the reference's.", "model"
)
DRIFT_CPU = _counter("edged_drift_cpu_seconds_total", "Processor time of the checks for drift.", "model")

LANGUAGE_TOKENS = _counter(
    "edged_language_tokens_total",
    "Tokens of a language model; cached: those of prompts that were known from an earlier request.",
    "model",
    "kind",
)

PIPELINE_READY = _gauge("edged_pipeline_ready", "1 while both models of a pipeline are ready, otherwise 0.", "pipeline")
PIPELINE_FRAMES = _counter("edged_pipeline_frames_total", "Frames of a pipeline, by outcome.", "pipeline", "outcome")
PIPELINE_CROPS = _counter(
    "edged_pipeline_crops_total",
    "Detections for a pipeline's second model, by outcome. left_out: the frame has too many detections, or the"
    " detection's box has no area.",
    "pipeline",
    "outcome",
)

CAMERAS = _gauge("edged_cameras", "Known cameras, including those without separate metrics.")
CAMERA_RECEIVED = _counter("edged_camera_frames_received_total", "Frames that were received.", "camera", "model")
CAMERA_ANSWERED = _counter("edged_camera_frames_answered_total", "Frames that were answered.", "camera", "model")
CAMERA_FAILED = _counter(
    "edged_camera_frames_failed_total", "Frames that were answered with an error.", "camera", "model"
)
CAMERA_DROPPED = _counter(
    "edged_camera_frames_dropped_total", "Frames whose connection ended before their answer.", "camera", "model"
)
CAMERA_SKIPPED = _counter("edged_camera_frames_skipped_total", "Frames that were skipped.", "camera", "model", "reason")
CAMERA_AGE = _histogram(
    "edged_camera_age_seconds", "Time from the capture of a frame to its answer.", "camera", "model"
)

CAMERA_STATE = _gauge(
    "edged_camera_state", "1 for the current state of a configured camera, otherwise 0.", "camera", "model", "state"
)
CAMERA_RECONNECTIONS = _counter(
    "edged_camera_reconnections_total", "How often a configured camera was reconnected.", "camera", "model"
)
ZONE_OCCUPIED = _gauge("edged_zone_occupied", "1 while something is in a zone of a camera.", "camera", "zone")
ZONE_OBJECTS = _gauge("edged_zone_objects", "Objects in a zone of a camera.", "camera", "zone", "label")
ZONE_VISITS = _counter("edged_zone_visits_total", "How often a zone became occupied.", "camera", "zone")
LINE_CROSSINGS = _counter(
    "edged_line_crossings_total",
    "Objects that crossed a line of a camera; direction is in or out.",
    *("camera", "line", "direction", "label"),
)

ENGINE_STATE = _gauge(
    "edged_engine_state", "1 for the current state of an engine.", "model", "engine", "backend", "state"
)
ENGINE_SERVING = _gauge("edged_engine_serving", "1 while an engine serves its model.", "model", "engine", "backend")
ENGINE_COST = _gauge(
    "edged_engine_latency_ratio",
    "Ratio of the time of one inference to the reference's, both measured alternately.",
    *("model", "engine", "backend"),
)
ENGINE_BASELINE = _gauge(
    "edged_engine_baseline_seconds",
    "Lowest median time of one inference of this build of the engine since the model was loaded.",
    *("model", "engine", "backend"),
)
ENGINE_ACCEPTED = _gauge(
    "edged_engine_accepted", "1 if an engine's answers are right, otherwise 0.", "model", "engine", "backend"
)
ENGINE_FALLBACK = _gauge(
    "edged_engine_fallback",
    "Reports of nodes that run on another device than the engine's.",
    "model",
    "engine",
    "backend",
)

HOST_UP = _gauge("edged_host_up", "Running hosts of engines and of language models.", "backend")
HOST_LOSSES = _counter(
    "edged_host_losses_total", "Hosts of engines and of language models that died or hung.", "backend"
)
HOST_SESSIONS = _gauge("edged_host_sessions", "Open engines.", "backend")
HOST_MEMORY = _gauge("edged_host_resident_memory_bytes", "Memory of the hosts of a backend.", "backend")
HOST_LIMIT = _gauge("edged_host_memory_limit_bytes", "Memory that a host may use; 0 for no limit.", "backend")

BUILDS = _counter("edged_builds_total", "Engines that were made, verified or tried, by outcome.", "backend", "outcome")
BUILD_SECONDS = _histogram("edged_build_seconds", "Time to make, verify or try one engine.", "backend")
BUILDING = _gauge("edged_builds_running", "Engines that are being made.")
PAUSED = _gauge("edged_builds_paused", "1 while nothing can be stored and therefore nothing is built.")
CACHE_HITS = _counter("edged_cache_hits_total", "Engines that were found in the store.")
CACHE_MISSES = _counter(
    "edged_cache_misses_total", "Engines that were not found, by the difference to the nearest stored one.", "reason"
)
CACHE_DAMAGED = _counter("edged_cache_damaged_total", "Engines of the store that did not match their record.")
STATE_DAMAGED = _counter(
    "edged_state_damaged_total", "Damaged state files of the daemon, which are made again.", "holds"
)
STORE_ENGINES = _gauge("edged_store_engines", "Engines in the store.")
STORE_BYTES = _gauge("edged_store_bytes", "Size of the engines in the store.")
STORE_FREE = _gauge("edged_store_free_bytes", "Free space on the disk of the store.")

REFUSED = _counter(
    "edged_calls_refused_total",
    "Calls that were refused: unauthenticated, denied, or beyond a client's limits.",
    "reason",
)
CALLS_OPEN = _gauge("edged_calls_open", "Running requests and streams.", "kind")
CALL_BYTES = _gauge("edged_call_bytes", "Size of running requests and frames, as clients sent them.")
TASKS = _gauge("edged_tasks", "Tasks of the event loop; a growing number is a bug in edged.")
AUDIT_LOST = _counter("edged_audit_lost_total", "Audit records that could not be written.")

ALARMS = _gauge("edged_alarms", "Active alarms.", "kind")
ALARMS_RAISED = _counter("edged_alarms_raised_total", "Alarms that were raised.", "kind")

BUSY = _gauge("edged_device_cpu_busy_ratio", "Share of the processors in use.")
POWER_MODE = _gauge("edged_device_power_mode_info", "1, with the power mode of the box when it was last read.", "mode")
TEMPERATURE = _gauge("edged_device_temperature_celsius", "Temperature, by thermal zone of the kernel.", "zone")
CPU_FREQUENCY = _gauge("edged_device_cpu_frequency_hertz", "Clock frequency, by processor.", "cpu")
CPU_FREQUENCY_MOST = _gauge(
    "edged_device_cpu_frequency_max_hertz", "Highest clock frequency that the box allows, by processor.", "cpu"
)

PROCESS_MEMORY = _gauge("process_resident_memory_bytes", "Memory of the daemon.")
PROCESS_CPU = _counter("process_cpu_seconds_total", "Processor time of the daemon.")
PROCESS_FILES = _gauge("process_open_fds", "File descriptors of the daemon.")
PROCESS_MOST_FILES = _gauge("process_max_fds", "File descriptors that the daemon may have.")
PROCESS_THREADS = _gauge("process_threads", "Threads of the daemon.")
TASK_FAILURES = _counter(
    "edged_task_failures_total", "Unexpected ends of internal tasks of the daemon, which were restarted.", "task"
)
PROCESS_STARTED = _gauge("process_start_time_seconds", "When the daemon started, in seconds since the epoch.")
