"""The picture of a run shows what was printed and fetches nothing."""

from __future__ import annotations

import pytest

from tests.demo.record import excerpt, picture

RUN = """
== Orders flow
NAME   READY
shop   True

== The broker stops for 30 s
$ kubectl exec deploy/kafka -- broker stop
stopped
  12 s  shop   False   4,711

== The count
lost   0   ok
"""


def test_the_excerpt_is_the_parts_asked_for() -> None:
    assert excerpt(RUN) == (
        "== The broker stops for 30 s\n$ kubectl exec deploy/kafka -- broker stop\nstopped\n"
        "  12 s  shop   False   4,711\n\n== The count\nlost   0   ok"
    )


def test_an_incomplete_run_is_refused() -> None:
    with pytest.raises(ValueError, match="The count"):
        excerpt(RUN.partition("== The count")[0])


def test_the_picture_holds_the_text_and_names_no_server() -> None:
    svg = picture(excerpt(RUN), title="make demo")
    assert svg.startswith("<svg")
    assert "4,711" in svg
    assert "@font-face" not in svg
    assert [word for word in svg.split() if "://" in word and "www.w3.org" not in word] == []
