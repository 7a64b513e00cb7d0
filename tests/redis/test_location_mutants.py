"""The tests can convict: each way to break the way to the server is caught by one of them."""

from __future__ import annotations

from functools import partial
from importlib import import_module

import pytest

from tests.redis import (
    test_cluster,
    test_connection,
    test_epoch,
    test_scripts,
    test_sentinels,
    test_tls,
)
from tests.support.mutants import Mutant, Test, assert_convicted, plant_in_python

pytestmark = pytest.mark.slow

AREA = "Ways to the server"

# Fixtures of the tests that convict.
cluster = test_cluster.cluster
masters = test_sentinels.masters
sentinels = test_sentinels.sentinels
paper = test_tls.paper

MUTANTS: dict[str, tuple[Mutant, Test]] = {
    # Sentinels
    "the first sentinel is believed": (
        ("sentinels", "if 2 * answers[answer] > len(asked):", "if True:"),
        test_sentinels.test_sentinels_that_do_not_answer_do_not_count,
    ),
    "half of the sentinels are believed": (
        ("sentinels", "if 2 * count <= answers.total():", "if False:"),
        test_sentinels.test_sentinels_that_do_not_answer_do_not_count,
    ),
    "sentinels that do not answer count": (
        ("sentinels", "count <= answers.total()", "count <= len(self._addresses)"),
        test_sentinels.test_sentinels_that_do_not_answer_do_not_count,
    ),
    "a service that nobody knows is waited for": (
        (
            "sentinels",
            'raise ServerRefusedError(f"the sent',
            'raise ServerUnreachableError(f"the sent',
        ),
        test_sentinels.test_a_service_that_no_sentinel_knows_is_refused,
    ),
    "what is no sentinel is waited for": (
        ("sentinels", "if isinstance(reply, ResponseError) and", "if False and"),
        test_sentinels.test_a_service_that_no_sentinel_knows_is_refused,
    ),
    "one sentinel's refusal is that of all": (
        ("sentinels", "raise min(problems", "raise max(problems"),
        test_sentinels.test_a_service_that_no_sentinel_knows_is_refused,
    ),
    "sentinels are told no password": (
        ("sentinels", "credentials=self._credentials", "credentials={}"),
        test_sentinels.test_sentinels_and_masters_have_passwords_of_their_own,
    ),
    "sentinels are told the master's password": (
        ("connector", '"username": None, "password": None, ', ""),
        test_sentinels.test_sentinels_and_masters_have_passwords_of_their_own,
    ),
    "a master that was replaced is kept": (
        (
            "connection",
            "                self._replaced = True\n                await self.close()\n",
            "                pass\n",
        ),
        test_sentinels.test_a_look_finds_that_a_master_was_replaced,
    ),
    "a renewal asks no sentinel": (
        ("store", "            connection.look_for_master()\n", ""),
        test_epoch.test_a_look_asks_whether_the_master_was_replaced,
    ),
    "a master that no sentinel knows of is left": (
        (
            "connection",
            "with suppress(ServerUnreachableError, ServerRefusedError):",
            "with suppress():",
        ),
        test_sentinels.test_a_master_can_do_without_its_sentinels,
    ),
    "a master that is not one yet ends a crawl": (
        ("location", "was_found or find_master is not None", "was_found"),
        test_sentinels.test_a_master_that_is_not_one_yet_is_waited_for,
    ),
    "a sentinel that is named twice has two votes": (
        ("location", "list(dict.fromkeys(named))", "named"),
        partial(
            test_sentinels.test_sentinels_are_named_without_passwords,
            url="rediss+sentinel://a,a/m",
            name="rediss+sentinel://a:26379/m/0",
        ),
    ),
    "a service's name is not decoded": (
        ("location", "unquote(found[1])", "found[1]"),
        partial(
            test_sentinels.test_sentinels_are_named_without_passwords,
            url="redis+sentinel://a/my%20master",
            name="redis+sentinel://a:26379/my master/0",
        ),
    ),
    # Cluster
    "any master of a cluster will do": (
        ("cluster", "if first <= self._slot <= last:", "if True:"),
        test_cluster.test_a_prefix_is_a_slot,
    ),
    "each prefix is in one slot": (
        ("location", "Keys(prefix).epoch", 'Keys("semaphore").epoch'),
        test_cluster.test_a_prefix_is_a_slot,
    ),
    "the same node is asked each time": (
        ("cluster", "            self._nodes.rotate(-1)\n", ""),
        test_cluster.test_any_node_tells_who_owns_our_slot,
    ),
    "only the nodes in the address are asked": (
        (
            "cluster",
            "            present += found\n",
            "",
        ),
        test_cluster.test_each_time_another_node_is_asked_also_of_those_that_were_named,
    ),
    "nodes that have gone are asked for ever": (
        ("cluster", "if node in self._named or node in present", ""),
        test_cluster.test_a_node_that_has_gone_is_not_asked_any_more,
    ),
    "one node's refusal is that of all": (
        (
            "cluster",
            "                problem = problem or error  # another one may come back\n",
            "                raise\n",
        ),
        test_cluster.test_what_is_not_a_cluster_is_refused,
    ),
    "what is no node of a cluster is waited for": (
        ("cluster", "if isinstance(reply, ResponseError) and", "if False and"),
        test_cluster.test_what_is_not_a_cluster_is_refused,
    ),
    "a node without a host name is at none": (
        ("cluster", "    if host == NO_HOST_NAME:\n", "    if False:\n"),
        test_cluster.test_nodes_that_are_known_by_their_host_names,
    ),
    "a node of a cluster is refused": (
        ("location", "if address.path:  #", "if True:  #"),
        test_cluster.test_any_node_tells_who_owns_our_slot,
    ),
    "a node of a cluster is used, whatever slots it owns": (
        ("connection", 'if mode == "cluster" and not self.was_found:', "if False:"),
        test_cluster.test_a_cluster_that_does_not_serve_our_slot_is_waited_for,
    ),
    "a slot that has moved is no reason to leave": (
        ("connection", "BusyLoadingError, AskError, ", "BusyLoadingError, "),
        test_cluster.test_while_a_slot_s_keys_are_on_their_way_each_call_asks_again_who_owns_it,
    ),
    "a slot that is half moved is no reason to leave": (
        (
            "connection",
            "AskError, TryAgainError, ClusterDownError)\nB",
            "AskError, ClusterDownError)\nB",
        ),
        test_cluster.test_while_a_slot_s_keys_are_on_their_way_each_call_asks_again_who_owns_it,
    ),
    "a slot that nobody serves is no reason to leave": (
        ("connection", "TryAgainError, ClusterDownError)\nB", "TryAgainError)\nB"),
        partial(
            test_cluster.test_a_slot_that_nobody_serves_stops_all_unless_the_cluster_is_told_not_to,
            lost=test_cluster.SLOT,
        ),
    ),
    # Addresses
    "a part of the password may be the port": (
        ("location", 'if hosts and "@" in "".join(others):', "if False:"),
        partial(
            test_connection.test_an_address_that_cannot_be_read_is_refused_at_once,
            "redis://user:6379?@localhost",
        ),
    ),
    "an address of IPv6 has no brackets": (
        ("connection", 'f"[{self.host}]" if ":" in self.host else self.host', "self.host"),
        partial(
            test_connection.test_a_server_is_named_without_its_password,
            "redis://[::1]",
            "redis://[::1]:6379/0",
        ),
    ),
    "options of TLS without TLS count for nothing": (
        ("location", "if not is_tls and (names", "if False and (names"),
        test_tls.test_options_of_tls_without_tls,
    ),
    "a sentinel is taken for a server": (
        ("connection", 'if mode == "sentinel":', "if False:"),
        partial(test_connection.test_a_sentinel_is_refused, database=""),
    ),
    "a full server grants nothing": (
        ("store", ", though_full=True", ""),
        test_scripts.test_a_full_server_grants_and_takes_back,
    ),
    "TLS on one side only is waited for": (
        ("connector", "if address not in self._reached and", "if False and"),
        test_tls.test_tls_on_one_side_only,
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_test_convicts(
    name: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    (module, says, instead), test = MUTANTS[name]
    of_redis = import_module(f"semaphore_middleware.redis.{module}")
    plant_in_python(of_redis, says, instead, monkeypatch)
    assert_convicted(AREA, name, test, request)
