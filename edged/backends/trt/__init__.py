"""TensorRT of every generation, and TensorRT-RTX, through one adapter that asks what a module has, not its version.

options.py   what a build is asked for; pure
api.py       which module, its version, what of it is used
log.py       the runtime's messages: errors kept for one line, with what to do about them; nothing printed
network.py   from the ONNX file to a network, with every reason why not
build.py     from a recipe to the builder's configuration, the build, and the precisions of the engine's layers
progress.py  how far a build is
timings.py   timing cache of this device, kept between builds
load.py      from an engine's bytes, by way of their header, to an open session
session.py   an opened engine, with tensors.py: its inputs and outputs and their memory
backend.py   the contract
"""

from edged.device import nvidia

nvidia.use_pci_order()  # CUDA reads its environment once, when it is initialised; a builder does that, too
