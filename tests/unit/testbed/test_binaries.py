"""What the cluster's programs are built from.

Aspects: the version comes from go.mod; any input changes the cache key; this checkout's go.mod is consistent.
"""

from __future__ import annotations

import re

import pytest

from tests.testbed.binaries import MODULE, build_key, kubernetes_version, linker_flags, locate

GO_MOD = (MODULE / "go.mod").read_text()


def test_the_version_is_read_from_go_mod() -> None:
    assert kubernetes_version("module x\n\nrequire (\n\tk8s.io/kubernetes v1.36.3\n)\n") == ("v1.36.3", "1", "36")
    assert kubernetes_version("require k8s.io/kubernetes v1.40.0\n") == ("v1.40.0", "1", "40")


def test_a_go_mod_without_kubernetes_is_refused() -> None:
    with pytest.raises(ValueError, match="requires no"):
        kubernetes_version("module x\n")


def test_the_flags_stamp_the_version() -> None:
    assert f".gitVersion={kubernetes_version(GO_MOD)[0]} " in linker_flags(GO_MOD)


def test_every_input_changes_the_key() -> None:
    keys = {build_key(parts, version="v1") for parts in ([b"ab", b"c"], [b"a", b"bc"], [b"abc"], [b"ab", b"d"])}
    assert len(keys) == 4
    assert locate().key == locate().key


def test_every_staging_module_is_replaced_by_the_same_release() -> None:
    minor = kubernetes_version(GO_MOD)[0].removeprefix("v1.")
    replaced = re.findall(r"^\t(k8s\.io/\S+) => (k8s\.io/\S+) (\S+)$", GO_MOD, re.MULTILINE)
    assert len(replaced) > 30
    assert [line for line in replaced if line[0] != line[1] or line[2] != f"v0.{minor}"] == []


def test_etcd_is_of_one_release() -> None:
    replaced = re.findall(r"^\tgo\.etcd\.io/etcd/\S+ => \S+ (\S+)$", GO_MOD, re.MULTILINE)
    assert len(replaced) == 5
    assert len(set(replaced)) == 1
