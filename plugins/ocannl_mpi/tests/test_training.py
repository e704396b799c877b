"""Training over processes: equal bits, resuming, and failures of one process."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.example_count import is_exploring

Launch = Callable[..., "subprocess.CompletedProcess[str]"]
REGULARIZED = ("--optimizer", "adamw", "--clip", "--regularized")


def bits(done: subprocess.CompletedProcess[str]) -> str:
    """Return the line with the bits of the parameters, of which there is one."""
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("bits ")]
    return line


@pytest.mark.slow
def test_any_number_of_processes_has_the_bits_of_training_without_mpi(launch: Launch) -> None:
    """With dropout, batch norm, clipping, micro-batches, and a part of the state in each process.

    In the largest group, some parameters have fewer rows than there are processes, and processes
    have unequal numbers of slots.
    """
    sizes, slots, steps = ("0,1,2,3,4,6,8", 9, 50) if is_exploring() else ("0,1,4", 6, 12)
    most = sizes.rpartition(",")[2]
    common = ("--slots", slots, "--steps", steps, "--optimizer", "adamw")
    runs = [
        (sizes, *common, "--clip", "--regularized"),
        (most, *common, "--clip", "--regularized", "--sharded"),
        ("0", *common, "--accumulate", 2),
        ("3", *common, "--accumulate", 2, "--sharded"),
        ("0,2", "--slots", 4, "--sharded"),
        ("0,3", "--backend", "interp", "--steps", 2, "--slots", 3, "--sharded"),
    ]
    words = [word for run in runs for word in (*run, ",")]
    done = launch(int(most), "groups.py", *words[:-1])
    assert done.returncode == 0, done.stderr
    assert "ended" not in done.stderr
    found: dict[str, set[str]] = {}
    for line in done.stdout.splitlines():
        run, result = line.split(": bits ")
        options = run.split(" ", 1)[1].replace(" --sharded", "")
        found.setdefault(options, set()).add(result)
    assert len(done.stdout.splitlines()) == sum(len(str(run[0]).split(",")) for run in runs)
    assert len(found) == 4
    for options, results in found.items():
        assert len(results) == 1, options


@pytest.mark.slow
def test_memory_of_cuda_devices_is_staged_or_passed_to_mpi(launch: Launch) -> None:
    """On emulated devices, whose memory belongs to the process."""
    pytest.importorskip("pycuda", reason="emulated devices need PyCUDA")
    options = ("--backend", "cuda", "--steps", 2, "--slots", 2, "--optimizer", "adamw")
    runs = ("0,2", *options, ",", "2", *options, "--passed")
    done = launch(2, "groups.py", *runs, emulates_cuda=True)
    assert done.returncode == 0, done.stderr
    found = [line.split(": ")[1] for line in done.stdout.splitlines()]
    assert len(found) == 3
    assert len(set(found)) == 1


@pytest.mark.slow
def test_training_resumes_with_other_processes_after_one_was_killed(
    launch: Launch, tmp_path: Path
) -> None:
    expected = bits(launch(1, "train.py", *REGULARIZED))
    checkpoint = tmp_path / "model.safetensors"
    options = ("--checkpoint", checkpoint, "--sharded", *REGULARIZED)
    killed = launch(3, "train.py", *options, "--fault", "kill", "--at", 5)
    assert killed.returncode != 0
    assert checkpoint.exists()
    assert bits(launch(2, "train.py", *options)) == expected


def failure(launch: Launch, fault: str, *options: object) -> str:
    """Return the standard error of a group of three of which process 1 fails."""
    done = launch(3, "train.py", "--fault", fault, *options)
    assert done.returncode != 0
    assert "bits" not in done.stdout
    return done.stderr


def test_an_error_of_one_process_stops_all_and_is_printed_once_with_its_rank(
    launch: Launch,
) -> None:
    printed = failure(launch, "raise")
    assert printed.count("MemoryError: no memory is left for the cells of w1") == 1
    assert "rank 1 of 3 on " in printed


def test_a_process_that_exits_early_stops_all(launch: Launch) -> None:
    assert "rank 1 of 3 on " in failure(launch, "exit")


@pytest.mark.parametrize("rank", [0, 2])
def test_a_process_that_quits_with_status_0_is_named(launch: Launch, rank: int) -> None:
    """Some launchers then stop the others without a word, and with status 0."""
    done = launch(3, "train.py", "--fault", "quit", "--rank", rank)
    assert "bits" not in done.stdout
    assert f"ocannl_mpi: rank {rank} of 3 on " in done.stderr
    assert " ended in the middle of the work" in done.stderr


def test_a_process_that_hangs_is_named(launch: Launch) -> None:
    printed = failure(launch, "hang", "--timeout", 2)
    assert "Every process takes part in the sum of gradients." in printed
    assert "no message from rank 1 for " in printed


def test_processes_with_different_seeds_are_refused(launch: Launch) -> None:
    printed = failure(launch, "differ")
    assert printed.count("All processes run the same program; they differ in seed.") == 1
    assert "0 in rank 0\n" in printed
    assert "all 3 processes: UsageError" in printed


def test_fewer_slots_than_processes_are_refused(launch: Launch) -> None:
    done = launch(3, "train.py", "--slots", 2)
    assert done.returncode != 0
    assert "processes and 2 slots" in done.stderr


def test_a_failure_of_process_0_is_an_error_in_all_for_any_text(launch: Launch) -> None:
    done = launch(2, "first.py")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "'ValueError ' | 'CommunicationError ValueError: the disk is full'",
        "'ValueError ' | 'CommunicationError ValueError: '",
        "'ValueError ' | 'CommunicationError ValueError: caf\\\\udce9.safetensors'",
    ]
