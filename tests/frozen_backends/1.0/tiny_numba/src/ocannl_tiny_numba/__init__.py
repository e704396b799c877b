"""The backend tiny_numba: prints kernels in Python, and compiles those by Numba that it knows."""

import linecache
from dataclasses import dataclass

import numba
import numpy as np

from ocannl_core import backend_api
from ocannl_core.backend_api import (
    Capability,
    Done,
    HostBuffer,
    HostCall,
    Kernel,
    NodeInfo,
    Plan,
    RepeatedSteps,
    Target,
    TargetReport,
    hookimpl,
    interior,
    make_exclusive,
    merge_reads,
)
from ocannl_core.backend_api.arithmetic import Kind, meaning_in, numbers_of, round_to, word_of
from ocannl_core.backend_api.host_calls import host_call
from ocannl_core.backend_api.loops import check_positions
from ocannl_tiny_numba.printer import LANGUAGE, Printer

OCANNL_API = (1, 0)
DEVICE = Target(
    "tiny_numba",
    description="Python",
    capabilities=(
        Capability.EXTERNAL_CALLS,
        Capability.MERGE_BUFFERS,
        Capability.POSITION_CHECKS,
        Capability.REPETITIONS,
        Capability.SCATTERS,
    ),
)


@hookimpl
def ocannl_targets():
    return TargetReport((DEVICE,))




@dataclass(frozen=True)
class Memory:
    """Cells of one node on the device."""

    array: np.ndarray
    info: NodeInfo
    target: Target


@hookimpl
def ocannl_allocate(info, target):
    return Memory(np.zeros(info.memory_dims, info.memory_numpy), info, target)


@hookimpl
def ocannl_transfer(destination, source):
    if not isinstance(destination, (Memory, HostBuffer)) or not isinstance(
        source, (Memory, HostBuffer)
    ):
        return None
    np.copyto(destination.array, source.array)
    return Done()




@dataclass(frozen=True)
class Code:
    """A routine as text; `symbols` are the functions of `plan.kernels`, None for calls."""

    plan: Plan
    symbols: tuple
    operations: dict
    checks: tuple
    text: str
    language: str = LANGUAGE


@hookimpl
def ocannl_generate(kernels, target):
    plan = kernels.plan()
    printer, symbols = Printer(plan.nodes), []
    for number, step in enumerate(plan.kernels):
        symbols.append(f"kernel_{number}" if isinstance(step, Kernel) else None)
        if isinstance(step, Kernel):
            printer.kernel(symbols[-1], step)
    text = "\n".join(printer.lines)
    return Code(plan, tuple(symbols), printer.operations, tuple(printer.checks), text)




@hookimpl
def ocannl_compile(source, target):
    return Compiled(source)


class Compiled:
    """A routine whose functions are defined, not bound to memory."""

    def __init__(self, code):
        self._code = code
        self.compilable = set()
        file = f"<{code.plan.name} of tiny_numba>"
        linecache.cache[file] = (len(code.text), None, code.text.splitlines(True), file)
        self._functions = {
            **{name: operation(*each) for name, each in code.operations.items()},
            **{str(dtype): dtype for dtype in vars(backend_api).values() if is_format(dtype)},
            "np": np,
            "checks": [check_function(each, code.plan) for each in code.checks],
            "half_of_byte": half_of_byte,
            "numbers_of": numbers_of,
            "round_to": round_to,
            "word_of": word_of,
        }
        self._functions |= {name: NATIVE[name] for name in code.operations if name in NATIVE}
        exec(compile(code.text, file, "exec"), self._functions)
        for symbol in filter(None, code.symbols):
            function = self._functions[symbol]
            if KNOWN.issuperset(function.__code__.co_names) and not function.__code__.co_cellvars:
                self.compilable.add(function)

    def link(self, buffers, merge_buffers=None):
        plan = self._code.plan
        own = {node: ocannl_allocate(plan.nodes[node], DEVICE) for node in plan.own_nodes}
        linker = Linker(self._functions, self.compilable, {**buffers, **own}, merge_buffers or {})
        run = linker.sequence(plan.steps, iter(self._code.symbols))

        def launch(numbers):
            linker.values.update(zip(plan.indices, numbers, strict=True))
            run()

        return make_exclusive(launch, plan.name)


class Linker:
    """The steps of one routine as functions over its memory.

    Attributes:
        values: The values of the static indices.
    """

    def __init__(self, functions, compilable, memory, merges):
        self._compilable = compilable
        self.values = {}
        self._functions = functions
        self._memory = memory
        self._merges = merges

    def sequence(self, steps, symbols):
        """Return a function that runs steps in order."""
        actions = [self.action(step, symbols) for step in steps]

        def run():
            for action in actions:
                action()

        return run

    def action(self, step, symbols):
        """Return a function that runs a step; `symbols` yields its functions from here on."""
        match step:
            case Kernel():
                return self.kernel(step, self._functions[next(symbols)])
            case HostCall(call):
                next(symbols)
                return host_call(call, self._memory, ocannl_transfer)
            case RepeatedSteps():
                run = self.sequence(step.steps, symbols)

                def repeat():
                    for iteration in step.iterations:
                        self.values[step.index] = iteration
                        run()

                return repeat

    def kernel(self, step, function):
        """Return a function that calls a kernel with its arguments."""
        arrays = [self._memory[node].array for node in step.arguments]
        arrays += [self._merges[node].array for node in merge_reads(step.body)]
        flat = [array.reshape(-1) for array in arrays]
        if function in self._compilable and all(each.dtype.char in "fdbBhHiIlLqQ?" for each in flat):
            function = numba.njit(function)

        def run():
            function(*flat, *(self.values[each] for each in step.indices))

        return run




@numba.njit
def add_float32(a, b):
    return float(np.float32(a + b))  # sums and products of singles are rounded right as doubles


@numba.njit
def sub_float32(a, b):
    return float(np.float32(a - b))


@numba.njit
def mul_float32(a, b):
    return float(np.float32(a * b))


NATIVE = {each.__name__: each for each in (add_float32, sub_float32, mul_float32)}
KNOWN = {"range", "float", *NATIVE}



def is_format(value):
    return isinstance(value, backend_api.DType)


def operation(op, operand, result):
    """Return a primitive, rounded to the format of its result."""
    meaning = meaning_in(op, operand, result)
    return lambda *operands: round_to(meaning(*operands), result)


def half_of_byte(array, position, dtype):
    """Return a cell of four bits."""
    bits = array.item(position >> 1) >> 4 * (position & 1) & 15
    return bits - 16 if dtype.kind is Kind.SIGNED and bits > 7 else bits


def check_function(check, plan):
    """Return a function that raises the error of a check of positions, if it fails."""
    info = plan.nodes[check.node]

    def run(array, ends):
        known = dict(zip(check.extents, ends, strict=True))
        check_positions(check, interior(array.reshape(info.buffer_dims), info), known.__getitem__)

    return run
