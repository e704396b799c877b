"""Contractions of three operands, which schedules may compute in stages."""

from __future__ import annotations

import numpy as np

import ocannl_core as oc
from ocannl_core.ir.target import Target


def test_contractions_of_three_operands_and_their_gradients(target: Target) -> None:
    numbers = np.random.default_rng(0)
    sizes = ((24, 20), (20, 28), (28, 12))
    arrays = [numbers.integers(-2, 3, size).astype(np.float32) for size in sizes]
    operands = [oc.param(f"x{n}", init=oc.tensor(each)) for n, each in enumerate(arrays)]
    product = oc.einsum("ij; jk; kl => il", *operands)
    context = oc.Context(str(target))
    grads = [each.grad for each in operands if each.grad is not None]
    step = context.compile(
        oc.train.grad_update(oc.einsum("... => 0", product)), keep=[product, *grads]
    )
    context.init_params(product)
    step()
    a, b, c = arrays
    ones = np.ones((24, 12), np.float32)
    expected = [a @ b @ c, ones @ (b @ c).T, a.T @ ones @ c.T, (a @ b).T @ ones]
    for tensor, cells in zip([product, *grads], expected, strict=True):
        np.testing.assert_array_equal(context[tensor], cells)
