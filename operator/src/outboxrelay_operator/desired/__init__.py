"""Pure builders: from a pair to the Kubernetes objects that should exist, as plain dicts.

Nothing here reads a clock, the environment or the cluster, and the same input always gives the same bytes:
a pod template that changes for no reason would restart every relay of a fleet.
"""
