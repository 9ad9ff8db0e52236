"""Throughput limits in closed form: the PCIe link, its streams, and drives measured alone.

Sources: PCI Express base specification 3.0, sections 2.2 (headers), 3.5 (data link layer), 4.2
(framing, SKP ordered sets).
"""

from hdl.config import Config
from sim.native.parameters import LinkParameters

LINE_RATE = {1: 2.5e9, 2: 5.0e9, 3: 8.0e9, 4: 16.0e9, 5: 32.0e9}
"""Bits a second of a lane, by generation."""
FRAMING_BYTES = 8
"""Framing, sequence number and LCRC of a TLP. They are 8 bytes at every generation."""
HEADER_64_BYTES = 16
"""Header of a memory request with a 64-bit address."""
COMPLETION_HEADER_BYTES = 12
DLLP_BYTES = 8
"""A DLLP with its framing."""
REQUEST_DESCRIPTOR_BYTES, COMPLETION_DESCRIPTOR_BYTES = 16, 12
"""Descriptors that precede the payload on the hard block's streams (PG213). A packet has its own
beats. Completions that straddle are an exception: they begin at any multiple of `SEGMENT_BYTES`."""
SEGMENT_BYTES = 16
SKIP_SHARE_8B10B = 4 / (1538 + 4)
"""A 4-symbol SKP ordered set at most every 1538 symbols."""
SKIP_SHARE_128B130B = 1 / (375 + 1)
"""One block of 130 bits at most every 375 blocks."""


def line_bytes(link: LinkParameters) -> float:
    """Bytes a second one way after line code and SKP ordered sets."""
    coded = LINE_RATE[link.generation] * link.lanes / 8
    if link.generation <= 2:
        return coded * 0.8 * (1 - SKIP_SHARE_8B10B * link.skip)
    return coded * 128 / 130 * (1 - SKIP_SHARE_128B130B * link.skip)


def read_limit(link: LinkParameters) -> float:
    """Payload bytes a second that the card can write to host memory (host reads)."""
    payload = link.max_payload
    return line_bytes(link) * payload / (payload + FRAMING_BYTES + HEADER_64_BYTES)


def write_limit(link: LinkParameters) -> float:
    """Payload bytes a second that completions can bring from host memory (host writes)."""
    payload = min(link.completion_bytes or link.max_payload, link.max_read_request)
    return line_bytes(link) * payload / (payload + FRAMING_BYTES + COMPLETION_HEADER_BYTES)


def _beats(payload: int, descriptor: int, config: Config) -> int:
    return -(-(payload + descriptor) // config.beat_bytes)


def _completion_beats(payload: int, config: Config) -> float:
    """Beats that a completion takes when others follow at once."""
    if not config.straddles:
        return _beats(payload, COMPLETION_DESCRIPTOR_BYTES, config)
    segments = -(-(payload + COMPLETION_DESCRIPTOR_BYTES) // SEGMENT_BYTES)
    return segments * SEGMENT_BYTES / config.beat_bytes


def read_stream_limit(link: LinkParameters, config: Config) -> float:
    """Payload bytes a second that fit on the stream of requests to the hard block (RQ)."""
    beats = _beats(link.max_payload, REQUEST_DESCRIPTOR_BYTES, config)
    return link.max_payload / beats * config.clock_hz


def write_stream_limit(link: LinkParameters, config: Config) -> float:
    """Payload bytes a second that fit on the stream of completions from the hard block (RC)."""
    payload = min(link.completion_bytes or link.max_payload, link.max_read_request)
    return payload / _completion_beats(payload, config) * config.clock_hz


def duplex_limit(link: LinkParameters, config: Config, read_share: float) -> float:
    """Bytes a second of reads and writes at once. The host reads ``read_share`` of them.

    Upwards go data and the requests for data that comes down. Every TLP is answered by its share of
    acknowledgements and credits. The limit is the lowest of both directions of the link and both
    streams.
    """
    completion = min(link.completion_bytes or link.max_payload, link.max_read_request)
    # Packets of each kind for a byte of all data.
    writes = read_share / link.max_payload
    requests = (1 - read_share) / link.max_read_request
    completions = (1 - read_share) / completion
    answer = sum(DLLP_BYTES / every for every in (link.ack_every, link.update_every) if every)
    header = FRAMING_BYTES + HEADER_64_BYTES
    up = read_share + (writes + requests) * header + completions * answer
    down = (1 - read_share) + completions * (FRAMING_BYTES + COMPLETION_HEADER_BYTES)
    down += (writes + requests) * answer
    out_beats = writes * _beats(link.max_payload, REQUEST_DESCRIPTOR_BYTES, config) + requests
    in_beats = completions * _completion_beats(completion, config)
    line, clock = line_bytes(link), config.clock_hz
    return 1 / max(up / line, down / line, out_beats / clock, in_beats / clock)


def link_limit(link: LinkParameters, read_share: float) -> float:
    """Bytes a second of accesses of which ``read_share`` are reads. The directions are separate."""
    limits = []
    if read_share > 0:
        limits.append(read_limit(link) / read_share)
    if read_share < 1:
        limits.append(write_limit(link) / (1 - read_share))
    return min(limits)
