"""Emulated CUDA devices: kernels run on the processor, below the real PyCUDA.

    python -m ocannl_cuda_emulator --devices 2 -- python program.py

`host_compiler` makes a shared object of the text that NVRTC would compile, `driver` builds a
library in place of the driver that runs such objects. PyCUDA and a C++ compiler are needed.
"""
