"""One-shot child processes: inspect, build, verify, time and repair. Only they import onnx."""
