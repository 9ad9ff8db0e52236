"""PCIe links of runs: sizes of packets, credits, how completions come, and what makes them wait."""

import random

from sim.native.parameters import MICROSECOND, NANOSECOND, LinkParameters

SHARE = 0.35
"""Of runs on a link that makes trouble."""

MOST_SEED = 1 << 30


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
