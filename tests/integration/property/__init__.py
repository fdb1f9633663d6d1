"""The delivery contract under random schedules, with real relays, PostgreSQL and Kafka."""
