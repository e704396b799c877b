"""Memory of other libraries as values of tensors, with the real PyCUDA above an emulated driver."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from plugins.ocannl_cuda.tests.emulated import NOTHING_LEFT, Outcome, left_of, needs_emulation, run

pytestmark = needs_emulation

PRODUCERS = """
import ctypes
import gc
import numpy as np
import ocannl_core as oc
from ocannl_cuda import interop, memory_pool
from ocannl_cuda.device import device_of

ctx, other = oc.Context("cuda"), oc.Context("cuda")
device = device_of(ctx.target)
x = oc.placeholder("x", batch=[4], output=[3])
y = x * 2.0
step = ctx.compile(oc.train.forward(y))


def made(cells, dtype="float32"):
    '''Return memory with cells, as another library would have it.'''
    cells = np.asarray(cells)
    source = oc.placeholder("source", output=list(cells.shape), dtype=dtype)
    result = source + 0
    run = other.compile(oc.train.forward(result))
    other[source] = cells
    run()
    return other.buffer(result)


class Tensor:
    '''A producer of DLPack, which records the streams of its consumers.'''

    def __init__(self, buffer):
        self.buffer, self.streams = buffer, []

    def __dlpack_device__(self):
        return self.buffer.__dlpack_device__()

    def __dlpack__(self, *, stream=None, max_version=None):
        self.streams.append(stream)
        return self.buffer.__dlpack__(stream=stream)


class Old(Tensor):
    '''The same before the protocol had versions.'''

    def __dlpack__(self, *, stream=None):
        return super().__dlpack__(stream=stream)


class Described:
    '''A producer of __cuda_array_interface__.'''

    def __init__(self, buffer, **changes):
        self.buffer, self.changes = buffer, changes

    @property
    def __cuda_array_interface__(self):
        return self.buffer.__cuda_array_interface__ | self.changes


cells = np.arange(12, dtype=np.float32).reshape(4, 3)
"""


def interop(program: str, folder: Path, *, devices: int = 1, **variables: str) -> Outcome:
    return run(f"{PRODUCERS}\n{dedent(program)}", folder, devices=devices, **variables)


def check(outcome: Outcome) -> None:
    assert (outcome.errors, outcome.code) == ("", 0)
    assert left_of(outcome) == NOTHING_LEFT


@pytest.mark.parametrize("kind", ["Tensor", "Old", "Described"])
def test_memory_of_another_library_is_copied_on_the_device(kind: str, tmp_path: Path) -> None:
    check(
        interop(
            f"""
            given = {kind}(made(cells))
            device.synchronize()
            ctx[x] = given
            # the copy is queued behind the work before it, and nothing waits for it
            with device:
                assert not device.stream.is_done()
            step()
            assert ctx[y].tolist() == (2 * cells).tolist()
            if hasattr(given, "streams"):
                assert set(given.streams) == {{device.stream.handle}}
            """,
            tmp_path,
        )
    )


def test_the_memory_outlives_its_owner_until_it_is_copied(tmp_path: Path) -> None:
    check(
        interop(
            """
            given = Tensor(made(cells))
            device.synchronize()
            ctx[x] = given
            del given
            gc.collect()
            assert len(interop._exported) == 1  # held until the copy has run
            step()
            assert ctx[y].tolist() == (2 * cells).tolist()
            ctx.synchronize()
            assert not interop._exported
            """,
            tmp_path,
        )
    )


@pytest.mark.parametrize("kind", ["Tensor", "Described"])
@pytest.mark.parametrize("graphs", ["0", "1"])
def test_adopted_memory_is_shared(kind: str, graphs: str, tmp_path: Path) -> None:
    check(
        interop(
            f"""
            ctx[x] = np.zeros((4, 3))
            step()
            step()
            buffer = made(cells)
            ctx.adopt(x, {kind}(buffer))
            assert ctx.buffer(x).address == buffer.address
            for _ in range(3):
                step()
                assert ctx[y].tolist() == (2 * cells).tolist()
            ctx[x] = cells + 1  # into the shared memory
            host = np.empty(12, np.float32)
            with device:
                device.driver.memcpy_dtoh_async(host, buffer.address, device.stream)
                device.stream.synchronize()
            assert host.tolist() == (cells + 1).ravel().tolist()
            """,
            tmp_path,
            OCANNL_CUDA__GRAPHS=graphs,
        )
    )


@pytest.mark.parametrize("dropped", ["producer", "consumer"])
def test_either_side_of_adopted_memory_may_go_first(dropped: str, tmp_path: Path) -> None:
    program = """
        buffer = made(cells)
        ctx.adopt(x, Tensor(buffer))
        """
    if dropped == "producer":
        program += """
        del buffer
        other.release()
        gc.collect()
        step()
        assert ctx[y].tolist() == (2 * cells).tolist()
        """
    else:
        program += """
        step()
        ctx.release()
        del ctx, step
        gc.collect()
        assert len(interop._exported) == 1  # the step still reads it
        device.synchronize()
        assert not interop._exported
        host = np.empty(12, np.float32)
        with device:
            device.driver.memcpy_dtoh_async(host, buffer.address, device.stream)
            device.stream.synchronize()
        assert host.tolist() == cells.ravel().tolist()
        """
    check(interop(dedent(program), tmp_path))


def test_an_array_of_pycuda_is_a_value_after_its_queued_work(tmp_path: Path) -> None:
    check(
        interop(
            """
            import pycuda.driver as driver
            from pycuda.gpuarray import GPUArray
            with device:
                array = GPUArray((4, 3), np.float32)
                pinned = driver.pagelocked_empty(12, np.float32)
                pinned[:] = cells.ravel()
                # on the legacy stream, which ours does not wait for by itself
                driver.memcpy_htod_async(int(array.gpudata), pinned)
            ctx[x] = array
            step()
            assert ctx[y].tolist() == (2 * cells).tolist()
            ctx.adopt(x, array)
            step()
            assert ctx[y].tolist() == (2 * cells).tolist()
            with device:
                ctx.release()
                del step, ctx, array, pinned
                gc.collect()
            """,
            tmp_path,
        )
    )


def test_a_stream_of_the_interface_is_waited_for(tmp_path: Path) -> None:
    check(
        interop(
            """
            buffer = made(np.zeros((4, 3)))
            device.synchronize()
            with device:
                stream = device.driver.Stream(1)
                pinned = device.driver.pagelocked_empty(12, np.float32)
                pinned[:] = cells.ravel()
                device.driver.memcpy_htod_async(buffer.address, pinned, stream)
            ctx[x] = Described(buffer, stream=stream.handle)
            step()
            assert ctx[y].tolist() == (2 * cells).tolist()
            with device:
                del stream, pinned
            """,
            tmp_path,
        )
    )


def test_an_export_refuses_the_stream_that_no_library_means(tmp_path: Path) -> None:
    outcome = interop(
        """
        try:
            ctx[x] = cells
            step()
            ctx.buffer(y).__dlpack__(stream=0)
        except BufferError as error:
            print(error)
        """,
        tmp_path,
    )
    check(outcome)
    assert "ambiguous" in outcome.output


UNFIT = [
    ("Tensor(made(cells.T))", "ShapeError", "[3, 4] for [4, 3]"),
    ("Tensor(made(cells, 'float64'))", "TransferError", "float64 for float32"),
    ("Described(made(cells), strides=(4, 16))", "TransferError", "strides [1, 4], in cells"),
    ("Described(made(cells), stream=0)", "TransferError", "does not allow"),
    ("Described(made(cells), typestr='<c8')", "TransferError", "complex64"),
    ("Far(made(cells))", "TransferError", "on device 1, not 0"),
]
"""Memory that is no value of a tensor, the error, and a part of its message."""


@pytest.mark.parametrize("action", ["ctx[x] = given", "ctx.adopt(x, given)"])
def test_memory_that_does_not_fit_is_an_error(action: str, tmp_path: Path) -> None:
    program = f"""
        class Far(Tensor):
            def __dlpack_device__(self):
                return 2, 1

        for made_of in {[given for given, _, _ in UNFIT]}:
            given = eval(made_of)
            try:
                {action}
            except Exception as error:
                print(type(error).__name__, " ".join(str(error).split()), sep=": ")
            else:
                print("no error")
        """
    outcome = interop(dedent(program), tmp_path)
    check(outcome)
    for (given, error, found), line in zip(UNFIT, outcome.output.splitlines(), strict=True):
        assert line.startswith(f"{error}: "), given
        assert found in line, given


def test_read_only_memory_is_copied_and_not_adopted(tmp_path: Path) -> None:
    outcome = interop(
        """
        buffer = made(cells)
        given = Described(buffer, data=(buffer.address, True))
        ctx[x] = given
        step()
        assert ctx[y].tolist() == (2 * cells).tolist()
        try:
            ctx.adopt(x, given)
        except oc.TransferError as error:
            print(error)
        """,
        tmp_path,
    )
    check(outcome)
    assert "read-only" in outcome.output


def test_an_array_of_the_host_is_not_adopted(tmp_path: Path) -> None:
    outcome = interop(
        """
        try:
            ctx.adopt(x, cells)
        except oc.TransferError as error:
            print(error)
        """,
        tmp_path,
    )
    check(outcome)
    assert "A tensor adopts memory of the device" in outcome.output


def test_a_process_ends_cleanly_with_live_exports_and_imports(tmp_path: Path) -> None:
    check(
        interop(
            """
            buffer = made(cells)
            capsule = buffer.__dlpack__()
            ctx.adopt(x, Tensor(buffer))
            ctx[x] = Tensor(made(cells))
            step()
            kept = [buffer, capsule, ctx, step]
            """,
            tmp_path,
        )
    )


def test_the_stream_zero_of_a_library_is_the_legacy_one(tmp_path: Path) -> None:
    check(
        interop(
            """
            import ocannl_cuda
            class New:  # as PyTorch's
                def __cuda_stream__(self):
                    return 0, 0
            class Old:
                cuda_stream = 0
            with device:
                pinned = device.driver.pagelocked_empty(12, np.float32)
            ctx[x] = np.zeros((4, 3))
            step()
            for number, stream in enumerate((New(), Old())):
                pinned[:] = (cells + number).ravel()
                with ocannl_cuda.on_stream(stream):
                    with device.current():
                        device.driver.memcpy_htod_async(ctx.buffer(x).address, pinned)
                    step()
                assert ctx[y].tolist() == (2 * (cells + number)).tolist()
            with device:
                del pinned
            """,
            tmp_path,
            CUDA_EMULATOR_EARLY="0",
        )
    )


def test_memory_begins_at_the_offset_that_its_producer_states(tmp_path: Path) -> None:
    check(
        interop(
            """
            class Later(Tensor):
                '''A view without the first row.'''

                def __dlpack__(self, **options):
                    capsule = super().__dlpack__(**options)
                    place = interop._pointer_in(id(capsule), b"dltensor")
                    tensor = interop.ManagedTensor.from_address(place)
                    tensor.byte_offset = 12
                    tensor.shape[0] = 4
                    return capsule

            rows = np.arange(15, dtype=np.float32).reshape(5, 3)
            ctx[x] = Later(made(rows))
            step()
            assert ctx[y].tolist() == (2 * rows[1:]).tolist()
            """,
            tmp_path,
        )
    )


STREAMS = {"0": "ambiguous", "'fast'": "a str", "far.handle": "a stream of another device"}
"""Streams that work cannot follow, and a part of the message."""


def test_a_stream_that_work_cannot_follow_is_an_error(tmp_path: Path) -> None:
    outcome = interop(
        f"""
        import ocannl_cuda
        from ocannl_core.backend_api import UsageError
        beyond = device_of(oc.Context("cuda:1").target)
        with beyond:
            far = beyond.driver.Stream(1)
        for stream in {list(STREAMS)}:
            try:
                with ocannl_cuda.on_stream(eval(stream)):
                    step()
            except UsageError as error:
                print(" ".join(str(error).split()))
            else:
                print("no error")
        with beyond:
            del far
        """,
        tmp_path,
        devices=2,
    )
    check(outcome)
    for (stream, found), line in zip(STREAMS.items(), outcome.output.splitlines(), strict=True):
        assert found in line, stream
