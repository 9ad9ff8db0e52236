"""What a memory promises whose read ports never use what is being written."""

DISJOINT = {"no_rw_check": 1}
"""Attributes of a memory of which nobody uses what is read where it is written in that cycle.

Block RAM of an FPGA gives no defined data then, and to give the old contents costs registers for
data and address and a multiplexer behind the memory. In simulation such a read gives other data
than was ever written (`sim.verilog.collisions_undefined`).
"""
