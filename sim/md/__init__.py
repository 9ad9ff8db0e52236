"""Linux md as a reference: arrays that a real kernel writes on plain image files.

The kernel is Debian's user-mode Linux, an ordinary program. So neither root nor a virtual machine
is needed. `sim.md.machine` runs it, `sim.md.guest` runs inside it, and `sim.md.arrays` says which
arrays to create and reads their images.
"""
