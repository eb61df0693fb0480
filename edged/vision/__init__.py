"""Converts pictures to input tensors, and output tensors to detections.

Everything here is pure: functions receive bytes and arrays, and return arrays and frozen structs. They use no sockets,
files, clocks or runtimes. This code runs in engine hosts (the processes that run models), in one-shot child processes
and in clients. The daemon uses it to recognise models, decode sound and choose crops. Only `families.third_party` is
not pure: in hosts and child processes it imports code of other packages.

First, `image` decodes a picture. `prepare` writes the picture, or a region of it, into a slice of the input tensor and
returns its `placement`. After inference, a decoder in `families`, chosen by `family.recognise`, converts the outputs to
`detections` (boxes in pixels of the original picture, after `nms`) or classes. `draw` draws them.

A family is code that recognises one kind of model and decodes its outputs. A new family is a class in `families/`,
listed with its rules in `family.py`.
"""
