"""Throughput and latency of a measured interval."""

from dataclasses import dataclass

MIB = 1 << 20


@dataclass(frozen=True)
class Latency:
    """Latency in microseconds. Percentiles are by the nearest-rank method."""

    mean: float
    p50: float
    p99: float
    p99_9: float

    @classmethod
    def of(cls, nanoseconds: list[float]) -> "Latency":
        """Summarises samples. The result is zeros when there are none."""
        if not nanoseconds:
            return cls(0.0, 0.0, 0.0, 0.0)
        ordered = sorted(nanoseconds)

        def percentile(permille: int) -> float:
            rank = -(-permille * len(ordered) // 1000)
            return ordered[rank - 1] / 1000

        mean = sum(ordered) / len(ordered) / 1000
        return cls(mean, percentile(500), percentile(990), percentile(999))


@dataclass(frozen=True)
class Result:
    """The measurement of a load generator between the end of its warm-up and its last sample."""

    accesses: int
    bytes: int
    seconds: float
    latency: Latency

    @property
    def mb_s(self) -> float:
        """Throughput. 1 MB is 2**20 bytes, as in the published figures."""
        return self.bytes / MIB / self.seconds if self.seconds else 0.0

    @property
    def io_s(self) -> float:
        """Accesses a second."""
        return self.accesses / self.seconds if self.seconds else 0.0
