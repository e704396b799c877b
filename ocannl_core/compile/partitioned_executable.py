"""The executable of a routine on several devices: parts, and the transfers between them.

Each device has memory for the nodes that its parts mention; where a backend can address the memory
of another one in this process, both share it. Before a part, the nodes that it mentions are copied
from a device that has their values; at the end of a call, the context's own device has all values
again. An iteration of an open repetition begins with the values where the first one found them.

The host waits for each part and each transfer.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

from ocannl_core.backend.exclusive import make_exclusive
from ocannl_core.backend.loaded_backend import Backend, transfer
from ocannl_core.backend.protocols import Buffer, Executable, Launcher
from ocannl_core.base import timeline
from ocannl_core.base.fast_dataclass import dataclass, replace
from ocannl_core.base.identity import IdentityMap
from ocannl_core.compile import profile
from ocannl_core.compile.parts import Item, Part, PartitionedSource
from ocannl_core.ir.indexing import StaticIndex
from ocannl_core.ir.kernels import nodes as kernel_ir
from ocannl_core.ir.loops.traverse import merge_reads
from ocannl_core.ir.node import NodeInfo, TensorNode

Values = dict[StaticIndex, int]
Action = Callable[[Values], None]


@dataclass(frozen=True, slots=True)
class Transfer:
    """A copy of the cells of a node from one device to another."""

    node: TensorNode
    source: int
    """The number of the device that has the value."""
    destination: int
    """The number of the device that needs it."""


FlowStep = Part | Transfer | kernel_ir.RepeatedSteps[Part | Transfer]
"""A step of the host: it launches a part, copies a node, or runs iterations."""

_Places = dict[TensorNode, frozenset[int]]
"""The devices that have the value of each node."""


def flow_of(
    items: Sequence[Item], params: Sequence[TensorNode], shared: Mapping[TensorNode, frozenset[int]]
) -> tuple[FlowStep, ...]:
    """Return the parts of a routine with the transfers between them.

    Args:
        params: The nodes of the context, whose values device 0 has before and after the routine.
        shared: The devices whose memory of a node is one, by node.
    """
    return _Flow(params, shared).whole(items)


class _Flow:
    def __init__(
        self, params: Sequence[TensorNode], shared: Mapping[TensorNode, frozenset[int]]
    ) -> None:
        self._params = params
        self._shared = shared

    def whole(self, items: Sequence[Item]) -> tuple[FlowStep, ...]:
        places: _Places = {node: self._alias(node, 0) for node in self._params}
        steps = list(self._steps(items, places))
        home = {node: frozenset({0}) for node in self._params}
        return (*steps, *self._restored(places, home))

    def _alias(self, node: TensorNode, device: int) -> frozenset[int]:
        """Return the devices whose memory of a node is that of a device."""
        together = self._shared.get(node, frozenset())
        return together if device in together else frozenset({device})

    def _steps(self, items: Sequence[Item], places: _Places) -> Iterator[FlowStep]:
        """Yield the steps of items; afterwards, `places` has the state behind them."""
        for item in items:
            if isinstance(item, Part):
                yield from self._part(item, places)
            else:
                yield from self._invariant(item, places)
                yield self._iterations(item, places)

    def _part(self, part: Part, places: _Places) -> Iterator[FlowStep]:
        for node in part.plan.params:
            yield from self._fetch(node, part.device, places)
        yield part
        for node in _written(part):
            places[node] = self._alias(node, part.device)

    def _fetch(self, node: TensorNode, device: int, places: _Places) -> Iterator[FlowStep]:
        """Yield the transfer of a node to a device that does not have its value."""
        found = places.get(node)
        if found is not None and device not in found:
            yield Transfer(node, min(found), device)
            places[node] = found | self._alias(node, device)

    def _invariant(
        self, repeated: kernel_ir.RepeatedSteps[Part], places: _Places
    ) -> Iterator[FlowStep]:
        """Yield the transfers of nodes that no iteration writes: once, before the first one."""
        parts = list(kernel_ir.leaf_steps(repeated.steps))
        written = {node for part in parts for node in _written(part)}
        for part in parts:
            for node in part.plan.params:
                if node not in written:
                    yield from self._fetch(node, part.device, places)

    def _iterations(
        self, repeated: kernel_ir.RepeatedSteps[Part], places: _Places
    ) -> kernel_ir.RepeatedSteps[Part | Transfer]:
        """Return the steps of an iteration, which begins and ends with values in equal places."""
        private = frozenset(repeated.scratch)
        entry = {node: found for node, found in places.items() if node not in private}
        while True:
            state = dict(entry)
            steps = list(self._steps(repeated.steps, state))
            narrower = dict(entry)
            for node, found in state.items():
                if node in private:
                    continue
                before = entry.get(node)
                # before the first iteration, a node without a value has one as good everywhere
                kept = found if before is None else before & found
                narrower[node] = kept or self._alias(node, min(before or found))
            if narrower == entry:
                break
            entry = narrower
        steps += self._restored(state, entry)
        places.update(entry)
        places.update({node: found for node, found in state.items() if node not in private})
        return kernel_ir.repeat_as(repeated, tuple(steps), repeated.scratch)

    def _restored(
        self, places: _Places, wanted: Mapping[TensorNode, frozenset[int]]
    ) -> list[FlowStep]:
        """Return transfers after which values are in the places wanted, too."""
        found: list[FlowStep] = []
        for node, devices in wanted.items():
            for device in sorted(devices):
                if device not in places[node]:
                    found.append(Transfer(node, min(places[node]), device))
                    places[node] = places[node] | self._alias(node, device)
        return found


def _written(part: Part) -> list[TensorNode]:
    """Return the parameters that a part writes."""
    written = {node for step in part.plan.steps for node in kernel_ir.nodes_written(step)}
    return [node for node in part.plan.params if node in written]


class PartitionedExecutable:
    """The compiled parts of a routine on several devices."""

    def __init__(self, source: PartitionedSource) -> None:
        self.source = source
        """The code."""
        self.flow: tuple[FlowStep, ...] = ()
        """The steps of the link that was made last, with the transfers that it needs."""
        self._compiled: IdentityMap[Part, Executable] = IdentityMap()
        for part in kernel_ir.leaf_steps(source.items):
            backend, target = source.devices[part.device]
            self._compiled[part] = backend.compile(part.source, target)

    def link(
        self,
        buffers: Mapping[TensorNode, Buffer],
        merge_buffers: Mapping[TensorNode, Buffer] | None = None,
    ) -> Launcher:
        """Return a callable that runs all parts.

        Args:
            buffers: The memory of the parameters, of the context's own device.
            merge_buffers: The merge buffers that the routine reads, of the same device.
        """
        memory = PartMemory(self.source, buffers, merge_buffers or {})
        plan = self.source.plan
        self.flow = flow_of(self.source.items, plan.params, memory.shared)
        link = _Link(self.source, memory, self._compiled)
        actions = [link.action(step) for step in self.flow]
        indices = plan.indices
        settle = link.waiting(0)

        def launch(numbers: Sequence[int]) -> None:
            values = dict(zip(indices, numbers, strict=True))
            settle()
            for action in actions:
                action(values)

        return make_exclusive(launch, plan.name)


class PartMemory:
    """The memory of each node on each device that mentions it."""

    def __init__(
        self,
        source: PartitionedSource,
        buffers: Mapping[TensorNode, Buffer],
        merges: Mapping[TensorNode, Buffer],
    ) -> None:
        self._devices = source.devices
        self._at: dict[tuple[TensorNode, int], Buffer] = {}
        self.merges: dict[tuple[TensorNode, int], Buffer] = {}
        together: dict[TensorNode, frozenset[int]] = {}
        for node, buffer in buffers.items():
            self._at[node, 0] = buffer
        for node, buffer in merges.items():
            self.merges[node, 0] = buffer
        first: dict[TensorNode, int] = dict.fromkeys(buffers, 0)
        for part in kernel_ir.leaf_steps(source.items):
            device, nodes = part.device, part.plan.nodes
            for node in part.plan.params:
                if (node, device) in self._at:
                    continue
                home = first.setdefault(node, device)
                made = None if home == device else self._shared(self._at[node, home], device)
                if made is not None:
                    together[node] = together.get(node, frozenset({home})) | {device}
                self._at[node, device] = made or self._new(nodes[node], device)
            for node in _merged(part.plan):
                if (node, device) not in self.merges:
                    self.merges[node, device] = self._new(nodes[node], device)
        self.shared: Mapping[TensorNode, frozenset[int]] = together

    def _new(self, info: NodeInfo, device: int) -> Buffer:
        backend, target = self._devices[device]
        return backend.allocate(info, target)

    def _shared(self, buffer: Buffer, device: int) -> Buffer | None:
        backend, target = self._devices[device]
        return backend.share(buffer, target)

    def at(self, node: TensorNode, device: int) -> Buffer:
        return self._at[node, device]

    def of(self, part: Part) -> dict[TensorNode, Buffer]:
        """Return the memory of the parameters of a part."""
        return {node: self._at[node, part.device] for node in part.plan.params}


class _Link:
    """The steps of one link as functions of the static indices."""

    def __init__(
        self, source: PartitionedSource, memory: PartMemory, compiled: IdentityMap[Part, Executable]
    ) -> None:
        self._devices = source.devices
        self._memory = memory
        self._compiled = compiled

    def action(self, step: FlowStep) -> Action:
        match step:
            case Part():
                return self._launch(step)
            case Transfer(node, source, destination):
                to, origin = (self._memory.at(node, each) for each in (destination, source))
                return lambda values: self._copy(destination, source, to, origin)
            case kernel_ir.RepeatedSteps(index=index, steps=inside):
                order = step.iterations
                actions = [self.action(each) for each in inside]

                def repeat(values: Values) -> None:
                    for iteration in order:
                        now = {**values, index: iteration}
                        for action in actions:
                            action(now)

                return repeat

    def waiting(self, device: int) -> Callable[[], None]:
        """Return a function that waits for the work of a device."""
        backend, target = self._devices[device]
        if backend.is_synchronous:
            return lambda: None
        return lambda: backend.synchronize(target)

    def _launch(self, part: Part) -> Action:
        backend, target = self._devices[part.device]
        merged = _merged(part.plan)
        found = {node: self._memory.merges[node, part.device] for node in merged}
        given = (self._memory.of(part), found) if merged else (self._memory.of(part),)
        launch = backend.link(self._compiled[part], *given)
        wait, indices = self.waiting(part.device), part.plan.indices
        title = f"{len(tuple(kernel_ir.leaf_steps(part.plan.steps)))} kernels on {target}"
        copies = [
            (self._memory.merges[node, part.device], self._memory.merges[node, 0])
            for node in merged
            if part.device != 0
        ]

        def run(values: Values) -> None:
            for destination, source in copies:
                self._copy(part.device, 0, destination, source)
            numbers = [values[index] for index in indices]
            if timeline.is_on():
                with timeline.span("kernels", title):
                    backend.launch(launch, numbers, target)
                    wait()
            else:
                backend.launch(launch, numbers, target)
                wait()

        return run

    def _copy(self, destination: int, source: int, to: Buffer, origin: Buffer) -> None:
        _transfer(self._devices[destination][0], self._devices[source][0], to, origin)


def _merged(plan: kernel_ir.Plan) -> tuple[TensorNode, ...]:
    """Return the nodes whose merge buffers the kernels of a plan read."""
    every = (
        node
        for step in kernel_ir.leaf_steps(plan.steps)
        if isinstance(step, kernel_ir.Kernel)
        for node in merge_reads(step.body)
    )
    return tuple(dict.fromkeys(every))


def described_flow(executable: PartitionedExecutable) -> Iterator[str]:
    """Yield lines about the devices of a routine and the transfers between them."""
    number = 1
    devices, plan = executable.source.devices, executable.source.plan

    def lines(steps: Sequence[FlowStep], indent: str) -> Iterator[str]:
        nonlocal number
        for step in steps:
            match step:
                case Part():
                    count = len(tuple(kernel_ir.leaf_steps(step.plan.steps)))
                    last = number + count - 1
                    kernels = f"kernel {number}" if count == 1 else f"kernels {number} to {last}"
                    number = last + 1
                    yield f"{indent}{kernels} on {devices[step.device][1]}"
                case Transfer(node, source, destination):
                    places = f"from {devices[source][1]} to {devices[destination][1]}"
                    nbytes = plan.nodes[node].nbytes
                    yield f"{indent}transfer of {node.name}, {nbytes} bytes, {places}"
                case kernel_ir.RepeatedSteps(count=count, steps=inside):
                    yield f"{indent}{count} times"
                    yield from lines(inside, indent + "  ")

    yield from lines(executable.flow, "")


def profile_parts(
    executable: PartitionedExecutable,
    values: Sequence[int],
    memory: Mapping[TensorNode, Buffer],
    seconds: float,
) -> profile.Profile:
    """Return the least time of every kernel of a routine on several devices, and of every transfer.

    Args:
        values: The values of the plan's static indices.
        memory: The memory of the plan's parameters. It is copied.
        seconds: The time to spend; a few rounds are always made.
    """
    profile.check_seconds(seconds)
    source = executable.source
    backend, target = source.devices[0]
    plan = source.plan
    copies = {node: backend.allocate(plan.nodes[node], target) for node in plan.params}
    for node, buffer in memory.items():
        backend.transfer(copies[node], buffer).wait()
    found = PartMemory(source, copies, {})
    flow = flow_of(source.items, plan.params, found.shared)
    return profile.measured(plan.name, [*_timed(flow, source, found, values, 1)], seconds)


def _timed(
    flow: Sequence[FlowStep],
    source: PartitionedSource,
    memory: PartMemory,
    values: Sequence[int],
    count: int,
) -> Iterator[profile.TimedStep]:
    for step in flow:
        match step:
            case kernel_ir.RepeatedSteps(steps=inside):
                yield from _timed(inside, source, memory, values, count * step.count)
            case Transfer(node, origin, destination):
                to, cells = (memory.at(node, each) for each in (destination, origin))
                backends = source.devices[destination][0], source.devices[origin][0]
                names = f"{source.devices[origin][1]} to {source.devices[destination][1]}"
                title = f"transfer of {node.name} from {names}"
                facts = profile.KernelTime(0, title, 0.0, nbytes=cells.info.nbytes)
                run = partial(_transfer, *backends, to, cells)
                yield profile.TimedStep(facts, run, count)
            case Part(device, plan):
                backend, target = source.devices[device]
                own = {node: backend.allocate(plan.nodes[node], target) for node in plan.own_nodes}
                buffers = {**memory.of(step), **own}
                for each in profile.counted_steps(plan):
                    repeated = replace(each, count=each.count * count)
                    yield profile.timed_step(plan, repeated, (backend, target), buffers, values)


def _transfer(to_backend: Backend, from_backend: Backend, to: Buffer, origin: Buffer) -> float:
    """Copy between two devices; return the seconds that it took."""
    start = time.perf_counter()
    transfer(to_backend, from_backend, to, origin).wait()
    return time.perf_counter() - start
