"""Models of what a card holds, which tests, campaign and guest share."""
