"""Contexts, memory, copies and errors, with the real PyCUDA above an emulated driver."""

from __future__ import annotations

from pathlib import Path

import pytest

from plugins.ocannl_cuda.tests.emulated import NOTHING_LEFT, Outcome, left_of, needs_emulation, run

pytestmark = needs_emulation

README = """
    import numpy as np
    import ocannl_core as oc


    @oc.op
    def layer(x, *, width):
        return oc.tanh(oc.param("w") @ x + oc.param("b", output=[width], init=0.0))


    x = oc.tensor(np.array([[0, 0], [0, 1], [1, 0], [1, 1]], np.float32), batch_axes=1)
    y = oc.tensor(np.array([[-1], [1], [1], [-1]], np.float32), batch_axes=1)
    guess = layer(layer(x, width=8), width=1)
    loss = oc.einsum("...|... => 0", (guess - y) ** 2.0) / 4

    ctx = oc.Context("cuda")
    step = ctx.compile(oc.train.grad_update(loss) + oc.train.sgd_update(loss, learning_rate=0.2))
    ctx.init_params(loss)
    for _ in range(300):
        step()
    assert ctx.item(loss) < 0.01
    ctx.compile(oc.train.forward(guess))()
    print(np.round(ctx[guess].ravel()).astype(int).tolist())
"""


@pytest.mark.parametrize("sanitize", [False, True])
def test_the_model_of_the_readme_learns_and_leaves_nothing(sanitize: bool, tmp_path: Path) -> None:
    outcome = run(README, tmp_path, sanitize=sanitize)
    assert (outcome.output, outcome.code) == ("[-1, 1, 1, -1]\n", 0), outcome.errors
    assert outcome.errors == ""
    assert left_of(outcome) == NOTHING_LEFT
    assert outcome.left["launches"] > 1200


def test_a_process_ends_cleanly_with_live_memory_and_queued_work(tmp_path: Path) -> None:
    outcome = run(
        """
        import numpy as np
        import ocannl_core as oc
        kept = []
        for device in range(2):
            ctx = oc.Context(f"cuda:{device}")
            x = oc.tensor(np.ones((30, 40), np.float32), batch_axes=1)
            y = oc.tanh(oc.param("w", init=1.0, output=[5]) @ x)
            routine = ctx.compile(oc.train.forward(y))
            ctx.init_params(y)
            routine()
            kept += [ctx, routine]
        print("done")
        """,
        tmp_path,
        devices=2,
    )
    assert (outcome.output, outcome.errors, outcome.code) == ("done\n", "", 0)
    assert left_of(outcome) == NOTHING_LEFT


def test_an_exception_of_the_program_is_its_exit_code_and_not_an_abort(tmp_path: Path) -> None:
    outcome = run(
        """
        import numpy as np
        import ocannl_core as oc
        ctx = oc.Context("cuda")
        x = oc.tensor(np.ones(30, np.float32))
        ctx.compile(oc.train.forward(oc.exp(x)), keep=[x])()
        raise SystemExit(3)
        """,
        tmp_path,
    )
    assert (outcome.errors, outcome.code) == ("", 3)
    assert left_of(outcome) == NOTHING_LEFT


CALLS = """
    import numpy as np
    import ocannl_cuda
    from ocannl_core.backend_api import HostBuffer, NodeInfo, float32
    from ocannl_core.backend import manager

    targets = manager.backend("cuda").targets().targets
    info = NodeInfo(float32, (1000,))

    def buffer(device=0, cells=None, info=info):
        made = ocannl_cuda.ocannl_allocate(info, targets[device])
        if cells is not None:
            ocannl_cuda.ocannl_transfer(made, HostBuffer(cells, made.info))
        return made

    def cells_of(buffer):
        host = HostBuffer(np.empty(buffer.info.dims, np.float32), buffer.info)
        ocannl_cuda.ocannl_transfer(host, buffer).wait()
        return host.array
"""


def call(program: str, folder: Path, *, devices: int = 1, **variables: str) -> Outcome:
    """Run a program that calls the hooks."""
    return run(
        "\n".join(line[4:] for line in CALLS.splitlines()) + "\n" + _dedented(program),
        folder,
        devices=devices,
        **variables,
    )


def _dedented(text: str) -> str:
    from textwrap import dedent

    return dedent(text)


def test_an_uploaded_array_may_change_at_once(tmp_path: Path) -> None:
    outcome = call(
        """
        cells = np.arange(1000, dtype=np.float32)
        made = buffer(0, cells)
        cells[:] = 7
        assert cells_of(made).tolist() == list(range(1000))
        """,
        tmp_path,
    )
    assert (outcome.errors, outcome.code) == ("", 0)


def test_copies_between_devices_wait_for_the_work_of_both(tmp_path: Path) -> None:
    outcome = call(
        """
        for _ in range(3):
            first = buffer(0, np.arange(1000, dtype=np.float32))
            second = buffer(1)
            event = ocannl_cuda.ocannl_transfer(second, first)
            # the source is written again while the copy is queued on the other device
            ocannl_cuda.ocannl_transfer(first, HostBuffer(np.zeros(1000, np.float32), info))
            assert not cells_of(first).any()
            event.wait()
            assert cells_of(second).tolist() == list(range(1000))
        """,
        tmp_path,
        devices=2,
    )
    assert (outcome.errors, outcome.code) == ("", 0)


def test_no_context_is_current_between_calls(tmp_path: Path) -> None:
    outcome = call(
        """
        import ctypes
        driver, current = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(1)
        made = buffer(0, np.arange(1000, dtype=np.float32))
        cells_of(made)
        ocannl_cuda.ocannl_synchronize(targets[0])
        driver.cuCtxGetCurrent(ctypes.byref(current))
        assert current.value is None
        """,
        tmp_path,
    )
    assert (outcome.errors, outcome.code) == ("", 0)


def test_several_threads_use_one_device(tmp_path: Path) -> None:
    outcome = call(
        """
        import threading
        import ocannl_core as oc
        problems = []

        def work(number):
            try:
                for _ in range(20):
                    assert (cells_of(buffer(0, np.full(1000, number, np.float32))) == number).all()
                ctx = oc.Context("cuda")
                x = oc.tensor(np.full((50,), number, np.float32))
                y = x * x
                ctx.compile(oc.train.forward(y))()
                assert (ctx[y] == number * number).all()
            except BaseException as error:
                problems.append(error)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        assert not problems, problems
        """,
        tmp_path,
    )
    assert (outcome.errors, outcome.code) == ("", 0)


INTEROP = """
    import ctypes
    import gc
    import numpy as np
    import ocannl_core as oc
    from ocannl_cuda import interop

    ctx = oc.Context("cuda:1")
    x = oc.tensor(np.arange(6, dtype=np.float32).reshape(2, 3))
    y = x * 2.0
    ctx.compile(oc.train.forward(y))()
    expected = [[0, 2, 4], [6, 8, 10]]

    def cells_at(address):  # memory of emulated devices is memory of this process
        return np.ctypeslib.as_array((ctypes.c_float * 6).from_address(address)).reshape(2, 3)
"""


def test_other_libraries_see_the_memory_through_the_array_interface(tmp_path: Path) -> None:
    outcome = run(
        INTEROP
        + """
    found = ctx.buffer(y).__cuda_array_interface__
    address, is_read_only = found.pop("data")
    assert cells_at(address).tolist() == expected
    assert not is_read_only
    assert found == {"shape": (2, 3), "typestr": "<f4", "strides": (12, 4), "version": 3}
    """,
        tmp_path,
        devices=2,
    )
    assert (outcome.errors, outcome.code) == ("", 0)


def test_a_capsule_keeps_the_memory_until_its_deleter_runs(tmp_path: Path) -> None:
    outcome = run(
        INTEROP
        + """
    buffer = ctx.buffer(y)
    assert buffer.__dlpack_device__() == (2, 1)
    capsule = buffer.__dlpack__(stream=None)
    pythonapi = ctypes.pythonapi
    pointer = ctypes.cast(interop._pointer_in(id(capsule), b"dltensor"), ctypes.POINTER(interop.ManagedTensor))
    tensor = pointer.contents
    assert cells_at(tensor.data).tolist() == expected
    assert (tensor.code, tensor.bits, tensor.lanes, tensor.device_id) == (2, 32, 1, 1)
    assert (tensor.shape[:2], tensor.strides[:2]) == ([2, 3], [3, 1])
    # a consumer takes the tensor, and releases it later
    pythonapi.PyCapsule_SetName(ctypes.py_object(capsule), b"used_dltensor")
    del capsule
    assert len(interop._exported) == 1
    tensor.deleter(pointer)
    assert not interop._exported
    # without a consumer the capsule releases it
    capsule = buffer.__dlpack__()
    assert len(interop._exported) == 1
    del capsule
    assert not interop._exported
    """,
        tmp_path,
        devices=2,
    )
    assert (outcome.errors, outcome.code) == ("", 0)
    assert left_of(outcome) == NOTHING_LEFT


def test_memory_is_reused_and_given_back_when_there_is_too_little(tmp_path: Path) -> None:
    outcome = call(
        """
        from ocannl_cuda.device import device_of
        from ocannl_cuda.memory_pool import MemoryPool
        device = device_of(targets[0])
        with device:
            device.memory = pool = MemoryPool(device, is_exact=False)
        large = NodeInfo(float32, (100_000,))
        first = buffer(info=large)
        address = first.address
        del first
        assert pool.kept == 400_384 and pool.used == 0
        again = buffer(info=large)
        assert again.address == address
        del again
        # does not fit beside the free block
        huge = buffer(info=NodeInfo(float32, (450_000,)))
        assert pool.kept == 0
        """,
        tmp_path,
        CUDA_EMULATOR_MEMORY="2200000",
    )
    assert (outcome.errors, outcome.code) == ("", 0)
    assert left_of(outcome) == NOTHING_LEFT


def test_memory_that_does_not_fit_is_an_error_with_the_largest_allocations(tmp_path: Path) -> None:
    outcome = run(
        """
        import numpy as np
        import ocannl_core as oc
        ctx = oc.Context("cuda")
        x, y = (oc.tensor(np.ones((rows, 1000), np.float32)) for rows in (400, 300))
        try:
            for each in (oc.exp(x), oc.exp(y)):
                ctx.compile(oc.train.forward(each))()
        except oc.LinkError as error:
            print(error)
        """,
        tmp_path,
        CUDA_EMULATOR_MEMORY="3500000",
    )
    assert outcome.code == 0, outcome.errors
    assert "no room for" in outcome.output
    assert left_of(outcome) == NOTHING_LEFT


def test_a_failed_allocation_is_tried_again_and_then_an_error(tmp_path: Path) -> None:
    again = call("buffer()", tmp_path, CUDA_EMULATOR_FAIL="cuMemAlloc_v2:1")
    assert (again.errors, again.code) == ("", 0)
    never = call(
        """
        try:
            buffer()
        except MemoryError as error:
            print(error)
        """,
        tmp_path,
        CUDA_EMULATOR_FAIL="cuMemAlloc_v2:*",
    )
    assert never.code == 0, never.errors
    assert "no room for 4,000 bytes on device 0" in never.output


def test_a_launch_that_fails_names_kernel_and_title(tmp_path: Path) -> None:
    outcome = run(
        """
        import numpy as np
        import ocannl_core as oc
        ctx = oc.Context("cuda")
        routine = ctx.compile(oc.train.forward(oc.exp(oc.tensor(np.ones(30, np.float32)))))
        try:
            routine()
        except oc.DeviceError as error:
            print(error)
        """,
        tmp_path,
        CUDA_EMULATOR_FAIL="cuLaunchKernel:1",
    )
    assert outcome.code == 0, outcome.errors
    assert "The work of a device runs to its end." in outcome.output
    assert "kernel k_" in outcome.output
    assert "unspecified launch failure" in outcome.output


def test_code_that_the_driver_refuses_is_named(tmp_path: Path) -> None:
    outcome = run(
        """
        import numpy as np
        import ocannl_core as oc
        ctx = oc.Context("cuda")
        try:
            ctx.compile(oc.train.forward(oc.exp(oc.tensor(np.ones(30, np.float32)))))
        except oc.LinkError as error:
            print(error)
        """,
        tmp_path,
        CUDA_EMULATOR_FAIL="cuModuleLoadDataEx:1",
    )
    assert outcome.code == 0, outcome.errors
    assert "The driver loads compiled kernels." in outcome.output


def test_a_leaked_context_is_seen_by_the_report_of_the_driver(tmp_path: Path) -> None:
    """The tests above would fail if the backend leaked one."""
    outcome = run(
        """
        import atexit
        import numpy as np
        import ocannl_core as oc
        from ocannl_cuda import device
        ctx = oc.Context("cuda")
        ctx.compile(oc.train.forward(oc.exp(oc.tensor(np.ones(30, np.float32)))))()
        atexit.unregister(device.close_all)
        """,
        tmp_path,
    )
    assert left_of(outcome) != NOTHING_LEFT or outcome.code != 0


def test_a_program_runs_on_emulated_devices_by_one_command(tmp_path: Path) -> None:
    import os
    import subprocess
    import sys

    code = "import ocannl_core as oc; print(oc.Context('cuda:2').target.description)"
    paths = {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [sys.executable, "-m", "ocannl_cuda_emulator", "--devices", "3", "--"]
    result = subprocess.run(
        [*command, sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env=os.environ | paths,
    )
    assert (result.stdout, result.stderr) == ("Emulated device 2\n", "")


def test_memory_and_times_are_those_of_the_driver(tmp_path: Path) -> None:
    outcome = run(
        """
        import numpy as np
        import ocannl_core as oc
        from ocannl_core.backend import manager
        ctx = oc.Context("cuda")
        x = oc.tensor(np.ones(1000, np.float32))
        routine = ctx.compile(oc.train.forward(oc.exp(x)))
        backend, target = manager.select("cuda")
        found = backend.memory_statistics(target)
        assert 4000 <= found.in_use <= found.total - found.free, found
        assert "its driver: " in str(ctx.memory)
        routine()
        assert all(each.seconds >= 0 for each in routine.profile(0).kernels)
        print("counted")
        """,
        tmp_path,
    )
    assert (outcome.code, outcome.output) == (0, "counted\n"), outcome.errors
