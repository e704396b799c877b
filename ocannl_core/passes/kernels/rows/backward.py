"""Flash-attention backward: the steps that read the matrices of an attention recompute them.

    nest s, m, e, l, w, o      the attention: o = f(s) @ v, where m and l are statistics of rows
    nest p = g @ v.T           a further product of rows and columns
    nest d = the sum of w * p  a sum over columns, which is one over cells as well
    nest u = f'(s, p, m, l, d) a function of products
    nest u @ b, u.T @ a        products that recompute u

No kernel stores a matrix of rows and columns if all readers of such a matrix recompute it, and the
attention stores its statistics.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import field
from math import prod

from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.ir.kernels.nest import KernelNest
from ocannl_core.ir.kernels.nest_plan import NestPlan, mentioned, nest_of, written
from ocannl_core.ir.node import TensorNode
from ocannl_core.passes.kernels.defining_stores import DefiningStores
from ocannl_core.passes.kernels.rows.backward_delta import FactoredSum, factored_sum
from ocannl_core.passes.kernels.rows.recognise_attention import TracedAttention, attentions_at
from ocannl_core.passes.kernels.rows.trace import is_sum


@dataclass(slots=True)
class BackwardSteps:
    """The steps of flash-attention backward, which recompute matrices.

    Attributes:
        matrices: The nodes that no kernel stores.
        removed: The positions of steps that computed them for others.
    """

    plan: NestPlan
    attention: tuple[int, ...]
    matrices: set[TensorNode]
    removed: set[int] = field(default_factory=set)
    products: dict[int, TracedAttention] = field(default_factory=dict)
    sums: dict[int, FactoredSum] = field(default_factory=dict)

    @property
    def members(self) -> frozenset[int]:
        """The positions of all its steps."""
        return frozenset((*self.attention, *self.removed, *self.products, *self.sums))

    def readers(self) -> list[int]:
        """Return the positions of other steps that mention its matrices."""
        members = self.members
        return [
            at
            for at, step in enumerate(self.plan.steps)
            if at not in members and not self.matrices.isdisjoint(mentioned(step))
        ]

    def loads(self) -> frozenset[TensorNode]:
        """Return the nodes that its new steps load."""
        found = [each.attention.loaded for each in self.products.values()]
        found += [mentioned(each.step) for each in self.sums.values()]
        return frozenset().union(*found)

    def matrix_bytes(self) -> int:
        """Return the bytes of its matrices."""
        return sum(self.plan.nodes[node].nbytes for node in self.matrices)

    def traffic(self) -> int:
        """Return the bytes of matrices that its steps load and store one by one."""
        return sum(
            self.plan.nodes[node].nbytes
            for node in self.matrices
            for step in self.plan.steps
            if node in mentioned(step)
        )

    def recomputed(self) -> int:
        """Return the multiplications that its steps do beyond the plan's."""
        before = [
            nest
            for at in self.removed
            if (nest := nest_of(self.plan.steps[at])) is not None and nest.reduction is not None
        ]
        after = [nest for each in self.products.values() for nest in each.nests[:-1]]
        return sum(map(_size, after)) - sum(map(_size, before))


def _size(nest: KernelNest) -> int:
    return prod(axis.extent for axis in nest.axes)


def find_backward(found: TracedAttention, matrices: Collection[TensorNode]) -> BackwardSteps | None:
    """Return the steps that recompute the matrices of an attention; None if some step cannot."""
    plan, defined = found.plan, found.trace.defined
    backward = BackwardSteps(plan, found.members, set(matrices))
    while readers := backward.readers():
        at = readers[0]
        product = _recomputed_product(defined, at, backward.matrices)
        if product is not None:
            backward.products[at] = product
            traced = product.trace
        else:
            total = factored_sum(defined, at, found.position)
            if total is not None:
                backward.sums[at] = total
                traced = total.trace
            elif _is_recomputable(plan, at) and all(map(defined.of, written(plan.steps[at]))):
                backward.removed.add(at)
                backward.matrices |= written(plan.steps[at])
                continue
            else:
                return None
        backward.matrices |= traced.cells.keys()
        backward.removed |= traced.members.keys() - set(found.members)
    stored = {node for at in backward.removed for node in written(plan.steps[at])}
    is_whole = stored <= backward.matrices <= set(plan.scratch)
    loads = backward.loads() | found.attention.loaded
    return backward if is_whole and backward.matrices.isdisjoint(loads) else None


def _is_recomputable(plan: NestPlan, at: int) -> bool:
    """Return True if a step is a function of cells, or of the sums of a product."""
    nest = nest_of(plan.steps[at])
    return nest is not None and (nest.reduction is None or is_sum(nest))


def _recomputed_product(
    defined: DefiningStores, at: int, matrices: Collection[TensorNode]
) -> TracedAttention | None:
    """Return the attention of a product with a factor that recomputes one of some matrices."""
    for found in attentions_at(defined, at, runs=False):
        if not found.trace.cells.keys().isdisjoint(matrices):
            return found
    return None
