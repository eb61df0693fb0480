"""Pickled estimators of scikit-learn, LightGBM and XGBoost. A pickle is code, so it is only loaded with --trust."""

from __future__ import annotations

import importlib
from typing import Any

import joblib
import numpy as np
from edged_frameworks.contract import Arrays, Input, Loaded, Refused, Request

_CONVERTERS = {"lightgbm": "convert_lightgbm", "xgboost": "convert_xgboost"}


def load(request: Request) -> Loaded:
    if not request.trust:
        raise Refused("a pickle can execute any code when it is loaded; give --trust if you trust the file")
    if request.half or request.weights or request.imgsz or "size" in request.dynamic:
        raise Refused(
            "--half, --weights, --imgsz and --dynamic size cannot be used with an estimator: it takes rows of numbers"
        )
    return _Estimator(joblib.load(request.source)).loaded()


class _Estimator:
    def __init__(self, estimator: Any) -> None:
        self._estimator = estimator
        self._package = type(estimator).__module__.partition(".")[0]
        columns = getattr(estimator, "n_features_in_", None)
        if columns is None:
            raise Refused(f"{type(estimator).__name__} is not a fitted estimator; fit it before you save it")
        self._columns = int(columns)

    def loaded(self) -> Loaded:
        version = getattr(importlib.import_module(self._package), "__version__", "")
        inputs = {"input": Input("float32", [1, self._columns], {0: "batch"})}
        return Loaded(f"{self._package} {version}", inputs, self.export, self.answer)

    def export(self, out: str, opset: int | None, way: str) -> None:
        if self._package in _CONVERTERS:
            import onnxmltools
            from onnxmltools.convert.common.data_types import FloatTensorType

            convert = getattr(onnxmltools, _CONVERTERS[self._package])
            options = {"zipmap": False} if self._package == "lightgbm" else {}
            made = convert(
                self._estimator,
                initial_types=[("input", FloatTensorType([None, self._columns]))],
                target_opset=opset or 15,
                **options,
            )
        else:
            from skl2onnx import to_onnx
            from skl2onnx.common.data_types import FloatTensorType as Floats

            is_classifier = hasattr(self._estimator, "classes_")
            made = to_onnx(
                self._estimator,
                initial_types=[("input", Floats([None, self._columns]))],
                target_opset={"": opset or 18, "ai.onnx.ml": 3},
                options={"zipmap": False} if is_classifier else None,
            )
        with open(out, "wb") as file:
            file.write(made.SerializeToString())

    def answer(self, inputs: Arrays) -> Arrays:
        rows = inputs["input"]
        found = {"label": np.asarray(self._estimator.predict(rows))}
        if hasattr(self._estimator, "predict_proba"):
            found["probabilities"] = np.asarray(self._estimator.predict_proba(rows), np.float32)
        return found
