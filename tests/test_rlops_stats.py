"""The statistics of cleanrl_utils.rlops against SciPy, rliable and brute force."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats as scipy_stats

from cleanrl_utils.rlops import stats

rng = np.random.default_rng(1)
SCORES = st.lists(st.integers(-9, 9), min_size=1, max_size=6).map(lambda x: np.array(x, float))


@given(st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=40))
def test_iqm_is_scipys_trimmed_mean(scores):
    assert stats.iqm(np.array(scores)) == pytest.approx(scipy_stats.trim_mean(scores, 0.25), abs=1e-9)


def test_t_quantiles_are_scipys():
    for freedom in [*range(1, 60), 100, 1000]:
        assert stats.t975(freedom) == pytest.approx(scipy_stats.t.ppf(0.975, freedom), abs=2e-3)


@given(SCORES, SCORES)
def test_improvement_is_the_u_statistic(x, y):
    u = scipy_stats.mannwhitneyu(x, y).statistic
    assert stats.improvement([x], [y]) == pytest.approx(u / (len(x) * len(y)))


@settings(deadline=None)
@given(st.integers(1, 6), st.integers(1, 6), st.randoms(use_true_random=False))
def test_p_value_of_one_environment_is_the_exact_mann_whitney_test(n, m, random):
    scores = np.array(random.sample(range(100), n + m), float)  # no ties: SciPy's exact test does not know them
    expected = scipy_stats.mannwhitneyu(scores[:n], scores[n:], method="exact").pvalue
    assert stats.p_value([scores[:n]], [scores[n:]]) == pytest.approx(expected)


@settings(max_examples=20, deadline=None)
@given(st.lists(st.tuples(SCORES, SCORES).filter(lambda pair: len(pair[0]) + len(pair[1]) < 6), min_size=1, max_size=3))
def test_stratified_p_value_is_what_brute_force_gives(pairs):
    xs, ys = zip(*pairs)
    relabelled = []
    for x, y in pairs:
        scores, splits = [*x, *y], []
        for way in itertools.combinations(range(len(scores)), len(x)):
            rest = [scores[i] for i in range(len(scores)) if i not in way]
            splits.append(([scores[i] for i in way], rest))
        relabelled.append(splits)

    def naive(split):
        wins = [np.mean([(a > b) + 0.5 * (a == b) for a in x for b in y]) for x, y in split]
        return abs(np.mean(wins) - 0.5)

    null = [naive(split) for split in itertools.product(*relabelled)]
    expected = np.mean(np.array(null) >= naive(pairs) - 1e-9)
    assert stats.p_value(list(xs), list(ys)) == pytest.approx(expected)


def test_large_samples_are_shuffled_at_random_and_agree_with_scipy():
    x, y = rng.normal(0.6, 1, 30), rng.normal(0, 1, 30)
    expected = scipy_stats.mannwhitneyu(x, y).pvalue
    assert stats.p_value([x], [y]) == pytest.approx(expected, abs=0.01)


@pytest.mark.parametrize("seeds, environments", [(1, 1), (2, 1), (3, 1), (4, 1), (3, 2), (2, 3)])
def test_smallest_p_value_is_that_of_runs_that_do_not_overlap(seeds, environments):
    xs, ys = [np.arange(seeds) + 10.0] * environments, [np.arange(seeds) + 0.0] * environments
    assert stats.smallest_p_value(xs, ys) == pytest.approx(stats.p_value(xs, ys))


def test_verdict_in_plain_words():
    high, low = np.array([9.0, 8.0, 7.0, 6.0]), np.array([1.0, 2.0, 3.0, 4.0])
    assert stats.verdict([high[:3]], [low[:3]]).startswith("too few seeds to call a difference")
    assert stats.verdict([high], [low]).startswith("better (p = 0.029")
    assert stats.verdict([low], [high]).startswith("worse")
    assert stats.verdict([high], [high]).startswith("no difference shown")
    assert stats.verdict([high] * 3, [low] * 3) == "better (p < 0.001)"


def test_intervals_agree_with_rliable():
    library = pytest.importorskip("rliable.library")
    metrics = pytest.importorskip("rliable.metrics")
    np.random.seed(0)  # rliable draws from the global generator
    x, y = rng.normal(1, 1, (10, 4)), rng.normal(0.5, 1, (8, 4))  # runs, environments
    xs, ys = list(x.T), list(y.T)

    def estimate(scores, function):
        points, intervals = library.get_interval_estimates({"x": scores}, function, reps=1000)
        return points["x"], intervals["x"][:, 0]

    point, interval = estimate(x, lambda scores: np.array([metrics.aggregate_iqm(scores)]))
    assert stats.pooled_iqm(xs) == pytest.approx(point[0])
    assert stats.interval(stats.pooled_iqm, xs) == pytest.approx(interval, abs=0.05)
    for function, oracle in (
        (stats.median_of_means, metrics.aggregate_median),
        (stats.mean_of_means, metrics.aggregate_mean),
        (stats.optimality_gap, metrics.aggregate_optimality_gap),
    ):
        point, interval = estimate(x, lambda scores, oracle=oracle: np.array([oracle(scores)]))
        assert function(xs) == pytest.approx(point[0])
        assert stats.interval(function, xs) == pytest.approx(interval, abs=0.07)
    point, interval = estimate((x, y), lambda *scores: np.array([metrics.probability_of_improvement(*scores)]))
    assert stats.improvement(xs, ys) == pytest.approx(point[0])
    assert stats.interval(stats.improvement, xs, ys) == pytest.approx(interval, abs=0.03)
    thresholds = np.linspace(-1, 3, 9)
    profiles, bands = library.create_performance_profile({"x": x}, thresholds, reps=500)
    assert stats.profile(xs, thresholds) == pytest.approx(profiles["x"])
    low, high = stats.interval(lambda strata: stats.profile(strata, thresholds), xs)
    assert np.array([low, high]) == pytest.approx(bands["x"], abs=0.06)


def test_sample_efficiency_agrees_with_rliable():
    """Of the IQM of whole curves, each drawn as a whole."""
    library = pytest.importorskip("rliable.library")
    metrics = pytest.importorskip("rliable.metrics")
    np.random.seed(0)
    curves = rng.normal(0, 1, (10, 3, 1)) + np.linspace(0, 2, 5)  # runs, environments, points

    def iqm(scores):
        return np.array([metrics.aggregate_iqm(scores[..., i]) for i in range(scores.shape[-1])])

    points, intervals = library.get_interval_estimates({"x": curves}, iqm, reps=500)
    ours = stats.iqm_over_time(list(curves.swapaxes(0, 1)))
    assert ours[0] == pytest.approx(points["x"])
    assert np.array(ours[1:]) == pytest.approx(intervals["x"], abs=0.12)


def test_environments_may_have_different_numbers_of_seeds_and_intervals_repeat():
    strata = [np.array([1.0, 2.0, 3.0]), np.array([2.0, 5.0])]
    assert stats.pooled_iqm(strata) == pytest.approx(scipy_stats.trim_mean([1, 2, 3, 2, 5], 0.25))
    assert stats.interval(stats.pooled_iqm, strata) == stats.interval(stats.pooled_iqm, strata)
    assert stats.profile(strata, np.array([2.5])) == pytest.approx((1 / 3 + 1 / 2) / 2)


def test_bootstrap_covers_the_true_mean_about_as_often_as_it_says():
    """With 20 seeds; with three it does so far less often, which is why the tool warns."""
    covered = []
    for seed in range(60):
        scores = np.random.default_rng(seed).normal(0, 1, 20)
        low, high = stats.interval(lambda strata: strata[0].mean(-1), [scores])
        covered.append(low <= 0 <= high)
    assert np.mean(covered) > 0.85
