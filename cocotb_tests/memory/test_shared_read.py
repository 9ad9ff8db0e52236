"""`hdl.memory.shared_read.SharedRead`: two users of one read port, each with its own beats."""

import random
from collections import deque
from os import environ

import cocotb
import pytest
from cocotb.triggers import RisingEdge

from cocotb_tests.runner import SimulationError, simulate
from cocotb_tests.streams import StreamSource, sample, start
from hdl.config import Config
from hdl.memory.shared_read import SharedRead
from hdl.memory.store import READ_LATENCY

CONFIG = Config(data_width=64, lines=16, banks=8)
READS = 300


async def share(dut, active: tuple[float, float], ready: float) -> list[int]:
    """Runs `READS` reads of each user; returns for each the cycle in which its last one left."""
    chance = random.Random(environ["SEED"])
    # An address's top bit is its user's number.
    top = 1 << CONFIG.beat_address_bits - 1
    wanted = [deque(chance.randrange(top) | user * top for _ in range(READS)) for user in (0, 1)]
    for user in (0, 1):
        source = StreamSource(dut, f"users__{user}__request", active=active[user])
        source.send_all(wanted[user])
    dut.line_read__response_valid.value = 0
    dut.line_read__request__ready.value = 0
    await start(dut)
    pipe: deque[int | None] = deque([None] * (READ_LATENCY - 1))
    left, cycle, offered = [0, 0], 0, None
    while any(wanted):
        dut.line_read__request__ready.value = int(chance.random() < ready)
        await RisingEdge(dut.clk)
        cycle += 1
        for user in (0, 1):
            if sample(getattr(dut, f"users__{user}__response_valid")):
                got = sample(getattr(dut, f"users__{user}__response"))
                assert wanted[user] and got == wanted[user].popleft(), f"user {user}: {got:#x}"
                left[user] = cycle
        valid = sample(dut.line_read__request__valid)
        address = sample(dut.line_read__request__payload) if valid else None
        assert offered in (None, address), "a request was withdrawn"
        taken = valid and sample(dut.line_read__request__ready)
        offered = address if valid and not taken else None
        pipe.append(address if taken else None)
        beat = pipe.popleft()
        dut.line_read__response_valid.value = int(beat is not None)
        if beat is not None:
            dut.line_read__response.value = beat
        assert cycle < 40 * READS, "reads are stuck"
    return left


@cocotb.test(timeout_time=1, timeout_unit="ms")
@cocotb.parametrize(active=[(1.0, 1.0), (0.5, 0.8), (1.0, 0.1)], ready=[1.0, 0.4])
async def every_beat_gets_to_its_user(dut, active, ready):
    left = await share(dut, active, ready)
    if active == (1.0, 1.0) and ready == 1.0:
        # No cycle is lost, and neither waits for the other.
        assert max(left) <= 2 * READS + 12 and abs(left[0] - left[1]) <= 2, left


def test_shared_read():
    simulate(SharedRead(config=CONFIG), name="shared_read", module=__name__)


def test_wrong_owner_is_caught(monkeypatch):
    monkeypatch.setattr("hdl.memory.shared_read.READ_LATENCY", READ_LATENCY - 1)
    with pytest.raises(SimulationError, match="every_beat_gets_to_its_user"):
        simulate(SharedRead(config=CONFIG), name="shared_read_mutant", module=__name__)
