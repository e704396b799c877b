"""CUDA graphs: consecutive launches of kernels as one call of the driver.

Launches follow those on whose memory they depend, and no others, so that a graph has branches that
a device may run at the same time.

The first run of a routine launches its kernels one by one; the second one captures them in a graph,
which later runs replay. Addresses are bound when a routine is linked, so that a graph holds for all
runs; kernels that take static indices get their arguments anew when the values have changed. A
repetition of steps is unrolled into the graph, where the number of its launches permits.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import assert_never

from ocannl_core.backend_api import StaticIndex, dataclass
from ocannl_cuda.dependences import dependences
from ocannl_cuda.device import CudaDevice
from ocannl_cuda.driver_calls import DriverCallError, DriverCalls, KernelNodeParams, with_arguments
from ocannl_cuda.launches import Action, KernelLaunch, LaunchSequence, Values

_NON_BLOCKING = 1
MOST_NODES = 4096
"""The most launches of a graph: making it ready takes some microseconds for each."""


@dataclass(frozen=True, slots=True, eq=False)
class Repetition:
    """Steps that run several times.

    Attributes:
        index: The static index that has the number of the iteration.
        iterations: Its values, in order.
        steps: The steps of an iteration.
    """

    index: StaticIndex
    iterations: range
    steps: tuple[RunStep, ...]


@dataclass(frozen=True, slots=True, eq=False)
class HostStep:
    """A step that needs the host: a call of Python, or a check of a finished kernel."""

    action: Action


RunStep = KernelLaunch | HostStep | Repetition
"""A step of a linked routine."""


@dataclass(frozen=True, slots=True, eq=False)
class BoundLaunch:
    """A launch of a graph.

    Attributes:
        fixed: The values of the indices of unrolled repetitions.
    """

    launch: KernelLaunch
    fixed: Mapping[StaticIndex, int]

    def varying(self) -> tuple[StaticIndex, ...]:
        """Return the indices whose values differ from run to run."""
        return tuple(index for index in self.launch.indices if index not in self.fixed)


class _NodeUpdate:
    """The arguments of a launch of a graph, which change with static indices.

    Args:
        node: The driver's node of the graph.
        params: Its parameters.
        values: The values that the graph was made with.
    """

    __slots__ = ("_cells", "_fixed", "_last", "_launch", "_node", "_params")

    def __init__(
        self, bound: BoundLaunch, node: int, params: KernelNodeParams, values: Values
    ) -> None:
        self._launch = bound.launch
        self._fixed = bound.fixed
        known = {**values, **bound.fixed}
        self._last = [known[index] for index in bound.launch.indices]
        self._cells = bytearray(bound.launch.packed(known))
        self._node = node
        self._params = with_arguments(params, self._cells)

    def update(self, calls: DriverCalls, ready: int, values: Values) -> None:
        """Set the arguments of the launch, unless they are the last ones.

        Args:
            ready: The graph, ready for launches.
            values: The values of the static indices.

        Raises:
            DriverCallError: if the driver refuses.
        """
        fixed = self._fixed
        given = [fixed[i] if i in fixed else values[i] for i in self._launch.indices]
        if given != self._last:
            self._launch.pack_into(self._cells, given)
            calls.set_params(ready, self._node, self._params)
            self._last = given


class CudaGraph:
    """Launches as one call of the driver.

    Args:
        device: The device, whose context must be current.
        values: The values of the static indices for the first replay.

    Raises:
        LinkError: if the driver refuses one of them, or the whole.
    """

    __slots__ = ("__weakref__", "_device", "_graph", "_ready", "_updates", "_where")

    def __init__(self, device: CudaDevice, launches: Sequence[BoundLaunch], values: Values) -> None:
        self._device: CudaDevice | None = None
        self._graph = self._ready = 0
        self._where = _where(launches)
        calls = device.calls
        stream = device.driver.Stream(_NON_BLOCKING)
        follows = dependences([each.launch.accesses for each in launches])
        nodes: list[int] = []
        try:
            calls.begin_capture(stream.handle)
            try:
                for each, before in zip(launches, follows, strict=True):
                    calls.capture_after(stream.handle, [nodes[position] for position in before])
                    each.launch.start({**values, **each.fixed}, stream)
                    nodes.append(calls.last_captured(stream.handle))
            except BaseException:
                with suppress(DriverCallError):  # the first error has the kernel
                    self._graph = calls.end_capture(stream.handle)
                raise
            self._graph = calls.end_capture(stream.handle)
            self._ready = calls.instantiate(self._graph)
            self._updates = [
                _NodeUpdate(each, node, calls.kernel_params(node), values)
                for each, node in zip(launches, nodes, strict=True)
                if each.varying()
            ]
        except DriverCallError as error:
            calls.destroy_graph(self._graph, self._ready)
            raise device.failure(error, self._where) from error
        except BaseException:
            calls.destroy_graph(self._graph, self._ready)
            raise
        finally:
            del stream  # the traceback of an error keeps local variables alive
        self._device = device
        device.own(self)

    def update(self, values: Values) -> None:
        """Pass the values of static indices to the kernels that take them."""
        device = self._device
        assert device is not None
        try:
            for each in self._updates:
                each.update(device.calls, self._ready, values)
        except DriverCallError as error:
            raise device.failure(error, self._where) from error

    def replay(self) -> None:
        """Enqueue all launches.

        Raises:
            LinkError: if the driver refuses, or an earlier kernel has failed.
        """
        device = self._device
        assert device is not None
        try:
            device.calls.launch_graph(self._ready, device.stream.handle)
        except DriverCallError as error:
            raise device.failure(error, self._where) from error

    def free(self) -> None:
        """Return the graph to the driver, once."""
        device, self._device = self._device, None
        if device is not None and not device.is_left:
            with device:
                device.calls.destroy_graph(self._graph, self._ready)

    def __del__(self) -> None:
        self.free()


class GraphReplay:
    """An action that runs consecutive launches: one by one at first, then as a graph."""

    __slots__ = ("_device", "_graph", "_has_run", "_last", "_launches", "_varying")

    def __init__(self, device: CudaDevice, launches: Sequence[BoundLaunch]) -> None:
        self._device = device
        self._launches = tuple(launches)
        self._varying = tuple(dict.fromkeys(i for each in launches for i in each.varying()))
        self._graph: CudaGraph | None = None
        self._last: tuple[int, ...] = ()
        self._has_run = False

    def __call__(self, values: Values) -> None:
        if not self._has_run:
            self._has_run = True
            for each in self._launches:
                each.launch.start({**values, **each.fixed} if each.fixed else values)
            return
        given = tuple([values[index] for index in self._varying])
        if self._graph is None:
            self._graph = CudaGraph(self._device, self._launches, values)
        elif given != self._last:
            self._graph.update(values)
        self._last = given
        self._graph.replay()


def actions_of(
    steps: Sequence[RunStep], device: CudaDevice, *, uses_graphs: bool
) -> Iterator[Action]:
    """Yield the actions that run the steps of a routine.

    Args:
        uses_graphs: True to replay consecutive launches as graphs.
    """
    pending: list[BoundLaunch] = []
    constant: list[KernelLaunch] = []
    for step in steps:
        launches = None
        if uses_graphs:
            launches = _unrolled(step, MOST_NODES - len(pending))
            if launches is None and pending:
                yield from _flushed(device, pending)
                pending, launches = [], _unrolled(step, MOST_NODES)
        if launches is not None:
            pending += launches
            continue
        if isinstance(step, KernelLaunch) and not step.indices:
            constant.append(step)
            continue
        if constant:
            yield LaunchSequence(device, constant)
            constant = []
        match step:
            case KernelLaunch():
                yield step.start
            case HostStep(action):
                yield action
            case Repetition():
                inside = actions_of(step.steps, device, uses_graphs=uses_graphs)
                yield _repeated(step, list(inside))
            case _:
                assert_never(step)
    if constant:
        yield LaunchSequence(device, constant)
    yield from _flushed(device, pending)


def _flushed(device: CudaDevice, launches: Sequence[BoundLaunch]) -> Iterator[Action]:
    """Yield the action for consecutive launches; a graph of one saves nothing."""
    if len(launches) > 1:
        yield GraphReplay(device, launches)
    else:
        yield from (_alone(each) for each in launches)


def _alone(bound: BoundLaunch) -> Action:
    launch, fixed = bound.launch, bound.fixed
    return (lambda values: launch.start({**values, **fixed})) if fixed else launch.start


def _unrolled(step: RunStep, most: int) -> list[BoundLaunch] | None:
    """Return the launches of a step; None if it needs the host, or has too many."""
    found = list(_limited(_launches_of(step, {}), most + 1))
    return None if len(found) > most or None in found else [each for each in found if each]


def _launches_of(step: RunStep, fixed: Mapping[StaticIndex, int]) -> Iterator[BoundLaunch | None]:
    """Yield the launches of a step, with None for those that need the host."""
    match step:
        case KernelLaunch():
            yield BoundLaunch(step, {i: fixed[i] for i in step.indices if i in fixed})
        case HostStep():
            yield None
        case Repetition(index, iterations, steps):
            for position in iterations:
                for each in steps:
                    yield from _launches_of(each, {**fixed, index: position})
        case _:
            assert_never(step)


def _limited(found: Iterable[BoundLaunch | None], count: int) -> Iterator[BoundLaunch | None]:
    """Yield the first so many, and nothing behind the first None."""
    for _, each in zip(range(count), found, strict=False):
        yield each
        if each is None:
            return


def _repeated(repetition: Repetition, actions: Sequence[Action]) -> Action:
    index, iterations = repetition.index, repetition.iterations

    def run(values: Values) -> None:
        for position in iterations:
            values[index] = position
            for action in actions:
                action(values)

    return run


def _where(launches: Sequence[BoundLaunch]) -> str:
    """Return a graph for messages: its kernels, each once."""
    names = list(dict.fromkeys(each.launch.where for each in launches))
    shown = names if len(names) <= _SHOWN else [*names[:_SHOWN], f"{len(names) - _SHOWN} more"]
    return "\n".join([f"a graph of {len(launches)} launches:", *shown])


_SHOWN = 12
"""The most kernels that a message about a graph lists."""
