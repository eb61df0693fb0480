"""CUDA behind one contract, through pycuda or cuda-bindings. Importing this imports neither.

contract.py          what edged needs of CUDA
devices.py           opens a GPU, and checks that CUDA numbers GPUs as the device's facts do
pycuda_driver.py     the contract by pycuda
bindings_driver.py   the contract by cuda-bindings
graphs.py            CUDA graphs, which only cuda-bindings has, and how its functions are called
"""

from edged.backends.cuda.devices import LIBRARIES, open_device

__all__ = ["LIBRARIES", "open_device"]
