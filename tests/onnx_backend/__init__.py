"""The test models of the `onnx` package, served by a daemon: `python -m tests.onnx_backend`."""
