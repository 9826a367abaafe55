"""Curves of several processes merged into one; points that a roll back undid."""

from __future__ import annotations

import math

from clusterctl.common.curves import Bucket, Curve, mean_of
from clusterctl.observe.record.curves import final, merged, split_undone, summed


def point(t: float, step: int | None, value: float | None, weight: float = 1.0) -> Bucket:
    """A bucket of one point; None is a gap."""
    points = int(value is not None)
    return Bucket(t, t, step, step, points, weight * points, value, value, value, value, 1 - points)


def curve(rank: int, *buckets: Bucket, undone: bool = False) -> Curve:
    return Curve("trainer", rank, "step", "loss", buckets, undone)


def test_points_at_the_same_place_become_their_mean_by_weight() -> None:
    first = curve(0, point(1.0, 10, 4.0, weight=3), point(2.0, 20, 2.0))
    second = curve(1, point(1.0, 10, 8.0), point(2.0, 20, None))
    start, end = merged([first, second], by="time", cells=10)
    assert (start.mean, start.low, start.high, start.points, start.weight) == (5.0, 4.0, 8.0, 2, 4.0)
    assert (end.mean, end.points, end.gaps, end.step0, end.step1) == (2.0, 1, 1, 20, 20)


def test_merged_by_step_processes_that_are_ahead_in_time_fall_together() -> None:
    first = curve(0, point(1.0, 10, 4.0), point(2.0, 20, 2.0))
    second = curve(1, point(5.0, 10, 6.0), point(6.0, 20, 4.0), point(7.0, None, 99.0))
    assert [(one.step0, one.mean) for one in merged([first, second], by="step", cells=10)] == [(10, 5.0), (20, 3.0)]


def test_a_sum_takes_each_process_as_it_was_at_the_time() -> None:
    first = curve(0, *(point(t, int(t), 100.0) for t in (0.0, 1.0, 2.0, 3.0)))
    second = curve(1, point(0.0, 0, 50.0), point(2.0, 2, 10.0))
    assert [one.mean for one in summed([first, second], by="time", cells=4)] == [150.0, 150.0, 150.0, 110.0]
    assert [one.step0 for one in summed([first, second], by="step", cells=4)] == [0, 1, 2, 3]
    assert summed([curve(0, point(1.0, None, 1.0))], by="step") == summed([]) == []


def test_numbers_near_the_largest_float_stay_finite() -> None:
    huge = [curve(rank, point(1.0, 1, 1.7e308)) for rank in range(4)]
    for [one] in (merged(huge), summed(huge)):
        assert one.mean is not None
        assert math.isfinite(one.mean)


def test_there_are_at_most_so_many_buckets_and_no_point_is_lost() -> None:
    curves = [curve(rank, *(point(t + rank / 10, t, float(t)) for t in range(1000))) for rank in range(3)]
    found = merged(curves, by="time", cells=7)
    assert len(found) == 7
    assert sum(one.points for one in found) == 3000
    assert (found[0].low, found[-1].high) == (0.0, 999.0)


def test_nothing_merges_to_nothing_and_gaps_have_no_mean() -> None:
    assert merged([], by="time") == []
    assert merged([curve(0)], by="step") == []
    [gap] = merged([curve(0, point(1.0, 1, None))], by="time")
    assert (gap.mean, gap.last, gap.gaps) == (None, None, 1)
    assert mean_of([gap]) is None


def test_the_final_value_is_the_mean_or_the_sum_of_all_processes_and_unknown_if_one_of_them_is() -> None:
    ends = [curve(0, point(1.0, 1, 9.0), point(2.0, 2, 1.0, weight=3)), curve(1, point(2.0, 2, 5.0)), curve(2)]
    assert (final(ends), final(ends, is_total=True)) == (2.0, 6.0)
    broken = [*ends, curve(3, point(1.0, 1, 9.0), point(2.0, 2, None))]
    assert final(broken) is final(broken, is_total=True) is final([]) is None


def test_points_after_the_step_to_which_a_run_was_rolled_back_are_kept_apart() -> None:
    whole = curve(0, point(1.0, 10, 4.0), point(2.0, 20, 3.0), point(3.0, 30, 2.0), point(9.0, 25, 1.0))
    kept, undone = split_undone(whole, [(5.0, 20)])
    assert [one.step0 for one in kept.buckets] == [10, 20, 25]
    assert ([one.step0 for one in undone.buckets], undone.undone) == ([30], True)
    assert split_undone(whole, []) == [whole]
    assert split_undone(undone, [(5.0, 20)]) == [undone]
