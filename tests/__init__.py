"""The tests, one directory per tier."""
