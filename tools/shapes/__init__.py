"""Trains and evaluates the detector in `edged/shapes/shapes.onnx`."""
