"""The operations of `periods.py`: a Fourier transform, a look-up in a table, an update in place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

import ocannl_core as oc
from ocannl_core.tensor.custom import Apply, Op

Array = npt.NDArray[Any]
Storage = list[list[Any]]


class FourierTransform(Op):
    """The discrete Fourier transform along the last axis but one of rows of real vectors.

    Real and imaginary parts are the last axis of the result, of size 2.
    """

    __props__ = ()
    spec = "...|n, w => ...|n, w, 2"

    def perform(self, node: Apply, inputs: Sequence[Array], output_storage: Storage) -> None:
        (x,), (z,) = inputs, output_storage
        found = np.fft.fft(x, axis=-2)
        if z[0] is None:
            z[0] = np.empty((*x.shape, 2), x.dtype)
        z[0][..., 0] = found.real
        z[0][..., 1] = found.imag

    def grad(self, inputs: Sequence[oc.Tensor], output_gradients: Sequence[oc.Tensor]) -> list[Any]:
        return [AdjointTransform()(output_gradients[0])]


class AdjointTransform(Op):
    """The transpose of `FourierTransform` as a linear map: the real part of the inverse transform,
    times n.
    """

    __props__ = ()
    spec = "...|n, w, 2 => ...|n, w"

    def perform(self, node: Apply, inputs: Sequence[Array], output_storage: Storage) -> None:
        (x,), (z,) = inputs, output_storage
        found = np.fft.ifft(x[..., 0] + 1j * x[..., 1], axis=-2).real * x.shape[-3]
        z[0] = found.astype(x.dtype, copy=False)

    def grad(self, inputs: Sequence[oc.Tensor], output_gradients: Sequence[oc.Tensor]) -> list[Any]:
        return [FourierTransform()(output_gradients[0])]


class Rows(Op):
    """Rows of a table at given positions; zeros for positions outside the table."""

    __props__ = ()
    spec = "r, w; ...|n => ...|n, w"
    input_names = ("table", "positions")
    output_names = ("found",)

    def output_dtypes(self, *dtypes: oc.DType) -> list[oc.DType]:
        table, _ = dtypes
        return [table]

    def perform(self, node: Apply, inputs: Sequence[Array], output_storage: Storage) -> None:
        (table, positions), (found,) = inputs, output_storage
        is_row = (positions >= 0) & (positions < len(table))
        found[0] = np.where(is_row[..., None], table[np.where(is_row, positions, 0)], 0)
        found[0] = found[0].astype(table.dtype, copy=False)

    def grad(self, inputs: Sequence[oc.Tensor], output_gradients: Sequence[oc.Tensor]) -> list[Any]:
        table, positions = inputs
        return [AddedRows()(table, positions, output_gradients[0]), None]

    def c_code(self, node: Apply) -> str:
        return """
            const int64_t width = table_shape[1];
            for (int64_t i = 0; i < positions_size; ++i) {
              const int64_t row = positions[i];
              const int is_row = row >= 0 && row < table_shape[0];
              for (int64_t j = 0; j < width; ++j)
                found[i * width + j] = is_row ? table[row * width + j] : 0;
            }
        """

    def cuda_code(self, node: Apply) -> str:
        return """
            const int64_t width = table_shape[1];
            const int64_t cell = blockIdx.x * (int64_t)blockDim.x + threadIdx.x;
            if (cell < found_size) {
              const int64_t row = positions[cell / width];
              const bool is_row = row >= 0 && row < table_shape[0];
              found[cell] = is_row ? table[row * width + cell % width] : 0;
            }
        """

    def cuda_launch(self, node: Apply) -> tuple[tuple[int, ...], tuple[int, ...]]:
        threads = 256
        return (-(-node.results[0].shape.size // threads),), (threads,)


class AddedRows(Op):
    """The sum, for each row of a table, of the vectors that belong to its position.

    The cells of the table are not read; only its number of rows is used.
    """

    __props__ = ()
    spec = "r, w; ...|n; ...|n, w => r, w"
    input_names = ("table", "positions", "vectors")
    output_names = ("sums",)

    def output_dtypes(self, *dtypes: oc.DType) -> list[oc.DType]:
        return [dtypes[2]]

    def perform(self, node: Apply, inputs: Sequence[Array], output_storage: Storage) -> None:
        (table, positions, vectors), (sums,) = inputs, output_storage
        if sums[0] is None:
            sums[0] = np.empty(table.shape, vectors.dtype)
        sums[0][...] = 0
        is_row = (positions >= 0) & (positions < len(table))
        np.add.at(sums[0], positions[is_row], vectors[is_row])

    def grad(self, inputs: Sequence[oc.Tensor], output_gradients: Sequence[oc.Tensor]) -> list[Any]:
        _, positions, _ = inputs
        return [None, None, Rows()(output_gradients[0], positions)]

    def c_code(self, node: Apply) -> str:
        return """
            const int64_t width = table_shape[1];
            memset(sums, 0, sizeof(sums_type) * sums_size);
            for (int64_t i = 0; i < positions_size; ++i) {
              const int64_t row = positions[i];
              if (row < 0 || row >= table_shape[0]) continue;
              for (int64_t j = 0; j < width; ++j)
                sums[row * width + j] += vectors[i * width + j];
            }
        """


@dataclass(frozen=True)
class Momentum(Op):
    """A step of gradient descent with momentum, over the memory of the parameter.

    Attributes:
        learning_rate: The step size.
        momentum: The share of the velocity that is kept.
    """

    learning_rate: float
    momentum: float

    spec = "...->...; ...->...; ...->... => ...->..."
    destroy_map = {0: [0], None: [2]}  # noqa: RUF012
    input_names = ("parameter", "gradient", "velocity")
    output_names = ("updated",)

    def perform(self, node: Apply, inputs: Sequence[Array], output_storage: Storage) -> None:
        parameter, gradient, velocity = inputs
        velocity *= velocity.dtype.type(self.momentum)
        velocity += gradient
        parameter -= parameter.dtype.type(self.learning_rate) * velocity
        output_storage[0][0] = parameter

    def c_code(self, node: Apply) -> str:
        return f"""
            for (int64_t i = 0; i < parameter_size; ++i) {{
              const velocity_type kept = velocity[i] * (velocity_type){self.momentum!r};
              velocity[i] = kept + gradient[i];
              updated[i] = parameter[i] - (parameter_type){self.learning_rate!r} * velocity[i];
            }}
        """
