"""Area and clock frequency of each block on a small FPGA, with open tools."""
