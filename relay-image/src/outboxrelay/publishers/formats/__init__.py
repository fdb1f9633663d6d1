"""How a row becomes a message: one module per format, chosen once for a configuration."""
