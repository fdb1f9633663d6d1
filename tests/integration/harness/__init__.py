"""What the integration tests are made of: writers, a consumer, a checker, relay processes and network faults."""
