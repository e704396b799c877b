"""Gradients as expressions: `oc.gradients`.

The graph is walked from the differentiated tensors back to the variables. Each assignment of an
operation's gradient function becomes a tensor, the application of a derived operation
(`derived_operations`); the gradient of a tensor is the sum of those of its uses.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from numbers import Real
from typing import Any

from ocannl_core.assign.nodes import Constant
from ocannl_core.dtypes import DType, int32, int64
from ocannl_core.errors import UsageError
from ocannl_core.fast_dataclass import replace
from ocannl_core.ops import BinaryOp
from ocannl_core.origin import Origin, caller_location
from ocannl_core.shape.capture import DimRef
from ocannl_core.shape.constraints import RowEqual
from ocannl_core.shape.logic import Adjoint, Logic, Pointwise, Several
from ocannl_core.shape.terms import Shape
from ocannl_core.tensor.definitions import (
    Applied,
    Filled,
    GradientOf,
    ResultOf,
    ResultOfLoop,
    ancestors,
)
from ocannl_core.tensor.derived_operations import (
    DerivedOperation,
    search_operation,
    term_operation,
)
from ocannl_core.tensor.formulas import (
    POSITION,
    Application,
    Formula,
    Role,
    TracedAssignment,
    Variable,
    added,
    check_sum,
    negated,
    substitute,
    trace,
    variables_in,
)
from ocannl_core.tensor.margins import window_accesses
from ocannl_core.tensor.operands import check_recorded_here
from ocannl_core.tensor.operation import Operation
from ocannl_core.tensor.pointwise_operations import add, identity
from ocannl_core.tensor.precision import Precision
from ocannl_core.tensor.slots import accumulation_of
from ocannl_core.tensor.tensor import Tensor


def gradients(
    y: Any,
    x: Any,
    *,
    grad_y: Any = None,
    allow_unused: bool = False,
) -> tuple[Tensor, ...]:
    """Return the gradients of the sum of tensors with respect to others, as expressions.

        (g,) = oc.gradients(loss, [w])           # the shape of w
        (h,) = oc.gradients((g * v).sum(), [w])  # the product of the Hessian and v

    A gradient is a tensor like any other: a loss may contain it, and it can be differentiated
    again. It is computed where it is used, apart from `w.grad`, which backpropagation computes.

    Args:
        y: A tensor, or a list of tensors, of any shape.
        x: The variables, a list of parameters, placeholders, literals, or intermediate results.
        grad_y: The gradient of the final result with respect to `y`, a tensor or a number (a list
            of them for a list of tensors) that `y`'s shape broadcasts; 1 when not given, which
            differentiates the sum of all cells.
        allow_unused: True for gradients of 0 with respect to variables that `y` does not depend on,
            or depends on only through operations without a gradient.

    Raises:
        UsageError: for a variable without a gradient unless `allow_unused`, or without real
            numbers.
        MissingGradientError: for a user-written operation without `grad` on the way.
    """
    ys, xs = _tensors(y, "y"), _tensors(x, "x")
    given = list(grad_y) if isinstance(grad_y, list | tuple) else [grad_y] * len(ys)
    where = str(caller_location() or "")
    if len(given) != len(ys) or not ys or not xs:
        raise UsageError(
            "oc.gradients takes tensors to differentiate, variables, and as many grad_y as there "
            "are tensors.",
            found=f"{len(ys)} tensors, {len(xs)} variables, {len(given)} grad_y",
            where=where,
        )
    _check(ys, xs, where)
    walk = _Walk(ys, xs)
    for tensor, gradient in zip(ys, given, strict=True):
        walk.add(tensor, _seed(tensor, gradient))
    found = walk.run()
    missing = [each for each in xs if each not in found and each not in walk.reached]
    if missing and not allow_unused:
        raise _unused(missing[0], walk, where)
    return tuple(found[each] if each in found else _filled(each, 0.0) for each in xs)


def _tensors(given: Any, name: str) -> list[Tensor]:
    found = list(given) if isinstance(given, list | tuple) else [given]
    for each in found:
        if not isinstance(each, Tensor):
            raise UsageError(
                "oc.gradients(y, [x]) differentiates tensors with respect to tensors.",
                found=f"{name} is {each!r}",
                where=str(caller_location() or ""),
                fix="x.grad is not computed from x: give x itself" if each is None else "",
            )
    return found


def _check(ys: Sequence[Tensor], xs: Sequence[Tensor], where: str) -> None:
    sessions = {each.session for each in (*ys, *xs)}
    if len(sessions) > 1:
        raise UsageError(
            "Tensors of different sessions do not mix.",
            found="arguments of oc.gradients",
            where=where,
            fix="build both inside one `with oc.Session():`, or without any",
        )
    for each in (*ys, *xs):
        if not each.dtype.is_float:
            raise UsageError(
                "Gradients are computed with respect to real numbers.",
                found=f"{each.describe()} of {each.dtype}",
                where=where,
                fix='state a float format, as in dtype="float32"',
            )


def _unused(tensor: Tensor, walk: _Walk, where: str) -> UsageError:
    blocking = walk.blocking(tensor)
    return UsageError(
        "A gradient is taken with respect to tensors that y depends on through operations with a "
        "gradient.",
        found=f"{tensor.describe()}, which "
        + (f"y depends on through {blocking} only" if blocking else "y does not depend on"),
        where=where,
        fix="oc.gradients(..., allow_unused=True) returns zeros",
    )


# ----- leaves -------------------------------------------------------------------------------------


def _filled(tensor: Tensor, number: float) -> Tensor:
    """Return a constant with the shape of a tensor."""
    return Tensor(
        tensor.session,
        Filled(lambda: Constant(number)),
        tensor.terms,
        Precision.stated(tensor.dtype),
        (f"{number:g}",),
        Origin("oc.gradients", caller_location()),
    )


def _seed(tensor: Tensor, gradient: Any) -> Tensor:
    if gradient is None:
        return _filled(tensor, 1.0)
    if isinstance(gradient, Real) and not isinstance(gradient, bool):
        return _filled(tensor, float(gradient))
    seed: Tensor = identity(gradient, label="grad_y", dtype=tensor.dtype)
    origin = Origin("grad_y of oc.gradients", caller_location())
    rows = zip(seed.terms.rows(), tensor.terms.rows(), strict=True)
    tensor.session.environment.constrain(
        [RowEqual(one, other, origin.at(f"{kind.value} row")) for (kind, one), (_, other) in rows]
    )
    return seed


# ----- the walk -----------------------------------------------------------------------------------


class _Walk:
    """Reverse accumulation over the graph between variables and results.

    Args:
        ys: The results.
        xs: The variables.
    """

    def __init__(self, ys: Sequence[Tensor], xs: Sequence[Tensor]) -> None:
        self._xs = dict.fromkeys(xs)
        self._order = ancestors(list(ys))
        self._dependents = self._tensors_that_depend()
        self._terms: dict[Tensor, list[Tensor]] = {}
        self._passed: set[Any] = set()
        self.reached: set[Tensor] = set(ys)
        """The tensors that results depend on through operations with gradients, also where the
        gradient is 0 everywhere.
        """

    def _tensors_that_depend(self) -> set[Tensor]:
        found: set[Tensor] = set()
        for tensor in self._order:
            if tensor in self._xs or any(operand in found for operand in tensor.operands):
                found.add(tensor)
            definition = tensor.definition
            if isinstance(definition, ResultOfLoop) and tensor in found and tensor.dtype.is_float:
                raise UsageError(
                    "oc.gradients has no rule for oc.scan: the gradient of a loop is code, made by "
                    "backpropagation.",
                    found=f"{tensor.describe()}, on which the differentiated tensor depends",
                    where=f"{tensor.origin}\n{caller_location() or ''}",
                    fix="oc.train.grad_update(loss) and p.grad, or a Python loop over the steps",
                )
            if isinstance(definition, GradientOf) and self._xs.keys() & ancestors(
                [definition.tensor]
            ):
                raise UsageError(
                    "A gradient from backpropagation is no expression: it is differentiated by "
                    "computing it with oc.gradients.",
                    found=f"{tensor.describe()}, on which the differentiated tensor depends",
                    where=str(caller_location() or ""),
                    fix="(g,) = oc.gradients(loss, [p]), and g in place of p.grad",
                )
        return found

    def add(self, tensor: Tensor, term: Tensor) -> None:
        """Add a term to the gradient of a tensor."""
        self._terms.setdefault(tensor, []).append(term)

    def run(self) -> dict[Tensor, Tensor]:
        """Return the gradients of the variables that have one."""
        found: dict[Tensor, Tensor] = {}
        for tensor in reversed(self._order):
            if tensor not in self._dependents:
                continue
            definition = tensor.definition
            if isinstance(definition, ResultOf):
                self._pass_through_call(definition, tensor)
                if tensor in self._xs and tensor in self._terms:
                    found[tensor] = self._gradient(tensor)
                continue
            if tensor not in self._terms:
                if tensor in self.reached and isinstance(definition, Applied):
                    self._mark_operands(tensor, definition)
                continue
            gradient = self._gradient(tensor)
            if tensor in self._xs:
                gradient.relabel(("grad", *tensor.label))
                found[tensor] = gradient
            if isinstance(definition, Applied):
                self._mark_operands(tensor, definition)
                self._pass_on(tensor, definition, gradient)
        return found

    def _gradient(self, tensor: Tensor) -> Tensor:
        """Return the sum of the terms of a tensor's gradient."""
        first, *others = self._terms[tensor]
        total = first
        for term in others:
            total = derived_tensor(add, (total, term), Pointwise(), tensor, tensor.origin)
        self._terms[tensor] = [total]
        return total

    def _mark_operands(self, tensor: Tensor, definition: Applied[Tensor]) -> None:
        if definition.operation.gradient is not None:
            self.reached.update(o for o in definition.operands if o.dtype.is_float)

    def _pass_on(self, tensor: Tensor, definition: Applied[Tensor], gradient: Tensor) -> None:
        """Add the contributions of a tensor's gradient to those of its operands."""
        operation = definition.operation
        if operation.gradient is None:
            return
        if operation.gradient_expression is not None:
            terms = operation.gradient_expression(*definition.operands, gradient)
            for operand, term in zip(definition.operands, terms, strict=True):
                if operand in self._dependents:
                    self._add_expression(operand, term, operand.terms, tensor.origin)
            return
        code = _Code(tensor, definition, gradient)
        for position, operand in enumerate(definition.operands, 1):
            if operand in self._dependents and operand.dtype.is_float:
                for term in code.terms(position):
                    self.add(operand, term)

    def _pass_through_call(self, definition: ResultOf[Tensor], tensor: Tensor) -> None:
        """Add the contributions of the gradients of a user-written operation's outputs, once all
        are complete.
        """
        application = definition.application
        if application in self._passed:
            return
        self._passed.add(application)
        if not any(each in self._terms for each in application.results):
            return
        cotangents = [
            self._gradient(each) if each in self._terms else _filled(each, 0.0)
            for each in application.results
        ]
        wanted = [each in self._dependents and each.dtype.is_float for each in application.inputs]
        if not any(wanted):
            return
        for variable, value, common in application.gradients(cotangents, wanted):
            self.reached.add(variable)
            if isinstance(value, float):
                self.add(variable, _filled(variable, value))
                continue
            self._add_expression(variable, value, common, tensor.origin)

    def _add_expression(self, tensor: Tensor, value: Tensor, common: Shape, origin: Origin) -> None:
        """Add an expression to the gradient of a tensor, summed over axes that the tensor lacks.

        Args:
            tensor: The tensor.
            value: The expression.
            common: The shape that the tensor and the expression are broadcast to.
            origin: The operation that passes the gradient on.
        """
        summand = Variable("value", 1)
        operation = term_operation(f"{origin.operation}_grad", summand, (summand,), None)
        logic = Adjoint(Pointwise(), (common, tensor.terms, value.terms), 1, (2,))
        self.add(tensor, derived_tensor(operation, (value,), logic, tensor, origin))

    def blocking(self, tensor: Tensor) -> str:
        """Return the operations without a gradient between a variable and the results."""
        found: dict[str, None] = {}
        dependents = {tensor}
        for each in self._order:
            if dependents.isdisjoint(each.operands):
                continue
            dependents.add(each)
            definition = each.definition
            if not each.dtype.is_float:
                found[f"{each.origin.operation} ({each.dtype})"] = None
            elif isinstance(definition, Applied) and definition.operation.gradient is None:
                found[each.origin.operation] = None
        return ", ".join(found)


# ----- the code of one operation ------------------------------------------------------------------


class _Code:
    """The gradient function of a tensor's operation, as tensors.

    Args:
        tensor: The result of the operation.
        definition: Its definition.
        gradient: The gradient of the result.
    """

    def __init__(self, tensor: Tensor, definition: Applied[Tensor], gradient: Tensor) -> None:
        operation = definition.operation
        assert operation.gradient is not None
        self._tensor = tensor
        self._definition = definition
        self._gradient = gradient
        self._assignments = trace(operation.gradient, len(definition.operands))
        self._padding = (
            operation.padding
            if isinstance(operation, DerivedOperation)
            else accumulation_of(operation.forward, len(definition.operands))
        )
        self._has_parts = isinstance(definition.logic, Several)
        self._origin = Origin(f"gradient of {tensor.origin.operation}", tensor.origin.location)
        self._written: dict[Variable, Formula] = {}
        """The values of intermediate slots, as they are at the current assignment."""
        self._sums: dict[Variable, Tensor] = {}
        """The tensors behind variables that stand for sums in intermediate slots."""

    def terms(self, position: int) -> Iterator[Tensor]:
        """Yield the terms of the gradient of one operand."""
        target = Variable("gradient", position)
        together: list[Formula] = []
        self._written.clear()
        for each in self._assignments:
            if each.target.role == "intermediate":
                self._write(each)
            elif each.target == target:
                value = self._value(each)
                if self._has_parts:
                    yield self._term(target, value, each.logic)
                else:
                    together.append(value)
        if together:
            yield self._term(target, added(together))

    def _value(self, assignment: TracedAssignment) -> Formula:
        """Return the value that an assignment sets or adds."""
        check_sum(assignment, self._definition.operation.name, str(self._tensor.origin))
        value = substitute(assignment.value, self._written)
        return negated(value) if assignment.combine is BinaryOp.SUB else value

    def _write(self, assignment: TracedAssignment) -> None:
        """Note the value of an intermediate slot after an assignment.

        A plain assignment is substituted into its readers: it has one value for each cell, which
        they read through the same index map. A sum over cells becomes a tensor.
        """
        target, value = assignment.target, self._value(assignment)
        is_sum = assignment.combine is not BinaryOp.SECOND
        if is_sum or self._has_parts:
            term = replace(target, occurrence=len(self._sums) + 1)
            self._sums[term] = self._term(target, value, assignment.logic)
            value = term
        before = self._written.get(target)
        if is_sum and not assignment.reset and before is not None:
            if self._has_parts:  # each value is read along axes of its own
                value = self._sum_of_two(target, before, value)
            else:
                value = added((before, value))
        self._written[target] = value

    def _sum_of_two(self, target: Variable, one: Formula, other: Formula) -> Formula:
        assert isinstance(one, Variable)
        assert isinstance(other, Variable)
        terms, model = (self._sums[one], self._sums[other]), self._tensor_at(target.position)
        total = replace(target, occurrence=len(self._sums) + 1)
        self._sums[total] = derived_tensor(add, terms, Pointwise(), model, self._origin)
        return total

    def _term(self, target: Variable, value: Formula, stated: Logic | None = None) -> Tensor:
        """Return the sum of a value over the cells that an assignment adds to each cell.

        Args:
            target: The slot that it writes.
            value: The value.
            stated: The logic that is stated for the assignment, if any.
        """
        logic = self._definition.logic
        occurrences = list(variables_in(value)) if self._has_parts else []
        if self._has_parts:
            value = _numbered(value)
        variables = [v for v in dict.fromkeys(variables_in(value)) if v != POSITION]
        count = len(self._definition.operands)
        places = range(count - self._definition.operation.positions + 1, count + 1)
        variables += [Variable("value", place) for place in places]  # computed positions
        operands = tuple(map(self._tensor_of, occurrences or variables))
        model = self._tensor_at(target.position)
        if isinstance(logic, Several):
            shapes = (model.terms, *(each.terms for each in operands))
            adjoint = Adjoint(stated or Pointwise(), shapes, 0, tuple(range(1, len(shapes))))
        else:
            adjoint = self._adjoint(target.position, tuple(v.position for v in variables))
        roles = {each: Variable(self._kind(each), i) for i, each in enumerate(variables, 1)}
        operation = term_operation(
            f"{self._definition.operation.name}_grad",
            substitute(value, roles),
            tuple(roles.values()),
            self._padding,
            self._definition.operation.positions,
        )
        capture = self._definition.capture
        return derived_tensor(operation, operands, adjoint, model, self._origin, capture)

    def _adjoint(self, target: int, sources: tuple[int, ...]) -> Adjoint:
        """Return the operation's index maps with roles exchanged.

        Args:
            target: The tensor whose axes the result has; 0 for the operation's result.
            sources: The tensors whose axes the operands have.
        """
        logic = self._definition.logic
        if isinstance(logic, Adjoint):
            roles = (logic.target, *logic.sources)
            return Adjoint(
                logic.logic, logic.shapes, roles[target], tuple(roles[each] for each in sources)
            )
        shapes = (self._tensor.terms, *(each.terms for each in self._definition.operands))
        return Adjoint(logic, shapes, target, sources)

    def _tensor_at(self, position: int) -> Tensor:
        return self._tensor if position == 0 else self._definition.operands[position - 1]

    def _tensor_of(self, variable: Variable) -> Tensor:
        """Return the tensor that a slot of the gradient function stands for."""
        match variable.role:
            case "value":
                return self._tensor_at(variable.position)
            case "gradient" if variable.position == 0:
                return self._gradient
            case "intermediate" if variable in self._sums:
                return self._sums[variable]
            case "selection":
                return self._search()
            case _:
                raise UsageError(
                    "The gradient function of an operation reads g, values, and intermediate slots "
                    "that it has written.",
                    found=f"a read of {variable.name or f'g{variable.position}'} in the gradient "
                    f"of {self._definition.operation.name}",
                    where=str(self._tensor.origin),
                )

    def _kind(self, variable: Variable) -> Role:
        """Return the role of an operand of the derived operation."""
        operation = self._definition.operation
        if isinstance(operation, DerivedOperation) and variable.role == "value":
            return operation.roles[variable.position - 1].role if variable.position else "value"
        return variable.role

    def _search(self) -> Tensor:
        """Return the positions of the cells that a maximum or minimum selects."""
        tensor, definition = self._tensor, self._definition
        shared = tensor.applications() if tensor.session.recorder is None else {}
        if _search_key not in shared:
            operation = search_operation(
                definition.operation.name, definition.operation.forward, len(definition.operands)
            )
            operands = (tensor, *definition.operands)
            adjoint = self._adjoint(0, tuple(range(len(operands))))
            dtype = int64 if tensor.dtype.nbytes == int64.nbytes else int32
            shared[_search_key] = derived_tensor(
                operation, operands, adjoint, tensor, self._origin, definition.capture, dtype
            )
        found: Tensor = shared[_search_key]
        return found


_search_key = "search"
"""The key of the positions of selected cells, beside applications of user-written operations."""


def _numbered(value: Formula) -> Formula:
    """Return a formula whose variables occur once each, numbered in order."""
    numbers = count(1)

    def numbered(formula: Formula) -> Formula:
        match formula:
            case Variable():
                return replace(formula, occurrence=next(numbers))
            case Application(op, args):
                return Application(op, tuple(map(numbered, args)))
            case _:
                return formula

    return numbered(value)


def derived_tensor(
    operation: Operation,
    operands: tuple[Tensor, ...],
    logic: Logic,
    model: Tensor,
    origin: Origin,
    capture: Mapping[str, DimRef] | None = None,
    dtype: DType | None = None,
) -> Tensor:
    """Return the result of an operation, with the shape of another tensor.

    Shapes are not related: those of the operands have the same terms as those that an earlier
    operation has related.

    Args:
        operation: The operation.
        operands: Its operands.
        logic: The correspondence of axes.
        model: The tensor whose shape the result has.
        origin: The operation that it is derived from.
        capture: Names of the logic's specification, and the references to their sizes.
        dtype: The number format; that of `model` when not given.
    """
    session = model.session
    recorder = session.recorder
    check_recorded_here(operands, None if recorder is None else recorder.recording)
    can_flow = operation.gradient is not None and dtype is None and recorder is None
    result = Tensor(
        session,
        Applied(operation, operands, logic, capture or {}, model if dtype is None else None),
        model.terms,
        Precision.stated(dtype or model.dtype),
        (operation.name,),
        origin,
        requires_grad=can_flow and any(operand.requires_grad for operand in operands),
    )
    for operand in operands:
        operand.note_use(origin)
    if dtype is None:
        model.note_use(origin)
        model.add_dependent(result)
    if isinstance(logic, Adjoint):
        _note_windows(logic, result, operands, origin, capture or {})
    if recorder is not None:
        recorder.add_tensor(result, is_named=False)
    return result


def _note_windows(
    logic: Adjoint,
    result: Tensor,
    operands: Sequence[Tensor],
    origin: Origin,
    capture: Mapping[str, DimRef],
) -> None:
    """Record with each tensor the padded windows through which an operation accesses it."""
    tensors = list(zip((logic.target, *logic.sources), (result, *operands), strict=True))
    shapes = logic.shapes
    for access in window_accesses(logic.logic, shapes[0], shapes[1:], origin, capture):
        accessed = 0 if access.position is None else access.position + 1
        for role, tensor in tensors:
            if role == accessed:
                tensor.add_access(access)
