"""The interface of compilers of CUDA C++.

A compiler needs neither a driver nor a device: it takes the name of an architecture and returns
code for exactly that one. Code for a virtual architecture would need a driver as new as the
compiler.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Protocol

OPTIONS = ("--std=c++17", "--fmad=false", "--generate-line-info")
"""Options of NVRTC and nvcc: every operation rounds on its own, as on other backends; divisions,
square roots and subnormal numbers are exact by default.
"""


class CudaCompiler(Protocol):
    """A compiler that works."""

    @property
    def name(self) -> str:
        """Its name, version and place, for people."""
        ...

    @property
    def identity(self) -> str:
        """All that its output depends on besides the text and the architecture."""
        ...

    @property
    def is_emulator(self) -> bool:
        """True if its code runs on the processor of this machine."""
        ...

    def compile(self, text: str, architecture: str, name: str) -> bytes:
        """Return the code of a translation unit for one architecture.

        Args:
            text: The unit.
            architecture: The architecture, such as `sm_90a`.
            name: The name of the unit in messages, and in tables of lines.

        Raises:
            RejectedError: with the messages of the compiler.
        """
        ...


class NvidiaCompiler(ABC):
    """A compiler of NVIDIA, which reports on the code that it writes."""

    __slots__ = ()
    is_emulator = False

    @abstractmethod
    def compile_and_report(
        self, text: str, architecture: str, name: str, *more_options: str
    ) -> tuple[bytes, str]:
        """Return a cubin and the messages of the compiler; arguments and errors as `compile`."""

    def compile(self, text: str, architecture: str, name: str) -> bytes:
        """Return a cubin, as compilers do."""
        cubin, _ = self.compile_and_report(text, architecture, name)
        return cubin


class RejectedError(Exception):
    """A compiler rejected a translation unit; the text is its messages."""


def architecture_of(capability: tuple[int, int]) -> str:
    """Return the architecture of devices of a compute capability.

    From Hopper on it includes the instructions that only this generation has.
    """
    major, minor = capability
    return f"sm_{major}{minor}{'a' if major >= 9 else ''}"
