"""Arrays of PyCUDA in memory of our pool, above an emulated driver."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from plugins.ocannl_cuda.tests.emulated import NOTHING_LEFT, Outcome, left_of, needs_emulation, run

pytestmark = needs_emulation

PROGRAM = """
import gc
import numpy as np
import pycuda.driver as driver
from pycuda.gpuarray import GPUArray
import ocannl_core as oc
import ocannl_cuda
from ocannl_core.backend_api import NodeInfo, UsageError, float32
from ocannl_cuda.device import device_of

ctx = oc.Context("cuda")
device = device_of(ctx.target)
device.memory.is_exact = False  # blocks are reused, as on a device
x = oc.placeholder("x", batch=[4], output=[3])
y = x * 2.0
step = ctx.compile(oc.train.forward(y))
cells = np.arange(12, dtype=np.float32).reshape(4, 3)
big = NodeInfo(float32, (1024, 1024))


def pinned(value, size=1024 * 1024):
    found = driver.pagelocked_empty(size, np.float32)
    found[:] = value
    return found
"""


def with_arrays(program: str, folder: Path, **variables: str) -> Outcome:
    return run(f"{PROGRAM}\n{dedent(program)}", folder, **variables)


def check(outcome: Outcome) -> None:
    assert (outcome.code, outcome.errors) == (0, ""), outcome.errors
    assert left_of(outcome) == NOTHING_LEFT


def test_an_array_in_memory_of_the_pool_is_a_value_and_shares_its_memory(tmp_path: Path) -> None:
    program = """
        used = device.memory.used
        with device:
            array = GPUArray((4, 3), np.float32, allocator=ocannl_cuda.allocator())
            array.set(cells)
            assert (array.get() == cells).all()
        assert device.memory.used > used
        ctx[x] = array
        step()
        assert ctx[y].tolist() == (2 * cells).tolist()
        ctx.adopt(x, array)
        with device:
            array.set(cells + 1)
        step()
        assert ctx[y].tolist() == (2 * cells + 2).tolist()
        with device:
            view = array[1:3]  # keeps the array
            assert view.get().tolist() == (cells + 1)[1:3].tolist()
            del array, view
        ctx.release()
        del step, ctx
        gc.collect()
        device.synchronize()  # the step has read it
        assert device.memory.used == 0, device.memory.used
        """
    check(with_arrays(program, tmp_path))


@pytest.mark.parametrize("stream", ["driver.Stream(1)", "None"])
def test_blocks_pass_between_tensors_and_arrays_in_the_order_of_both_streams(
    stream: str, tmp_path: Path
) -> None:
    program = f"""
        with device:
            stream = {stream}
            allocate = ocannl_cuda.allocator(stream=stream or 1)
            ones, twos, last = pinned(1.0), pinned(2.0), pinned(0.0)
            for _ in range(3):
                # a tensor is freed while its copy is queued: the array comes after it
                tensor = ocannl_cuda.ocannl_allocate(big, ctx.target)
                address = tensor.address
                driver.memcpy_htod_async(address, ones, device.stream)
                del tensor
                array = GPUArray((1024, 1024), np.float32, allocator=allocate)
                assert array.ptr == address
                driver.memcpy_htod_async(array.gpudata, twos, stream)
                driver.memcpy_dtoh_async(last, array.gpudata, stream)
                # the array is freed while its copies are queued: the tensor comes after them
                del array
                tensor = ocannl_cuda.ocannl_allocate(big, ctx.target)
                assert tensor.address == address
                device.stream.synchronize()
                assert (last == 2.0).all()
                last[:] = 0.0
                del tensor
            del stream, ones, twos, last, allocate
        """
    check(with_arrays(program, tmp_path))


def test_an_array_that_a_stream_fills_is_a_value_inside_of_that_stream(tmp_path: Path) -> None:
    program = """
        with device:
            stream = driver.Stream(1)
            array = GPUArray((4, 3), np.float32, allocator=ocannl_cuda.allocator(stream=stream))
            filled = pinned(0.0, 12)
        for number in range(3):
            filled[:] = cells.ravel() + number
            with ocannl_cuda.on_stream(stream):
                with device.current():
                    driver.memcpy_htod_async(array.gpudata, filled, stream)
                ctx[x] = array
                step()
            assert ctx[y].tolist() == (2 * (cells + number)).tolist()
        with device:
            del array, stream, filled
        """
    check(with_arrays(program, tmp_path))


@pytest.mark.parametrize(
    ("statement", "found"),
    [
        ("ocannl_cuda.allocator(stream='fast')", "a str"),
        ("ocannl_cuda.allocator(stream=0)", "ambiguous"),
        ("foreign()", "another context is current, for device 0"),
        ("freed()", "freed memory"),
    ],
)
def test_a_wrong_use_of_the_allocator_is_an_error(
    statement: str, found: str, tmp_path: Path
) -> None:
    program = f"""
        def foreign():
            own = driver.Device(0).make_context()
            try:
                ocannl_cuda.allocator()(16)
            finally:
                own.pop()
                own.detach()

        def freed():
            memory = ocannl_cuda.allocator()(16)
            memory.free()
            memory.free()  # a second time is nothing
            int(memory)

        try:
            {statement}
        except UsageError as error:
            print(error)
        """
    outcome = with_arrays(program, tmp_path)
    check(outcome)
    assert found in outcome.output


def test_an_array_that_does_not_fit_is_an_error_with_the_largest_allocations(
    tmp_path: Path,
) -> None:
    program = """
        allocate = ocannl_cuda.allocator()
        kept = allocate(20 << 20)
        try:
            allocate(1 << 30)
        except MemoryError as error:
            print(error)
        """
    outcome = with_arrays(program, tmp_path, CUDA_EMULATOR_MEMORY=str(64 << 20))
    check(outcome)
    assert "no room for 1,073,741,824 bytes on device 0" in outcome.output
    assert "20,971,520" in outcome.output


def test_a_process_ends_cleanly_with_live_arrays_and_queued_work(tmp_path: Path) -> None:
    program = """
        with device:
            array = GPUArray((4, 3), np.float32, allocator=ocannl_cuda.allocator())
            other = GPUArray((4, 3), np.float32, allocator=ocannl_cuda.allocator())
            del other
        ctx.adopt(x, array)
        step()
        """
    check(with_arrays(program, tmp_path))


def test_an_array_on_the_host_with_the_protocol_of_dlpack_is_a_value(tmp_path: Path) -> None:
    program = """
        class OnHost:
            '''As a tensor of PyTorch on the processor is.'''
            def __dlpack_device__(self):
                return cells.__dlpack_device__()
            def __dlpack__(self, **options):
                return cells.__dlpack__()
        ctx[x] = OnHost()
        step()
        assert ctx[y].tolist() == (2 * cells).tolist()
        """
    check(with_arrays(program, tmp_path))


@pytest.mark.parametrize("place", ["__dlpack_device__", "__dlpack__"])
def test_a_library_that_refuses_to_give_its_memory_is_quoted(place: str, tmp_path: Path) -> None:
    program = f"""
        class Refusing:
            def __dlpack_device__(self):
                if "{place}" == "__dlpack_device__":
                    raise ValueError("a tensor without memory")
                return 2, 0
            def __dlpack__(self, **options):
                raise BufferError("a tensor with a gradient")
        try:
            ctx[x] = Refusing()
        except oc.OcannlError as error:
            print(type(error).__name__, error)
        """
    outcome = with_arrays(program, tmp_path)
    check(outcome)
    assert outcome.output.startswith("TransferError")
    assert "Refusing: a tensor with" in outcome.output
