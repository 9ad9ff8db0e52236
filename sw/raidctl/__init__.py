"""What the host manages without the card: its drives in another machine."""
