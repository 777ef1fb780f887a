"""Parser: from the text of a blueprint to its model."""
