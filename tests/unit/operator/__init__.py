"""Unit tests of the operator; no I/O."""
