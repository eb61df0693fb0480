"""Pieces of the backend `onnxruntime`. This file sets what must be set before the runtime is imported."""

from __future__ import annotations

import os

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # read when the runtime is imported
# "cuda:N" counts by PCI address, as the facts of the device do. CUDA by itself counts the fastest first, and reads
# this once, when it is initialised: whatever the environment says, N must be the device that the engine's key names.
os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
