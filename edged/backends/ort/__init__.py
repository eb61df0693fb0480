"""Parts of the backend `onnxruntime`. This file sets the environment before the runtime is imported."""

from __future__ import annotations

import os

from edged.device import nvidia

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # read when the runtime is imported
nvidia.use_pci_order()  # CUDA reads its environment once, when it is initialised
