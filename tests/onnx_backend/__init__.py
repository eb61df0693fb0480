"""The test models of the `onnx` package, served: `python -m tests.onnx_backend` (`make test-onnx-backend`)."""
