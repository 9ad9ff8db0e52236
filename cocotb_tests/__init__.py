"""Tests, in folders as `hdl`, and what they have in common."""

import gc

# Simulations and conversions make many objects and few cycles. Python's own thresholds cost them
# 7 % and 25 % of their time.
gc.freeze()
gc.set_threshold(50_000, 20, 50)
