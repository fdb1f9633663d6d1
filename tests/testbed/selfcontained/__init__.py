"""A one-node Kubernetes cluster of plain processes, for Linux and root, without docker.

The whole node lives in a PID, a mount and a network namespace of its own. So
its ports collide with nobody's, nothing outside this machine reaches it, its
pods reach nothing outside it, and ending one process, the namespaces' PID 1,
makes the kernel end every other one and drop every mount, network interface
and firewall rule with it: also after `kill -9` at any moment.
"""
