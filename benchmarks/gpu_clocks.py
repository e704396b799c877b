"""Times of work on devices, by events of its stream or on the host."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol

Run = Callable[[], object]
_ROUNDS = 5


class Clock(Protocol):
    def seconds(self, run: Run, count: int) -> float:
        """Return the seconds from the start of the first run to the end of the last one."""
        ...


class HostClock:
    """Seconds on the host, of work that it waits for."""

    def __init__(self, wait: Run) -> None:
        self._wait = wait

    def seconds(self, run: Run, count: int) -> float:
        self._wait()
        start = time.perf_counter()
        for _ in range(count):
            run()
        self._wait()
        return time.perf_counter() - start


class CudaClock:
    """Seconds between events on the stream of routines."""

    def __init__(self, ordinal: int) -> None:
        from ocannl_cuda.device import ordinal_device

        self.device: Any = ordinal_device(ordinal)

    def seconds(self, run: Run, count: int) -> float:
        device = self.device
        first, last = self._event(), self._event()
        for _ in range(count):
            run()
        with device.current():
            last.record(device.stream)
            last.synchronize()
            return float(first.time_till(last)) * 1e-3

    def _event(self) -> Any:
        with self.device.current():
            event = self.device.driver.Event()
            event.record(self.device.stream)
        return event


class TorchClock:
    """Seconds between events on the stream of PyTorch."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch

    def seconds(self, run: Run, count: int) -> float:
        first, last = (self._torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        for _ in range(count):
            run()
        last.record()
        last.synchronize()
        return float(first.elapsed_time(last)) * 1e-3


class CupyClock:
    """Seconds between events on the present stream of CuPy."""

    def __init__(self, cupy: Any) -> None:
        self._cupy = cupy

    def seconds(self, run: Run, count: int) -> float:
        first, last = (self._cupy.cuda.Event() for _ in range(2))
        first.record()
        for _ in range(count):
            run()
        last.record()
        last.synchronize()
        return float(self._cupy.cuda.get_elapsed_time(first, last)) * 1e-3


def fastest(parties: dict[str, tuple[Run, Clock]], least: float) -> dict[str, float]:
    """Return the seconds of a run of each party: of its fastest series, which takes the least time
    at least; the series of all parties alternate.
    """
    counts: dict[str, int] = {}
    for name, (run, clock) in parties.items():
        try:
            clock.seconds(run, 2)  # compiles, and captures graphs
        except Exception as error:
            if not name:
                raise
            print(f"{name} is left out: {type(error).__name__}: {error}"[:200], flush=True)
            continue
        counts[name] = 1
        while clock.seconds(run, counts[name]) < least:
            counts[name] *= 2
    found: dict[str, float] = {}
    for _ in range(_ROUNDS if least else 1):
        for name in counts:
            run, clock = parties[name]
            seconds = clock.seconds(run, counts[name]) / counts[name]
            found[name] = min(found.get(name, seconds), seconds)
    return found
