"""PostgreSQL and Kafka for tests: as processes on loopback, and as pods behind Services."""
