"""The planner: its reference leaves every row consistent, and the hardware plans the same."""

import os
import random
from dataclasses import fields

import cocotb
import pytest
from cocotb.triggers import RisingEdge
from hypothesis import given, settings
from hypothesis import strategies as st

from cocotb_tests.busy import BusyWatch
from cocotb_tests.runner import SimulationError, simulate
from cocotb_tests.streams import StreamSink, StreamSource, sample, start
from hdl.config import Config, small
from hdl.flow.row import RowKind
from hdl.stripe.planning import planner as planner_module
from hdl.stripe.planning.plan import PlanKind, plan, plan_request
from hdl.stripe.planning.planner import Planner
from sim.golden import planner as golden
from sim.golden.parity import generate, reconstruct

LATENCY = 3
"""Cycles from a request taken to its plan offered."""

CONFIG = small()
BLOCK = 4
ROWS = 1500


def row_of(data: int, parities: int) -> list[bytes]:
    """A consistent row of short blocks, no two alike."""
    blocks = [bytes([17 * role + 1, role, 255 - role, 3 * role]) for role in range(data)]
    return [*blocks, *generate(blocks, parities)]


def faults(data, strips: int, parities: int) -> dict[str, set[int]]:
    """Roles that are dead, bad and stale."""
    roles = st.integers(0, strips + parities - 1)
    dead = data.draw(st.sets(roles, max_size=parities + 1), label="dead")
    bad = data.draw(st.sets(roles, max_size=2), label="bad") - dead
    stale = set(data.draw(st.sets(st.sampled_from(sorted(bad))) if bad else st.just(set())))
    return {"dead": dead, "bad": bad, "stale": stale}


@given(data=st.data())
@settings(deadline=None, max_examples=600)
def test_every_plan_leaves_the_row_consistent(data):
    strips = data.draw(st.integers(1, 12), label="data")
    parities = data.draw(st.integers(1, 4), label="parities")
    joined = data.draw(st.sets(st.integers(0, strips - 1), min_size=1), label="joined")
    wrong = faults(data, strips, parities)
    dead, bad, stale = wrong.values()
    recover_row = data.draw(st.booleans(), label="recover")

    before = row_of(strips, parities)
    row = [None if role in dead else block for role, block in enumerate(before)]
    new = {role: bytes([200 + role] * BLOCK) for role in joined}
    chosen = golden.plan(
        recover_row=recover_row, data=strips, parities=parities, joined=joined, **wrong
    )
    readable = {role for role in range(strips + parities) if role not in dead | bad}
    if recover_row:
        assert (chosen.kind == "IMPOSSIBLE") == (len(readable - joined) < strips)
        row = [None if role in joined | bad else block for role, block in enumerate(row)]
    after = golden.carry_out(chosen, row, parities, new, bad)
    if chosen.kind == "IMPOSSIBLE":
        assert after == row
        # Nor is there another way: too little is read, or too little is stored then.
        complete = {*range(strips)} <= readable | joined
        unwritten = {role for role in bad - joined if role < strips}
        stored = {*range(strips + parities)} - dead - stale - unwritten
        assert recover_row or len(stored) < strips or (len(readable) < strips and not complete)
        return
    if recover_row:
        assert all(after[role] == before[role] for role in joined)
        return
    wanted = [new.get(role, before[role]) for role in range(strips)]
    held = [
        None if role in stale or (role in bad - joined and role < strips) else block
        for role, block in enumerate(after)
    ]
    assert reconstruct(held, parities) == [*wanted, *generate(wanted, parities)]
    assert all(after[role] is None for role in dead)


@given(data=st.data())
@settings(deadline=None, max_examples=400)
def test_rows_never_synced_are_consistent_once_written(data):
    """Whatever parities held: no block that is written depends on them, and the row agrees."""
    strips = data.draw(st.integers(1, 12), label="data")
    parities = data.draw(st.integers(1, 4), label="parities")
    joined = data.draw(st.sets(st.integers(0, strips - 1), min_size=1), label="joined")
    wrong = faults(data, strips, parities)
    dead, bad = wrong["dead"], wrong["bad"]
    chosen = golden.plan(
        recover_row=False, data=strips, parities=parities, joined=joined, unsynced=True, **wrong
    )
    assert chosen.kind != "UPDATE"
    if chosen.kind in ("IMPOSSIBLE", "WRITE_ONLY"):
        return
    before = row_of(strips, parities)
    before[strips:] = [bytes([91 + parity] * BLOCK) for parity in range(parities)]
    new = {role: bytes([200 + role] * BLOCK) for role in joined}
    row = [None if role in dead else block for role, block in enumerate(before)]
    after = golden.carry_out(chosen, row, parities, new, bad)
    held = [
        None if role in wrong["stale"] or (role in bad - joined and role < strips) else block
        for role, block in enumerate(after)
    ]
    solved = reconstruct(held, parities)
    assert solved is not None
    blocks = solved[:strips]
    assert solved == [*blocks, *generate(blocks, parities)]
    for role in range(strips):
        if role in joined or role not in dead | bad:
            assert blocks[role] == new.get(role, before[role])


@given(data=st.data())
@settings(deadline=None, max_examples=300)
def test_no_way_with_fewer_reads_exists(data):
    """Neither reading only the joined strips nor only the others takes fewer."""
    strips = data.draw(st.integers(1, 12))
    parities = data.draw(st.integers(1, 4))
    joined = data.draw(st.sets(st.integers(0, strips - 1), min_size=1))
    wrong = faults(data, strips, parities)
    chosen = golden.plan(
        recover_row=False, data=strips, parities=parities, joined=joined, **wrong
    )
    lost = wrong["dead"] | wrong["bad"]
    live = parities - len([role for role in wrong["dead"] if role >= strips])
    spoilt = {role for role in lost - wrong["dead"] if role >= strips}
    if not lost & joined and not spoilt and chosen.reads:
        assert chosen.reads <= len(joined) + live
    if not lost & (set(range(strips)) - joined):
        assert chosen.reads <= strips - len(joined)
    assert chosen.reads <= strips


def test_reads_of_a_dead_drive_are_caught():
    """The reference refuses a plan that a healthy array would have needed."""
    healthy = golden.plan(recover_row=False, data=4, parities=2, joined={0, 1}, dead=set())
    assert healthy.kind == "RECONSTRUCT"
    row = [None if role == 3 else block for role, block in enumerate(row_of(4, 2))]
    with pytest.raises(golden.DeadDriveError, match="role 3"):
        golden.carry_out(healthy, row, 2, {0: bytes(BLOCK), 1: bytes(BLOCK)})


@pytest.mark.parametrize(
    ("data", "parities", "joined", "dead", "kind", "reads"),
    [
        (7, 1, {0}, set(), "UPDATE", 2),
        (4, 1, {0, 1}, set(), "RECONSTRUCT", 2),
        (3, 1, {0}, set(), "RECONSTRUCT", 2),
        (6, 2, {0}, set(), "UPDATE", 3),
        (4, 2, {0}, set(), "RECONSTRUCT", 3),
        (6, 2, set(range(6)), set(), "FULL", 0),
        (6, 2, set(range(6)), {0, 7}, "FULL", 0),
        (6, 2, {0}, {0}, "RECONSTRUCT", 5),
        (6, 2, {0}, {1}, "UPDATE", 3),
        (6, 2, {0}, {0, 1}, "RECOVER_RECONSTRUCT", 6),
        (6, 2, {0, 1, 2, 3, 4}, {5}, "RECOVER_RECONSTRUCT", 6),
        (6, 2, {0}, {6, 7}, "WRITE_ONLY", 0),
        (6, 2, {0}, {0, 1, 2}, "IMPOSSIBLE", 0),
        (6, 0, {0}, {1}, "WRITE_ONLY", 0),
    ],
)
def test_examples(data, parities, joined, dead, kind, reads):
    chosen = golden.plan(recover_row=False, data=data, parities=parities, joined=joined, dead=dead)
    assert (chosen.kind, chosen.reads) == (kind, reads)


@pytest.mark.parametrize(
    ("data", "parities", "joined", "dead", "bad", "stale", "unsynced", "kind", "reads"),
    [
        # What is written need not be read, and parities that cannot be are made anew.
        (6, 1, {0}, set(), {0, 6}, set(), False, "RECONSTRUCT", 5),
        (6, 1, {0}, set(), {6}, set(), False, "RECONSTRUCT", 5),
        (6, 1, {0}, {6}, {0}, set(), False, "WRITE_ONLY", 0),
        (6, 1, {0}, set(), {1}, set(), False, "UPDATE", 2),
        (6, 1, {0}, set(), {1, 6}, set(), False, "IMPOSSIBLE", 0),
        (6, 1, {0}, set(), {0, 1}, set(), False, "IMPOSSIBLE", 0),
        (6, 2, {0}, set(), {0, 1, 6}, set(), False, "IMPOSSIBLE", 0),
        (6, 2, {0}, set(), {1, 6}, set(), False, "RECOVER_RECONSTRUCT", 6),
        # What is stale holds nothing yet.
        (6, 1, {0}, {0}, {6}, {6}, False, "IMPOSSIBLE", 0),
        (6, 1, {0}, {0}, {6}, set(), False, "RECONSTRUCT", 5),
        (6, 1, {0}, set(), {6}, {6}, False, "RECONSTRUCT", 5),
        # Without knowing the parities right.
        (6, 1, {0}, set(), set(), set(), True, "RECONSTRUCT", 5),
        (6, 2, {0}, {1}, set(), set(), True, "RECOVER_RECONSTRUCT", 6),
        (6, 2, {0}, {1, 6, 7}, set(), set(), True, "IMPOSSIBLE", 0),
    ],
)
def test_examples_of_faults(data, parities, joined, dead, bad, stale, unsynced, kind, reads):
    chosen = golden.plan(
        recover_row=False,
        data=data,
        parities=parities,
        joined=joined,
        dead=dead,
        bad=bad,
        stale=stale,
        unsynced=unsynced,
    )
    assert (chosen.kind, chosen.reads) == (kind, reads)


def requests(seed: int) -> list[dict]:
    """Every request of the smallest rows, then random ones of all sizes, odd ones included."""
    result = []
    for data, parities in ((2, 1), (2, 2), (3, 1)):
        for joined in range(1 << data):
            for dead in range(1 << (data + parities)):
                for kind in RowKind:
                    result.append((kind, data, parities, joined, dead, 0, 0, 0))
    generator = random.Random(seed)
    for _ in range(ROWS):
        parities = generator.randrange(5)
        data = generator.randrange(1, 33 - parities)
        masks = {"dead": 0, "bad": 0}
        for name, most in (("dead", parities + 2), ("bad", 4)):
            for _ in range(generator.choice((0, generator.randrange(most)))):
                masks[name] |= 1 << generator.randrange(data + parities)
        bad = masks["bad"] & ~masks["dead"]
        stale = bad & generator.choice((0, generator.getrandbits(data + parities), bad))
        joined = generator.getrandbits(data)
        if generator.random() < 0.5:
            joined &= generator.getrandbits(data) & generator.getrandbits(data)
        if generator.random() < 0.3:
            joined |= (masks["dead"] | bad) & ((1 << data) - 1)
        kind = generator.choice(list(RowKind))
        unsynced = generator.getrandbits(1)
        result.append((kind, data, parities, joined, masks["dead"], bad, stale, unsynced))
    names = ("kind", "data", "parities", "joined", "dead", "bad", "stale", "unsynced")
    return [dict(zip(names, values, strict=True)) for values in result]


def reference(request: dict) -> dict:
    """The golden plan of a request, in the hardware's terms."""
    chosen = golden.plan(
        recover_row=request["kind"] == RowKind.RECOVER,
        data=request["data"],
        parities=request["parities"],
        joined=bits_of(request["joined"]),
        dead=bits_of(request["dead"]),
        bad=bits_of(request["bad"]),
        stale=bits_of(request["stale"]),
        unsynced=bool(request["unsynced"]),
    )
    result = {field.name: getattr(chosen, field.name) for field in fields(chosen)}
    return {
        name: PlanKind[value] if name == "kind" else sum(1 << bit for bit in value)
        for name, value in result.items()
    }


def bits_of(mask: int) -> set[int]:
    """The numbers of the bits set."""
    return {bit for bit in range(mask.bit_length()) if mask >> bit & 1}


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def plans_as_the_reference(dut):
    await start(dut)
    source = StreamSource(dut, "request", layout=plan_request(CONFIG), active=0.8)
    sink = StreamSink(dut, "plan", layout=plan(CONFIG), active=0.8)
    watch = BusyWatch(dut, ["request"], ["plan"])
    for request in requests(int(os.environ["SEED"])):
        source.send(request)
        answer = await sink.receive()
        wanted = reference(request)
        assert answer == wanted, f"{request}: {answer}, not {wanted}"
    await RisingEdge(dut.clk)
    assert source.idle
    assert sink.idle
    assert not sample(dut.busy)
    watch.check()


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def answers_in_time(dut):
    await start(dut)
    source = StreamSource(dut, "request", layout=plan_request(CONFIG))
    StreamSink(dut, "plan", layout=plan(CONFIG))
    for request in requests(1)[:20]:
        source.send(request)
        while not (sample(dut.request__valid) and sample(dut.request__ready)):
            await RisingEdge(dut.clk)
        waited = 0
        while not sample(dut.plan__valid):
            await RisingEdge(dut.clk)
            waited += 1
        assert waited == LATENCY
        await source.drained()


def test_planner():
    simulate(
        Planner(config=CONFIG),
        name="planner",
        module=__name__,
        testcase=["plans_as_the_reference", "answers_in_time"],
    )


def test_size_does_not_matter():
    """Requests and plans have one shape for all configurations."""
    assert plan(CONFIG) == plan(Config())
    assert plan_request(CONFIG) == plan_request(Config())


def test_wrong_count_is_caught(monkeypatch):
    count = planner_module.ones
    monkeypatch.setattr(planner_module, "ones", lambda mask: count(mask[:-1]))
    with pytest.raises(SimulationError, match=r"not \{"):
        simulate(
            Planner(config=CONFIG),
            name="planner_mutant",
            module=__name__,
            testcase="plans_as_the_reference",
        )
