"""What comparisons find, as it is printed and as it is kept on file."""

from __future__ import annotations

from dataclasses import dataclass, replace

OWN = "compiled"
"""What the names of all contenders of this project begin with."""

LIBRARIES = ("torch", "jax", "tinygrad", "pytensor", "numba")
"""What is compared with where it is installed, beside NumPy."""


@dataclass(frozen=True, slots=True)
class Result:
    """What one workload took.

    Attributes:
        workload: Its name.
        threads: How many threads every contender had.
        least: The least seconds by contender; those of this project begin with `compiled`.
        median: The median seconds by contender.
        first: Seconds until the first result was there, import of the library not counted.
        failed: Why contenders that should have taken part did not, by contender.
        flops: Multiplications and additions, where a rate is of interest.
    """

    workload: str
    threads: int
    least: dict[str, float]
    median: dict[str, float]
    first: dict[str, float]
    failed: dict[str, str]
    flops: float | None = None

    def with_run(self, other: Result) -> Result:
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
            line = f"  {name:<26} {seconds * 1e3:>10.4f} ms, median {self.median[name] * 1e3:.4f}"
            if self.flops:
                line += f", {self.flops / seconds / 1e9:.0f} GFLOP/s"
            lines.append(line)
        lines += [f"  {name:<26} failed: {reason}" for name, reason in self.failed.items()]
        starts = ", ".join(f"{name} {seconds:.2f}" for name, seconds in self.first.items())
        return "\n".join([*lines, f"  seconds to the first result: {starts}"])
