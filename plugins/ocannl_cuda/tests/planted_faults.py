"""Faults that tests must catch, each a change of one place of the text of a module."""

from __future__ import annotations

from dataclasses import dataclass

CUDA = "plugins/ocannl_cuda/src/ocannl_cuda"
TESTS = "plugins/ocannl_cuda/tests"
CORE = "ocannl_core"


@dataclass(frozen=True)
class Fault:
    """A change of a module, and the tests that it concerns.

    Attributes:
        name: The fault.
        path: The module.
        old: A text that is in it once.
        new: The text in its place.
        tests: A file of tests, and an expression of pytest that chooses some of them.
    """

    name: str
    path: str
    old: str
    new: str
    tests: tuple[str, str]


def tests_of(name: str, chosen: str) -> tuple[str, str]:
    return f"{TESTS}/test_cuda_{name}.py", chosen


_PTX, _WARPGROUPS = f"{CUDA}/ptx.py", f"{CUDA}/warpgroup_ptx.py"
_KNOWN = tests_of("text", "known_ones")

INSTRUCTIONS = (
    Fault("a wait for one group of copies too few", _PTX,
          "cp.async.wait_group {found[1]};", "cp.async.wait_group {int(found[1]) + 1};", _KNOWN),
    Fault("matrices that are loaded without being transposed", _PTX,
          'form = ".trans" if is_transposed else ""', 'form = ""', _KNOWN),
    Fault("registers of a factor in another order", _PTX,
          """'"r"(left[{at}])'""", """'"r"(left[{at ^ 1}])'""", _KNOWN),
    Fault("copies that fill nothing with zeros", _PTX,
          "[%0], [%1], {nbytes}, %2;", "[%0], [%1], {nbytes};", _KNOWN),
    Fault("copies that the compiler may move", _PTX,
          ':: "r"(place), "l"(from), "r"(valid) : "memory");', ':: "r"(place), "l"(from), "r"(valid));', _KNOWN),
    Fault("forms of factors exchanged", _WARPGROUPS,
          "{major[0]}, {major[1]};", "{major[1]}, {major[0]};", _KNOWN),
    Fault("products that replace the sums", _WARPGROUPS, "adds, 1, 0;", "adds, 0, 0;", _KNOWN),
    Fault("a wait for one group of products too few", _WARPGROUPS,
          "wgmma.wait_group.sync.aligned 1;", "wgmma.wait_group.sync.aligned 2;", _KNOWN),
    Fault("barriers that the copy engine does not see", _WARPGROUPS,
          'asm volatile("fence.proxy.async.shared::cta;" ::: "memory");', 'asm volatile("" ::: "memory");', _KNOWN),
    Fault("more registers than a multiprocessor has", _WARPGROUPS,
          "CONSUMER_REGISTERS = 232", "CONSUMER_REGISTERS = 240", _KNOWN),
    Fault("numbers that are cut in place of rounded", _PTX, "cvt.rn.{format_}x2", "cvt.rz.{format_}x2", _KNOWN),
)  # fmt: skip
"""Texts of PTX, in whose place the emulator has functions of its own."""

_PIPELINES, _RINGS = (f"{CORE}/schedule/apply/software_pipelines.py", f"{CUDA}/rendering/wgmma.py")
_PARTIAL, _STATISTICS = (
    f"{CORE}/schedule/apply/partial_results.py",
    f"{CORE}/passes/kernels/attention/online_softmax.py",
)
_COPIED_AHEAD = tests_of("software_pipelining", "copied_ahead")
_ASYNCHRONOUS = tests_of("wgmma", "sums_of_whole_numbers or planted")
_SUMS = tests_of("schedules", "reductions_are_right or same_bits")
_ATTENTION = tests_of("flash_attention", "attention_of_any_extents")

CODE = (
    Fault("blocks of half the threads that run", f"{CUDA}/source.py",
          "__launch_bounds__({threads}{together})", "__launch_bounds__({threads // 2}{together})",
          tests_of("text", "share_memory")),
    Fault("running totals that stay under an earlier limit", _STATISTICS,
          "stmts.append(self._scaled(node, factor, x))", "stmts.append(self._scaled(node, factor, x)) if False else None",
          _ATTENTION),
    Fault("a stage that is used before its copies have arrived", _PIPELINES,
          "own: list[ir.Stmt] = [ir.Barrier(ahead - 1)]", "own: list[ir.Stmt] = [ir.Barrier(ahead)]", _COPIED_AHEAD),
    Fault("one iteration beyond the end", f"{CORE}/schedule/apply/axis_tree.py",
          "or LoopBound(position, axis.extent)", "or LoopBound(position, axis.extent + 1)", _SUMS),
    Fault("half the distance of blocks in a descriptor", f"{CUDA}/matrix_descriptors.py",
          "(leading >> ADDRESS_SHIFT)", "(leading >> ADDRESS_SHIFT + 1)", tests_of("wgmma", "descriptor")),
    Fault("another exchange of the parts of rows", f"{CUDA}/tensor_maps.py",
          "128: 3}", "128: 2}", tests_of("wgmma", "tensor_map")),
    Fault("formats of tensor maps exchanged", f"{CUDA}/tensor_maps.py",
          "{float16: 6, float32: 7, float64: 8, bfloat16: 9}",
          "{float16: 9, float32: 7, float64: 8, bfloat16: 6}", tests_of("wgmma", "tensor_map")),
    Fault("a copying thread that waits for a stage that nobody frees", _RINGS,
          'first = "~0u" if self._copies else "0u"', 'first = "0u"', _ASYNCHRONOUS),
    Fault("a stage that is free while it is multiplied", _RINGS,
          'self._write("await_earlier_products")', 'self._write("commit_products")', _ASYNCHRONOUS),
    Fault("a step of a reduction across lanes left out", f"{CORE}/codegen/rendering/statements.py",
          "apart = stmt.lanes // 2", "apart = stmt.lanes // 4", _SUMS),
    Fault("a thread of a tree that does nothing", _PARTIAL,
          "running = left if", "running = left - 1 if", _SUMS),
    Fault("steps of a tree without barriers", _PARTIAL, "if not is_last:", "if is_last is None:", _SUMS),
    Fault("the last tile before a diagonal left out", f"{CORE}/passes/kernels/attention/causal_mask.py",
          "affine(terms, offset + last.extent - 1),", "affine(terms, offset - 1),", _ATTENTION),
    Fault("the last tile of a grid left out", f"{CUDA}/rendering/wgmma.py",
          "block < {blocks}u;", "block + 1 < {blocks}u;", _ASYNCHRONOUS),
    Fault("1 KiB of shared memory too little", f"{CUDA}/executable.py",
          "shared = text.group_bytes if", "shared = text.group_bytes - 1024 if",
          tests_of("schedules", "states_the_shared_memory")),
    Fault("vectors at any address", f"{CORE}/ir/kernels/nest_accesses.py",
          "and (offset + first) % lanes == 0", "and first >= 0", tests_of("schedules", "without_alignment")),
    Fault("a folded grid that repeats its first row", f"{CUDA}/dialect.py",
          "({kind})gridDim.x * ({kind})blockIdx.y", "({kind})blockIdx.y", tests_of("launch_limits", "folded")),
    Fault("sweeps of stages without a barrier between them", _PIPELINES,
          "meeting = (ir.Barrier(),) if", "meeting: tuple[ir.Stmt, ...] = () if", tests_of("software_pipelining", "between_sweeps")),
    Fault("copies of steps after the last one", _PIPELINES,
          "return copies if last < count else", "return copies if last else",
          tests_of("software_pipelining", "after_the_last_one")),
    Fault("shuffles with lanes that do not exist", f"{CUDA}/dialect.py",
          '"0xffffffffu" if not rest else f"{rest:#x}u"', '"0xffffffffu"', tests_of("schedules", "lanes_that_exist")),
    Fault("half of the terms of a part", f"{CORE}/passes/kernels/split_reductions.py",
          "size, rest = divmod(axis.extent, parts)", "size, rest = axis.extent // parts // 2, axis.extent % parts",
          ("tests/core/passes/kernels/test_split_reductions.py", "")),
    Fault("halves that are rounded up", f"{CORE}/codegen/c/scalars.h",
          "(bits + 0x7fff + (bits >> 16 & 1)) >> 16", "(bits + 0x8000) >> 16", tests_of("schedules", "half_way")),
    Fault("squares of cells beyond an array", f"{CORE}/schedule/rules/block_rules.py",
          "if any(end > extent for end, extent in zip(ends, dims, strict=True)):", "if not ends:",
          ("tests/core/schedule/test_block_rules.py", "left_out")),
    Fault("rows of cells beyond an array", f"{CORE}/passes/kernels/rows/private_rows.py",
          "len(numbers) > 1 and is_plain and is_inside", "len(numbers) > 1 and is_plain",
          ("tests/core/passes/kernels/test_private_rows.py", "behind_a_condition")),
    Fault("the longest walks last", f"{CORE}/passes/kernels/attention/attention_kernel.py",
          "is_reversed = mask is not None and not mask.is_falling", "is_reversed = False",
          ("tests/core/passes/kernels/test_flash_attention.py", "longest_walks")),
    Fault("products that are not rounded", f"{CUDA}/compiler.py",
          '"--fmad=false", ', "", tests_of("assembly", "on_their_own")),
)  # fmt: skip
"""The code of kernels."""

_DEVICE, _MEMORY, _GRAPHS = f"{CUDA}/device.py", f"{CUDA}/memory.py", f"{CUDA}/graphs.py"


def order_of(chosen: str) -> tuple[str, str]:
    return tests_of("stream_order", chosen)


RUNTIME = (
    Fault("later work of a user's stream that does not wait", _DEVICE,
          "                self.let_wait(followed, self.stream.handle)", "                pass",
          order_of("inside_of_on_stream")),
    Fault("work that does not wait for a user's stream", _DEVICE,
          "                self.let_wait(self.stream.handle, followed)", "                pass",
          order_of("inside_of_on_stream")),
    Fault("a copy that does not wait for the other device", _MEMORY,
          "    wait_for(there, here)\n", "", order_of("copy_between_devices")),
    Fault("contexts of a copy exchanged", _DEVICE,
          "there, here = handles", "here, there = handles", order_of("copy_between_devices")),
    Fault("a static index that stays the same in a graph", _GRAPHS,
          "if given != self._last:\n            self._launch", "if not given:\n            self._launch",
          tests_of("graphs", "has_the_bits")),
    Fault("graphs that are not released", _GRAPHS,
          "                device.calls.destroy_graph(self._graph, self._ready)",
          "                device.calls.destroy_graph(0, self._ready)", tests_of("graphs", "has_the_bits")),
    Fault("memory that is written before it is read", f"{CUDA}/dependences.py",
          "needed.update(each for region in written for each in readers.get(region, ()))", "needed.update(())",
          tests_of("dependences", "")),
    Fault("launches of a graph that follow those before", f"{CUDA}/driver_calls.py",
          "_REPLACE = 1", "_REPLACE = 0", tests_of("graphs", "has_the_bits")),
    Fault("a wait in no context", _MEMORY,
          "with self._device.current():\n                    event.synchronize()",
          "if event:\n                    event.synchronize()", tests_of("events", "asynchronous_backend")),
    Fault("memory of another library that is dropped under queued work", f"{CUDA}/foreign_memory.py",
          "self._device.hold(self._owner)", "del self._owner", order_of("adopted_memory")),
    Fault("memory of another library that is dropped at the next run", _DEVICE,
          "if not event.query():\n", "if event is None:\n", order_of("adopted_memory")),
    Fault("a block of memory that is given back twice", f"{CUDA}/memory_pool.py",
          "self._free.setdefault(size, []).append(block)", "self._free.setdefault(size, []).extend([block] * 2)",
          tests_of("runtime", "memory_is_reused")),
    Fault("blocks that are smaller than asked for", f"{CUDA}/memory_pool.py",
          "max(-(-nbytes // step), 1) * step", "max(nbytes // step, 1) * step", tests_of("runtime", "memory_is_reused")),
    Fault("launches beyond the limits of a device", f"{CUDA}/source.py",
          "check_launch(needs, limits, device,", "check_launch(needs, None, device,",
          tests_of("launch_limits", "refused_before")),
    Fault("code without the instructions of Hopper", f"{CUDA}/compiler.py",
          "'a' if major >= 9", "'a' if major > 9", tests_of("compilers", "one_architecture")),
    Fault("memory of another device that is written while it is read", f"{CUDA}/executable.py",
          "wait_for(each, device)", "wait_for(each, each)", order_of("merge_buffer")),
    Fault("an export before the work that fills it", _MEMORY,
          "device.let_follow(LEGACY_STREAM if stream is None else stream)", "pass", order_of("export_lets")),
    Fault("a page-locked block that is filled before its copy", f"{CUDA}/staging.py",
          "while self._busy and self._busy[0][1].query():", "while self._busy:", order_of("page_locked")),
    Fault("a launch of a graph that follows the last dependence alone", _GRAPHS,
          "[nodes[position] for position in before]", "[nodes[position] for position in before[-1:]]",
          order_of("all_of_its_dependences")),
    Fault("memory from its start in place of an offset", f"{CUDA}/foreign_memory.py",
          "(tensor.data or 0) + tensor.byte_offset", "tensor.data or 0", tests_of("interop", "offset")),
    Fault("exported memory that is used again under its consumer", _MEMORY,
          "self._device.take_back(self._stream)", "del self._stream", order_of("capsule")),
    Fault("described memory that is used again under its consumer", f"{CUDA}/memory_pool.py",
          "self._device.take_back(LEGACY_STREAM)", "return",
          order_of("description")),
    Fault("memory of another device that is read before it is written", f"{CUDA}/executable.py",
          "wait_for(device, each)", "wait_for(each, each)", order_of("merge_buffer")),
    Fault("a block that is free before its bytes arrive", f"{CUDA}/staging.py",
          "self._staging.give_back(self._block, event)", "self._block.free()", order_of("page_locked")),
    Fault("the default stream of a library refused", f"{CUDA}/user_streams.py",
          "if not handle and not isinstance(stream, int):", "if handle is None:", tests_of("interop", "stream_zero")),
)  # fmt: skip
"""The runtime, the limits of devices, and the compiler."""

FAULTS = {"PTX": INSTRUCTIONS, "code of kernels": CODE, "runtime, limits, compiler": RUNTIME}
