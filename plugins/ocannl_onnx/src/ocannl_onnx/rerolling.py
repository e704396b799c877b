"""Repeated layers of a graph as a loop, which is imported and compiled once.

    a1 = Add(x, w1)                 y = Scan(x, w*)
    y1 = Relu(a1)         -->           a* = Add(y*, w*)
    a2 = Add(y1, w2)                    y* = Relu(a*)
    y2 = Relu(a2)

Programs that write models unroll their loops over layers. A *run* is a part of a graph in which the
same operators follow each other several times. It is a loop if all iterations read, in the same
places, what the same node of this iteration or of the one before computes (the state of the loop),
what they all read from outside, and weights or inputs of the graph of one shape, which are stacked.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import onnx
from onnx import helper

from ocannl_onnx.errors import OnnxError
from ocannl_onnx.formats import Format, format_of
from ocannl_onnx.reading import ModelFile, all_nodes
from ocannl_onnx.values import Array, Value

REROLLED = "repeated layers"
"""The description of the loops that are made here."""

_LEAST_COUNT = 3
_LEAST_SAVED = 8
"""Nodes that a loop saves, at least."""
_SCAN, _SEQUENCES = 9, 11
"""The operator sets with loops over stacked values, and with sequences, which join inputs."""
_STANDARD = ("", "ai.onnx")
_DRAWING = frozenset(
    {
        "Bernoulli",
        "Dropout",
        "Multinomial",
        "RandomNormal",
        "RandomNormalLike",
        "RandomUniform",
        "RandomUniformLike",
    }
)
"""Operators that draw numbers: one node of a loop would draw others than those of all layers."""

_Operator = tuple[str, str]
"""A domain and an operator or a function in it."""
_Stack = tuple[str, ...]
"""The weights or inputs of the graph that an operand has in all iterations, by name."""


class _Source(NamedTuple):
    """An output of an iteration: the position of its node, and of the output among the node's."""

    node: int
    output: int


def rerolled(
    file: ModelFile, weights: Mapping[str, Value], *, trainable: bool = False
) -> ModelFile:
    """Return a model with loops in place of its repeated layers.

    Args:
        weights: The initializers and large constants by name; those with `is_weight` are stacked.
        trainable: True to stack only weights that one layer reads: training changes one that
            several nodes read for all of them.

    Raises:
        OnnxError: if no layers repeat each other.
    """
    version = min((e.version for e in file.proto.opset_import if e.domain in _STANDARD), default=0)
    graph = _Graph(
        file.proto.graph,
        weights,
        _drawing(file.proto.functions),
        joins_inputs=version >= _SEQUENCES,
        shares_weights=not trainable,
    )
    while version >= _SCAN and (loop := graph.best_loop()) is not None:
        graph.replace(loop)
    if not graph.loops:
        raise OnnxError(
            "A graph is rerolled if some of its layers repeat each other.",
            found=f"none with {_LEAST_COUNT} equal iterations"
            if version >= _SCAN
            else f"operator set {version}, of {_SCAN} at least",
            where=f"graph {file.proto.graph.name!r}",
            fix="leave reroll=True out",
        )
    return graph.as_file(file)


@dataclass(frozen=True)
class _Run:
    """Nodes that repeat each other: `count` times `period` from `start`; `rest` more nodes follow
    that go on with the repetition.
    """

    start: int
    period: int
    count: int
    rest: int

    @property
    def saved(self) -> int:
        """The nodes that a loop saves."""
        return self.period * (self.count - 1)

    @property
    def stop(self) -> int:
        return self.start + self.period * self.count

    def parts(self) -> Iterator[_Run]:
        """Yield this run and runs inside of it with other first nodes, the longest ones first: not
        all of its iterations need have one flow of values.
        """
        counts = [self.count, self.count - 1]
        while counts[-1] > _LEAST_COUNT:
            counts.append(max(counts[-1] // 2, _LEAST_COUNT))
        for count in counts:
            if count >= _LEAST_COUNT and self.period * (count - 1) >= _LEAST_SAVED:
                for shift in range(self.rest + self.period * (self.count - count) + 1):
                    yield _Run(self.start + shift, self.period, count, 0)


@dataclass(frozen=True)
class _Loop:
    """A run as a loop.

    Attributes:
        initial: The values before the first iteration of the outputs that are its state.
        stacked: The weights or inputs that each iteration has an entry of.
        inputs: For each node and input of an iteration: an output of the iteration before, an
            entry, or the name of a value from outside; None for an output of the same iteration.
        last: The state after the last iteration, as far as it is read.
        single: Other values that are read outside of the loop, with their iterations.
    """

    run: _Run
    initial: Mapping[_Source, str]
    stacked: tuple[_Stack, ...]
    inputs: tuple[tuple[_Source | _Stack | str | None, ...], ...]
    last: frozenset[_Source]
    single: tuple[tuple[int, _Source], ...]


class _NoLoopError(Exception):
    """A run is no loop, because its iterations exchange values in different ways."""


@dataclass
class _Graph:
    """A graph, of which one run after the other becomes a loop.

    Attributes:
        added: New initializers: stacked weights, and numbers of iterations.
        loops: The number of loops so far.
    """

    proto: onnx.GraphProto
    weights: Mapping[str, Value]
    drawing: Set[_Operator]
    joins_inputs: bool
    shares_weights: bool
    added: dict[str, Array] = field(default_factory=dict)
    loops: int = 0

    def __post_init__(self) -> None:
        every = list(self.proto.node)
        self._constants: dict[str, onnx.NodeProto] = {}
        self._nodes: list[onnx.NodeProto] = []
        known: dict[str, str] = {name: name for name in self.weights}
        for proto in every:
            node = onnx.NodeProto()
            node.CopyFrom(proto)
            node.input[:] = [known.get(name, name) for name in node.input]
            # some programs share equal weights by Identity
            is_copy = node.op_type == "Identity" and all(name in known for name in node.input)
            is_known = node.op_type == "Constant" or is_copy
            if not is_known or node.domain not in _STANDARD or len(node.output) != 1:
                self._nodes.append(node)
                continue
            (name,) = node.output
            known[name] = node.input[0] if node.input else name
            self._constants[name] = node
        self._names = {name for each in every for name in (*each.input, *each.output)}
        self._names |= {each.name for each in (*self.proto.input, *self.proto.initializer)}
        self._formats: dict[str, Format] = {}
        self._inputs = {
            each.name: each.type.SerializeToString()
            for each in self.proto.input
            if self.joins_inputs and each.name not in self.weights
        }
        self._index()

    def _index(self) -> None:
        """Note which node computes each value, and which nodes are alike."""
        self._makers = {
            name: (at, output)
            for at, node in enumerate(self._nodes)
            for output, name in enumerate(node.output)
            if name
        }
        self._readers: dict[str, list[int]] = {each.name: [-1] for each in self.proto.output}
        for at, node in enumerate(self._nodes):
            for name in _read(node):
                self._readers.setdefault(name, []).append(at)
        numbers: dict[object, int] = {}
        forms = [_form(each, at, self.drawing) for at, each in enumerate(self._nodes)]
        self._forms = np.array([numbers.setdefault(each, len(numbers)) for each in forms])

    def best_loop(self) -> _Loop | None:
        """Return the loop that saves the most nodes; None if there is none."""
        for run in self._runs():
            best: _Loop | None = None
            for each in self._steady_parts(run):
                if best is not None and each.count < best.run.count:
                    break
                try:
                    loop = self._loop(each)
                except _NoLoopError:
                    continue
                if best is None or len(loop.initial) < len(best.initial):
                    best = loop
            if best is not None:
                return best
        return None

    def _steady_parts(self, run: _Run) -> Iterator[_Run]:
        """Yield the parts of a run in which each iteration after the first one goes on with the
        values of the one before: there are thousands of parts in a run, and few of these.
        """
        period = run.period
        pairs = range(run.start, run.stop + run.rest - period)
        breaks = np.r_[0, np.cumsum([not self._goes_on(at, at + period) for at in pairs])]
        for each in run.parts():
            first, last = each.start + period - run.start, each.stop - period - run.start
            if breaks[first] == breaks[last]:
                yield each

    def _goes_on(self, at: int, after: int) -> bool:
        """Return True if the inputs of two nodes may be those of one node in two iterations."""
        period = after - at
        for one, other in zip(self._nodes[at].input, self._nodes[after].input, strict=True):
            if one == other:
                continue
            maker, next_maker = self._makers.get(one), self._makers.get(other)
            if maker is None or next_maker is None:
                if maker is not next_maker:
                    return False
            elif next_maker != (maker[0] + period, maker[1]) or after - next_maker[0] >= 2 * period:
                return False
        return True

    def _runs(self) -> list[_Run]:
        """Return the runs of every period, those that save the most nodes first."""
        found: list[_Run] = []
        forms = self._forms
        for period in range(1, len(forms) // _LEAST_COUNT + 1):
            same = np.r_[False, forms[:-period] == forms[period:], False]
            for start, stop in np.flatnonzero(np.diff(same)).reshape(-1, 2).tolist():
                more, rest = divmod(stop - start, period)
                found.append(_Run(start, period, more + 1, rest))
        found = [e for e in found if e.count >= _LEAST_COUNT and e.saved >= _LEAST_SAVED]
        return sorted(found, key=lambda each: (-each.saved, each.period))

    def _loop(self, run: _Run) -> _Loop:
        """Return a run as a loop.

        Raises:
            _NoLoopError: if it is none.
        """
        initial: dict[_Source, str] = {}
        inputs: list[tuple[_Source | _Stack | str | None, ...]] = []
        for at in range(run.period):
            alike = self._nodes[run.start + at : run.stop : run.period]
            every = zip(*(each.input for each in alike), strict=True)
            inputs.append(tuple(self._input(run, names, initial) for names in every))
        operands = dict.fromkeys(each for every in inputs for each in every)
        stacked = tuple(
            each for each in operands if isinstance(each, tuple) and not isinstance(each, _Source)
        )
        if not self.shares_weights:
            self._check_readers(run, stacked)
        last, single = self._results(run, initial)
        if run.saved - len(single) < _LEAST_SAVED:
            raise _NoLoopError
        return _Loop(run, initial, stacked, tuple(inputs), last, single)

    def _check_readers(self, run: _Run, stacked: Sequence[_Stack]) -> None:
        """Check that each stacked weight has one entry, and no readers outside of its iteration.

        Raises:
            _NoLoopError: if that is not so.
        """
        stacks = [every for every in stacked if every[0] not in self._inputs]
        names = [name for every in stacks for name in every]
        if len(set(names)) < len(names):
            raise _NoLoopError
        for every in stacks:
            for iteration, name in enumerate(every):
                start = run.start + run.period * iteration
                readers = self._readers.get(name, ())
                if not all(start <= each < start + run.period for each in readers):
                    raise _NoLoopError

    def _results(
        self, run: _Run, initial: Mapping[_Source, str]
    ) -> tuple[frozenset[_Source], tuple[tuple[int, _Source], ...]]:
        """Return the values of a run that are read outside of it: the parts of the last state, and
        the other values with their iterations.
        """
        last: set[_Source] = set()
        single: list[tuple[int, _Source]] = []
        for at in range(run.start, run.stop):
            iteration, node = divmod(at - run.start, run.period)
            for output, name in enumerate(self._nodes[at].output):
                if all(run.start <= reader < run.stop for reader in self._readers.get(name, ())):
                    continue
                source = _Source(node, output)
                if iteration == run.count - 1 and source in initial:
                    last.add(source)
                else:
                    single.append((iteration, source))
        return frozenset(last), tuple(single)

    def _input(
        self, run: _Run, names: tuple[str, ...], initial: dict[_Source, str]
    ) -> _Source | _Stack | str | None:
        """Return what an input is in a loop, given its names in all iterations; add to the state
        of the loop.
        """
        places = [self._place(run, name) for name in names]
        steps = {None if p is None else (p[0] - k, *p[1:]) for k, p in enumerate(places)}
        if len(steps) == 1 and (step := steps.pop()) is not None and step[0] == 0:
            return None
        if places[0] is None and places[1] is not None:
            source = _Source(*places[1][1:])
            carried = [(k, *source) for k in range(run.count - 1)]
            if places[1:] != carried or initial.setdefault(source, names[0]) != names[0]:
                raise _NoLoopError
            return source
        if any(each is not None for each in places):
            raise _NoLoopError
        if len(set(names)) > 1 and (self._are_inputs(names) or self._are_weights(names)):
            return names
        return names[0]

    def _are_inputs(self, names: tuple[str, ...]) -> bool:
        """Return True for inputs of the graph of one shape, such as caches of all layers."""
        kinds = {self._inputs.get(name) for name in names}
        return len(kinds) == 1 and None not in kinds

    def _are_weights(self, names: tuple[str, ...]) -> bool:
        """Return True for weights of one shape, False for equal constants.

        Raises:
            _NoLoopError: for other values.
        """
        found = [self.weights.get(name) for name in names]
        weights = [each for each in found if each is not None and each.is_weight]
        if len(weights) == len(names):
            if len({(each.format, each.shape) for each in weights}) > 1:
                raise _NoLoopError
            if weights[0].format.bits >= 8:
                return True
        if len({self._constant(name) for name in names}) > 1:
            raise _NoLoopError
        return False

    def _constant(self, name: str) -> object:
        """Return what tells a constant from others."""
        value = self.weights.get(name)
        if value is not None and value.array is not None:
            return value.format, value.shape, value.array.tobytes()
        if name in self._constants:
            return tuple(each.SerializeToString() for each in self._constants[name].attribute)
        raise _NoLoopError

    def _place(self, run: _Run, name: str) -> tuple[int, int, int] | None:
        """Return the iteration, the node and the output that compute a value; None outside."""
        at, output = self._makers.get(name, (-1, 0))
        if not run.start <= at < run.stop:
            return None
        iteration, node = divmod(at - run.start, run.period)
        return iteration, node, output

    def replace(self, loop: _Loop) -> None:
        """Put a loop in the place of its run."""
        run = loop.run
        rows = sorted({source for _, source in loop.single})
        joins: list[onnx.NodeProto] = []
        entries = {
            every: self._joined(every, joins) if every[0] in self._inputs else self._stacked(every)
            for every in loop.stacked
        }
        if not entries:  # a loop over nothing would have no length
            entries[()] = self._added("steps", np.arange(run.count, dtype=np.int64))
        called = _alike([each.name for each in self._nodes[run.start : run.stop : run.period]])
        scan = helper.make_node(
            "Scan",
            [*loop.initial.values(), *entries.values()],
            [],
            self._fresh(f"{called}_loop"),
            REROLLED,
            body=self._body(loop, rows, entries),
            num_scan_inputs=len(entries),
        )
        for source in loop.initial:
            name = self._name(run, run.count - 1, source)
            scan.output.append(name if source in loop.last else self._fresh(f"{name}_unused"))
        parts: list[onnx.NodeProto] = []
        for source in rows:
            stacked = self._fresh(f"{self._called(run, source)}_rows")
            scan.output.append(stacked)
            for iteration, found in loop.single:
                if found == source:
                    at = self._added(f"{stacked}_{iteration}", np.array(iteration, np.int64))
                    name = self._name(run, iteration, source)
                    parts.append(helper.make_node("Gather", [stacked, at], [name], axis=0))
        self._nodes[run.start : run.stop] = [*joins, scan, *parts]
        self.loops += 1
        self._index()

    def _body(
        self, loop: _Loop, rows: Sequence[_Source], entries: Mapping[_Stack, str]
    ) -> onnx.GraphProto:
        """Return an iteration as a graph."""
        run = loop.run
        renamed: dict[str, str] = {}
        for at, node in enumerate(self._nodes[run.start : run.start + run.period]):
            for output, name in enumerate(node.output):
                if name:
                    renamed[name] = self._fresh(self._called(run, _Source(at, output)))
        states = {s: self._fresh(f"{renamed[self._name(run, 0, s)]}_before") for s in loop.initial}
        inner = {every: self._fresh(f"{name}_entry") for every, name in entries.items()}
        nodes: list[onnx.NodeProto] = []
        for at, inputs in enumerate(loop.inputs):
            node = onnx.NodeProto()
            node.CopyFrom(self._nodes[run.start + at])
            alike = self._nodes[run.start + at : run.stop : run.period]
            node.name = _alike([each.name for each in alike])
            node.output[:] = [renamed.get(name, "") for name in node.output]
            for position, found in enumerate(inputs):
                match found:
                    case None:
                        node.input[position] = renamed[node.input[position]]
                    case str():
                        node.input[position] = found
                    case _Source():
                        node.input[position] = states[found]
                    case _:
                        node.input[position] = inner[found]
            nodes.append(node)
        outputs = [renamed[self._name(run, 0, source)] for source in states]
        for source in rows:
            name = self._fresh("row")
            nodes.append(
                helper.make_node("Identity", [renamed[self._name(run, 0, source)]], [name])
            )
            outputs.append(name)
        given = [*states.values(), *inner.values()]
        ports = [[onnx.ValueInfoProto(name=each) for each in names] for names in (given, outputs)]
        return helper.make_graph(nodes, "iteration", *ports)

    def _stacked(self, every: tuple[str, ...]) -> str:
        """Return the name of the weights of all iterations as one initializer."""
        found = [self.weights[name].array for name in every]
        name = self._added(_alike(every), np.stack([each for each in found if each is not None]))
        self._formats[name] = self.weights[every[0]].format
        return name

    def _joined(self, every: tuple[str, ...], joins: list[onnx.NodeProto]) -> str:
        """Return the name of the inputs of all iterations as one value; add the nodes that join
        them.
        """
        sequence, joined = (self._fresh(f"{_alike(every)}_{part}") for part in ("each", "all"))
        joins.append(helper.make_node("SequenceConstruct", every, [sequence]))
        axes = {"axis": 0, "new_axis": 1}
        joins.append(helper.make_node("ConcatFromSequence", [sequence], [joined], **axes))
        return joined

    def _added(self, name: str, cells: Array) -> str:
        """Add an initializer, and return its name."""
        name = self._fresh(name)
        self.added[name] = cells
        return name

    def _name(self, run: _Run, iteration: int, source: _Source) -> str:
        """Return the name of an output in the unrolled graph."""
        node, output = source
        name: str = self._nodes[run.start + run.period * iteration + node].output[output]
        return name

    def _called(self, run: _Run, source: _Source) -> str:
        """Return a name for an output in all iterations."""
        return _alike([self._name(run, iteration, source) for iteration in range(run.count)])

    def _fresh(self, name: str) -> str:
        """Return a name that the graph does not have, and note it."""
        candidate, number = name, 1
        while candidate in self._names:
            number += 1
            candidate = f"{name}_{number}"
        self._names.add(candidate)
        return candidate

    def as_file(self, file: ModelFile) -> ModelFile:
        """Return the graph as a model, without the initializers that nothing reads any more, none
        of which is an input: layers share some.
        """
        proto = onnx.ModelProto()
        proto.CopyFrom(file.proto)
        graph = proto.graph
        read = {name for node in self._nodes for name in _read(node)}
        read |= {each.name for each in graph.output}
        del graph.node[:]
        constants: list[onnx.NodeProto] = []
        for node in reversed(self._constants.values()):
            if read.intersection(node.output):
                constants.append(node)
                read.update(node.input)
        graph.node.extend([*reversed(constants), *self._nodes])
        values = {each.name for each in graph.initializer}
        inputs = [each for each in graph.input if each.name not in values]
        kept = [each for each in graph.initializer if each.name in read]
        del graph.input[:], graph.initializer[:]
        graph.input.extend(inputs)
        graph.initializer.extend(kept)
        mapped = dict(file.mapped)
        for name, cells in self.added.items():
            found = self._formats.get(name) or format_of(cells)
            assert found is not None
            graph.initializer.add(name=name, dims=cells.shape, data_type=found.number)
            mapped[name] = cells.reshape(-1).view(np.uint8)
        return ModelFile(proto, file.folder, mapped, frozenset(self._formats))


def _operator(node: onnx.NodeProto) -> _Operator:
    return "" if node.domain in _STANDARD else node.domain, node.op_type


def _drawing(functions: Iterable[onnx.FunctionProto]) -> Set[_Operator]:
    """Return the operators that draw numbers, with the functions of a model that call them."""
    called = {
        (each.domain, each.name): {_operator(node) for node in all_nodes(each.node)}
        for each in functions
    }
    found = {("", name) for name in _DRAWING}
    pending = True
    while pending:
        callers = {each for each, operators in called.items() if operators & found}
        pending = not callers <= found
        found |= callers
    return found


def _form(node: onnx.NodeProto, position: int, drawing: Set[_Operator]) -> object:
    """Return what nodes that repeat each other have in common; the position of a node that none
    repeats.
    """
    graphs = [each for each in node.attribute if each.HasField("g") or each.graphs]
    if graphs or _operator(node) in drawing:
        return position
    attributes = sorted(each.SerializeToString() for each in node.attribute)
    ends = tuple(map(bool, node.input)), tuple(map(bool, node.output))
    return node.op_type, node.domain, node.overload, tuple(attributes), ends


def _read(node: onnx.NodeProto) -> Iterator[str]:
    """Yield the names that a node and the graphs in it read."""
    for each in all_nodes([node]):
        yield from each.input
        for attribute in each.attribute:
            for graph in (attribute.g, *attribute.graphs):
                yield from (output.name for output in graph.output)


def _alike(names: Sequence[str]) -> str:
    """Return a name for all iterations: `layers.*.w` for `layers.0.w`, `layers.1.w`, ..."""
    parts = [re.split(r"(\d+)", name) for name in names]
    if len({len(each) for each in parts}) > 1 or len({tuple(each[::2]) for each in parts}) > 1:
        return f"{names[0]}_*"
    return "".join(each[0] if len(set(each)) == 1 else "*" for each in zip(*parts, strict=True))
