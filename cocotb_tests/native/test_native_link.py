"""The PCIe link model against closed forms, and its completions byte by byte."""

import random
from collections.abc import Callable

import pytest

from sim.native.models import StraddledBeat, bench_read, bench_write, check_straddled
from sim.native.parameters import NANOSECOND, LinkParameters

FRAMING, HEADER_64BIT, COMPLETION_HEADER, DLLP = 8, 16, 12, 8
TOLERANCE = 2e-3
LINE_RATES = {1: 2.5e9 * 8 / 10, 2: 5e9 * 8 / 10, 3: 8e9 * 128 / 130, 4: 16e9 * 128 / 130,
              5: 32e9 * 128 / 130}  # fmt: skip
IDEAL = {
    "ack_every": 0,
    "update_every": 0,
    "skip": False,
    "propagation_ps": 0,
    "memory_read_ps": 0,
    "credit_return_ps": 0,
}


def line_rate(generation: int, lanes: int) -> float:
    """Bytes a second each way, encoding taken off."""
    return LINE_RATES[generation] * lanes / 8


@pytest.mark.parametrize("generation", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("lanes", [1, 4, 8, 16])
@pytest.mark.parametrize("payload", [128, 256, 512])
def test_write_ceiling(generation, lanes, payload):
    """Writes carry payload / (payload + overhead) of the line."""
    link = LinkParameters(generation=generation, lanes=lanes, max_payload=payload, **IDEAL)
    result = bench_write(link, payload=payload, count=4000)
    share = payload / (payload + FRAMING + HEADER_64BIT)
    assert result.bytes_per_second == pytest.approx(line_rate(generation, lanes) * share,
                                                    rel=TOLERANCE)
    assert result.errors == 0


@pytest.mark.parametrize("generation", [1, 3, 5])
@pytest.mark.parametrize("completion", [64, 128, 256])
def test_read_ceiling(generation, completion):
    """Completions carry completion / (completion + overhead) of the line."""
    link = LinkParameters(generation=generation, completion_bytes=completion, **IDEAL)
    result = bench_read(link, length=512, count=4000)
    share = completion / (completion + FRAMING + COMPLETION_HEADER)
    assert result.bytes_per_second == pytest.approx(line_rate(generation, 8) * share,
                                                    rel=TOLERANCE)
    assert result.errors == 0
    assert result.out_of_order == 0
    assert result.completions == 4000 * 512 // completion


def test_published_limits():
    """Gen 3 x8 with 128-byte payloads: the shares behind the published 5900 and 6280 MB/s."""
    link = LinkParameters(max_payload=128, **IDEAL)
    write = bench_write(link, payload=128).bytes_per_second
    read = bench_read(link, length=512).bytes_per_second
    assert write / line_rate(3, 8) == pytest.approx(128 / 152, rel=TOLERANCE)
    assert read / line_rate(3, 8) == pytest.approx(128 / 148, rel=TOLERANCE)


@pytest.mark.parametrize(("generation", "skip"), [(1, 4 / 1538), (3, 1 / 375)])
def test_skip_ordered_sets(generation, skip):
    """SKP ordered sets take their share."""
    ideal = LinkParameters(generation=generation, **IDEAL)
    real = LinkParameters(generation=generation, **(IDEAL | {"skip": True}))
    ratio = (bench_write(ideal, payload=256).bytes_per_second
             / bench_write(real, payload=256).bytes_per_second)
    assert ratio == pytest.approx(1 + skip, rel=1e-5)


def test_dllps_of_the_other_direction():
    """Writes cost the completions nothing, but reads going up cost DLLPs coming down."""
    plain = LinkParameters(**(IDEAL | {"memory_read_ps": 200 * NANOSECOND}))
    chatty = LinkParameters(**(IDEAL | {"memory_read_ps": 200 * NANOSECOND, "ack_every": 1,
                                        "update_every": 1}))
    without = bench_read(plain, length=256).bytes_per_second
    ratio = bench_read(chatty, length=256).bytes_per_second / without
    # One read up for one completion down: two DLLPs beside each completion.
    wire = 256 + FRAMING + COMPLETION_HEADER
    assert ratio == pytest.approx(wire / (wire + 2 * DLLP), rel=TOLERANCE)


def test_few_tags_are_bound_by_latency():
    """With T reads outstanding: T x size / round trip."""
    latency = 1000 * NANOSECOND
    link = LinkParameters(**(IDEAL | {"memory_read_ps": latency}))
    result = bench_read(link, length=512, outstanding=4)
    wire_ps = (512 + 2 * (FRAMING + COMPLETION_HEADER)) / line_rate(3, 8) * 1e12
    request_ps = (FRAMING + HEADER_64BIT) / line_rate(3, 8) * 1e12
    first = 4 * 512 / ((latency + wire_ps + request_ps) * 1e-12)
    assert result.bytes_per_second == pytest.approx(first, rel=0.02)


def test_few_posted_credits_bound_writes():
    """With C header credits: C x payload / (time on the wire + credit loop)."""
    loop = 500 * NANOSECOND
    link = LinkParameters(**(IDEAL | {"credit_return_ps": loop, "posted_headers": 2}))
    result = bench_write(link, payload=256, count=2000)
    wire_ps = (256 + FRAMING + HEADER_64BIT) / line_rate(3, 8) * 1e12
    assert result.bytes_per_second == pytest.approx(2 * 256 / ((loop + wire_ps) * 1e-12), rel=0.07)


@pytest.mark.parametrize("completion", [0, 64])
@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("offset", [0, 4, 60, 124, 1000])
def test_completions(completion, shuffle, offset):
    """Fields and data of every completion, in order and not, from any address."""
    link = LinkParameters(shuffle=shuffle, completion_bytes=completion, seed=offset + 1,
                          read_jitter_ps=300 * NANOSECOND if shuffle else 0)
    for length in (4, 64, 252, 512):
        result = bench_read(link, length=length, offset=offset, outstanding=32, count=500)
        assert result.errors == 0
        assert (result.out_of_order > 0) == shuffle


def test_completion_buffer_overflow_is_an_error():
    """More completions than the hard block holds end the run (here nobody takes any in time)."""
    link = LinkParameters(completion_headers=1, completion_bytes=64,
                          **(IDEAL | {"propagation_ps": 10}))
    assert bench_read(link, length=64).errors == 0
    with pytest.raises(RuntimeError, match="completion buffer overflows"):
        bench_read(LinkParameters(completion_data=128), length=256)


def test_rules_of_requests():
    """A write above Max_Payload_Size and a read above Max_Read_Request_Size are refused."""
    with pytest.raises(RuntimeError, match="Max_Payload_Size"):
        bench_write(LinkParameters(max_payload=128), payload=256)
    with pytest.raises(RuntimeError, match="Max_Read_Request_Size"):
        bench_read(LinkParameters(max_read_request=256), length=512)
    with pytest.raises(RuntimeError, match="crosses 4 KiB"):
        bench_read(LinkParameters(), length=512, offset=3840)


def straddled(rng: random.Random, completions: int) -> list[StraddledBeat]:
    """Beats of 256 bits of random completions, each behind the one before where it may be."""
    beats: list[StraddledBeat] = []
    free = 8  # first free word of the last beat
    starts = ends = 0
    for number in range(completions):
        payload = rng.choice((0, 1, 2, 5, 16, rng.randint(1, 40)))
        count = 3 + payload
        descriptor = [rng.getrandbits(32), payload | rng.getrandbits(3) << 11, number]
        content = [*descriptor, *(rng.getrandbits(32) for _ in range(payload))]
        if free not in (0, 4) or rng.random() < 0.2:
            free = 8
        for index, value in enumerate(content):
            if free == 8:
                beats.append(StraddledBeat(data=bytes(32), user=0))
                free = starts = ends = 0
            beat = beats[-1]
            word = value.to_bytes(4, "little")
            beat.data = beat.data[: 4 * free] + word + beat.data[4 * free + 4 :]
            if index == 0:
                beat.user |= 1 << 32 + starts
                starts += 1
            if index >= 3:
                beat.user |= 0xF << 4 * free
            if index == count - 1:
                beat.user |= (1 | free << 1) << 34 + 4 * ends
                ends += 1
            free += 1
        free = -(-free // 4) * 4
    return beats


def test_straddled_stream():
    """Any sequence of completions, straddled or not, is one that a block may send."""
    for seed in range(40):
        check_straddled(straddled(random.Random(seed), 60))


def first(beats: list[StraddledBeat], condition: Callable[[int], int]) -> StraddledBeat:
    """The first beat from the third on whose ``tuser`` meets ``condition``."""
    return next(beat for beat in beats[2:] if condition(beat.user))


SOF_1, EOF_0, EOF_1, DISCONTINUE = 1 << 33, 1 << 34, 1 << 38, 1 << 42
SPOILED: dict[str, tuple[Callable[[int], int], Callable[[int], int], str]] = {
    "end moved": (
        lambda user: user & EOF_0, lambda user: user ^ EOF_0 << 1, "descriptor says|an end",
    ),
    "end lost": (
        lambda user: user & EOF_0, lambda user: user & ~(0xFF << 34), "without|descriptor|within",
    ),
    "start lost": (
        lambda user: user >> 32 & 3 == 1, lambda user: user & ~(1 << 32), "without a|byte enables",
    ),
    "second start lost": (
        lambda user: user & SOF_1, lambda user: user & ~SOF_1, "without a comp|byte enables",
    ),
    "start doubled": (
        lambda user: user >> 32 & 3 == 0,
        lambda user: user | 1 << 32,
        "within another|byte enables",
    ),
    "only the second start": (
        lambda user: user & SOF_1, lambda user: user & ~(1 << 32), "is_sof_1 without",
    ),
    "only the second end": (
        lambda user: user & EOF_1, lambda user: user & ~EOF_0, "is_eof_1 without",
    ),
    "byte enable lost": (
        lambda user: user & 1 << 20, lambda user: user ^ 1 << 20, "byte enables",
    ),
    "byte enable of a descriptor": (
        lambda user: user >> 32 & 3 == 3, lambda user: user | 1, "byte enables",
    ),
    "discontinue in the middle": (
        lambda user: not user & EOF_0, lambda user: user | DISCONTINUE, "without an end",
    ),
    "start after discontinue": (
        lambda user: user & SOF_1, lambda user: user | DISCONTINUE, "with discontinue",
    ),
}
"""Which beat is spoiled, how, and what must be said of it."""


@pytest.mark.parametrize("name", SPOILED)
def test_rules_of_the_straddled_stream(name):
    """What no block would send is an error."""
    condition, spoil, message = SPOILED[name]
    beats = straddled(random.Random(1), 200)
    beat = first(beats, condition)
    beat.user = spoil(beat.user)
    with pytest.raises(RuntimeError, match=message):
        check_straddled(beats)


@pytest.mark.parametrize(("name", "value"), [("keep", 0x0F), ("last", 1)])
def test_keep_and_last_mean_nothing(name, value):
    """``tkeep`` is all ones and ``tlast`` 0, whatever the beat."""
    beats = straddled(random.Random(1), 20)
    setattr(beats[5], name, value)
    with pytest.raises(RuntimeError, match=f"RC: t{name} is not"):
        check_straddled(beats)
