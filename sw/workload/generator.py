"""Keeps a number of accesses outstanding on a volume, and measures them."""

import random
from collections.abc import Callable
from dataclasses import dataclass

from sw.driver.commands import BLOCK_BYTES
from sw.driver.nvme import Nvme
from sw.driver.transport import Event
from sw.workload.profiles import RANDOM_SHARE, SEQUENTIAL_SHARE, Profile
from sw.workload.statistics import Latency, Result


@dataclass(frozen=True)
class Load:
    """The parameters with which a profile is run.

    Parameters
    ----------
    profile
        The profile of the accesses.
    outstanding
        Accesses kept outstanding.
    warm_up_ns, measure_ns
        Simulated time before the measurement, and of the measurement.
    least_accesses
        The measurement is prolonged, by ``measure_ns`` at a time, until this many accesses were
        counted or ``most_ns`` have passed.
    most_ns
        Limit of the measurement.
    seed
        Of the random addresses and of the order of reads and writes.
    """

    profile: Profile
    outstanding: int
    warm_up_ns: float
    measure_ns: float
    least_accesses: int = 0
    most_ns: float = float("inf")
    seed: int = 1

    def __post_init__(self) -> None:
        if self.outstanding < 1:
            raise ValueError(f"outstanding must be at least 1, not {self.outstanding}")
        if self.warm_up_ns < 0:
            raise ValueError(f"warm_up_ns must not be negative, and is {self.warm_up_ns}")
        if self.measure_ns <= 0:
            raise ValueError(f"measure_ns must be positive, not {self.measure_ns}")


class Generator:
    """Runs a `Load` on one namespace of a started controller.

    Parameters
    ----------
    nvme
        The driver.
    namespace
        Namespace identifier.
    blocks
        Size of the namespace in 4 KiB blocks.
    load
        What to run.
    probe
        Read at the beginning and the end of the measurement.

    Attributes
    ----------
    probed
        By how much each number of ``probe`` grew in the measurement.
    """

    def __init__(
        self,
        nvme: Nvme,
        namespace: int,
        blocks: int,
        load: Load,
        probe: Callable[[], dict[str, int]] = dict,
    ):
        self._nvme = nvme
        self._namespace = namespace
        self._load = load
        self._random = random.Random(load.seed)
        self._access_blocks = load.profile.block_bytes // BLOCK_BYTES
        share = RANDOM_SHARE if load.profile.random else SEQUENTIAL_SHARE
        if int(blocks * share) < self._access_blocks:
            raise ValueError(
                f"{share:.0%} of {blocks} blocks do not hold an access of {self._access_blocks}"
            )
        self._next = 0
        self._sequential_accesses = int(blocks * SEQUENTIAL_SHARE) // self._access_blocks
        self._random_first = int(blocks * SEQUENTIAL_SHARE)
        self._random_starts = int(blocks * RANDOM_SHARE) - self._access_blocks + 1
        self._stop = False
        self._running = 0
        self._samples: list[float] = []
        self._measuring = False
        self._probe = probe
        self.probed: dict[str, int] = {}

    async def run(self) -> Result:
        """Warms up, measures and drains. Returns the measurement."""
        load, transport = self._load, self._nvme.transport
        drained = transport.event()
        self._running = load.outstanding
        queues = len(self._nvme.queues)
        for worker in range(load.outstanding):
            address = transport.memory.allocate(load.profile.block_bytes)
            transport.spawn(self._work(address, worker % queues, drained))
        await transport.sleep(load.warm_up_ns)
        self._measuring = True
        start = transport.now_ns
        before = self._probe()
        await transport.sleep(load.measure_ns)
        while (
            len(self._samples) < load.least_accesses and transport.now_ns - start < load.most_ns
        ):
            await transport.sleep(load.measure_ns)
        seconds = (transport.now_ns - start) * 1e-9
        self.probed = {name: value - before[name] for name, value in self._probe().items()}
        samples = list(self._samples)
        self._measuring = False
        self._stop = True
        await drained.wait()
        bytes_moved = len(samples) * load.profile.block_bytes
        return Result(len(samples), bytes_moved, seconds, Latency.of(samples))

    def _address(self) -> int:
        if self._load.profile.random:
            return self._random_first + self._random.randrange(self._random_starts)
        index = self._next
        self._next = (index + 1) % self._sequential_accesses
        return index * self._access_blocks

    async def _work(self, address: int, queue: int, drained: Event) -> None:
        nvme, transport = self._nvme, self._nvme.transport
        read_share = self._load.profile.read_share
        while not self._stop:
            block = self._address()
            reads = read_share == 1 or (read_share > 0 and self._random.random() < read_share)
            access = nvme.read if reads else nvme.write
            begin = transport.now_ns
            await access(self._namespace, block, self._access_blocks, address, queue)
            if self._measuring:
                self._samples.append(transport.now_ns - begin)
        self._running -= 1
        if self._running == 0:
            drained.set()
