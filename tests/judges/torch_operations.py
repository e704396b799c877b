"""The operations here that compute what an operation of PyTorch's sample database computes.

An adapter takes the arguments of PyTorch, with tensors of this package in place of tensors, and
raises `NotOurs` for arguments that have no counterpart.
"""

from tests.judges import torch_products, torch_rearrangements, torch_reductions
from tests.judges.torch_arguments import OPERATIONS, NotOurs

__all__ = ["OPERATIONS", "NotOurs", "torch_products", "torch_rearrangements", "torch_reductions"]
