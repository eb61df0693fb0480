"""Stands in for joblib and scikit-learn, so that exports can be tested without them. The "pickle" is the name of a
fault that the estimator has; a good one has none."""

from __future__ import annotations

import os
import socket
import subprocess
from pathlib import Path

import numpy as np

WEIGHTS = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)


class Estimator:
    n_features_in_ = 4
    classes_ = (0, 1, 2)

    def __init__(self, fault: str) -> None:
        self.fault = fault

    def predict(self, rows: np.ndarray) -> np.ndarray:
        if self.fault == "objects":  # which only code can read again
            return np.full(len(rows), object())
        return self.predict_proba(rows).argmax(1)

    def predict_proba(self, rows: np.ndarray) -> np.ndarray:
        if self.fault == "exit":
            os._exit(3)
        scores = np.exp(rows @ WEIGHTS)
        return scores / scores.sum(1, keepdims=True)


def load(path: str) -> Estimator:
    fault = Path(path).read_text()
    print("a framework prints to standard output")
    if fault == "network":
        socket.create_connection(("127.0.0.1", 9), timeout=1)
    if fault == "write":
        Path(path).with_name("written").touch()
    if fault == "missing":
        import a_package_that_is_missing  # noqa: F401
    if fault == "escape":
        subprocess.Popen(["sleep", "2718.3"], start_new_session=True)
    if fault == "links":  # at every name that the command may write
        for name in ("asked.npz", "finished.onnx", "layers.npz", "traced.onnx"):
            Path(os.environ["TMPDIR"], name).symlink_to(Path(path).with_name("victim"))
    return Estimator(fault)
