"""The tests of the shared crawl are quick to notice a mistake in its scripts and in its Python."""

from __future__ import annotations

from functools import partial
from importlib import import_module

import pytest

from semaphore_middleware.frontier import scripts
from tests.frontier import (
    test_client,
    test_identity,
    test_prefetch,
    test_scheduler,
    test_seen,
    test_turns,
)
from tests.support.crawls import asyncio_test
from tests.support.mutants import (
    Mutant,
    Test,
    assert_convicted,
    assert_convicted_on_the_loop,
    plant_in_lua,
    plant_in_python,
)

pytestmark = pytest.mark.slow

AREA = "the frontier's scripts"
PYTHON = "the frontier's Python"
COMMON, SEEN = "shared/common", "shared/seen"

chosen = test_seen.chosen  # a fixture

MUTANTS: dict[str, tuple[Mutant, Test]] = {
    "a request that is sent again is queued again": (
        ("sync", "redis.call('HEXISTS', requests, place) == 1", "false"),
        partial(test_client.test_a_request_sent_twice_is_queued_once, fingerprint=""),
    ),
    "a node finishes what others have taken since": (
        (COMMON, "if redis.call('ZREM', taken, node .. '\\0' .. place) == 1 then", "if true then"),
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
    "nodes that died long ago keep a dropped crawl from beginning again": (
        ("drop", "math.max(0, wall_now - (wall or 0))", "0"),
        test_client.test_nodes_that_died_long_ago_neither_count_nor_outlive_a_drop,
    ),
    "suspects of many sites keep a node from other requests": (
        (COMMON, "sites, last_turn_of_suspects(), site", "sites, last_turn(), site"),
        test_turns.test_suspects_of_many_sites_keep_no_node_from_other_requests,
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
    "a suspect that is given back is one no more": (
        (COMMON, "if redis.call('HEXISTS', tries, place) == 1 then", "if false then"),
        partial(
            test_client.test_what_is_given_back_of_a_dead_nodes_requests_goes_to_one_at_a_time,
            way="leaves",
        ),
    ),
    "what a leaving node has taken is lost": (
        ("leave", "stop_working(node, put_back)\n", ""),
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


ON_THE_LOOP: dict[str, tuple[Mutant, Test]] = {
    "feeds are not flushed before requests are finished": (
        ("frontier.session", "            self._engine.flush_feeds()\n", "            pass\n"),
        test_scheduler.test_a_request_is_finished_after_its_items_are_in_the_feeds_files,
    ),
    "a flush writes nothing": (
        ("scrapy.engine", "                slot.file.flush()\n", "                pass\n"),
        test_scheduler.test_a_request_is_finished_after_its_items_are_in_the_feeds_files,
    ),
    "a request is finished before its items are written": (
        ("frontier.prefetch", "request in in_progress or ", ""),
        test_scheduler.test_a_request_is_unfinished_while_the_engine_has_it_in_progress,
    ),
    "a request is finished before its links are queued": (
        (
            "frontier.session",
            "        if len(new) < len(self._unsent):\n            finished = []\n",
            "",
        ),
        test_scheduler.test_a_request_is_finished_after_its_links_are_queued,
    ),
    "a call has any number of bytes": (
        ("frontier.session", "if new and room < 0:", "if False:"),
        test_scheduler.test_a_call_has_at_most_so_many_bytes_or_one_request,
    ),
    "what is not answered in time is sent again as it is": (
        (
            "frontier.session",
            "            self._most_requests = max(1, max(len(new), demand.requests) // 2)\n",
            "            pass\n",
        ),
        test_scheduler.test_what_is_not_answered_in_time_is_halved_until_it_is,
    ),
    "calls stay as small as they once had to be": (
        ("frontier.session", "self._most_requests + 1)", "self._most_requests)"),
        test_scheduler.test_what_is_not_answered_in_time_is_halved_until_it_is,
    ),
    "a node asks for as much as was not answered in time": (
        ("frontier.prefetch", "min(most, PREFETCH_TARGET", "min(PREFETCH_TARGET"),
        test_scheduler.test_what_is_not_answered_in_time_is_halved_until_it_is,
    ),
    "the first call over a new connection is made without a look": (
        (
            "frontier.session",
            "if not is_due and self._client.is_connected and",
            "if not is_due and",
        ),
        partial(
            test_scheduler.test_over_a_new_connection_the_server_is_looked_at_first, ends=False
        ),
    ),
    "a node leaves without a look at its server": (
        (
            "frontier.session",
            "                await self._look_if_due()\n                while self._unsent",
            "                while self._unsent",
        ),
        partial(test_scheduler.test_over_a_new_connection_the_server_is_looked_at_first, ends=True),
    ),
    "a new connection shortens the time of which all is sent again": (
        ("frontier.session", "            if is_due:\n", "            if True:\n"),
        partial(
            test_scheduler.test_over_a_new_connection_the_server_is_looked_at_first, ends=False
        ),
    ),
    "a server that has gone back to before the run ends the crawl": (
        ("frontier.session", "if error.ago < now - self._joined_at:", "if True:"),
        partial(
            test_scheduler.test_a_server_that_goes_back_to_before_the_run_is_one_that_has_lost_it,
            ago=3600,
            begins=True,
        ),
    ),
    "an idle node takes a call with nothing to say for an answer": (
        ("frontier.session", "            self._wants_idle |= wants_idle", "            pass"),
        test_scheduler.test_a_node_that_is_idle_while_its_server_is_away_says_so_once,
    ),
    "start requests do not wait for the server": (
        ("frontier.session", "while len(self._unsent) > 2 * MAX_NEW_REQUESTS", "while False"),
        test_scheduler.test_start_requests_wait_for_the_server,
    ),
    "start requests block the event loop": (
        ("frontier.session", "            await asyncio.sleep(0)\n", "            pass\n"),
        test_scheduler.test_start_requests_leave_the_event_loop_to_others,
    ),
    "start requests are not paced": (
        (
            "scrapy.engine",
            "                yield item\n                await rest()\n",
            "                yield item\n",
        ),
        test_scheduler.test_start_requests_leave_the_event_loop_to_others,
    ),
    "start requests of a crawl that starts over do not wait for the server": (
        (
            "scrapy.engine",
            "crawl(request)\n                await rest()\n",
            "crawl(request)\n                await asyncio.sleep(0)\n",
        ),
        test_scheduler.test_start_requests_of_a_crawl_that_starts_over_wait_for_the_server,
    ),
    "a crawl that starts over and is lost again does not start over": (
        ("frontier.scheduler", "self.restart.cancel()", "return"),
        test_scheduler.test_a_loss_while_the_crawl_starts_over_loses_no_start_request,
    ),
    "a crawl that is lost again goes on before it has started over": (
        ("frontier.scheduler", "if self.restart is asyncio.current_task():", "if True:"),
        test_scheduler.test_a_loss_while_the_crawl_starts_over_loses_no_start_request,
    ),
    "a node takes several requests that others have died with": (
        ("frontier.prefetch", "suspect=not self.has_suspect", "suspect=True"),
        test_scheduler.test_a_node_has_one_request_at_a_time_that_others_have_died_with,
    ),
    "requests of full sites are taken without end": (
        ("frontier.prefetch", ", MAX_READY - self.ready))", ", 10**9))"),
        test_prefetch.test_requests_of_sites_that_all_are_full_are_not_taken_without_end,
    ),
    "a lease is not renewed": (
        ("frontier.session", "due = now >= self._renewal_at", "due = False"),
        test_scheduler.test_a_node_that_works_renews_its_lease,
    ),
    "a lease is not renewed at a full server": (
        (
            "frontier.session",
            "                await self._renew_lease()\n",
            "                pass\n",
        ),
        test_scheduler.test_a_server_that_is_full_is_not_said_to_be_away,
    ),
    "a node that leaves a full server has finished what it has not": (
        ("frontier.session", "leave([] if self._unsent else", "leave([] if False else"),
        test_scheduler.test_a_node_that_leaves_a_full_server_gives_back_what_has_led_to_new_requests,
    ),
    "a node that ends before its crawl exits with status 0": (
        ("frontier.scheduler", "if self.failed or not self.session.ended:", "if self.failed:"),
        partial(test_scheduler.test_a_node_that_closes_before_the_end_fails, reason="shutdown"),
    ),
    "a node that comes after the end exits with status 1": (
        ("frontier.scheduler", "            self.session.ended = True\n", "            pass\n"),
        test_scheduler.test_a_node_fails_neither_at_the_end_nor_after_it,
    ),
    "a request without a response is finished though the spider closes": (
        (
            "frontier.prefetch",
            "request in in_progress or request in self._given_up",
            "request in in_progress",
        ),
        test_scheduler.test_what_has_no_response_when_the_spider_closes_goes_back_as_it_is_stored,
    ),
    "nobody hears that the spider closes": (
        ("frontier.scheduler", "        self.engine.before_close(prefetch.on_closing)\n", ""),
        test_scheduler.test_what_has_no_response_when_the_spider_closes_goes_back_as_it_is_stored,
    ),
    "what is given up is queued, too": (
        ("frontier.session", "            return  # it is there\n", "            pass\n"),
        test_scheduler.test_what_has_no_response_when_the_spider_closes_goes_back_as_it_is_stored,
    ),
    "a page is finished though its callback got nothing any more": (
        ("frontier.prefetch", "            self._given_up.update(at_work)\n", "            pass\n"),
        test_scheduler.test_a_page_whose_callback_got_nothing_any_more_when_the_spider_closed_goes_back,
    ),
    "what came past the scheduler is given up": (
        (
            "frontier.prefetch",
            "self._is_closing and self._has_started(request)",
            "self._is_closing",
        ),
        test_scheduler.test_what_comes_from_no_scheduler_ends_as_it_does_though_the_spider_closes,
    ),
    "a page counts by its response's request": (
        (
            "frontier.prefetch",
            "            self._pages.add(request)\n",
            "            self._pages.add(result.request)\n",
        ),
        test_scheduler.test_a_page_counts_whatever_request_its_response_names,
    ),
    "a redirect's first half is a page": (
        ("frontier.prefetch", "        if isinstance(result, Response):\n", "        if True:\n"),
        test_scheduler.test_a_page_counts_whatever_request_its_response_names,
    ),
}


@pytest.mark.parametrize("name", ON_THE_LOOP)
@asyncio_test
async def test_a_test_on_the_loop_convicts(
    name: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    (module, says, instead), test = ON_THE_LOOP[name]
    plant_in_python(import_module(f"semaphore_middleware.{module}"), says, instead, monkeypatch)
    await assert_convicted_on_the_loop(PYTHON, name, test, request)


IN_PYTHON: dict[str, tuple[Mutant, Test]] = {
    "what a spider makes of its arguments counts": (
        ("frontier.identity", "**_texts(arguments)", "**_texts(vars(spider))"),
        test_identity.test_the_same_spider_and_arguments_are_the_same_crawl,
    ),
    "arguments do not count": (
        ("frontier.identity", ", **_texts(arguments)", ""),
        partial(test_identity.test_another_argument_is_another_crawl, value="4"),
    ),
    "an argument hides what has the same name": (
        ("frontier.identity", 'texts[f"argument {name}"]', "texts[name]"),
        partial(test_identity.test_an_argument_hides_nothing_else_whatever_its_name, name="spider"),
    ),
    "nodes that died long ago count": (
        ("frontier.counts", "> clock + silent_ms", "> clock"),
        test_client.test_nodes_that_died_long_ago_neither_count_nor_outlive_a_drop,
    ),
    "a full server stops a crawl": (
        ("redis.scripts", "    if though_full and any(", "    if False and any("),
        test_client.test_a_full_server_takes_no_new_requests_and_does_all_else,
    ),
    "a full server takes new requests": (
        ("frontier.client", "though_full=not new", "though_full=True"),
        test_client.test_a_full_server_takes_no_new_requests_and_does_all_else,
    ),
}


@pytest.mark.parametrize("name", IN_PYTHON)
def test_a_test_convicts_python(
    name: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    (module, says, instead), test = IN_PYTHON[name]
    plant_in_python(import_module(f"semaphore_middleware.{module}"), says, instead, monkeypatch)
    assert_convicted(PYTHON, name, test, request)
