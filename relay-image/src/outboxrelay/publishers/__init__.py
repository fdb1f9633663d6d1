"""Where messages go: one adapter per kind of broker."""
