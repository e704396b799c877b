"""Loops over time: `scan` traces one step, which code runs for every position of a time axis.

`scan_while` is for loops whose number of steps follows from data, up to a bound: it masks the steps
behind the last one. A masked step computes the first step again, whose numbers are finite and whose
positions are valid if the loop runs at all:

    active = active & condition(c)
    after, item = body(active ? c : first carry, active ? xs[t] : xs[0])
    c = active ? after : c
    stacked[t] = active ? item : 0
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, NoReturn

from ocannl_core.base.errors import ShapeError, UsageError
from ocannl_core.base.origin import Origin, caller_location
from ocannl_core.ir.indexing import StaticIndex
from ocannl_core.ir.numbers.dtypes import bool_, int32
from ocannl_core.shape.language.constraints import Constraint, RowEqual, equal_shapes
from ocannl_core.shape.language.shape_terms import Dim, FreshVariables, Row, Shape, Size
from ocannl_core.shape.translation.logic import Pointwise
from ocannl_core.tensor.computations.loop_code import changed_carries, check_formats
from ocannl_core.tensor.graph import session as sessions
from ocannl_core.tensor.graph.assignment import assigned_in_step
from ocannl_core.tensor.graph.definitions import (
    CarriedValue,
    Declared,
    Filled,
    Loop,
    ResultOfLoop,
    ancestors,
)
from ocannl_core.tensor.graph.index_maps import IndexMaps
from ocannl_core.tensor.graph.precision import Precision, Why
from ocannl_core.tensor.graph.session import Session
from ocannl_core.tensor.graph.shape_previews import implied_ranks
from ocannl_core.tensor.graph.structures import Leaf, aligned, difference, leaves_of, with_leaves
from ocannl_core.tensor.graph.tensor import Tensor
from ocannl_core.tensor.operations.axes import settle_axes
from ocannl_core.tensor.operations.contractions import subscript
from ocannl_core.tensor.primitives import pointwise_operations as pointwise
from ocannl_core.tensor.primitives.operands import as_tensor, check_recorded_here, constant
from ocannl_core.tensor.primitives.specifications import describe_operands

if TYPE_CHECKING:
    from ocannl_core.tensor.graph.definitions import Recording
    from ocannl_core.tensor.graph.session import Recorder

KEPT = ("carry", "reductions", "all")
"""The values of a step that its gradient may read from memory."""


def scan(
    body: Callable[[Any, Any], Any],
    init: Any,
    xs: Any = None,
    *,
    length: int | None = None,
    reverse: bool = False,
    keep: str = "reductions",
) -> Any:
    """Run a function for every step along a time axis; return the values of all steps, and the
    carry after the last one.

        def step(h, x):
            h = oc.tanh(w @ x + u @ h)
            return h, h

        hs, last = oc.scan(step, oc.number(0.0), xs)

    The function is called once, with tensors that stand for the carry and the entry of any step. It
    returns the carry for the next step, of the same structure, shapes and number formats, and a
    value. The code of a step is compiled once, so that the time to compile does not depend on the
    number of steps.

    The time axis is the leftmost batch axis of `xs`, and of the values of all steps. Parameters
    that the function makes are shared by all steps; random numbers differ from step to step.

    Args:
        body: Takes the carry and the entry of `xs` for one step; returns the next carry and a
            value, or None in its place.
        init: The carry before the first step: a tensor or a number, or tuples, lists and
            dictionaries of these. It may lack batch axes of the carry.
        xs: A tensor, or such a structure of tensors; None for steps that read no entry.
        length: The number of steps; needed without `xs`.
        reverse: True to run from the last step to the first. Values keep their positions.
        keep: The values of each step that its gradient reads from memory; it computes the others
            again. `"carry"`: the carry alone; `"reductions"`: also the results of sums and matrix
            products; `"all"`: everything that it reads.

    Raises:
        UsageError: if the function returns another structure, or a carry in another number format,
            or records assignments.
        ShapeError: if a carry changes its shape, or time axes of `xs` have different lengths.
    """
    return run_steps(body, init, xs, length, is_reversed=reverse, keep=keep, has_layers=False)


def run_steps(
    body: Callable[[Any, Any], Any],
    init: Any,
    xs: Any,
    length: int | None,
    *,
    is_reversed: bool,
    keep: str,
    has_layers: bool,
    name: str | None = None,
) -> Any:
    """Return the results of a loop, as `scan` does.

    With `has_layers`, each step has its own values of the parameters that the function makes.
    """
    if keep not in KEPT:
        raise UsageError.at_caller(
            "The gradient of a loop reads some values of each step from memory.",
            found=f"keep={keep!r}",
            fix=f"one of {', '.join(map(repr, KEPT))}",
        )
    over, initial = leaves_of(xs), leaves_of(init)
    check_arguments(body, over, initial, length)
    tensors = [each.value for each in (*over, *initial) if isinstance(each.value, Tensor)]
    session = tensors[0].session if tensors else sessions.current()
    title = name or str(getattr(body, "__name__", "step"))
    origin = Origin(f"scan of {title}", caller_location())
    loop = Loop(title, StaticIndex("t"), is_reversed, keep, session.loop, origin, length)
    loop.layers = {} if has_layers else None
    with session.atomic():
        return _trace(loop, body, session, init, xs)


def _trace(loop: Loop, body: Callable[..., Any], session: Session, init: Any, xs: Any) -> Any:
    """Trace a step of a loop, and return the results."""
    over, initial = leaves_of(xs), leaves_of(init)
    loop.over = tuple(each.value for each in over)
    loop.initial = tuple(as_tensor(each.value, session) for each in initial)
    recorder = session.recorder
    given = (*loop.over, *loop.initial)
    check_recorded_here(given, None if recorder is None else recorder.recording)
    loop.time = _time_axis(loop, session, over)
    if session.environment.view(Shape(Row((loop.time,)), Row(), Row())).batch.dims == (Size(0),):
        loop.index = StaticIndex(loop.index.name, 0)  # no step reads a position
    with traced(loop, session):
        loop.before = tuple(
            _carried(loop, session, start, leaf)
            for start, leaf in zip(loop.initial, initial, strict=True)
        )
        loop.entries = tuple(subscript(each, loop.index) for each in loop.over)
        returned = body(with_leaves(init, loop.before), with_leaves(xs, loop.entries))
        after, items = checked_result(loop, init, returned)
        loop.after = tuple(as_tensor(each, session) for each in after)
        loop.items = tuple(as_tensor(each.value, session) for each in leaves_of(items))
        check_recorded_here(
            (*loop.after, *loop.items), None if recorder is None else recorder.recording
        )
        for before, own in zip(loop.before, loop.after, strict=True):
            relate_carry(loop, before, own)
    _sort_tensors(loop, recorder)
    _fix_formats(loop)
    _add_results(loop, session)
    if recorder is not None:
        for result in loop.results:
            recorder.add_tensor(result, is_named=False)
    return with_leaves(items, loop.stacked), with_leaves(init, loop.final)


def check_arguments(
    body: object, over: Sequence[Leaf], initial: Sequence[Leaf], length: object
) -> None:
    """Check the arguments of a loop."""
    if not callable(body):
        raise UsageError.at_caller(
            "A loop runs a function of the carry and of one entry of xs.",
            found=repr(body),
            fix="oc.scan(step, init, xs), with def step(carry, x): ...",
        )
    for what, leaves in (("xs", over), ("init", initial)):
        for leaf in leaves:
            is_number = what == "init" and isinstance(leaf.value, Real)
            if not (isinstance(leaf.value, Tensor) or is_number):
                raise UsageError.at_caller(
                    "The arguments of a loop are tensors, or tuples, lists and dictionaries of "
                    "them.",
                    found=f"{type(leaf.value).__name__} in {what}",
                    fix="wrap arrays with oc.tensor(..., batch_axes=1), whose leftmost batch axis "
                    "is the time",
                )
    if length is None and not over:
        raise UsageError.at_caller(
            "The number of steps of a loop is the extent of the time axis of xs, or is stated.",
            found="neither xs nor length",
            fix="oc.scan(step, init, xs), or oc.scan(step, init, length=10)",
        )
    is_count = isinstance(length, Integral) and not isinstance(length, bool) and int(length) >= 0
    if length is not None and not is_count:
        raise UsageError.at_caller(
            "The length of a loop is a number of steps.", found=f"length={length!r}"
        )


def checked_result(loop: Loop, init: Any, returned: Any) -> tuple[list[Any], Any]:
    """Return the leaves of the carry that a step returns, and its value."""
    if not isinstance(returned, tuple) or len(returned) != 2:
        kind = f"a tuple of {len(returned)}" if isinstance(returned, tuple) else f"{returned!r}"
        _refuse_result(loop, kind, "return carry, value; and return carry, None without a value")
    carry, items = returned
    problem = difference(init, carry)
    if problem and loop.layers is not None:
        raise UsageError(
            "A layer returns the input of the next one, of the structure of x.",
            found=f"{loop.name} returned a result that differs from x: {problem}",
            where=str(loop.origin),
        )
    if problem:
        _refuse_result(
            loop, f"a carry that differs from init: {problem}", "return a carry like init"
        )
    after = aligned(init, carry)
    for each in (*after, *(leaf.value for leaf in leaves_of(items))):
        if not isinstance(each, Tensor | Real):
            _refuse_result(loop, f"{each!r} in it", "tensors, and tuples or dictionaries of them")
    return after, items


def _refuse_result(loop: Loop, found: str, fix: str) -> NoReturn:
    raise UsageError(
        "A step of a loop returns the carry, of the structure of init, and a value.",
        found=f"{loop.name} returned {found}",
        where=str(loop.origin),
        fix=fix,
    )


def _time_axis(loop: Loop, session: Session, over: Sequence[Leaf]) -> Dim:
    """Return the size of the time axis, which all tensors of `xs` share."""
    # entries whose axes are inferred get the time axis of others; alone, one of size 1
    lacking = [leaf for leaf in over if _lacks_batch(leaf.value)]
    is_open = loop.length is not None or len(lacking) < len(over)
    for leaf in lacking:
        if leaf.value.terms.batch.is_closed or not is_open:
            raise ShapeError(
                "The time axis of a loop is the leftmost batch axis of xs.",
                found=f"{_place(leaf)} of shape {leaf.value.shape}, without batch axes",
                where=str(loop.origin),
                fix='oc.tensor(array, batch_axes=1), or oc.einsum("t, ..x.. => t|..x..", xs)',
            )
    for leaf in over:
        settle_axes(leaf.value, loop.name)  # the leftmost axis is one that operands imply
    found: list[Dim] = []

    def relate(fresh: FreshVariables) -> list[Constraint]:
        time: Dim = fresh.dim("time") if loop.length is None else Size(loop.length)
        found.append(time)
        return [
            RowEqual(
                Row((time,), fresh.row("entry")),
                leaf.value.terms.batch,
                loop.origin.at(f"the time axis of {_place(leaf)}, the leftmost batch axis"),
            )
            for leaf in over
        ]

    with describe_operands(loop.over):
        session.environment.derive([], [each.terms for each in loop.over], relate)
    return found[0]


def _lacks_batch(tensor: Tensor) -> bool:
    """Return True for a tensor without batch axes, unless it is declared and gets those of uses."""
    if isinstance(tensor.definition, Declared) and not tensor.terms.batch.is_closed:
        return False
    ranks = implied_ranks(tensor)
    return ranks is not None and ranks[0] == 0


def _place(leaf: Leaf) -> str:
    return "xs" + "".join(f"[{key!r}]" for key in leaf.path)


def _carried(loop: Loop, session: Session, initial: Tensor, leaf: Leaf) -> Tensor:
    """Return the tensor that stands for a carry at the start of any step."""
    name = leaf.name or "carry"
    environment = session.environment
    terms = environment.fresh_shape(name=name)
    found = initial.precision
    precision = (
        Precision(initial.dtype, Why.STATED) if found.decides else Precision.by_default(found.dtype)
    )
    initial.note_use(loop.origin)
    result = Tensor(
        session,
        CarriedValue(loop),
        terms,
        precision,
        (name,),
        loop.origin,
        requires_grad=precision.dtype.is_float and session.recorder is None,
    )
    result.loop = loop
    with describe_operands([initial]):
        if loop.layers is None or isinstance(initial.definition, Filled):
            environment.relate(Pointwise(), terms, [initial.terms], loop.origin)
        else:  # layers keep the shape of the input
            _equate(loop, terms, initial, f"{initial.label[0]}, against the result of a layer")
    return result


def _equate(loop: Loop, terms: Shape, other: Tensor, name: str) -> None:
    """Add the constraint that a carry has the shape of another tensor."""
    constraints = equal_shapes(terms, other.terms, loop.origin, "the ", f" of {name}")
    other.session.environment.derive([terms], [other.terms], lambda _: constraints)


def relate_carry(loop: Loop, before: Tensor, after: Tensor) -> None:
    """Add the constraint that a step keeps the shape of a carry."""
    if isinstance(after.definition, Filled):
        after.session.environment.relate(Pointwise(), before.terms, [after.terms], loop.origin)
        return
    with describe_operands([before]):
        _equate(loop, before.terms, after, f"{before.label[0]}, against the value after a step")


def _fix_formats(loop: Loop) -> None:
    """Make the number formats of a step final."""
    for before, after in changed_carries(loop):
        before.note_use(loop.origin, after.dtype)
    check_formats(loop)
    for tensor in (*loop.before, *loop.body, *loop.items):
        tensor.settle()


def _add_results(loop: Loop, session: Session) -> None:
    loop.final = tuple(_result(loop, each, each.terms) for each in loop.before)
    stacked = [_stacked(each.terms, _time_of(loop)) for each in loop.items]
    operands = [each.terms for each in (*loop.items, *loop.over)]
    session.environment.derive(stacked, operands, lambda _: [])
    loop.stacked = tuple(
        _result(loop, item, terms) for item, terms in zip(loop.items, stacked, strict=True)
    )
    for effect in dict.fromkeys(each for tensor in loop.body for each in tensor.effects):
        for made in loop.results:
            made.add_effect(effect)


def _time_of(loop: Loop) -> Dim:
    assert loop.time is not None
    return loop.time


def _result(loop: Loop, like: Tensor, terms: Shape) -> Tensor:
    """Return a result of a loop with the values of a tensor of a step."""
    session = like.session
    flows = session.recorder is None and any(each.requires_grad for each in loop.inputs)
    made = Tensor(
        session,
        ResultOfLoop(loop),
        terms,
        Precision(like.dtype, Why.OPERANDS, (0,)),
        like.label,
        loop.origin,
        requires_grad=flows and like.requires_grad,
    )
    made.loop = loop.outer
    return made


def stacked_values(loop: Loop, tensor: Tensor) -> Tensor:
    """Return a step's tensor for all steps as a result of the loop, added unless it has it."""
    known = dict(zip(loop.items, loop.stacked, strict=True))
    if tensor in known:
        return known[tensor]
    session = tensor.session
    terms = _stacked(tensor.terms, _time_of(loop))
    operands = [each.terms for each in (tensor, *loop.over)]
    session.environment.derive([terms], operands, lambda _: [])
    made = _result(loop, tensor, terms)
    session.undo_log.set(loop, "items", (*loop.items, tensor))
    session.undo_log.set(loop, "stacked", (*loop.stacked, made))
    return made


def _stacked(terms: Shape, time: Dim) -> Shape:
    """Return a shape with the time axis in front of its batch axes."""
    row = terms.batch
    return Shape(Row((time, *row.leading), row.tail, row.trailing), terms.input, terms.output)


class StepRecorder:
    """The recorder of a step inside of recorded code: its tensors are not computed there."""

    def __init__(self, loop: Loop, outer: Recorder) -> None:
        self._loop = loop
        self._outer = outer
        self.recording: Recording = outer.recording

    def add_tensor(self, tensor: Any, *, is_named: bool) -> None:
        tensor.recording = self.recording

    def add_declaration(self, tensor: Any) -> None:
        self._refuse("a declared tensor")

    def splice(self, steps: tuple[Any, ...], results: frozenset[Any]) -> None:
        self._refuse("code")

    def record_primitive(self, operation: Any, operands: tuple[Any, ...], logic: Any) -> Any:
        if isinstance(logic, IndexMaps) or not all(isinstance(each, Tensor) for each in operands):
            self._refuse(f"{operation.name} with projections or a merge buffer")
        return operation.tensor(operands, logic)

    def computed(self, value: Any) -> Any:
        return self._outer.computed(value)

    def assign(self, target: Any, value: Any, combine: Any, *, reset: bool, keys: Any = ()) -> None:
        self._refuse(f"an assignment to {target!r}")

    def assign_rows(self, target: Any, positions: Any, axis: int, value: Any, combine: Any) -> None:
        self._refuse(f"an assignment to rows of {target!r}")

    def note_update(self, result: Any, part: Any, combine: Any, value: Any) -> None:
        self._outer.note_update(result, part, combine, value)

    def update_of(self, result: Any) -> Any:
        return self._outer.update_of(result)

    def _refuse(self, what: str) -> NoReturn:
        raise assigned_in_step(what, self._loop.name)


@contextmanager
def traced(loop: Loop, session: Session) -> Iterator[None]:
    """Make tensors inside of the body of a loop."""
    recorder = session.recorder
    try:
        session.loop = loop
        session.recorder = None if recorder is None else StepRecorder(loop, recorder)
        with session:
            yield
    finally:
        session.loop, session.recorder = loop.outer, recorder


def _sort_tensors(loop: Loop, recorder: Recorder | None) -> None:
    """Find the tensors of a step, and hoist the loop-invariant ones."""
    found = [t for t in ancestors([*loop.after, *loop.items]) if t.loop is loop]
    own = {*loop.before, *loop.entries, *loop.positions}
    body: list[Tensor] = []
    for tensor in found:
        if tensor in own or not own.isdisjoint(tensor.operands):
            own.add(tensor)
            if not isinstance(tensor.definition, CarriedValue):
                body.append(tensor)
            continue
        tensor.loop = loop.outer
        if isinstance(tensor.definition, ResultOfLoop):  # a loop is hoisted with all its results
            inner = tensor.definition.loop
            inner.outer = loop.outer
            for result in inner.results:
                result.loop = loop.outer
        if recorder is not None:
            recorder.add_tensor(tensor, is_named=False)
    inputs = dict.fromkeys((*loop.initial, *loop.over))
    read = (operand for tensor in body for operand in tensor.operands)
    inputs.update((each, None) for each in (*read, *loop.after, *loop.items) if each not in own)
    loop.body, loop.inputs = tuple(body), tuple(inputs)


def scan_while(
    condition: Callable[[Any], Any],
    body: Callable[[Any, Any], Any],
    init: Any,
    xs: Any = None,
    *,
    length: int | None = None,
    keep: str = "reductions",
) -> Any:
    """Run a function for steps along a time axis as long as a condition on the carry holds; return
    the values of all steps, the carry after the last one, and the number of steps.

        def halve(x, _):
            return x / 2, x

        xs, small, count = oc.scan_while(lambda x: x > 1, halve, start, length=32)

    The arguments are those of `scan`, whose length bounds the number of steps. Values beyond the
    last step are zeros. A condition with axes, such as a batch, ends the steps of each of its cells
    by itself, and the number of steps has these axes.

    All steps up to the bound take time: those behind the last one compute the first step again,
    and their results and gradients are dropped. So the first step has valid positions also where
    the condition does not hold before it; and a loss that is not finite there leaves parameters
    of the step without a finite gradient.

    Args:
        condition: Takes the carry; returns a tensor, or a truth value of Python. It is true where
            the tensor is not 0.
        body: Takes the carry and the entry of `xs` for one step; returns the next carry and a
            value, or None in its place.
        init: The carry before the first step, as for `scan`.
        xs: A tensor, or a structure of tensors, with the time in front, which has a position at
            least; None for steps that read no entry.
        length: The greatest number of steps; needed without `xs`.
        keep: The values of each step that its gradient reads from memory, as for `scan`.

    Raises:
        UsageError: if the function returns another structure, or a carry in another number format,
            or records assignments; or if the condition is no tensor.
        ShapeError: if a carry changes its shape, or time axes of `xs` have different lengths.
    """
    over, initial = leaves_of(xs), leaves_of(init)
    check_arguments(body, over, initial, length)
    if not callable(condition):
        raise UsageError.at_caller(
            "The condition of a loop is a function of the carry.",
            found=repr(condition),
            fix="oc.scan_while(lambda carry: carry < 10, step, init, length=100)",
        )
    given = [each.value for each in (*initial, *over)]
    tensors = [each for each in given if isinstance(each, Tensor)]
    session = tensors[0].session if tensors else sessions.current()
    with session:
        start = [pointwise.stop_gradient(as_tensor(e.value, session)) for e in initial]
        entries = [pointwise.stop_gradient(subscript(each.value, 0)) for each in over]
        flags = constant(1.0, session, dtype=bool_), constant(0.0, session, dtype=int32)

    def step(carry: Any, entry: Any) -> Any:
        state, (active, count) = carry
        before = [each.value for each in leaves_of(state)]
        loop: Loop = session.loop
        active = pointwise.logical_and(active, _holds(loop, condition(state)), dtype="bool")
        own = _chosen(active, before, start)
        read = _chosen(active, [each.value for each in leaves_of(entry)], entries)
        found = body(with_leaves(init, own), with_leaves(xs, read))
        after, items = checked_result(loop, init, found)
        kept = [
            _updated(loop, active, *each, session) for each in zip(before, own, after, strict=True)
        ]
        values = [_masked(active, each.value) for each in leaves_of(items)]
        count = count + pointwise.cast(active, "int32")
        return (with_leaves(init, kept), (active, count)), with_leaves(items, values)

    name = str(getattr(body, "__name__", "step"))
    items, (last, (_, count)) = run_steps(
        step, (init, flags), xs, length, is_reversed=False, keep=keep, has_layers=False, name=name
    )
    return items, last, count


def _holds(loop: Loop, found: Any) -> Any:
    if isinstance(found, Tensor | Real):
        return found
    raise UsageError(
        "The condition of a loop is a tensor that is not 0 as long as steps run.",
        found=repr(found),
        where=str(loop.origin),
    )


def _chosen(active: Tensor, tensors: Sequence[Tensor], first: Sequence[Tensor]) -> list[Tensor]:
    """Return tensors of a step; in a masked step, the tensors of the first step."""
    return [pointwise.where(active, each, one) for each, one in zip(tensors, first, strict=True)]


def _masked(active: Tensor, value: Any) -> Tensor:
    label = value.label[0] if isinstance(value, Tensor) and value.label else None
    masked: Tensor = pointwise.where(active, value, 0, label=label)
    return masked


def _updated(
    loop: Loop, active: Tensor, before: Tensor, own: Tensor, after: Any, session: Session
) -> Tensor:
    """Return the carry after a step, which a masked step leaves as it is."""
    if after is own:
        return before
    new = as_tensor(after, session)
    relate_carry(loop, before, new)
    kept: Tensor = pointwise.where(active, new, before)
    return kept
