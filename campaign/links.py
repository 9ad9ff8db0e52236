"""PCIe links of runs: sizes of packets, credits, how completions come, what makes them wait, and
where host memory lies."""

import random
from dataclasses import replace

from sim.native.parameters import MICROSECOND, NANOSECOND, LinkParameters

SHARE = 0.35
"""Of runs on a link that makes trouble."""

MOST_SEED = 1 << 30

PAGE = 4096
LOWEST = 1 << 20
HIGH = 1 << 32
"""From here on the upper half of an address is not 0."""
HIGHEST_BITS = 62
BELOW_HIGH = 12
"""Memory that lies across `HIGH` has up to 2 to the power of so many pages below it: fewer than
those between the interrupt window and there, and no more than the host uses."""
FAR_WINDOW = 0x5A00_0000_FEE0_0000
"""Another place for the interrupt window. No memory lies so high."""


def link_of(seed: int, *, troubled: bool) -> LinkParameters:
    """The link of a run; ``troubled``: if it may be one that makes trouble."""
    choose = random.Random(f"{seed}/link")
    if not troubled or choose.random() >= SHARE:
        return LinkParameters()
    return LinkParameters(
        lanes=choose.choice((4, 8)),
        max_payload=choose.choice((128, 256, 512, 1024)),
        max_read_request=choose.choice((128, 512, 4096)),
        rcb=choose.choice((64, 128)),
        random_splits=choose.random() < 0.7,
        shuffle=choose.random() < 0.7,
        read_jitter_ps=choose.choice((0, 400, 2_000)) * NANOSECOND,
        posted_headers=choose.choice((4, 16, 96)),
        posted_data=choose.choice((64, 256, 1024)),
        non_posted_headers=choose.choice((2, 8, 96)),
        device_posted_headers=choose.choice((1, 4, 64)),
        device_non_posted_headers=choose.choice((1, 16)),
        hold_every=choose.choice((40, 400)),
        hold_ps=choose.choice((1, 5)) * MICROSECOND,
        ready_percent=choose.choice((40, 80, 100)),
        np_req_ps=choose.choice((0, 300)) * NANOSECOND,
        straddle_percent=choose.choice((0, 50, 100)),
        in_order=choose.random() < 0.3,
        late_credits=choose.random() < 0.3,
        seed=choose.randrange(MOST_SEED),
    )


def placed(link: LinkParameters, choose: random.Random, memory_bytes: int) -> LinkParameters:
    """The same link with host memory below 4 GiB, anywhere above, or across, and with interrupt
    messages on either side."""
    low = choose.randrange(LOWEST, link.bar_base - memory_bytes, PAGE)
    top = 1 << choose.randint(HIGH.bit_length(), HIGHEST_BITS)
    high = choose.randrange(top // 2, top, PAGE)
    across = HIGH - PAGE * choose.randint(1, 1 << choose.randint(0, BELOW_HIGH))
    return replace(
        link,
        memory_base=choose.choice((low, high, across)),
        msi_base=choose.choice((link.msi_base, FAR_WINDOW)),
    )
