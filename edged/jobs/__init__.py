"""Code of one-shot child processes that inspect, build, verify, time and repair models. Only this code imports onnx."""
