"""What a node tells of a site's answers."""

import math

from semaphore_middleware.model.feedback import Feedback, FeedbackSummary


def test_feedback_is_summed_up() -> None:
    one_too_many = Feedback(
        refused=True, retry_after=30.0, status=429, is_metered=True, quota_interval=0.5, what="429"
    )
    seen = [
        (Feedback(latency=0.1), 1.0),
        (Feedback(latency=0.1), 3.0),
        (Feedback(), 0.25),  # an error that is none of the others
        *[(Feedback(failed=True), 7.0)] * 3,
        *[(one_too_many, 9.0)] * 4,
        (Feedback(refused=True, status=503, is_metered=False, what="503"), 8.0),
    ]
    assert FeedbackSummary.of(seen) == FeedbackSummary(
        good=2,
        mean_log_ms=math.log(100),
        good_age=3.0,
        errors=1,
        failed=3,
        refused=5,
        metered=4,
        quota_interval=0.5,
        bad_age=7.0,
        answer_age=0.25,
        retry_after=30.0,
        status=503,
        cause="503",
    )
