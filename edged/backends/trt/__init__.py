"""All generations of TensorRT, and TensorRT-RTX, through one adapter that looks for features, not at versions.

options.py   options of a build; pure
api.py       imports the module, finds its version, and declares the types that are used
log.py       collects the runtime's messages; turns errors into one line with a remedy; prints nothing
network.py   parses an ONNX file into a network, or reports every reason why it cannot
build.py     configures the builder, builds an engine, and reports the precisions of its layers
progress.py  the progress of a build
timings.py   the timing cache of this device, kept between builds
load.py      checks an engine's header and opens the engine
session.py   an opened engine; tensors.py has its inputs and outputs and their memory
backend.py   implements the contract
"""

from edged.device import nvidia

# CUDA reads its environment variables only once, when it is initialised; creating a builder initialises it.
nvidia.use_pci_order()
