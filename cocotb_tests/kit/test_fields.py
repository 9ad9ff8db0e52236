"""A test that leaves a field of a stream alone fails, unless it says why."""

import cocotb
import pytest
from amaranth.lib import data, enum
from cocotb.triggers import ClockCycles

from cocotb_tests.fields import ANY, Fields, Unread, check_fields, noting
from cocotb_tests.runner import UnreadFieldsError, simulate
from cocotb_tests.streams import StreamSink, StreamSource, pack, start, unpack
from hdl.kit.queue import Queue


class Kind(enum.Enum, shape=1):
    SMALL = 0
    LARGE = 1


LAYOUT = data.StructLayout(
    {
        "kind": Kind,
        "size": 7,
        "pairs": data.ArrayLayout(data.StructLayout({"x": 2, "y": 2}), 2),
    }
)
VALUES = [
    pack(LAYOUT, kind=kind, size=size, pairs=[{"x": size % 4}, {"y": 1}])
    for size, kind in enumerate([Kind.SMALL, Kind.LARGE, Kind.SMALL])
]


async def payloads(dut, **options) -> list:
    """All of `VALUES`, as a sink gives them."""
    await start(dut)
    StreamSource(dut, "input").send_all(VALUES)
    sink = StreamSink(dut, "output", **{"layout": LAYOUT, **options})
    await ClockCycles(dut.clk, 20)
    return [sink.receive_now() for _ in range(len(sink))]


@cocotb.test(timeout_time=1, timeout_unit="us")
async def compares_all(dut):
    assert await payloads(dut) == [unpack(LAYOUT, value) for value in VALUES]


@cocotb.test(timeout_time=1, timeout_unit="us")
async def reads_all(dut):
    for seen, value in zip(await payloads(dut), VALUES, strict=True):
        fields = {"kind": seen.kind, "size": seen["size"]}
        pairs = [{"x": pair.x, "y": pair.y} for pair in seen.pairs]
        assert pack(LAYOUT, **fields, pairs=pairs) == value


@cocotb.test(timeout_time=1, timeout_unit="us")
async def reads_some(dut):
    for seen in await payloads(dut):
        print(seen)
        assert seen.pairs[1].y == 1


@cocotb.test(timeout_time=1, timeout_unit="us")
async def reads_some_of_a_kind(dut):
    for seen in await payloads(dut):
        assert seen.pairs[0] == {"x": seen.size % 4, "y": 0} if seen.kind == Kind.SMALL else 1


@cocotb.test(timeout_time=1, timeout_unit="us")
async def says_what_it_ignores(dut):
    reasons = {"SMALL:*": "only large ones count", "pairs.x": "it has none", "kind": "it has one"}
    for seen in await payloads(dut, ignores=reasons):
        assert seen.pairs[1].y == 1 and seen.size in range(3)


@cocotb.test(timeout_time=1, timeout_unit="us")
async def takes_bits_away(dut):
    await payloads(dut, layout=None, callback=lambda _: None)


@cocotb.test(timeout_time=1, timeout_unit="us")
async def leaves_bits_in_the_sink(dut):
    await start(dut)
    StreamSource(dut, "input").send_all(VALUES)
    StreamSink(dut, "output")
    await ClockCycles(dut.clk, 20)


@cocotb.test(timeout_time=1, timeout_unit="us")
async def says_why_bits_are_left(dut):
    await payloads(dut, layout=None, callback=lambda _: None, ignores="only the number counts")


def run(testcase: str) -> None:
    width = LAYOUT.size
    simulate(Queue(width, 4), name="fields", module=__name__, testcase=testcase)


@pytest.mark.parametrize(
    "testcase",
    ["compares_all", "reads_all", "says_what_it_ignores", "says_why_bits_are_left"],
)
def test_fields_that_are_read(testcase):
    run(testcase)


@pytest.mark.parametrize(
    ("testcase", "unread"),
    [
        ("reads_some", "output of LARGE: kind, pairs.x, size\noutput of SMALL: .*"),
        ("reads_some_of_a_kind", "output of LARGE: pairs.x, pairs.y, size"),
        ("takes_bits_away", "output: payload"),
        ("leaves_bits_in_the_sink", "output: payload"),
    ],
)
def test_fields_that_are_not_read_are_found(testcase, unread):
    wanted = rf"looked at these fields of payloads:\n{unread}\n"
    with pytest.raises(UnreadFieldsError, match=wanted):
        run(testcase)


def test_unknown_fields_cannot_be_ignored():
    with pytest.raises(ValueError, match="output has no field 'length' to ignore"):
        Unread("output", {"size": True}, {"length": "a mistake"})


def test_all_fields_are_compared():
    seen = unpack(LAYOUT, VALUES[1])
    pairs = [{"x": 1, "y": 0}, {"x": 0, "y": 1}]
    check_fields(seen, {"kind": Kind.LARGE, "size": 1, "pairs": pairs})
    check_fields(seen, {"kind": Kind.LARGE, "pairs": ANY}, rest=ANY)
    for wanted, message in (
        ({"kind": Kind.LARGE, "pairs": pairs}, "about.size is 1, not 0"),
        ({"size": 1, "pairs": pairs}, "about.kind is Kind.LARGE, not 0"),
        ({"kind": Kind.LARGE, "size": 2, "pairs": pairs}, "about.size is 1, not 2"),
        ({"kind": Kind.LARGE, "length": 2}, "about: no field length"),
    ):
        with pytest.raises(AssertionError, match=message):
            check_fields(seen, wanted, "about")


def test_a_field_that_has_no_meaning_is_not_read():
    unread = {"x", "y", "z"}
    kind = noting({"x": "x", "y": "y", "z": "z"}, unread)
    seen = kind({"x": 1, "y": 2, "z": 0})
    check_fields(seen, {"x": 1, "y": ANY})
    assert unread == {"y"} and seen.y == 2 and not unread
    assert isinstance(seen, Fields) and {**seen} == {"x": 1, "y": 2, "z": 0}
