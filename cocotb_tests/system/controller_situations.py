"""What a host, its memory and its drives do to the controller in the functional tests."""



from cocotb_tests.system.controller_bench import CONFIG, Bench, code
from hdl.flow.geometry import Level
from sw.driver.commands import NvmeError

PAUSES = 0.15
"""Share of the cycles in which each stream of the hard block stands still."""

ALL_PORTS = tuple(range(CONFIG.ports))


def setting(name: str) -> dict:
    """An array of each kind: arguments of `Bench.create`."""
    return {
        "RAID0": {"level": Level.RAID0, "ports": ALL_PORTS},
        "RAID1": {"level": Level.RAID1, "ports": (1, 4, 5)},
        "RAID5": {"level": Level.RAID5, "ports": ALL_PORTS},
        "RAID6": {"level": Level.RAID6, "ports": ALL_PORTS},
        "RAID10": {"level": Level.RAID10, "ports": ALL_PORTS},
        "RAID1E": {"level": Level.RAID10, "ports": ALL_PORTS[1:]},
        "RAID50": {"level": Level.RAID5, "ports": ALL_PORTS, "spans": 2, "strip_blocks": 2},
        "JBOD": {"level": Level.JBOD, "ports": (3,)},
    }[name]


def busy_host(bench: Bench) -> None:
    """Completions come late, out of order and in odd pieces."""
    reads = bench.host.rc.reads
    reads.latency_ns = (200, 1500)
    reads.shuffle = True
    reads.split = "random"


async def refusal(coroutine) -> int:
    """The status with which a command that must fail did."""
    try:
        await coroutine
    except NvmeError as error:
        return code(error)
    raise AssertionError("not refused")


def plant(bench: Bench, kind: str, start: int, length: int) -> None:
    """The next host read of these addresses goes wrong once."""
    reads = bench.host.rc.reads
    left = [kind]

    def fault(tlp) -> str | None:
        hit = start <= tlp.address < start + length
        return left.pop() if hit and left else None

    reads.fault = fault
