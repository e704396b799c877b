"""Operations by name, so that the operators of expressions can find what is defined in terms of
expressions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

operations: dict[str, Callable[..., Any]] = {}
"""Every named operation; filled by the modules that define operations."""

code_of: dict[str, Callable[..., Any]] = {}
"""Functions that return a part of a tensor's code, by the name of the method of tensors that calls
them.
"""
