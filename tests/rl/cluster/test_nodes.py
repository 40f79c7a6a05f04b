from __future__ import annotations

import socket
import sys

import pytest

from whet.errors import ConfigError, MissingExtraError
from whet.rl.cluster.check import check_address, check_reachable, survey
from whet.rl.cluster.nodes import ClusterFacts, ClusterNode, differences, lines

SAME = {"python": "3.11.7", "ray": "2.60.0", "whet": "0.1.0", "torch": "2.13.0+cpu"}


def facts(**other: str) -> ClusterFacts:
    here = ClusterNode("10.0.0.1", 8, 0, 32 << 30, versions=SAME, is_here=True)
    there = ClusterNode("10.0.0.2", 64, 8, 512 << 30, versions={**SAME, **other})
    return ClusterFacts("10.0.0.1:6379", (here, there))


def test_equal_nodes_do_not_differ_whatever_their_builds() -> None:
    assert differences(facts(torch="2.13.0+cu130", python="3.11.9")) == []


def test_other_and_missing_versions_are_named() -> None:
    assert differences(facts(whet="0.2.0", torch="")) == [
        "node 10.0.0.2 differs from this machine: whet 0.2.0 (here 0.1.0), torch is missing (here 2.13.0+cpu). "
        "Install the same."
    ]


def test_a_node_that_was_not_looked_at_says_why() -> None:
    silent = ClusterNode("10.0.0.3", 8, 0, 1 << 30, problem="it did not answer within 30 s")
    assert differences(ClusterFacts("a", (silent,))) == ["node 10.0.0.3: it did not answer within 30 s"]


def test_a_line_for_each_node() -> None:
    head, here, there = lines(facts())
    assert head == "cluster 10.0.0.1:6379: 2 nodes"
    assert " ".join(here.split()) == (
        "10.0.0.1 (this machine) 8 CPUs 0 GPUs 32.0 GiB python 3.11.7, ray 2.60.0, whet 0.1.0, torch 2.13.0+cpu"
    )
    assert "64 CPUs  8 GPUs  512.0 GiB" in there


@pytest.mark.parametrize("address", ["auto", "local", "10.0.0.1:6379", "head.example:6379"])
def test_addresses(address: str) -> None:
    check_address(address)


@pytest.mark.parametrize(
    ("address", "says"),
    [
        ("ray://10.0.0.1:10001", "a run is on a node of its cluster"),
        ("10.0.0.1", "is no address of a Ray cluster"),
        ("head:99999", "is no address of a Ray cluster"),
        ("127.0.0.1:6379", "Use the one that `ray start` printed"),
    ],
)
def test_what_is_no_address_is_refused(address: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        check_address(address)


def test_a_cluster_without_the_extra_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'whet\[ray\]'"):
        survey("local")


def test_an_address_at_which_nothing_listens_is_said_at_once() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen
        with pytest.raises(ConfigError, match=r"no Ray cluster answers at 127\.0\.0\.1:\d+: Connection refused"):
            check_reachable(f"127.0.0.1:{taken.getsockname()[1]}")
