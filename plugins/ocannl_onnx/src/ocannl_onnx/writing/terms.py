"""Right sides of assignments: operands as views, a primitive, and an accumulation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ocannl_core.assignments import (
    Accumulate,
    BinaryOp,
    ComputedIndex,
    FixedIndex,
    Formula,
    IndexMap,
    LoopVar,
    Merge,
    NodeOperand,
    Op,
    Scalar,
    TernaryOp,
    UnaryOp,
    VarIndex,
    neutral,
    saturate,
    working_format,
)
from ocannl_onnx.formats import Format, format_named
from ocannl_onnx.writing import primitives, products
from ocannl_onnx.writing.emitter import (
    BOOL,
    FLOAT32,
    INT32,
    INT64,
    Bytes,
    Emitter,
    WrittenValue,
    computed_in,
)
from ocannl_onnx.writing.primitives import Calculation, Rule
from ocannl_onnx.writing.values import FORMATS, Values
from ocannl_onnx.writing.views import View, Views


@dataclass(frozen=True)
class Terms:
    """The right side of an assignment over one domain.

    Attributes:
        kept: The variables of the result.
    """

    graph: Values
    leaf: Accumulate
    views: Views
    rhs: Sequence[IndexMap]
    kept: Sequence[LoopVar]

    @property
    def op(self) -> Op:
        """The primitive of the assignment."""
        assert not isinstance(self.leaf.op, Formula), "the program has been split"
        return self.leaf.op

    @property
    def emit(self) -> Emitter:
        return self.graph.emit

    def accumulated(self) -> tuple[View, Format]:
        """Return the right side, accumulated over the variables that are not kept, and its
        format.
        """
        if self.op is UnaryOp.BITCAST and self.leaf.combine is BinaryOp.SECOND:
            return self._bits()
        rule, format = self._rule_and_format()
        computed = computed_in(format)
        view = self._accumulated_windows(computed) or self._product_of_bytes(computed)
        if view is None:
            fill = self._fill()
            operands = [
                self._operand(
                    k,
                    BOOL if self.op is TernaryOp.WHERE and k == 0 else computed,
                    fill,
                    is_truth=format == BOOL,
                )
                for k in self._used
            ]
            view = (
                self._product(operands, computed)
                if self._is_product
                else self._pointwise(rule, operands, computed, format)
            )
        return view, computed

    def _bits(self) -> tuple[View, Format]:
        """Return the bits of the operand in the format of the target; all NaN have those of one."""
        emit, target = self.emit, self.graph.format(self.leaf.target)
        source = self._known(self._formats()[0])
        if emit.opset < 26:
            raise self.graph.refuse(f"{target} of the bits of {source} needs opset=26")
        view = self._operand(0, source, 0.0)
        name = emit("BitCast", view.name, to=target.number)
        if source.is_float:
            number = np.array(math.nan, source.numpy).view(target.numpy).item()
            if number == number:
                same = emit.constant(number, target)
                name = emit("Where", emit("IsNaN", view.name), same, name)
        return View(name, view.axes), target

    def _rule_and_format(self) -> tuple[Rule | None, Format]:
        """Return the translation of the primitive, None for a choice, and the format in which it
        works.
        """
        op, found, working = self.op, self._formats(), self._working()
        rule = primitives.RULES.get(op)
        if rule is None and op is not TernaryOp.WHERE:
            self.graph.format(self.leaf.target)
            raise self.graph.refuse(f"ONNX has no counterpart of the primitive {op.value.name}")
        if op is UnaryOp.NOT and found:
            working = found[0]
        elif op is UnaryOp.BIT_NOT and working.name == "bool":
            rule = primitives.RULES[UnaryOp.NOT]
        format = self._known(working)
        numbers = [each.value for each in self.leaf.args if isinstance(each, Scalar)]
        if op.value.gives_truth and not all(_fits(each, format) for each in numbers):
            format = format_named("float64")
        return rule, format

    @property
    def _used(self) -> list[int]:
        """The operands that the primitive reads."""
        every = range(len(self.leaf.args))
        match self.op:
            case BinaryOp.FIRST:
                return [0]
            case BinaryOp.SECOND:
                return [*every[1:]]
            case _:
                return [*every]

    @property
    def _reduced_variables(self) -> list[LoopVar]:
        """The variables to accumulate over."""
        extents = self.views.extents
        return [v for v in extents if v not in self.kept and extents[v] != 1]

    @property
    def _has_computed_positions(self) -> bool:
        maps = (*self.rhs, self.leaf.projections.lhs)
        return any(isinstance(index, ComputedIndex) for each in maps for index in each)

    @property
    def _adds_products(self) -> bool:
        """True if products of the cells of two tensors are added to the target."""
        return (
            self.leaf.combine is BinaryOp.ADD
            and self.op is BinaryOp.MUL
            and not self._has_computed_positions
            and all(isinstance(arg, NodeOperand) for arg in self.leaf.args)
        )

    @property
    def _is_product(self) -> bool:
        """True for a sum of products of two tensors."""
        return self._adds_products and bool(self._reduced_variables)

    def _fill(self) -> float:
        """Return the number beyond the edges of operands."""
        if self.leaf.beyond is not None:
            return self.leaf.beyond
        combine = self.leaf.combine
        return 0.0 if combine is BinaryOp.SECOND else neutral(combine)

    def _accumulated_windows(self, computed: Format) -> View | None:
        """Return a convolution or the maxima of windows; None for other accumulations."""
        if self._is_product:
            return self._windowed_product(computed)
        is_maximum = self.leaf.combine is BinaryOp.MAX and bool(self._reduced_variables)
        if is_maximum and len(self._used) == 1 and not self._has_computed_positions:
            return self._windowed_maximum(computed, self._used[0])
        return None

    def _product(self, operands: Sequence[View], computed: Format) -> View:
        left, right = operands
        made = products.product(self.views, left, right, self.kept)
        return self._repeated(made, {*self.kept, *left.axes, *right.axes}, computed)

    def _product_of_bytes(self, computed: Format) -> View | None:
        """Return a product of matrices of 8 bits as `MatMulInteger`; None for other products."""
        if not self._is_product or computed != INT32:
            return None
        left, right = (self._bytes(k) for k in range(2))
        if left is None or right is None:
            return None
        for (one, a), (other, b) in ((left, right), (right, left)):
            zeros = self._zero_points(a, b)
            made = products.matrix_product(
                self.views,
                one,
                other,
                self.kept,
                lambda x, y, zeros=zeros: self.emit("MatMulInteger", x, y, *zeros),  # type: ignore[misc]
            )
            if made is not None:
                return self._repeated(made, {*self.kept, *one.axes, *other.axes}, computed)
        return None

    def _bytes(self, k: int) -> tuple[View, Bytes] | None:
        """Return an operand as a view of 8 bits, with its zero point; None for other operands."""
        arg = self.leaf.args[k]
        assert isinstance(arg, NodeOperand)
        source = self.graph.value(arg.node)
        if source.is_spread:
            return None
        found = self.emit.bytes_of(source.name)
        if source.format.name in ("int8", "uint8"):
            found = Bytes(source.name, source.format)
        if found is None:
            return None
        if isinstance(found.zero, str) and not all(isinstance(i, VarIndex) for i in self.rhs[k]):
            return None  # cells beyond the edges are the zero point
        edge = 0 if isinstance(found.zero, str) else found.zero
        return self._view(k, replace(source, name=found.name), found.format, edge), found

    def _zero_points(self, left: Bytes, right: Bytes) -> list[str]:
        """Return the zero points of a product of matrices, as the names of values."""
        if left.zero == right.zero == 0:
            return []
        return [
            each.zero if isinstance(each.zero, str) else self.emit.constant(each.zero, each.format)
            for each in (left, right)
        ]

    def overlapping_windows(
        self, lhs: IndexMap, extents: dict[LoopVar, int]
    ) -> tuple[Terms, View, IndexMap] | None:
        """Return a product that is added to overlapping windows as `ConvTranspose`, with terms and
        index map of its result; None for other assignments.

        Args:
            lhs: The index map of the target.
            extents: The extents of the loop variables; variables of the result's axes are
                added.
        """
        is_plain = all(isinstance(index, VarIndex | FixedIndex) for index in lhs)
        if is_plain or not self._adds_products:
            return None
        if computed_in(self._rule_and_format()[1]) != FLOAT32:
            return None
        sizes = self.graph.sizes(self.leaf.target)
        fill = self._fill()
        for x, w in ((0, 1), (1, 0)):
            image, weights = (self._operand(k, FLOAT32, fill) for k in (x, w))
            read = {*image.axes, *weights.axes}
            if any(v not in read for v in self._reduced_variables):
                return None
            found = products.transposed_convolution(self.views, image, weights, lhs, sizes)
            if found is None:
                continue
            view, axes = found
            kept: list[LoopVar] = []
            places: dict[LoopVar, LoopVar] = {}
            for at, axis in enumerate(axes):
                if isinstance(axis, products.OverlappingWindow):
                    place = places[axis.place] = LoopVar(at, "y")
                    extents[place] = axis.size
                    kept.append(place)
                else:
                    kept.append(axis)
            view = View(view.name, tuple(places.get(v, v) for v in view.axes))
            return replace(self, kept=kept), view, tuple(map(VarIndex, kept))
        return None

    def _pointwise(
        self, rule: Rule | None, operands: Sequence[View], computed: Format, format: Format
    ) -> View:
        """Return the primitive of operands, accumulated."""
        reduced = self._reduced_variables
        every = [
            v
            for v in (*self.kept, *reduced)
            if any(v in each.axes for each in operands) or (v in self.views.ones and not reduced)
        ]
        while every and all(every[0] not in each.axes for each in operands):
            del every[0]
        names = [self.views.ordered(each, every) for each in operands]
        calculation = Calculation(self.emit, computed)
        if rule is None:
            name = calculation.where(*names)
        else:
            # a rule of a primitive that reads one of two operands takes the one twice
            name = rule(calculation, *(names * (len(self.leaf.args) // len(names))))
        if self.op is BinaryOp.SUB and format == INT32:
            self._note_zero_point(name, *names)
        view = View(self._rounded(name, computed, format), tuple(every))
        return self._reduced(view, computed) if reduced else view

    def _note_zero_point(self, name: str, cells: str, shift: str) -> None:
        """Note a difference whose right operand is one number."""
        arg = self.leaf.args[1]
        if isinstance(arg, Scalar) and arg.value == int(arg.value):
            self.emit.note_zero_point(name, cells, int(arg.value))
        elif isinstance(arg, NodeOperand) and not self.graph.sizes(arg.node):
            self.emit.note_zero_point(name, cells, shift)

    def _formats(self) -> list[Any]:
        """Return the number formats of the operands that are tensors, without conditions."""
        stated = self.leaf.args[self.op is TernaryOp.WHERE :]
        return [self.graph.info(a.node).dtype for a in stated if isinstance(a, NodeOperand)]

    def _working(self) -> Any:
        """Return the number format in which the primitive works."""
        op, target = self.op, self.graph.info(self.leaf.target).dtype
        if op in (TernaryOp.WHERE, UnaryOp.IDENTITY, BinaryOp.FIRST, BinaryOp.SECOND):
            return target
        numbers = [each.value for each in self.leaf.args if isinstance(each, Scalar)]
        return working_format(op, self._formats(), numbers, target)

    def _known(self, dtype: Any) -> Format:
        if dtype.name not in FORMATS:
            raise self.graph.refuse(f"ONNX has no number format {dtype.name}")
        return format_named(dtype.name)

    def _rounded(self, name: str, computed: Format, format: Format) -> str:
        """Round a number to its working format, if that has less digits than the target's."""
        if computed == format or format == self.graph.format(self.leaf.target):
            return name
        return self.emit.cast(self.emit.cast(name, computed, format), format, computed)

    def _operand(self, k: int, wanted: Format, fill: float, *, is_truth: bool = False) -> View:
        """Return an operand as a view, in a format, without single positions of variables that are
        not kept.

        Args:
            is_truth: True for numbers that are 1 in place of any number but 0.
        """
        arg = self.leaf.args[k]
        match arg:
            case Scalar(value):
                if wanted == BOOL or is_truth:
                    return View(self.emit.constant(value != 0, wanted), ())
                dtype = self._working()
                fits = math.isfinite(value) and _fits(value, format_named(dtype.name))
                if fits and dtype.is_float:
                    value = float(np.float64(value).astype(dtype.numpy))
                return View(self.emit.constant(value, wanted), ())
            case Merge(node):
                raise self.graph.refuse(f"{node.name}.merge is a buffer of another device")
            case NodeOperand(node):
                source = self.graph.value(node)
                name, own = source.name, source.format
                if is_truth:
                    name, own = self.emit.cast(name, own, BOOL), BOOL
                name = self.emit.cast(name, own, wanted)
                if source.is_spread:
                    return View(name, ())
                edge = saturate(fill, self.graph.info(node).dtype) if fill else fill
                return self._view(k, replace(source, name=name), wanted, edge)

    def _view(self, k: int, source: WrittenValue, format: Format, edge: float) -> View:
        """Return an operand as a view, without single positions of variables that are not kept."""
        index_map, sizes = self.rhs[k], source.sizes
        if (axis := source.row_axis) is not None:
            index_map = (*index_map[:axis], *index_map[axis + 1 :])
            sizes = (*sizes[:axis], *sizes[axis + 1 :])
        view = self.views.of(source.name, index_map, sizes, format, edge, self.positions)
        return self.views.without(view, self.kept)

    def positions(self, index: ComputedIndex) -> View:
        """Return the positions that a computed index refers to."""
        holder = self.leaf.args[index.operand]
        if not isinstance(holder, NodeOperand):
            raise self.graph.refuse("its positions are no tensor")
        source = self.graph.value(holder.node)
        name = self.emit.cast(source.name, source.format, INT64)
        if source.is_spread:
            return View(name, ())

        def nested(_: ComputedIndex) -> View:
            raise self.graph.refuse("positions of positions")

        return self.views.of(name, index.at, source.sizes, INT64, 0, nested)

    def _windowed_product(self, computed: Format) -> View | None:
        """Return a product of windows with weights as `Conv`, if it is one."""
        if computed.name != "float32" or (self.leaf.beyond or 0) != 0:
            return None
        for x, w in ((0, 1), (1, 0)):
            node = self.leaf.args[x].node  # type: ignore[union-attr]
            source = self.graph.value(node)
            if source.is_spread or source.row_axis is not None:
                continue
            found = products.windows_of(self.views, self.rhs[x], source.sizes, self.kept)
            if found is None:
                continue
            weights = self._operand(w, computed, 0)
            name = self.emit.cast(source.name, source.format, computed)
            made = products.convolution(self.views, name, found, weights, self.kept)
            if made is not None:
                return made
        return None

    def _windowed_maximum(self, computed: Format, k: int) -> View | None:
        """Return maxima of windows as `MaxPool`, if they are some."""
        is_plain = self.op in (UnaryOp.IDENTITY, BinaryOp.FIRST, BinaryOp.SECOND)
        arg = self.leaf.args[k]
        if not is_plain or computed.name not in ("float32", "float64"):
            return None
        if self.leaf.beyond not in (None, -math.inf) or not isinstance(arg, NodeOperand):
            return None
        source = self.graph.value(arg.node)
        if source.is_spread or source.row_axis is not None:
            return None
        found = products.windows_of(self.views, self.rhs[k], source.sizes, self.kept)
        if found is None:
            return None
        name = self.emit.cast(source.name, source.format, computed)
        return products.maxima(self.views, name, found, self.kept)

    def _repeated(self, view: View, terms: AbstractSet[LoopVar], format: Format) -> View:
        """Multiply a sum by the number of equal terms: of variables that no term has.

        Args:
            terms: The variables that terms or results have.
        """
        name = view.name
        for var in self.views.extents:
            if var not in terms and self.views.extents[var] != 1:
                size = self.emit("Squeeze", self.emit.size(self.views.size(var)))
                name = self.emit("Mul", name, self.emit.cast(size, INT64, format))
        return View(name, view.axes)

    def _reduced(self, view: View, computed: Format) -> View:
        """Accumulate over the variables that are not kept."""
        combine, kept = self.leaf.combine, self.kept
        axes = [k for k, var in enumerate(view.axes) if var not in kept]
        rest = tuple(var for var in view.axes if var in kept)
        terms = {*kept, *view.axes}
        emit = self.emit
        if combine is BinaryOp.SECOND:
            raise self.graph.refuse("it writes cells repeatedly, and only the last value remains")
        if combine in (BinaryOp.OR, BinaryOp.AND):
            truth = emit.cast(emit.cast(view.name, computed, BOOL), BOOL, computed)
            operator = "ReduceMax" if combine is BinaryOp.OR else "ReduceMin"
        elif combine in (BinaryOp.SUB, BinaryOp.ADD):
            truth, operator = view.name, "ReduceSum"
        elif combine in primitives.REDUCTIONS:
            truth, operator = view.name, primitives.REDUCTIONS[combine]
        else:
            raise self.graph.refuse(f"ONNX accumulates by no {combine.value.name}")
        view = View(emit.reduce(operator, truth, axes, len(view.axes)), rest)
        if combine in (BinaryOp.ADD, BinaryOp.SUB):
            view = self._repeated(view, terms, computed)
        elif combine is BinaryOp.MUL and any(
            self.views.extents[v] != 1 for v in self.views.extents if v not in terms
        ):
            raise self.graph.refuse("it multiplies by one number repeatedly")
        return view


def _fits(number: float, format: Format) -> bool:
    """Return True unless a format is one of integers that do not include a number."""
    if format.is_float or not math.isfinite(number):
        return format.is_float
    low, high = (0, 1) if format == BOOL else format.range
    return number == int(number) and low <= number <= high
