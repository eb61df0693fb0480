"""One-shot child processes: inspect, build, verify, time and repair. Only code in this folder imports onnx."""
