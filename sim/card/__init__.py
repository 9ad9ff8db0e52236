"""Models of the contents of a card, which tests, campaign and guest share."""
