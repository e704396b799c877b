"""Operations that run in Python, between kernels, on copies of a device's memory."""

from ocannl_core.backend.host_calls import host_call

__all__ = ["host_call"]
