"""What is found of a superblock on a drive, and why its array is not there."""

from amaranth.lib import data


def drive_standing() -> data.StructLayout:
    """What the host is told of the superblock of a drive.

    Fields
    ------
    finding
        `hdl.metadata.superblock.Finding`.
    hindrance
        `hdl.metadata.found_set.Hindrance`. 0 for a drive that is used.
    """
    return data.StructLayout({"finding": 4, "hindrance": 4})
