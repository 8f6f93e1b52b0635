"""Labs that are not quite as they are."""

from __future__ import annotations

import pytest

from labctl.errors import LabError
from labctl.run.lookouts import LostNode, Remembered
from tests.unit.lookouts import Told


def test_a_lost_node_answers_nothing_and_the_others_do() -> None:
    lab = LostNode(Told([("*", "", "said")]), "w2")
    assert lab.sh("w1", "true").stdout == lab.python("w3", "1", "{}").stdout == "said"
    with pytest.raises(LabError, match="w2 does not answer"):
        lab.sh("w2", "true")
    with pytest.raises(LabError, match="w2 does not answer"):
        lab.python("w2", "1", "{}")


def test_what_was_asked_in_the_same_words_is_asked_once() -> None:
    told = Told([("*", "uptime", "1"), ("w1", "other", lambda script: str(len(script)))])
    lab = Remembered(told)
    assert lab.nodes == told.nodes
    for _ in range(3):
        assert lab.sh("w1", "uptime").stdout == "1"
        assert lab.python("w1", "other", "a").stdout == lab.python("w1", "other", "b").stdout
    lab.sh("w2", "uptime")
    assert len(told.asked) == 4
    for _ in range(2):
        with pytest.raises(LabError, match="w3 does not answer"):
            lab.sh("w3", "of nothing")
