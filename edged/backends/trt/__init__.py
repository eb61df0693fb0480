"""TensorRT of every generation, and TensorRT-RTX, through one adapter: it asks the module what it has, never a version.

options.py   what a build is asked for; pure
plan.py      the header of a built engine, read before anything is loaded; pure
api.py       which module, its version, what of it is used
log.py       what the runtime says: errors kept for one line, nothing printed
network.py   from the ONNX file to a network, with every reason why not
config.py    from a recipe to a builder's configuration
progress.py  how far a build is
timings.py   what was measured of this device, kept between builds
summary.py   what became of the model's layers
build.py     these in order
failure.py   what the runtime's last words mean; pure
load.py      from an engine's bytes to an engine of the runtime
open.py      from there to a session
session.py   an opened engine, with tensors.py and buffers.py
backend.py   the contract
"""

from edged.device import nvidia

nvidia.use_pci_order()  # CUDA reads its environment once, when it is initialised; a builder does that, too
