"""What the comparison of a host before and after a cluster is about."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.testbed import snapshot


def test_cgroups_that_others_make_meanwhile_are_none_of_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A service manager, or whatever runs the tests, has its own, and makes and removes them at any time."""
    monkeypatch.setattr(snapshot, "hierarchies", lambda: [tmp_path])
    for name in ("theirs/job", "shared/kubepods/pod1"):
        (tmp_path / name).mkdir(parents=True)
    before = snapshot.take(other_cgroups=frozenset({"shared"}))
    (tmp_path / "theirs" / "another").mkdir()
    (tmp_path / "shared" / "kubepods" / "pod2").mkdir()
    assert snapshot.take(other_cgroups=frozenset({"shared"})) == before
    for name in ("ours", "theirs/kubepods/pod3"):
        (tmp_path / name).mkdir(parents=True)
        after = snapshot.take(other_cgroups=frozenset({"shared"})).cgroups
        assert str(tmp_path / name) in after - before.cgroups
