"""What the operator costs with a large fleet: real etcd and API server, pods that kwok plays, real databases."""
