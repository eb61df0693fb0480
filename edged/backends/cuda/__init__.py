"""CUDA behind one contract, by whichever Python package is installed. Importing this imports neither.

contract.py          what edged needs of CUDA
choice.py            which package it is
numbering.py         whether CUDA numbers GPUs as the facts of the device do
pycuda_driver.py     by pycuda
bindings_driver.py   by cuda-bindings
limits.py            what both packages need beside CUDA
bindings_calls.py    how a function of cuda-bindings is called
graphs.py            graphs, which only cuda-bindings has
"""

from edged.backends.cuda.choice import LIBRARIES, open_device

__all__ = ["LIBRARIES", "open_device"]
