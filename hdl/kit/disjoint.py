"""What a memory promises whose read ports never use what is being written."""

DISJOINT = {"no_rw_check": 1}
"""Attributes of a memory if nobody uses what is read where it is written in the same cycle.

Block RAM of an FPGA gives no defined data then. To give the old contents would cost registers for
data and address, and a multiplexer behind the memory. In simulation such a read gives other data
than was ever written (`sim.verilog.collisions_undefined`).
"""
