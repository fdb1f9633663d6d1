"""OutboxRelay's control plane: turns OutboxRelay resources into relay Deployments and reports their state."""
