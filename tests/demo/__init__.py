"""The demo behind `make demo`: the whole product on a real cluster, watched by a person, judged by an exit status."""
