"""One measured point, and its form in files."""

from dataclasses import asdict, dataclass

from sw.workload.statistics import Latency


@dataclass(frozen=True)
class Record:
    """A point of the characterisation.

    ``published``, ``predicted`` and ``simulated`` are in ``unit``. ``binds`` names the limit in the
    simulation. ``cycles`` are clock cycles of the controller, jumps included.
    """

    id: str
    setup: str
    profile: str
    outstanding: int
    unit: str
    published: float | None
    predicted: float
    simulated: float
    mb_s: float
    io_s: float
    latency: Latency
    cycles: int
    seed: int
    binds: str

    def as_json(self) -> dict:
        """The record as plain data: latencies in microseconds under their usual names."""
        fields = asdict(self)
        latency = fields.pop("latency")
        latency["p99.9"] = latency.pop("p99_9")
        fields["latency_us"] = latency
        return fields
