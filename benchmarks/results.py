"""Results of comparisons, as text and on file."""

from __future__ import annotations

from dataclasses import dataclass, replace

OWN = "compiled"
"""The prefix of the names of this project's contenders."""

LIBRARIES = ("torch", "jax", "keras", "tinygrad", "pytensor", "numba")
"""The peers beside NumPy, each used if it is installed."""


@dataclass(frozen=True, slots=True)
class WorkloadResult:
    """Times of one workload.

    Attributes:
        workload: Its name.
        threads: The number of threads of every contender.
        least: The least seconds by contender; those of this project begin with `compiled`.
        median: The median seconds by contender.
        first: Seconds until the first result, without the import of the library.
        failed: The errors of contenders that failed, by contender.
        flops: The number of multiplications and additions; 0 if no rate is printed.
    """

    workload: str
    threads: int
    least: dict[str, float]
    median: dict[str, float]
    first: dict[str, float]
    failed: dict[str, str]
    flops: float | None = None

    def with_run(self, other: WorkloadResult) -> WorkloadResult:
        """Return the least times of this run and another one of the same workload."""
        least = self.least | {
            name: min(seconds, self.least.get(name, seconds))
            for name, seconds in other.least.items()
        }
        return replace(
            other,
            least=least,
            median=self.median | other.median,
            first=self.first | other.first,
            failed={name: why for name, why in other.failed.items() if name not in least},
        )

    def peers(self) -> dict[str, float]:
        """Return the least seconds of all but this project's."""
        return {name: t for name, t in self.least.items() if not name.startswith(OWN)}

    def best_peer(self) -> str | None:
        """Return the fastest of the others; None if there is none."""
        peers = self.peers()
        return min(peers, key=peers.__getitem__, default=None)

    def ratio(self, name: str) -> float:
        """Return how long a contender takes in terms of the best peer; NaN if there is none."""
        best = self.best_peer()
        return float("nan") if best is None else self.least[name] / self.least[best]

    def __str__(self) -> str:
        lines = [f"{self.workload}: ratio to the best peer {self.ratio(OWN):.2f}"]
        for name, seconds in self.least.items():
            line = f"  {name:<26} {seconds * 1e3:>10.4g} ms, median {self.median[name] * 1e3:.4g}"
            if self.flops:
                line += f", {self.flops / seconds / 1e9:.0f} GFLOP/s"
            lines.append(line)
        lines += [f"  {name:<26} failed: {reason}" for name, reason in self.failed.items()]
        starts = ", ".join(f"{name} {seconds:.2f}" for name, seconds in self.first.items())
        return "\n".join([*lines, f"  seconds to the first result: {starts}"])
