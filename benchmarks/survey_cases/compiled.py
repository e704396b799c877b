"""Routines of this project for cases."""

from __future__ import annotations

from typing import Any

import numpy as np

import ocannl_core as oc
from survey_cases import Arrays, Case


def arguments_of(case: Case, arrays: Arrays, *, gradients: bool) -> dict[str, oc.Tensor]:
    """Return the arguments of a case, by name."""
    return {
        name: oc.tensor(
            cells,
            batch_axes=case.batch_axes.get(name, 1),
            input_axes=case.input_axes.get(name, 0),
            label=name,
            requires_grad=gradients and cells.dtype.kind == "f",
        )
        for name, cells in arrays.items()
    }


def compile_case(case: Case, arrays: Arrays, gradients: bool, backend: str | None) -> Any:
    """Return a routine of the case, its context, and its results: the value, and gradients."""
    arguments = arguments_of(case, arrays, gradients=gradients)
    value = case.own(*arguments.values())
    context = oc.Context(backend)
    if not gradients:
        routine = context.compile(oc.train.forward(value), keep=[value])
        context.init_params(value)
        return routine, context, [value]
    dims = value.info.dims  # closes the shapes
    assert dims is not None
    shape = value.shape
    rows = {"batch": shape.batch.sizes, "input": shape.input.sizes, "output": shape.output.sizes}
    weights = oc.placeholder("weights", **rows)
    loss = oc.einsum("...|...->... => 0", value * weights)
    parameters = list(value.params.values())
    wanted = [each.grad for each in arguments.values() if each.requires_grad]
    kept = [value, *wanted, *(each.grad for each in parameters)]
    routine = context.compile(oc.train.grad_update(loss), keep=kept)
    context.init_params(loss)
    context[weights] = cell_weights(tuple(dims))
    return routine, context, [value, *wanted]


def cell_weights(shape: tuple[int, ...]) -> Any:
    """Return the weights with which the cells of a result are summed up to be differentiated."""
    return np.random.default_rng(2).standard_normal(shape, dtype=np.float32)
