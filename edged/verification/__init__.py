"""Compares the answers of engines (compiled models) with those of the reference (unoptimised ONNX Runtime), and accepts
or rejects the engines. Used by the daemon and its child processes."""
