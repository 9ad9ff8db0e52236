"""A card that loses its power again and again: nothing that the host was told may be gone."""
