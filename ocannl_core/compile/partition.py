"""Partition of a routine between backends: kernels that the first one cannot compile run on others.

    steps of the program        1: sum   2: tanh    3: product
    devices that support them   tiny     cpu_c      tiny
    parts                       tiny | cpu_c | tiny

A part is a plan of its own: consecutive steps of one level, scheduled for their device. A
repetition of which a device supports all steps is one step of a part; any other is opened, and the
host runs its iterations. Nodes of the routine that several parts mention become parameters of them.

Steps are assigned before schedules are chosen, since kernels are scheduled for one device. If a
backend refuses a kernel after that, the steps of the part go to the next device.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import assert_never

from ocannl_core.base.errors import CodegenError, UnsupportedError
from ocannl_core.base.fast_dataclass import dataclass, replace
from ocannl_core.base.identity import IdentityMap
from ocannl_core.compile.admission import Admission, admitted_steps
from ocannl_core.compile.parts import Device, Item, Part, PartitionedSource
from ocannl_core.compile.profile import CountedStep, counted_steps, isolate_step
from ocannl_core.ir.indexing import StaticIndex
from ocannl_core.ir.kernels import nodes as kernel_ir
from ocannl_core.ir.kernels.requirements import Lack
from ocannl_core.ir.loops.nodes import LoopProgram
from ocannl_core.ir.node import TensorNode
from ocannl_core.ir.target import Capability
from ocannl_core.passes.kernels.decompose import with_decomposition
from ocannl_core.passes.kernels.pipeline import finish_for, schedule_for
from ocannl_core.passes.kernels.split_kernels import split_kernels


def partition(
    optimized: LoopProgram,
    lowered: LoopProgram,
    devices: Sequence[Device],
    *,
    tries_each: bool = False,
) -> PartitionedSource:
    """Return the code of a program whose kernels run on the first of several devices that supports
    them.

    Args:
        lowered: The program as it was written, for lines of the user in errors.
        devices: The devices, the context's own first.
        tries_each: True to generate code for each step alone: a backend has raised a `CodegenError`
            about kernels that it did not refuse.

    Raises:
        UnsupportedError: if no device supports some step.
    """
    return _Partitioner(optimized, lowered, devices, tries_each=tries_each).made()


class _Partitioner:
    """The assignment of the steps of one program to devices."""

    def __init__(
        self,
        optimized: LoopProgram,
        lowered: LoopProgram,
        devices: Sequence[Device],
        *,
        tries_each: bool,
    ) -> None:
        self._tries_each = tries_each
        self._plan = split_kernels(optimized)
        self._optimized = optimized
        self._lowered = lowered
        self._devices = tuple(devices)
        self._admissions = [Admission(backend, target) for backend, target in devices]
        self._rules = [with_decomposition(kernel_ir.unchanged, target) for _, target in devices]
        self._excluded: IdentityMap[kernel_ir.LeafStep, set[int]] = IdentityMap()
        self._assigned: IdentityMap[kernel_ir.LeafStep, int] = IdentityMap()
        self._users: Counter[TensorNode] = Counter()

    def made(self) -> PartitionedSource:
        while True:
            for counted in counted_steps(self._plan):
                self._assigned[counted.step] = self._device_of(counted)
            levels = self._levels(self._plan.steps)
            self._users = Counter(
                node for group in kernel_ir.leaf_steps(levels) for node in _mentioned(group)
            )
            try:
                items = self._generate(levels, self._plan.scratch, ())
            except _PartRefusedError as error:
                for step in _leaves(error.steps):
                    self._excluded.setdefault(step, set()).add(error.device)
                continue
            return PartitionedSource(self._devices, items, self._joined(items))

    def _device_of(self, counted: CountedStep) -> int:
        """Return the number of the first device that supports a step."""
        step = counted.step
        refusals: list[Lack | str] = []
        excluded = self._excluded.find(step) or set()
        for number, (check, rule) in enumerate(zip(self._admissions, self._rules, strict=True)):
            (ready,) = rule(step, self._plan.nodes).steps
            found = check.refusal(ready, self._plan.nodes)
            if found is None and self._tries_each:
                found = self._problem(number, replace(counted, step=ready))
            if found is None and number not in excluded:
                return number
            refusals.append(found or "its kernel, as it is scheduled, is refused")
        name, written = self._optimized.name, kernel_ir.nodes_written(step)
        error = self._admissions[0].error(refusals[0], step.title, name, self._lowered, written)
        others = zip(self._devices[1:], refusals[1:], strict=True)
        raise UnsupportedError(
            "One of the devices of a context supports each kernel.",
            found="\n".join((error.found, *(f"{device[1]}: {why}" for device, why in others))),
            where=error.where,
            fix='name a backend that supports it: fallback=[..., "interp"]',
        )

    def _problem(self, number: int, counted: CountedStep) -> str | None:
        """Return why a backend generates no code for a step, without a schedule."""
        backend, target = self._devices[number]
        try:
            backend.generate(isolate_step(self._plan, counted), target)
        except CodegenError as error:
            return error.found or error.rule
        return None

    def _levels(self, steps: Sequence[kernel_ir.Step]) -> list[_Level]:
        """Return the steps of one level as groups for one device, and opened repetitions."""
        found: list[_Level] = []
        for step in steps:
            device = self._common_device(step)
            if device is None:
                assert isinstance(step, kernel_ir.RepeatedSteps)
                inside = tuple(self._levels(step.steps))
                found.append(kernel_ir.repeat_as(step, inside, step.scratch))
                continue
            last = found[-1] if found else None
            if isinstance(last, _Group) and last.device == device:
                found[-1] = _Group(device, (*last.steps, step))
            else:
                found.append(_Group(device, (step,)))
        return found

    def _common_device(self, step: kernel_ir.Step) -> int | None:
        """Return the device of all that a step consists of; None for a repetition to open."""
        if not isinstance(step, kernel_ir.RepeatedSteps):
            return self._assigned[step]
        devices = {self._assigned[each] for each in _leaves(step.steps)}
        if len(devices) > 1:
            return None
        device = next(iter(devices), 0)
        has_repetitions = Capability.REPETITIONS in self._devices[device][1].capabilities
        return device if has_repetitions else None

    def _generate(
        self, levels: Sequence[_Level], own: Sequence[TensorNode], indices: tuple[StaticIndex, ...]
    ) -> tuple[Item, ...]:
        """Return the parts of a level.

        Args:
            own: The nodes of the routine whose cells are undefined at the start of the level.
            indices: The indices of the open repetitions around.
        """
        items: list[Item] = []
        for each in levels:
            match each:
                case kernel_ir.RepeatedSteps(steps=inside, scratch=scratch):
                    found = self._generate(inside, scratch, (*indices, each.index))
                    items.append(kernel_ir.repeat_as(each, found, scratch))
                case _Group():
                    items.append(self._part(each, own, indices))
                case _:
                    assert_never(each)
        return tuple(items)

    def _part(
        self, group: _Group, own: Sequence[TensorNode], indices: tuple[StaticIndex, ...]
    ) -> Part:
        mentioned = _mentioned(group)
        scratch = tuple(node for node in own if node in mentioned and self._users[node] == 1)
        inside = {*scratch, *kernel_ir.private_nodes(group.steps)}
        nodes = {node: info for node, info in self._plan.nodes.items() if node in mentioned}
        params = tuple(node for node in nodes if node not in inside)
        every = (*self._plan.indices, *indices)
        plan: kernel_ir.Plan = kernel_ir.Plan(
            self._plan.name, group.steps, params, scratch, every, nodes
        )
        backend, target = self._devices[group.device]
        stream = schedule_for(plan, target, finish_for(target), offer=backend.library(target))
        check = self._admissions[group.device]
        try:
            stream = admitted_steps(stream, check, self._optimized.name, self._lowered)
            source = backend.generate(stream, target)
        except CodegenError as error:
            raise _PartRefusedError(group.steps, group.device) from error
        return Part(group.device, stream.plan(), source)

    def _joined(self, items: Sequence[Item]) -> kernel_ir.Plan:
        """Return the plan of all parts together."""
        nodes = dict(self._plan.nodes)
        for part in kernel_ir.leaf_steps(items):
            nodes.update(part.plan.nodes)
        steps = tuple(_steps_of(items))
        left = {node for step in _leaves(steps) for node in kernel_ir.nodes_of_step(step)}
        inside = {*self._plan.params, *kernel_ir.private_nodes(steps)}
        scratch = tuple(node for node in nodes if node in left and node not in inside)
        return replace(self._plan, steps=steps, scratch=scratch, nodes=nodes)


def _steps_of(items: Sequence[Item]) -> Iterator[kernel_ir.Step]:
    for item in items:
        if isinstance(item, Part):
            yield from item.plan.steps
        else:
            yield kernel_ir.repeat_as(item, tuple(_steps_of(item.steps)), ())


@dataclass(frozen=True, slots=True)
class _Group:
    """Consecutive steps of one level for one device."""

    device: int
    steps: tuple[kernel_ir.Step, ...]


_Level = _Group | kernel_ir.RepeatedSteps[_Group]
"""A group, or a repetition whose steps are for several devices."""


class _PartRefusedError(Exception):
    """A backend does not support a kernel of a part as it is scheduled for its device."""

    def __init__(self, steps: tuple[kernel_ir.Step, ...], device: int) -> None:
        super().__init__()
        self.steps = steps
        self.device = device


def _leaves(steps: Iterable[kernel_ir.Step]) -> Iterator[kernel_ir.LeafStep]:
    found: Iterator[kernel_ir.LeafStep] = kernel_ir.leaf_steps(steps)
    return found


def _mentioned(group: _Group) -> frozenset[TensorNode]:
    """Return the nodes that the steps of a group mention."""
    return frozenset(
        node for step in _leaves(group.steps) for node in kernel_ir.nodes_of_step(step)
    )
