"""Lost contexts, processes that fork, and allocations that fail, on emulated devices."""

from __future__ import annotations

import re
from pathlib import Path
from textwrap import dedent

import pytest

from plugins.ocannl_cuda.tests.emulated import NOTHING_LEFT, Outcome, left_of, needs_emulation, run

pytestmark = needs_emulation

PROGRAM = """
import ctypes
import multiprocessing
import os
import sys
import numpy as np
import ocannl_core as oc

x = oc.placeholder("x", output=[4])
y = x * 2.0
z = oc.exp(x)


def begin():
    global ctx, step
    ctx = oc.Context("cuda")
    step = ctx.compile(oc.train.forward(y))
    ctx[x] = [1.0, 2.0, 3.0, 4.0]
    step()
"""


def with_faults(program: str, folder: Path, **variables: str) -> Outcome:
    return run(f"{PROGRAM}\n{dedent(program)}", folder, **variables)


def check(outcome: Outcome) -> None:
    assert (outcome.code, outcome.errors) == (0, ""), outcome.errors
    assert left_of(outcome) == NOTHING_LEFT


PYCUDA_WARNING = r"PyCUDA WARNING: .*\n *cu\w+ failed: an illegal memory access was encountered\n"
"""The message of PyCUDA about each of its objects that a lost context does not take back."""


@pytest.mark.parametrize("graphs", ["0", "1"])
def test_a_lost_context_is_named_by_every_call_and_the_process_ends_cleanly(
    graphs: str, tmp_path: Path
) -> None:
    program = """
        begin()
        other = oc.Context("cuda")
        other.compile(oc.train.forward(y))
        adopted = ctx.buffer(y)
        exported = ctx.buffer(x).__dlpack__()
        step()
        step()
        ctx.synchronize()
        ctypes.CDLL("libcuda.so.1").cuda_emulator_lose_context(0)
        calls = {
            "run": step,
            "read": lambda: ctx[y],
            "write": lambda: ctx.__setitem__(x, 1.0),
            "compile": lambda: ctx.compile(oc.train.forward(z))(),
            "new": lambda: oc.Context("cuda").compile(oc.train.forward(oc.tensor([1.0]) * 3.0))(),
            "copy": lambda: other.copy_from(ctx, x),
            "export": lambda: ctx.buffer(x).__dlpack__(),
            "interface": lambda: ctx.buffer(x).__cuda_array_interface__,
            "wait": ctx.synchronize,
            "take": lambda: ctx.__setitem__(x, adopted),
        }
        for name, call in calls.items():
            try:
                call()
            except oc.DeviceError as error:
                text = str(error)
                assert "device 0: cu" in text, text
                assert "an illegal memory access was encountered" in text, text
                assert "start a new process" in text, text
                assert error.failure is oc.DeviceFailure.FAULT and not error.is_usable
                print(name)
        """
    outcome = with_faults(program, tmp_path, OCANNL_CUDA__GRAPHS=graphs)
    refused = re.sub(PYCUDA_WARNING, "", outcome.errors)
    assert (outcome.code, refused) == (0, ""), outcome.errors
    names = "run read write compile new copy export interface wait take"
    assert outcome.output.split() == names.split()


def test_an_error_that_leaves_the_device_working_advises_no_new_process(tmp_path: Path) -> None:
    program = """
        begin()
        os.environ["CUDA_EMULATOR_FAIL"] = "cuLaunchKernel:*"
        try:
            step()
        except oc.DeviceError as error:
            assert "unspecified launch failure" in str(error), error
            assert "new process" not in str(error), error
            assert error.is_usable
            print("refused")
        assert ctx[y].tolist() == [2.0, 4.0, 6.0, 8.0]
        """
    outcome = with_faults(program, tmp_path)
    check(outcome)
    assert outcome.output == "refused\n"


def test_a_tensor_map_that_the_driver_refuses_names_the_setting(tmp_path: Path) -> None:
    program = """
        a, b = (oc.tensor(np.ones((128, 128)), dtype="bfloat16") for _ in "ab")
        product = oc.einsum("ik; kj => ij", a, b)
        for is_asynchronous in (True, False):
            with oc.settings.overrides(asynchronous_products=is_asynchronous):
                here = oc.Context("cuda")
                try:
                    here.compile(oc.train.forward(product))()
                    assert (np.asarray(here[product], np.float32) == 128).all()
                    print("right")
                except oc.LinkError as error:
                    print(error)
        """
    outcome = with_faults(program, tmp_path, CUDA_EMULATOR_FAIL="cuTensorMapEncodeTiled:*")
    check(outcome)
    assert "invalid argument" in outcome.output
    assert "asynchronous_products=False" in outcome.output
    assert outcome.output.endswith("right\n")


FORK = """
    begin()
    ready = ctx[y].tolist()
    child = os.fork()
    if not child:
        for call in (step, lambda: ctx[y], lambda: oc.Context("cuda").compile(oc.train.forward(z))()):
            try:
                call()
            except oc.DeviceError as error:
                assert "a fork" in str(error) and "spawn" in str(error), error
                print("refused", flush=True)
        {end}
    _, status = os.waitpid(child, 0)
    print(os.waitstatus_to_exitcode(status))
    step()
    assert ctx[y].tolist() == ready
"""


@pytest.mark.parametrize("end", ["sys.exit(7)", "os._exit(7)"])
def test_a_forked_process_is_refused_and_leaves_its_parent_alone(end: str, tmp_path: Path) -> None:
    outcome = with_faults(FORK.format(end=end), tmp_path)
    check(outcome)
    assert outcome.output == "refused\n" * 3 + "7\n"


def test_a_process_that_forked_before_the_first_use_works(tmp_path: Path) -> None:
    program = """
        child = os.fork()
        begin()
        assert ctx[y].tolist() == [2.0, 4.0, 6.0, 8.0]
        if child:
            _, status = os.waitpid(child, 0)
            assert os.waitstatus_to_exitcode(status) == 0
        """
    check(with_faults(program, tmp_path))


def test_an_allocation_that_fails_in_any_place_is_an_error_or_is_tried_again(
    tmp_path: Path,
) -> None:
    program = """
        failed = 0
        for number in range(1, 12):
            os.environ["CUDA_EMULATOR_FAIL"] = ""
            with oc.Session():
                a = oc.placeholder("a", output=[4])
                b = oc.einsum("i => 0", oc.exp(a))
                here = oc.Context("cuda")
                os.environ["CUDA_EMULATOR_FAIL"] = "cuMemAlloc_v2:*" if number % 2 else ""
                try:
                    run = here.compile(oc.train.forward(b))
                    here[a] = 0.0
                    run()
                    assert here[b].tolist() == [4.0]
                except oc.LinkError as error:
                    assert "placeholder a" in str(error) or "routine forward" in str(error), error
                    failed += 1
        assert failed == 6, failed
        """
    check(with_faults(program, tmp_path))
