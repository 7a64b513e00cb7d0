"""The tests can convict: each way to break what Scrapy's requests rely on is caught by one of them.

A mutant is a module with some text replaced; it lives only as long as its test.
"""

from __future__ import annotations

from email.utils import formatdate
from functools import partial
from importlib import import_module

import pytest
from scrapy.exceptions import DownloadFailedError, DownloadTimeoutError

from semaphore_middleware import Limit, PermitLostError
from tests.scrapy import (
    test_asked_pauses,
    test_backpressure,
    test_concurrency,
    test_crawl_delays,
    test_downloader,
    test_judge,
    test_middleware,
    test_responses,
    test_robotstxt_rules,
    test_scopes,
    test_settings,
    test_several_scopes,
    test_sharing,
    test_throttler,
    test_throttling,
)
from tests.support.mutants import Mutant, Test, assert_convicted, plant_in_python

pytestmark = pytest.mark.slow

AREA = "Scrapy side"
NOW = test_asked_pauses.NOW
OLDER_FORM: test_asked_pauses.Fields = {
    "X-RateLimit-Remaining": "0",
    "X-RateLimit-Reset": str(NOW + 7),
}
LONG = "a" * test_asked_pauses.MEGABYTE
SPEAKS_FOR_ITS_SITE = (
    test_responses.test_a_refusal_speaks_for_its_site_unless_the_site_s_other_answers_contradict
)
ONE_PAGE_S_TROUBLE = partial(SPEAKS_FOR_ITS_SITE, 503, {}, 5, 1, False)
DOWNLOADER_WANTS = (
    test_downloader.test_it_wants_no_more_than_concurrent_requests_but_for_those_that_wait
)

MUTANTS: dict[str, tuple[Mutant, Test]] = {
    # Two doors through which a permit goes back
    "the end of a transfer gives nothing back": (
        (
            "throttler",
            "        self._transfers.pop(request, None)\n        self._release(request)\n",
            "",
        ),
        test_throttler.test_the_end_of_a_transfer_gives_the_permit_back,
    ),
    "a permit goes back while its request is on the wire": (
        ("throttler", "        if request not in self._transfers:\n", "        if True:\n"),
        test_throttler.test_the_end_of_a_transfer_gives_the_permit_back,
    ),
    "the end of a fetch gives nothing back": (
        ("throttler", "        if request not in self._transfers:\n", "        if False:\n"),
        test_throttler.test_the_end_of_a_fetch_gives_the_permit_back,
    ),
    "a cancelled fetch keeps its permit": (
        ("throttler", "task.add_done_callback(lambda _: self.release_for(request))", "pass"),
        test_throttler.test_a_cancelled_fetch_gives_the_permit_back,
    ),
    "a permit is forgotten, not released": (
        (
            "throttler",
            "            permits.release()\n            self.backpressure",
            "            self.backpressure",
        ),
        test_throttler.test_the_end_of_a_fetch_gives_the_permit_back,
    ),
    "a place is never given back": (
        (
            "throttler",
            "released(request)\n            self.local_concurrency.release()\n",
            "released(request)\n",
        ),
        test_throttler.test_a_place_is_given_back_with_the_permit_and_once,
    ),
    "a place is given back twice": (
        ("throttler", "self._permits.pop(request, None)", "self._permits.get(request)"),
        test_throttler.test_a_place_is_given_back_with_the_permit_and_once,
    ),
    "the scheduler thinks that a site is full for ever": (
        ("throttler", "            self.backpressure.released(request)\n", ""),
        test_throttler.test_a_permit_that_is_given_back_is_one_that_others_may_get_at_once,
    ),
    "a request with a permit counts as one that waits": (
        ("throttler", "        self.backpressure.acquired(request)\n", ""),
        test_throttler.test_a_permit_that_is_given_back_is_one_that_others_may_get_at_once,
    ),
    "one request takes two permits": (
        ("throttler", "        if request in self._permits:\n", "        if False:\n"),
        test_throttler.test_a_request_that_is_being_fetched_is_not_fetched_again,
    ),
    "the second permit of a request is kept": (
        (
            "throttler",
            "permits.release()\n            self.local_concurrency.release()\n            raise",
            "self.local_concurrency.release()\n            raise",
        ),
        test_throttler.test_a_request_that_is_being_fetched_is_not_fetched_again,
    ),
    "the second place of a request is kept": (
        (
            "throttler",
            "permits.release()\n            self.local_concurrency.release()\n            raise",
            "permits.release()\n            raise",
        ),
        test_throttler.test_a_request_that_is_being_fetched_is_not_fetched_again,
    ),
    "a request waits longer than it may": (
        ("throttler", "scopes, timeout=timeout, owner", "scopes, timeout=None, owner"),
        test_throttler.test_a_request_waits_no_longer_than_it_may,
    ),
    "a crawl waits for its server for ever": (
        ("throttler", "time.monotonic() - self._made_at > timeout", "False"),
        test_throttler.test_a_crawl_waits_for_its_server_no_longer_than_it_may,
    ),
    # Transfers
    "a lost permit's transfer goes on": (
        ("throttler", "            with permits.until_lost():\n", "            if True:\n"),
        test_throttler.test_a_lost_permit_cancels_its_transfer,
    ),
    "the end of a fetch gives back the permit of a transfer": (
        ("throttler", "        self.start_transfer(request, asyncio.current_task())\n", ""),
        test_throttler.test_a_transfer_ends_with_its_permit_given_back,
    ),
    "a transfer's permit stays": (
        (
            "throttler",
            "        finally:\n            self.end_transfer(request)\n",
            "        finally:\n            pass\n",
        ),
        test_throttler.test_a_transfer_ends_with_its_permit_given_back,
    ),
    "the permit of a transfer that fails stays": (
        (
            "throttler",
            "        finally:\n            self.end_transfer(request)\n",
            "        else:\n            self.end_transfer(request)\n",
        ),
        test_throttler.test_a_transfer_that_fails_ends_with_its_permit_given_back,
    ),
    "a transfer's response is not told": (
        ("throttler", "            self.record_response(request, response)\n", ""),
        test_throttler.test_a_transfer_ends_with_its_permit_given_back,
    ),
    "a transfer's failure is not told": (
        (
            "throttler",
            "                self.responses.record_failure(permits.site_permit, request, error)\n",
            "                pass\n",
        ),
        test_throttler.test_a_transfer_that_fails_ends_with_its_permit_given_back,
    ),
    # The end
    "who waits is not sent back when the spider closes": (
        ("throttler", "        self._semaphore.drain()\n", ""),
        test_throttler.test_when_the_spider_closes_waiting_requests_go_back_to_the_scheduler,
    ),
    "who waits for a place is not sent back when the spider closes": (
        (
            "throttler",
            '        self.local_concurrency.fail_all(ClosedError("the spider is closing"))\n',
            "",
        ),
        test_throttler.test_when_the_spider_closes_waiting_requests_go_back_to_the_scheduler,
    ),
    "the crawl does not learn that the spider closes": (
        ("throttler", "        self._engine.before_close(self._drain)\n", ""),
        test_throttler.test_when_the_spider_closes_waiting_requests_go_back_to_the_scheduler,
    ),
    "who is sent back is dropped as a duplicate": (
        ("throttler", "request.replace(dont_filter=True)", "request.replace()"),
        test_throttler.test_when_the_spider_closes_waiting_requests_go_back_to_the_scheduler,
    ),
    "who is sent back is fetched without a permit": (
        (
            "throttler",
            "            return self.return_to_scheduler(request)\n",
            "            return None\n",
        ),
        test_throttler.test_when_the_spider_closes_waiting_requests_go_back_to_the_scheduler,
    ),
    "a download of the engine's goes back again and again": (
        ("throttler", "        self._returned.add(copy)\n", ""),
        test_throttler.test_when_the_spider_closes_waiting_requests_go_back_to_the_scheduler,
    ),
    "transfers outlive the crawl": (
        (
            "throttler",
            "            task.cancel()\n        await asyncio.gather",
            "            del task\n        if False: await asyncio.gather",
        ),
        test_throttler.test_the_end_of_the_crawl_ends_transfers_of_cancelled_fetches,
    ),
    "the crawl does not wait for the end of its transfers": (
        ("throttler", "        await asyncio.gather(*transfers, return_exceptions=True)\n", ""),
        test_throttler.test_the_end_of_the_crawl_ends_transfers_of_cancelled_fetches,
    ),
    "the throttler outlives the crawl": (
        ("throttler", "        vars(self._crawler).pop(ATTRIBUTE, None)\n", ""),
        test_throttler.test_the_end_of_the_crawl_gives_back_what_signals_told_of,
    ),
    # The middleware
    "a response passes with its permit": (
        (
            "middleware",
            "        self._throttler.release_for(request)\n        return self._throttler.retry",
            "        return self._throttler.retry",
        ),
        test_middleware.test_the_permit_goes_back_before_other_middlewares_see_the_response,
    ),
    "an exception passes with its permit": (
        (
            "middleware",
            'under way."""\n        self._throttler.release_for(request)\n',
            'under way."""\n',
        ),
        test_middleware.test_the_permit_goes_back_before_other_middlewares_see_an_exception,
    ),
    "a refused request is not made again": (
        ("middleware", "self._throttler.retry_request(request, response) or response", "response"),
        test_middleware.test_a_refused_request_is_made_again,
    ),
    "a request that is to go back goes on": (
        ("middleware", "        return await self._throttler", "        await self._throttler"),
        partial(
            test_middleware.test_a_request_waits_for_its_permit_and_may_go_back_to_the_scheduler,
            test_middleware.AGAIN,
        ),
    ),
    "it cannot be switched off": (
        ("middleware", "if not is_enabled(crawler.settings):", "if False:"),
        test_middleware.test_it_can_be_switched_off,
    ),
    "alone it hears of no transfer": (
        ("middleware", "        if not _runs_transfers(crawler):\n", "        if False:\n"),
        test_throttler.test_the_middleware_alone_learns_of_transfers_from_signals,
    ),
    "alone it hears of no beginning": (
        (
            "middleware",
            "    connect(throttler.start_transfer, signals.request_reached_downloader)\n",
            "",
        ),
        test_throttler.test_the_middleware_alone_learns_of_transfers_from_signals,
    ),
    "alone it hears of no response": (
        ("middleware", "    connect(throttler.record_response, signals.response_downloaded)\n", ""),
        test_throttler.test_the_middleware_alone_learns_of_transfers_from_signals,
    ),
    "alone it hears of no end": (
        (
            "middleware",
            "    connect(throttler.end_transfer, signals.request_left_downloader)\n",
            "",
        ),
        test_throttler.test_the_middleware_alone_learns_of_transfers_from_signals,
    ),
    "beside the add-on it listens to signals, too": (
        ("middleware", "        if not _runs_transfers(crawler):\n", "        if True:\n"),
        test_throttler.test_with_the_add_on_s_downloader_signals_tell_nothing,
    ),
    # What responses say
    "a refusal is a usual response": (
        ("responses", "is_refused = response.status in self._backoff_codes", "is_refused = False"),
        test_responses.test_a_refusal_is_told_with_the_time_that_the_site_asks_for,
    ),
    "Retry-After is not passed on": (
        ("responses", "permit.refused(judged or pause or 0.0)", "permit.refused(judged or 0.0)"),
        test_responses.test_a_refusal_is_told_with_the_time_that_the_site_asks_for,
    ),
    "it is forgotten which request was refused": (
        ("responses", "            self._refused.add(request)\n", ""),
        test_responses.test_a_refused_request_is_made_again_so_often_and_past_the_dupefilter,
    ),
    "errors count as quick responses": (
        ("responses", "if is_refused or response.status >= 500 else", "if False else"),
        test_responses.test_of_a_server_s_error_only_is_told_that_it_is_there,
    ),
    "the wait before the transfer counts as latency": (
        ("responses", "    if latency is None:", "    if True:"),
        test_responses.test_of_a_usual_response_the_latency_is_told,
    ),
    "what is not measured is no latency": (
        ("responses", "asyncio.get_running_loop().time() - permit.granted_at", "-1.0"),
        test_responses.test_of_a_usual_response_the_latency_is_told,
    ),
    "any failure means that the site is down": (
        ("responses", "is_silent = isinstance(error, NO_RESPONSE) and", "is_silent ="),
        partial(
            test_responses.test_only_a_site_that_does_not_respond_is_a_failure,
            DownloadFailedError(),
            [],
        ),
    ),
    "no failure means that the site is down": (
        ("responses", "is_silent = isinstance(error, NO_RESPONSE) and", "is_silent = False and"),
        partial(
            test_responses.test_only_a_site_that_does_not_respond_is_a_failure,
            DownloadTimeoutError(),
            ["failed"],
        ),
    ),
    "a refused request is made again for ever": (
        ("responses", "max_retry_times=self._backoff_times", "max_retry_times=99"),
        test_responses.test_a_refused_request_is_made_again_so_often_and_past_the_dupefilter,
    ),
    "a retry takes the HTTP cache's response along, which no shared crawl can store": (
        ("responses", '        retry.meta.pop("cached_response", None)\n', ""),
        test_responses.test_a_retry_takes_no_response_of_the_http_cache_along,
    ),
    "a refused request is made again once too few": (
        (
            "responses",
            "max_retry_times=self._backoff_times",
            "max_retry_times=self._backoff_times - 1",
        ),
        test_responses.test_a_refused_request_is_made_again_so_often_and_past_the_dupefilter,
    ),
    "refusals are not counted": (
        ("responses", "retry.meta[REFUSALS_KEY] = retry.meta.pop", "retry.meta.pop"),
        test_responses.test_a_refused_request_is_made_again_so_often_and_past_the_dupefilter,
    ),
    "what was given up, Scrapy tries again": (
        ("responses", '            request.meta["dont_retry"] = GIVEN_UP', "            pass"),
        test_responses.test_a_refused_request_is_made_again_so_often_and_past_the_dupefilter,
    ),
    "dont_retry is not heeded": (
        ("responses", 'if request.meta.get("dont_retry"):', "if False:"),
        test_responses.test_a_request_that_is_not_to_be_retried_is_not,
    ),
    "a user's dont_retry is taken away": (
        (
            "responses",
            '        if request.meta.get("dont_retry") == GIVEN_UP:\n',
            "        if True:\n",
        ),
        test_responses.test_a_request_that_is_not_to_be_retried_is_not,
    ),
    "our dont_retry stays": (
        ("responses", 'request.meta.pop("dont_retry", None)', "pass"),
        test_responses.test_what_a_spider_makes_of_a_request_that_was_given_up_starts_afresh,
    ),
    "our dont_retry goes over to what a middleware makes": (
        ("throttler", "        self.responses.forget_given_up(result)\n", ""),
        test_throttler.test_what_a_middleware_makes_of_a_request_that_was_given_up_starts_afresh,
    ),
    "our count of refusals stays": (
        ("responses", "        _forget_refusals(request)\n        if", "        if"),
        test_responses.test_what_a_spider_makes_of_a_request_that_was_given_up_starts_afresh,
    ),
    "a count of refusals outlives a response": (
        ("responses", "            _forget_refusals(request)\n", ""),
        test_throttler.test_a_request_that_was_served_is_not_made_again,
    ),
    "every request is made again": (
        ("responses", "if request not in self._refused:", "if False:"),
        test_throttler.test_a_request_that_was_served_is_not_made_again,
    ),
    "RETRY_ENABLED is not heeded": (
        ("throttler", "if not self._is_retry_enabled or spider is None:", "if spider is None:"),
        partial(
            test_throttler.test_a_refused_request_is_made_again_if_there_are_to_be_retries,
            retries=False,
        ),
    ),
    "refusals are no stat": (
        ("throttler", "            self._semaphore.emit(RequestRefused())\n", "            pass\n"),
        partial(
            test_throttler.test_a_refused_request_is_made_again_if_there_are_to_be_retries,
            retries=True,
        ),
    ),
    "a date of Retry-After goes by our clock": (
        ("asked_pauses", "return time.time() if date is None else date", "return time.time()"),
        partial(test_asked_pauses.test_retry_after, formatdate(NOW + 90, usegmt=True), 90),
    ),
    "a date of Retry-After in the past is a time below 0": (
        ("asked_pauses", "max(0.0, date - _now(response))", "date - _now(response)"),
        partial(test_asked_pauses.test_retry_after, formatdate(NOW - 90, usegmt=True), 0),
    ),
    "Retry-After must be a date": (
        ("asked_pauses", "if text.isascii() and text.isdigit():", "if False:"),
        partial(test_asked_pauses.test_retry_after, "30", 30),
    ),
    "Retry-After must be seconds": (
        ("asked_pauses", "    date = _timestamp(text)\n", "    date = None\n"),
        partial(test_asked_pauses.test_retry_after, formatdate(NOW + 90, usegmt=True), 90),
    ),
    "of several Retry-After the first one counts": (
        ("asked_pauses", "return max((delay for", "return min((delay for"),
        partial(test_asked_pauses.test_retry_after, ["5", "60", "7"], 60),
    ),
    "a quota that is not exhausted holds requests back": (
        ("asked_pauses", '_integer(limit.get("r")) != 0 or', ""),
        partial(
            test_asked_pauses.test_when_a_quota_is_exhausted, {"RateLimit": '"a";r=1;t=5'}, None
        ),
    ),
    "an exhausted quota is not heeded": (
        ("asked_pauses", '_integer(limit.get("r")) != 0 or', "True or"),
        partial(test_asked_pauses.test_when_a_quota_is_exhausted, {"RateLimit": '"a";r=0;t=5'}, 5),
    ),
    "the older forms are not read": (
        ("asked_pauses", "*_older_resets(response)", ""),
        partial(test_asked_pauses.test_when_a_quota_is_exhausted, OLDER_FORM, 7),
    ),
    "a Unix time is taken for seconds": (
        ("asked_pauses", "is_time = reset >= UNIX_TIME_FROM", "is_time = False"),
        partial(test_asked_pauses.test_when_a_quota_is_exhausted, OLDER_FORM, 7),
    ),
    "a field of any length is read": (
        ("asked_pauses", "if len(field) <= FIELD_BYTES_MAX else", "if True else"),
        partial(
            test_asked_pauses.test_when_a_quota_is_exhausted,
            {"RateLimit": f'"{LONG}";r=0;t=5'},
            None,
        ),
    ),
    "a page's trouble is its site's": (
        ("responses", "(is_of_site or not _answers_others(permit, request))", "True"),
        ONE_PAGE_S_TROUBLE,
    ),
    "a page's trouble is forgotten before Scrapy's retry": (
        ("responses", "if request in self._own_trouble:", "if False:"),
        ONE_PAGE_S_TROUBLE,
    ),
    "answers from before the refusal contradict it": (
        ("responses", "get_running_loop().time() - age\n", "get_running_loop().time() - 1e9\n"),
        partial(SPEAKS_FOR_ITS_SITE, 503, {}, 5, 9, True),
    ),
    "behind a proxy the site is blamed": (
        ("responses", ' and not request.meta.get("proxy")', ""),
        test_responses.test_behind_a_proxy_a_failure_may_be_the_proxy_s,
    ),
    "an exhausted quota counts in refusals only": (
        ("responses", "0.0 if reset is None else pause or 0.0", "0.0"),
        test_responses.test_a_site_that_allows_no_more_requests_is_heeded_whatever_its_status,
    ),
    "the judge is not asked": (
        ("responses", "if self._judge else None", "if False else None"),
        partial(
            test_responses.test_what_the_judge_says_of_a_page_counts_as_a_refusal,
            True,
            ("refused", 0),
        ),
    ),
    "the judge sees compressed pages": (
        (
            "judge",
            "self._function(self._decompressed(request, response))",
            "self._function(response)",
        ),
        partial(test_judge.test_it_sees_the_response_as_spiders_do, True, 0),
    ),
    "a response that others stop at is no stat": (
        ("throttler", "            stats.process_response(request, response)", "            pass"),
        partial(
            test_throttler.test_a_refused_request_is_made_again_if_there_are_to_be_retries,
            retries=True,
        ),
    ),
    # robots.txt
    "what cannot be read is allowed": (
        ("robotstxt", '== "allow"', '!= "allow"'),
        test_robotstxt_rules.test_what_an_answer_means,
    ),
    "a server's error is no robots.txt": (
        ("robotstxt_download", "if 300 <= status < 500:", "if 300 <= status < 600:"),
        test_robotstxt_rules.test_what_an_answer_means,
    ),
    "what forbids is an error": (
        ("robotstxt_download", "if 300 <= status < 500:", "if 300 <= status < 404:"),
        test_robotstxt_rules.test_what_an_answer_means,
    ),
    "one redirect too few": (
        ("robotstxt_download", "MAX_REDIRECTS = 5", "MAX_REDIRECTS = 4"),
        test_robotstxt_rules.test_what_an_answer_means,
    ),
    "one redirect too many": (
        ("robotstxt_download", "MAX_REDIRECTS = 5", "MAX_REDIRECTS = 6"),
        test_robotstxt_rules.test_what_an_answer_means,
    ),
    "redirects lead to files": (
        ("robotstxt_download", 'in ("http", "https") else None', 'in ("http", "file") else None'),
        test_robotstxt_rules.test_what_an_answer_means,
    ),
    "a redirect off the site is not followed": (
        ("robotstxt_download", '"allow_offsite": True,', '"allow_offsite": False,'),
        test_robotstxt_rules.test_redirects_are_followed_to_other_hosts,
    ),
    "Scrapy follows redirects": (
        ("robotstxt_download", '"dont_redirect": True,', '"dont_redirect": False,'),
        test_robotstxt_rules.test_redirects_are_followed_to_other_hosts,
    ),
    "our own errors are the site's": (
        ("robotstxt_download", "except SemaphoreError:", "except ZeroDivisionError:"),
        partial(
            test_robotstxt_rules.test_our_own_errors_decide_nothing, error=PermitLostError("lost")
        ),
    ),
    "what nobody asked for is an answer": (
        ("robotstxt_download", "if not any(reading.size for reading in readings):", "if False:"),
        test_robotstxt_rules.test_what_a_middleware_does_not_ask_for_is_allowed_as_in_scrapy,
    ),
    "the end of the crawl is no robots.txt": (
        ("robotstxt", "except SpiderClosingError as error:", "except ZeroDivisionError as error:"),
        partial(test_robotstxt_rules.test_the_end_of_the_crawl_decides_nothing, before=[]),
    ),
    "a function in SEMAPHORE_SCOPES that fails opens the site": (
        ("robotstxt", "except NotAllowedError:", "except ZeroDivisionError:"),
        partial(test_robotstxt_rules.test_a_request_that_is_not_allowed_decides_nothing, before=[]),
    ),
    "a function in SEMAPHORE_SCOPES that fails is the site's error": (
        ("robotstxt_download", "except SemaphoreError:", "except ZeroDivisionError:"),
        partial(
            test_robotstxt_rules.test_a_request_that_is_not_allowed_decides_nothing,
            before=[test_robotstxt_rules.moved("/rules")],
        ),
    ),
    "who waits for a cancelled request waits for ever": (
        ("robotstxt", "                loaded.set_result(None)\n", "                pass\n"),
        partial(
            test_robotstxt_rules.test_if_the_request_that_asks_is_cancelled_another_asks,
        ),
    ),
    "a robots.txt is never too old": (
        ("robotstxt", "self._now() < rules.valid_until:", "True:"),
        test_robotstxt_rules.test_after_a_day_it_is_asked_for_again,
    ),
    "the rules of all sites are kept": (
        ("robotstxt", "            if len(self._rules) > RULES_MAX:\n", "            if False:\n"),
        test_robotstxt_rules.test_the_rules_that_were_used_longest_ago_are_forgotten,
    ),
    "the rules that are in use are forgotten": (
        (
            "robotstxt",
            "            self._rules.move_to_end(origin)\n            return",
            "            return",
        ),
        test_robotstxt_rules.test_the_rules_that_were_used_longest_ago_are_forgotten,
    ),
    "its age counts from its end": (
        ("robotstxt", "MAX_AGE_S - (self._now() - begun)", "MAX_AGE_S"),
        test_robotstxt_rules.test_the_age_counts_from_the_request,
    ),
    "pauses after what cannot be read do not grow": (
        ("robotstxt_download", "failures=failures + 1)", "failures=1)"),
        test_robotstxt_rules.test_an_unreachable_one_is_asked_for_again_after_pauses_that_double,
    ),
    "they grow without an end": (
        ("robotstxt", "* 2**doublings, self._backoff.most)", "* 2**doublings, 1e9)"),
        test_robotstxt_rules.test_an_unreachable_one_is_asked_for_again_after_pauses_that_double,
    ),
    "each time there is a line": (
        ("robotstxt", "if known is None or not known.failures:", "if True:"),
        test_robotstxt_rules.test_an_unreachable_one_is_asked_for_again_after_pauses_that_double,
    ),
    "a parser that fails is the requests' trouble": (
        (
            "robotstxt",
            "        except Exception as error:  # what",
            "        except KeyError as error:  # what",
        ),
        test_robotstxt_rules.test_a_parser_that_fails_lets_nothing_through,
    ),
    "http and https have one robots.txt": (
        ("robotstxt_download", 'return f"{url.scheme}://', 'return f"http://'),
        test_robotstxt_rules.test_each_scheme_and_port_has_its_own,
    ),
    "passwords are part of a site's name": (
        ("robotstxt_download", 'url.netloc.rpartition("@")[2]', "url.netloc"),
        test_robotstxt_rules.test_each_scheme_and_port_has_its_own,
    ),
    "robots_parsed is not sent": (
        ("robotstxt", "signals.robots_parsed, robotparser", "signals.spider_idle, robotparser"),
        test_robotstxt_rules.test_robots_parsed_is_sent_for_what_a_site_says,
    ),
    "every node asks": (
        ("robotstxt", "if self._shared is None:", "if True:"),
        test_robotstxt_rules.test_what_one_node_has_read_another_need_not_ask_for,
    ),
    "sharing cannot be switched off": (
        ("throttler", "if settings.robotstxt_shared and", "if"),
        partial(test_robotstxt_rules.test_two_nodes_that_begin_at_once, is_shared=False),
    ),
    "who waits for another node takes room": (
        (
            "backpressure",
            "            self._change(entry, blockers=1)\n        try",
            "            pass\n        try",
        ),
        test_robotstxt_rules.test_whoever_is_blocked_elsewhere_takes_no_room,
    ),
    "a delay that is gone is kept": (
        ("crawl_delays", "self._delays_s.pop(origin, 0.0)", "self._delays_s.get(origin, 0.0)"),
        test_crawl_delays.test_what_is_read_again_counts_as_new_only_if_it_is_and_is_gone_if_it_is_gone,
    ),
    "the delay of robots.txt is not asked for": (
        ("throttler", "        limit = self._crawl_delays.apply(limit, request)\n", ""),
        test_throttler.test_a_delay_of_robots_txt_is_asked_for,
    ),
    "the delay of robots.txt is not learned": (
        (
            "throttler",
            "            connect(self._robots_parsed, signals.robots_parsed)\n",
            "            pass\n",
        ),
        test_throttler.test_a_delay_of_robots_txt_is_asked_for,
    ),
    "a delay has no longest": (
        ("crawl_delays", "min(delay, self._longest_s)", "delay"),
        partial(
            test_crawl_delays.test_the_longer_one_counts_up_to_the_longest, "Crawl-delay: 600", 60
        ),
    ),
    "Request-rate is not read": (
        ("crawl_delays", "if rate_of is not None and", "if False and"),
        partial(
            test_crawl_delays.test_the_longer_one_counts_up_to_the_longest, "Request-rate: 1/5s", 5
        ),
    ),
    "Request-rate is read upside down": (
        ("crawl_delays", "_number(rate.seconds) / max", "_number(rate.seconds) * max"),
        partial(
            test_crawl_delays.test_the_longer_one_counts_up_to_the_longest,
            "Request-rate: 10/5s",
            0.5,
        ),
    ),
    "the shorter delay counts": (
        ("crawl_delays", "    return max(delays)\n", "    return min(delays)\n"),
        partial(
            test_crawl_delays.test_the_longer_one_counts_up_to_the_longest,
            "Crawl-delay: 1\nRequest-rate: 1/5s",
            5,
        ),
    ),
    "ROBOTSTXT_USER_AGENT is not heeded": (
        (
            "crawl_delays",
            "            self._user_agent or request.headers",
            "            request.headers",
        ),
        test_crawl_delays.test_the_user_agent_of_robots_txt_counts_before_the_request_s_and_the_default,
    ),
    "a request's user agent is not heeded": (
        (
            "crawl_delays",
            'self._user_agent or request.headers.get(b"User-Agent") or',
            "self._user_agent or",
        ),
        test_crawl_delays.test_the_user_agent_of_robots_txt_counts_before_the_request_s_and_the_default,
    ),
    "one host's delay holds for all": (
        (
            "crawl_delays",
            "self._delays_s.get(origin_of(request))",
            "max(self._delays_s.values())",
        ),
        partial(
            test_crawl_delays.test_the_longer_one_counts_up_to_the_longest, "Crawl-delay: 5", 5
        ),
    ),
    "the delay of robots.txt replaces the limit": (
        (
            "crawl_delays",
            "return _with_delay(limit, delay)",
            "return Limit(limit.concurrency, delay)",
        ),
        partial(
            test_crawl_delays.test_a_limit_s_own_delay_is_never_lowered,
            Limit(2, 8, 0.5),
            Limit(2, 8, 0.375),
        ),
    ),
    # Requests that wait, and sites that are full
    "who is told to wait takes room": (
        (
            "backpressure",
            "                self._change(entry, told_to_wait=1)\n",
            "                pass\n",
        ),
        test_backpressure.test_requests_of_a_full_site_take_no_room,
    ),
    "who may start at once takes no room": (
        ("backpressure", "return self.waiting if is_full and", "return self.waiting if True and"),
        test_backpressure.test_requests_of_a_full_site_take_no_room,
    ),
    "who comes to a full site takes room": (
        ("backpressure", "self.told_to_wait or self.held >= self.concurrency", "self.told_to_wait"),
        test_backpressure.test_requests_of_a_full_site_take_no_room,
    ),
    "who has a permit is still told to wait": (
        (
            "backpressure",
            "entry.waiting, told_to_wait=-entry.told_to_wait)\n        for load",
            "entry.waiting)\n        for load",
        ),
        test_backpressure.test_requests_of_a_full_site_take_no_room,
    ),
    "a permit that was given back is still held": (
        ("backpressure", "            self._give_back(entry)\n\n", "            pass\n\n"),
        test_backpressure.test_requests_of_a_full_site_take_no_room,
    ),
    "no site is saturated": (
        ("backpressure", "return self.waiting >= min(", "return False and min("),
        test_backpressure.test_a_scope_with_a_limit_s_worth_of_waiting_requests_is_passed_over,
    ),
    "a saturated site stays so unnoticed": (
        ("backpressure", "            self._on_room()\n", "            pass\n"),
        test_backpressure.test_a_scope_with_a_limit_s_worth_of_waiting_requests_is_passed_over,
    ),
    "who leaves goes on waiting": (
        ("backpressure", "entry = self._entries.pop(request, None)", "entry = None"),
        test_backpressure.test_a_scope_with_a_limit_s_worth_of_waiting_requests_is_passed_over,
    ),
    "a request counts twice": (
        ("backpressure", "        if request in self._entries:\n", "        if False:\n"),
        test_backpressure.test_a_scope_with_a_limit_s_worth_of_waiting_requests_is_passed_over,
    ),
    "memory has no bound": (
        ("backpressure", "return self._filling_memory >= MAX_WAITING", "return False"),
        test_backpressure.test_memory_is_bounded_where_no_scope_is_saturated,
    ),
    "a page takes room behind its robots.txt": (
        ("backpressure", "            self._change(follower, blockers=1)\n", "            pass\n"),
        test_backpressure.test_who_needs_what_waits_already_takes_no_room_until_it_no_longer_does,
    ),
    "a page takes room behind its robots.txt that waits later": (
        (
            "backpressure",
            "                self._change(follower, blockers=1 if entry.is_blocked else -1)\n",
            "                pass\n",
        ),
        test_backpressure.test_room_is_given_back_while_what_is_needed_waits,
    ),
    "a page waits for its robots.txt for ever": (
        ("backpressure", "            self._change(follower, blockers=-1)\n", "            pass\n"),
        test_backpressure.test_who_needs_what_waits_already_takes_no_room_until_it_no_longer_does,
    ),
    "a slot may be no name of a file": (
        (
            "backpressure",
            'len(encoded(scope)) <= MAX_NAME_BYTES and scope.isprintable() and "+" not in scope',
            "True",
        ),
        test_backpressure.test_slots_have_names_for_files,
    ),
    # Places in CONCURRENT_REQUESTS
    "there are places for all": (
        ("concurrency", "        if 0 < self._limit <= self._taken:\n", "        if False:\n"),
        test_concurrency.test_a_place_is_reserved_once_and_used_once,
    ),
    "0 is no place": (
        ("concurrency", "if 0 < self._limit <= self._taken:", "if self._limit <= self._taken:"),
        test_concurrency.test_limit_0_is_no_limit,
    ),
    "one request has two places": (
        ("concurrency", "        if request in self._reserved:\n            return True\n", ""),
        test_concurrency.test_a_place_is_reserved_once_and_used_once,
    ),
    "a free place is not handed over": (
        ("concurrency", "        if self._line:\n", "        if False:\n"),
        test_concurrency.test_free_places_are_reserved_first_come_first_served,
    ),
    "the last in line gets the place": (
        ("concurrency", "request = max(self._line,", "request = max(reversed(self._line),"),
        test_concurrency.test_free_places_are_reserved_first_come_first_served,
    ),
    "a place is kept for who waits for a permit": (
        ("concurrency", "            if self.use(request):\n", "            if False:\n"),
        test_concurrency.test_who_is_told_to_wait_for_a_permit_leaves_the_place_to_the_next,
    ),
    "who leaves keeps the place": (
        ("concurrency", "        elif self.use(request):\n", "        elif False:\n"),
        test_concurrency.test_who_leaves_takes_no_place,
    ),
    "who leaves stays in line": (
        ("concurrency", "if place := self._line.pop(request, None):", "if place := None:"),
        test_concurrency.test_who_leaves_takes_no_place,
    ),
    "who waits for a place is not told of the end": (
        (
            "concurrency",
            "            place.set_exception(error)\n",
            "            place.set_result(None)\n",
        ),
        test_concurrency.test_fail_all_reaches_all_that_wait,
    ),
    "who is cancelled without a place keeps the permit": (
        (
            "throttler",
            "            except BaseException:\n                permits.return_unused()\n",
            "            except BaseException:\n",
        ),
        test_throttler.test_a_request_that_is_cancelled_without_a_place_leaves_nothing_behind,
    ),
    "who is cancelled stays in line": (
        (
            "throttler",
            "            places.leave(request)\n            raise\n",
            "            raise\n",
        ),
        test_throttler.test_a_request_that_is_cancelled_without_a_place_leaves_nothing_behind,
    ),
    "requests begin under permits from before a refusal": (
        ("throttler", "return not permits.withdrawn and places.use", "return places.use"),
        test_throttler.test_nothing_begins_under_a_permit_granted_before_a_refusal,
    ),
    "starts that count wait for a place": (
        ("throttler", "            if permits.starts_count:\n", "            if False:\n"),
        test_throttler.test_a_start_that_counts_is_now_or_not_at_all,
    ),
    "what needs no permit needs no place": (
        (
            "throttler",
            "        if scopes:\n            await self._opened.wait()\n",
            "        if not scopes:\n            return None\n        await self._opened.wait()\n",
        ),
        test_throttler.test_what_needs_no_permit_needs_a_place,
    ),
    # The downloader
    "who waits counts in CONCURRENT_REQUESTS": (
        (
            "downloader",
            "len(self.active) - backpressure.exempt_from_concurrency",
            "len(self.active)",
        ),
        partial(
            DOWNLOADER_WANTS, active=9, exempt=6, is_full=False, is_short=False, wants_none=False
        ),
    ),
    "CONCURRENT_REQUESTS does not hold": (
        ("downloader", "return is_full or backpressure.is_full", "return backpressure.is_full"),
        partial(
            DOWNLOADER_WANTS, active=4, exempt=0, is_full=False, is_short=False, wants_none=True
        ),
    ),
    "the scheduler goes on though memory is full": (
        ("downloader", "is_full or backpressure.is_full or", "is_full or"),
        partial(
            DOWNLOADER_WANTS, active=0, exempt=0, is_full=True, is_short=False, wants_none=True
        ),
    ),
    "the scheduler goes on though places lack": (
        ("downloader", " or self._throttler.local_concurrency.is_short", ""),
        partial(
            DOWNLOADER_WANTS, active=0, exempt=0, is_full=False, is_short=True, wants_none=True
        ),
    ),
    "a fetch never leaves": (
        ("downloader", "        self._throttler.backpressure.leave(request)\n", ""),
        test_downloader.test_after_a_fetch_nothing_is_left_of_it,
    ),
    "a request that was given up is never forgotten": (
        ("downloader", "        self._throttler.responses.forget(request)\n", ""),
        test_downloader.test_after_a_fetch_nothing_is_left_of_it,
    ),
    "the engine gets a fetch's result as it is": (
        ("downloader", "return self._throttler.fetched(result, request)", "return result"),
        test_downloader.test_after_a_fetch_nothing_is_left_of_it,
    ),
    "a redirect takes the scope of the first host along": (
        ("throttler", "return drop_scope_of_other_host(result, request)", "return result"),
        test_throttler.test_a_redirect_to_another_host_takes_no_scope_along,
    ),
    "what a middleware fetches something for is lost when the spider closes": (
        ("throttler", "result.value, SpiderClosingError)", "result.value, ZeroDivisionError)"),
        test_throttler.test_what_failed_as_the_spider_closes_goes_back_to_the_scheduler_once,
    ),
    "transfers run without the throttler": (
        (
            "downloader",
            "self._throttler.transfer(request, self._handlers.download_request_async)",
            "self._handlers.download_request_async(request)",
        ),
        test_downloader.test_each_transfer_is_run_by_the_throttler,
    ),
    # Scrapy's own throttling
    "THROTTLING_SCOPES are not heeded": (
        ("settings", '("DOWNLOAD_SLOTS", "THROTTLING_SCOPES")', '("DOWNLOAD_SLOTS",)'),
        test_throttling.test_throttling_scopes_are_limits_of_hosts_and_names,
    ),
    "DOWNLOAD_SLOTS win over THROTTLING_SCOPES": (
        (
            "settings",
            '("DOWNLOAD_SLOTS", "THROTTLING_SCOPES")',
            '("THROTTLING_SCOPES", "DOWNLOAD_SLOTS")',
        ),
        test_throttling.test_throttling_scopes_are_limits_of_hosts_and_names,
    ),
    "THROTTLING_SCOPE_CONCURRENCY is not heeded": (
        ("throttling", "    return OLD_CONCURRENCY if is_old else NEW", "    return OLD"),
        partial(
            test_throttling.test_default_concurrency_is_that_of_the_setting_of_higher_priority,
            settings=[(test_throttling.NEW, 3, "project")],
            concurrency=3,
        ),
    ),
    "throttling_scopes win over semaphore_scope": (
        ("scopes", "        if given is None:\n            given, key", "        given, key"),
        partial(
            test_throttling.test_meta_names_scopes_or_takes_none,
            *({"throttling_scopes": "api", "semaphore_scope": "ours"}, {"ours"}),
        ),
    ),
    "dont_throttle is not heeded": (
        ("scopes", "if meta.get(throttling.SKIP_KEY) if skip", "if False if skip"),
        partial(
            test_throttling.test_meta_names_scopes_or_takes_none, {"dont_throttle": True}, set()
        ),
    ),
    "a delayed request's site has no room meanwhile": (
        ("throttler", "await self._delays.wait(request, delay)", "pass"),
        test_throttling.test_a_delayed_request_waits_once_and_its_site_has_room_meanwhile,
    ),
    "a retry is delayed once more": (
        (
            "throttling",
            "            request.meta[DELAYED_KEY] = request",
            "            _ = request",
        ),
        test_throttling.test_a_delayed_request_waits_once_and_its_site_has_room_meanwhile,
    ),
    # Several crawls in one process
    "a permit's event goes to all crawls": (
        ("sharing", "if permit is not None else None\n", "if False else None\n"),
        test_sharing.test_each_crawl_counts_its_own_permits,
    ),
    "the end of a crawl ends the others' permits": (
        ("sharing", "if self._crawls == [crawl]:", "if self._opening is not None:"),
        test_sharing.test_a_crawl_that_ends_leaves_the_other_its_permit,
    ),
    "a crawl that closes refuses the others' requests": (
        ("sharing", "if crawl_of.get(permit.owner) is self]", "]"),
        test_sharing.test_a_crawl_that_closes_leaves_the_others_requests_waiting,
    ),
    "a crawl that closes refuses only what waits already": (
        ("sharing", "        asyncio.get_running_loop().call_soon(self._refuse_waiting)\n", ""),
        test_sharing.test_a_request_that_was_just_granted_a_permit_waits_for_no_other_when_its_crawl_closes,
    ),
    "crawls share whatever their node is to be called": (
        ("sharing", '        "node": settings.node,\n', '        "node": "one",\n'),
        partial(
            test_sharing.test_crawls_with_other_settings_are_nodes_of_their_own,
            settings={"SEMAPHORE_NODE": "other"},
        ),
    ),
    # Several scopes
    "scopes are taken in the order of the settings": (
        (
            "scopes",
            "sorted(limits.items(), key=lambda scope: order_of(scope[0]))",
            "limits.items()",
        ),
        test_scopes.test_scopes_are_taken_in_one_order_whatever_the_settings_say,
    ),
    "every kind has the default limit": (
        ("scopes", "self._limits.of(name, has_default)", "self._limits.of(name, True)"),
        test_scopes.test_the_default_limit_is_that_of_the_first_kind,
    ),
    "a function's fault ends the crawl": (
        (
            "scopes",
            "        except SettingsError:\n            return ()",
            "        finally:\n            pass",
        ),
        test_scopes.test_a_function_that_raises_fails_the_request,
    ),
    "requests of several scopes never begin": (
        ("throttler", "                    permits.begin()\n", ""),
        test_throttler.test_a_request_with_all_its_permits_begins,
    ),
    "prerequisites wait for their turn": (
        ("throttler", "0.0 if is_scheduled else PREREQUISITES_FIRST", "0.0"),
        test_throttler.test_what_comes_past_the_scheduler_comes_first,
    ),
    "who waits for another request keeps the place": (
        (
            "throttler",
            "            self.local_concurrency.release()\n            self._suspended",
            "            self._suspended",
        ),
        test_throttler.test_who_waits_for_another_request_lends_it_the_permits,
    ),
    "who waits for another request keeps the permits": (
        (
            "throttler",
            "if request in self._permits and request not in self._transfers:",
            "if False:",
        ),
        test_throttler.test_who_waits_for_another_request_lends_it_the_permits,
    ),
    "a slot counts for its first scope alone": (
        (
            "backpressure",
            "any(load.is_saturated for load in loads)",
            "any(load.is_saturated for load in loads[:1])",
        ),
        test_backpressure.test_a_slot_is_passed_over_while_any_of_its_scopes_is_full,
    ),
    "who has its host's permit still waits for that": (
        (
            "backpressure",
            "                self._move(entry, entry.place + 1)\n",
            "                pass\n",
        ),
        test_backpressure.test_a_slot_is_passed_over_while_any_of_its_scopes_is_full,
    ),
    "who begins anew waits where it was": (
        ("backpressure", "            self._move(entry, 0)\n", "            pass\n"),
        test_backpressure.test_a_slot_is_passed_over_while_any_of_its_scopes_is_full,
    ),
    "scopes that middlewares set do not count": (
        ("backpressure", "if entry is None or not entry.waiting or [", "if True or ["),
        test_backpressure.test_a_request_s_scopes_may_change_while_it_is_on_its_way,
    ),
    "names of slots are of any length": (
        (
            "backpressure",
            "            if len(encoded(longer)) <= MAX_SLOT_BYTES:\n",
            "            if True:\n",
        ),
        test_backpressure.test_names_of_slots_are_no_longer_than_those_of_files,
    ),
    "places go to whoever came first": (
        (
            "concurrency",
            "max(self._line, key=self._priorities.__getitem__)",
            "next(iter(self._line))",
        ),
        test_concurrency.test_free_places_are_reserved_by_priority,
    ),
    "an address is looked up anew": (
        ("addresses", "_addresses.get(normal_host(hostName))", "None"),
        test_several_scopes.test_an_address_that_is_known_is_given_alone,
    ),
    "the address of a request is forgotten": (
        ("addresses", "        self._kept_for[request] = address\n", ""),
        test_several_scopes.test_a_host_has_one_address_as_long_as_a_request_has_it,
    ),
    "two crawls have two addresses of a host": (
        (
            "addresses",
            "return _addresses.setdefault(host, address)",
            "_addresses[host] = address; return address",
        ),
        test_several_scopes.test_crawls_of_one_process_that_look_a_host_up_at_once_find_one_address,
    ),
    "an address is never forgotten": (
        ("addresses", "        while len(_latest) > HOSTS_MAX:\n", "        while False:\n"),
        test_several_scopes.test_a_host_has_one_address_as_long_as_a_request_has_it,
    ),
    # Scopes
    "a file of this machine is one of a site's": (
        ("scopes", 'urlparse_cached(request).scheme == "file"', "False"),
        partial(
            test_scopes.test_a_request_s_scope_is_its_host_unless_its_meta_names_one,
            "file://localhost/etc/hosts",
            {},
            None,
        ),
    ),
    "a scope comes from download_slot": (
        (
            "scopes",
            "        host = urlparse_cached(request).hostname\n        if not host",
            '        host = meta.get("download_slot")\n        if not host',
        ),
        partial(
            test_scopes.test_a_request_s_scope_is_its_host_unless_its_meta_names_one,
            *("http://a.example/", {"download_slot": "b"}, "a.example"),
        ),
    ),
    "semaphore_skip is not heeded": (
        ("scopes", "if skip is None else skip:", "if True else skip:"),
        partial(
            test_scopes.test_a_request_s_scope_is_its_host_unless_its_meta_names_one,
            *("http://a.example/", {"semaphore_skip": True}, None),
        ),
    ),
    "semaphore_scope is not heeded": (
        (
            "scopes",
            "        if given is not None:\n            return",
            "        if False:\n            return",
        ),
        partial(
            test_scopes.test_a_request_s_scope_is_its_host_unless_its_meta_names_one,
            *("http://a.example/", {"semaphore_scope": "b"}, "b"),
        ),
    ),
    "registered domains are not looked for": (
        ("scopes", 'if kind == "host" else', "if True else"),
        test_scopes.test_hosts_of_one_registered_domain_share_a_scope_if_they_are_to,
    ),
    "meta's scope goes to another host": (
        ("scopes", "_host_of(result) != _host_of(request)", "False"),
        partial(
            test_scopes.test_only_what_was_said_of_another_host_is_dropped, test_scopes.MARKS[1]
        ),
    ),
    "meta's scope is dropped on the same host": (
        ("scopes", "_host_of(result) != _host_of(request)", "True"),
        partial(
            test_scopes.test_only_what_was_said_of_another_host_is_dropped, test_scopes.MARKS[0]
        ),
    ),
    "a scope that a middleware has chosen is dropped": (
        (
            "scopes",
            "if key in result.meta and result.meta[key] == request.meta.get(key):",
            "if key in result.meta:",
        ),
        partial(
            test_scopes.test_only_what_was_said_of_another_host_is_dropped, test_scopes.MARKS[1]
        ),
    ),
    "a bad meta ends the crawl": (
        ("throttler", "self.scopes.find(request)", "self.scopes.scopes_of(request)"),
        partial(
            test_throttler.test_a_meta_that_is_not_allowed_ends_the_request_alone,
            meta={"semaphore_scope": 5},
        ),
    ),
    # Settings
    "REDIS_URL comes before SEMAPHORE_REDIS_URL": (
        ("settings", "    for name in URL_NAMES:\n", "    for name in reversed(URL_NAMES):\n"),
        test_settings.test_places_of_the_server_s_url,
    ),
    "the environment comes before the settings": (
        ("settings", "        if url and (url != in_", "        if False and (url != in_"),
        test_settings.test_places_of_the_server_s_url,
    ),
    "an empty text is a value": (
        ("settings", "        if value in self.unset:\n", "        if value is None:\n"),
        test_settings.test_an_empty_text_in_the_environment_is_no_address,
    ),
    "DOWNLOAD_DELAY is not heeded": (
        ("settings", '_number(settings, "DOWNLOAD_DELAY", 0.0)', "0.0"),
        test_settings.test_default_limit_comes_from_scrapys_settings,
    ),
    "DOWNLOAD_DELAY_JITTER is not heeded": (
        ("settings", "0.0), _jitter(settings))", "0.0), 0.5)"),
        test_settings.test_default_limit_comes_from_scrapys_settings,
    ),
    "RANDOMIZE_DOWNLOAD_DELAY is not heeded": (
        ("settings", "    if (settings.getpriority(old) or 0) >", "    if -1 >"),
        partial(test_settings.test_randomize_download_delay, False, 0.0),
    ),
    "jitter above 1 is an error": (
        ("settings", "min(1.0, _number(settings, new, 0.5))", "_number(settings, new, 0.5)"),
        test_settings.test_jitter_above_1_counts_as_1,
    ),
    "DOWNLOAD_SLOTS are not heeded": (
        ("settings", '("DOWNLOAD_SLOTS", "THROTTLING_SCOPES")', '("THROTTLING_SCOPES",)'),
        test_settings.test_values_from_the_command_line,
    ),
    "a turn may outlast the renewal": (
        ("settings", "where, most=longest, allowed", "where, allowed"),
        test_settings.test_a_turn_is_0_1_s_by_default_and_never_longer_than_0_3_of_the_lease,
    ),
    "SEMAPHORE_ENABLED is not heeded": (
        ("settings", 'return bool(SETTINGS["SEMAPHORE_ENABLED"].read(settings))', "return True"),
        partial(test_settings.test_everything_can_be_switched_off, False, False),
    ),
    "the backoff cannot be set": (
        ("settings", 'ours["backoff_start"], ours["backoff_max"], ours["down_after"]', ""),
        test_settings.test_defaults_of_backoff_and_crawl_delay,
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_test_convicts(
    name: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    (file, says, instead), test = MUTANTS[name]
    path = file if file == "middleware" else f"scrapy.{file}"
    plant_in_python(import_module(f"semaphore_middleware.{path}"), says, instead, monkeypatch)
    assert_convicted(AREA, name, test, request)
