"""Events: devices that wait for each other without the host, on emulated devices."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from plugins.ocannl_cuda.tests.emulated import NOTHING_LEFT, Outcome, left_of, needs_emulation, run

pytestmark = needs_emulation

PROGRAM = """
import threading
import numpy as np
import ocannl_core as oc
import ocannl_cuda
from ocannl_cuda.device import device_of
from ocannl_core.base.errors import HookError

x = oc.placeholder("x", output=[4], dtype="int32")
y = x * 2
p = oc.placeholder("p", output=[4], dtype="int32")
z = p + 1
first, second = oc.Context("cuda:0"), oc.Context("cuda:1")
step, follow = first.compile(oc.train.forward(y)), second.compile(oc.train.forward(z))
total = oc.placeholder("total", output=[4], dtype="int32")
"""
ADDED = """
@oc.cd
def added(total, x):
    total += x

@oc.cd
def merged(total, y):
    total += y.merge
"""


def on_two(program: str, folder: Path, **variables: str) -> Outcome:
    # code is read from its file
    (folder / "assignments.py").write_text(f"import ocannl_core as oc\n{ADDED}")
    start = (
        f"import sys\nsys.path.insert(0, {str(folder)!r})\nfrom assignments import added, merged"
    )
    return run(f"{start}\n{PROGRAM}\n{dedent(program)}", folder, devices=2, **variables)


def check(outcome: Outcome) -> None:
    assert (outcome.code, outcome.errors) == (0, ""), outcome.errors
    assert left_of(outcome) == NOTHING_LEFT


@pytest.mark.parametrize("graphs", ["0", "1"])
def test_a_copy_between_devices_returns_while_the_work_before_it_is_queued(
    graphs: str, tmp_path: Path
) -> None:
    program = """
        for value in range(3, 8):
            first[x] = value
            step()
            before = ocannl_cuda.ocannl_record_event(first.target)
            copied = second.copy_from(first, {p: y})
            follow()
            first[x] = 100  # an upload of cells that queued work still reads
            step()          # overwrites what is being copied
            assert not before.is_done and not copied.is_done
            assert second[z].tolist() == [2 * value + 1] * 4
            assert before.is_done and copied.is_done
            assert first[y].tolist() == [200] * 4
        """
    check(on_two(program, tmp_path, OCANNL_CUDA__GRAPHS=graphs))


def test_devices_in_turn_reuse_a_few_events(tmp_path: Path) -> None:
    program = """
        contexts = first, second
        steps = [each.compile(added(total, x)) for each in contexts]
        for each in contexts:
            each[x], each[total] = 1, 0
        for turn in range(200):
            here, there = turn % 2, 1 - turn % 2
            steps[here]()
            contexts[there].copy_from(contexts[here], total)
            if turn == 20:
                made = [len(device_of(each.target).events._every) for each in contexts]
        assert contexts[0][total].tolist() == [200] * 4
        assert made == [len(device_of(each.target).events._every) for each in contexts]
        assert max(made) < 20
        """
    check(on_two(program, tmp_path))


def test_an_event_that_is_recorded_again_holds_back_those_that_waited_for_its_first_point(
    tmp_path: Path,
) -> None:
    program = """
        here, there = device_of(first.target), device_of(second.target)
        first[x] = 3
        step()
        with here:
            event = here.event()
        with there:
            event.hold_back(there.stream.handle)
        with here:
            stream = here.driver.Stream(1)  # with no work
            event.record(stream.handle)
            event.synchronize()
        second.copy_from(first, {p: y})
        follow()
        assert second[z].tolist() == [7] * 4
        here.reuse_event(event)
        with here:
            del stream
        """
    check(on_two(program, tmp_path))


def test_an_asynchronous_backend_of_another_kind_is_waited_for_on_the_host(tmp_path: Path) -> None:
    program = """
        other = oc.Context("interp", asynchronous=True)
        begin = other.compile(oc.train.forward(y))
        for value in range(3):
            other[x] = value
            begin()
            second.copy_from(other, {p: y})
            follow()
            other.copy_from(second, {y: z})
            assert other[y].tolist() == [2 * value + 1] * 4
        event = first.copy_from(other, y)
        class Foreign:
            def wait(self): ...
        assert ocannl_cuda.ocannl_wait_event(Foreign(), first.target) is None
        queued = ocannl_cuda.ocannl_record_event(second.target)
        for each in (first, second):
            assert ocannl_cuda.ocannl_wait_event(queued, each.target) is True
        """
    check(on_two(program, tmp_path))


def test_devices_that_cannot_access_each_other_copy_and_refuse_streamed_merge_buffers(
    tmp_path: Path,
) -> None:
    program = """
        merge = second.compile(merged(total, y))
        second[total] = 0
        first[x] = 3
        step()
        second.copy_from(first, {p: y})
        follow()
        assert second[z].tolist() == [7] * 4
        second.fill_merge(y, source=first)
        merge()
        assert second[total].tolist() == [6] * 4
        try:
            second.fill_merge(y, source=first, streamed=True)
            merge()
        except oc.LinkError as error:
            print(error)
        """
    outcome = on_two(program, tmp_path, CUDA_EMULATOR_PEERS="0")
    check(outcome)
    assert "cuda:1 cannot read memory of cuda:0" in outcome.output
    assert "streamed=False" in outcome.output


def test_threads_record_and_wait_for_events_of_both_devices(tmp_path: Path) -> None:
    program = """
        def work(number):
            with oc.Session():
                here = [oc.Context(f"cuda:{number % 2}"), oc.Context(f"cuda:{1 - number % 2}")]
                a = oc.placeholder("a", output=[64], dtype="int32")
                b = a + number
                steps = [each.compile(oc.train.forward(b)) for each in here]
                here[0][a] = 0
                for turn in range(40):
                    steps[turn % 2]()
                    here[1 - turn % 2].copy_from(here[turn % 2], {a: b})
                assert (here[0][a] == 40 * number).all(), here[0][a]
            done.append(number)

        done = []
        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        assert sorted(done) == [0, 1, 2, 3]
        """
    check(on_two(program, tmp_path))


@pytest.mark.parametrize("hook", ["ocannl_record_event", "ocannl_wait_event"])
def test_a_hook_that_fails_is_named_with_its_plugin(hook: str, tmp_path: Path) -> None:
    method = {"ocannl_record_event": "recorded", "ocannl_wait_event": "wait_event"}[hook]
    program = f"""
        from ocannl_cuda import memory
        def fail(*given):
            raise KeyError("no event")
        memory.{method} = fail
        first[x] = 3
        step()
        try:
            second.copy_from(first, {{p: y}})
        except HookError as error:
            assert error.found.startswith("{hook}: it raised KeyError: 'no event'"), error
            assert error.where.startswith("backend cuda, plugin "), error.where
        else:
            raise AssertionError
        """
    check(on_two(program, tmp_path))


def test_a_wait_that_the_driver_refuses_is_an_error_with_its_device(tmp_path: Path) -> None:
    program = """
        first[x] = 3
        step()
        queued = ocannl_cuda.ocannl_record_event(first.target)
        try:
            ocannl_cuda.ocannl_wait_event(queued, second.target)
        except oc.LinkError as error:
            assert "device 1: cuStreamWaitEvent failed: out of memory" in str(error), error
        else:
            raise AssertionError
        assert first[y].tolist() == [6] * 4
        """
    check(on_two(program, tmp_path, CUDA_EMULATOR_FAIL="cuStreamWaitEvent:1"))


def test_a_process_ends_cleanly_with_events_that_devices_still_wait_for(tmp_path: Path) -> None:
    program = """
        first[x] = 3
        step()
        kept = [ocannl_cuda.ocannl_record_event(each.target) for each in (first, second) * 50]
        kept.append(second.copy_from(first, {p: y}))
        follow()
        """
    check(on_two(program, tmp_path))
