"""Calls that read a daemon's health and metrics."""

from __future__ import annotations

import urllib.request
from pathlib import Path

import grpc
import numpy as np
import onnx
from grpc_health.v1 import health_pb2, health_pb2_grpc
from prometheus_client.parser import text_string_to_metric_families

from edged.proto import open_inference_pb2 as pb
from tests import models
from tests.integration.daemon import Daemon
from tests.integration.inference_calls import method, request

Status = health_pb2.HealthCheckResponse
Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def put(daemon: Daemon, name: str, proto: onnx.ModelProto) -> Path:
    """Save a model in the daemon's models folder."""
    return models.save(proto, daemon.models / name / "1" / "model.onnx")


def check(channel: grpc.Channel, service: str) -> int:
    """Return the status of a service by grpc.health.v1; SERVICE_UNKNOWN for NOT_FOUND."""
    try:
        stub = health_pb2_grpc.HealthStub(channel)
        answer: int = stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=10).status
    except grpc.RpcError as error:
        if error.code() is not grpc.StatusCode.NOT_FOUND:
            raise
        answer = Status.SERVICE_UNKNOWN
    return answer


def model_ready(channel: grpc.Channel, name: str) -> bool | tuple[grpc.StatusCode, str]:
    """Return the answer of Triton's ModelReady, or the status and message of its error."""
    try:
        return bool(method(channel, "ModelReady")(pb.ModelReadyRequest(name=name), timeout=10).ready)
    except grpc.RpcError as error:
        return error.code(), error.details() or ""


def infer(channel: grpc.Channel, name: str, tensor: str, datatype: str, array: np.ndarray) -> grpc.StatusCode:
    """Send a request with one tensor; return its status."""
    try:
        method(channel, "ModelInfer")(request(name, array, tensor, datatype), timeout=30)
    except grpc.RpcError as error:
        code: grpc.StatusCode = error.code()
        return code
    return grpc.StatusCode.OK


def scrape(address: str) -> Samples:
    """Return a daemon's metrics by name and labels, read by Prometheus' own parser."""
    with urllib.request.urlopen(address, timeout=20) as answer:
        text = answer.read().decode()
    found: Samples = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            key = sample.name, frozenset(sample.labels.items())
            assert key not in found, f"{key} appears twice"
            found[key] = sample.value
    return found


def value(samples: Samples, name: str, **labels: str) -> float | None:
    """Return one sample, or None if it does not exist."""
    return samples.get((name, frozenset(labels.items())))
