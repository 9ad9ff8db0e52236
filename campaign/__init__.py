"""Random loads and random faults of drives on the native tier."""
