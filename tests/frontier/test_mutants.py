"""The tests of the shared crawl are quick to notice a mistake in its scripts."""

from __future__ import annotations

from functools import partial

import pytest

from semaphore_middleware.frontier import scripts
from tests.frontier import test_client, test_seen
from tests.support.mutants import Mutant, Test, assert_convicted, plant_in_lua

pytestmark = pytest.mark.slow

AREA = "the frontier's scripts"
COMMON, SEEN = "shared/common", "shared/seen"

chosen = test_seen.chosen  # a fixture

MUTANTS: dict[str, tuple[Mutant, Test]] = {
    "a request that is sent again is queued again": (
        ("sync", 'redis.call("HEXISTS", requests, place) == 1', "false"),
        partial(test_client.test_a_request_sent_twice_is_queued_once, fingerprint=""),
    ),
    "a node finishes what others have taken since": (
        (COMMON, 'if redis.call("ZREM", taken, node .. "\\0" .. place) == 1 then', "if true then"),
        test_client.test_a_node_whose_lease_expired_cannot_finish_requests_of_others,
    ),
    "leases go by the wall clock": (
        (COMMON, "math.min(wall_now - wall, LONGEST_STEP * lease_ms)", "wall_now - wall"),
        test_client.test_no_lease_ends_when_the_servers_clock_is_set_ahead,
    ),
    "a crawl that has ended begins again": (
        ("join", "if ended and not may_begin_again then", "if false then"),
        test_client.test_a_node_that_comes_after_the_end_begins_nothing,
    ),
    "a node that has just joined does not work": (
        ("join", "renew_lease()\n", ""),
        test_client.test_a_node_that_has_just_joined_works,
    ),
    "a node of another version joins": (
        ("join", "of_run ~= identity", "false"),
        test_client.test_nodes_that_do_not_fit_do_not_join,
    ),
    "nobody waits for a node that works": (
        ("idle", "if first_lease_end then", "if false then"),
        test_client.test_an_idle_node_waits_for_one_that_works,
    ),
    "deaths are not counted": (
        (COMMON, "stop_working(name, suspect)", "stop_working(name, enqueue)"),
        test_client.test_a_request_that_three_nodes_have_died_with_is_set_aside,
    ),
    "a node gets several suspects at once": (
        ("sync", "may_suspect and 1 or 0", "most"),
        test_client.test_of_a_dead_nodes_requests_each_node_gets_one_at_a_time,
    ),
    "a bucket that is split keeps what belongs in the new one": (
        (SEEN, "old, table.concat(stay), new", "new"),
        test_seen.test_the_server_replies_as_a_set_would_whatever_is_split,
    ),
    "the middle of two fingerprints counts as a third one": (
        (SEEN, "until not at or at % LENGTH == 1", "until true"),
        test_seen.test_the_middle_of_two_is_no_third,
    ),
    "buckets are not split": (
        (SEEN, "seen_count % PER_BUCKET == 0", "false"),
        test_seen.test_buckets_may_be_empty,
    ),
    "what a leaving node has taken is lost": (
        ("leave", "stop_working(node, enqueue)\n", ""),
        test_client.test_what_a_leaving_node_has_not_finished_stays_for_the_next,
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_test_convicts(
    name: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutant, test = MUTANTS[name]
    plant_in_lua(mutant, monkeypatch, scripts)
    assert_convicted(AREA, name, test, request)
