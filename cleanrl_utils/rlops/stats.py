"""Statistics over few runs (Agarwal et al. 2021, https://arxiv.org/abs/2108.13264), seeded, in NumPy.

`strata` is a list of arrays: the scores of one algorithm, an array per environment, a score per seed. Resampling draws
seeds within each environment. Unlike in rliable, environments may have different numbers of seeds, and the same input
gives the same interval; the tests compare the two.
"""

import math
from collections.abc import Callable
from itertools import combinations

import numpy as np

REPS = 5000
ENUMERATE = 20_000  # permutations up to which all are tried
# 97.5% quantiles of Student's t for 1 to 30 degrees of freedom
T975 = [12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131]
T975 += [2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042]
Strata = list[np.ndarray]


def t975(freedom: int) -> float:
    """The factor of a 95% interval of a mean, from `freedom` + 1 samples."""
    return T975[freedom - 1] if freedom <= len(T975) else 1.96 + 2.45 / freedom


def iqm(scores: np.ndarray) -> np.ndarray:
    """Interquartile mean along the last axis: of what remains without the lowest and the highest quarter."""
    cut = scores.shape[-1] // 4
    return np.sort(scores, axis=-1)[..., cut : scores.shape[-1] - cut].mean(-1)


def resample(strata: Strata, rng: np.random.Generator) -> list[np.ndarray]:
    """Bootstrap samples, (REPS, seeds) for each environment."""
    return [rng.choice(scores, (REPS, len(scores))) for scores in strata]


def several(*strata: Strata) -> bool:
    """Whether there are several seeds everywhere: resampling a single one gives an interval of no width."""
    return all(len(scores) > 1 for group in strata for scores in group)


def interval(statistic: Callable[..., np.ndarray], *strata: Strata) -> tuple[np.ndarray, np.ndarray]:
    """95% percentile interval by stratified bootstrap; every algorithm (argument) is resampled on its own."""
    rng = np.random.default_rng(0)
    low, high = np.percentile(statistic(*(resample(x, rng) for x in strata)), [2.5, 97.5], axis=0)
    return low, high


def pooled_iqm(strata: Strata) -> np.ndarray:
    """Interquartile mean of all scores of an algorithm together."""
    return iqm(np.concatenate(strata, axis=-1))


def median_of_means(strata: Strata) -> np.ndarray:
    """Median over the environments of the mean over their seeds."""
    return np.median([x.mean(-1) for x in strata], axis=0)


def mean_of_means(strata: Strata) -> np.ndarray:
    """Mean over the environments of the mean over their seeds."""
    return np.mean([x.mean(-1) for x in strata], axis=0)


def optimality_gap(strata: Strata) -> np.ndarray:
    """How far the runs stay below a normalized score of 1 on average; what is above it does not make up for others."""
    return 1 - np.minimum(np.concatenate(strata, axis=-1), 1).mean(-1)


def iqm_over_time(strata: Strata, reps: int = 500) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Interquartile mean at every point of time with its 95% interval; here, strata have the shape (seeds, points)."""
    rng = np.random.default_rng(0)
    drawn = [x[rng.integers(len(x), size=(reps, len(x)))] for x in strata]  # whole curves: (reps, seeds, points)
    samples = iqm(np.concatenate(drawn, axis=1).swapaxes(1, 2))
    low, high = np.percentile(samples, [2.5, 97.5], axis=0)
    return iqm(np.concatenate(strata).T), low, high


def profile(strata: Strata, thresholds: np.ndarray) -> np.ndarray:
    """Performance profile: the share of runs above each threshold, every environment counting the same."""
    return np.mean([(x[..., None] > thresholds).mean(-2) for x in strata], axis=0)


def improvement(xs: Strata, ys: Strata) -> np.ndarray:
    """Probability that a run of x beats a run of y in the same environment, a tie counting half; mean over them."""
    wins = []
    for x, y in zip(xs, ys, strict=True):
        difference = np.sign(x[..., :, None] - y[..., None, :])
        wins.append((difference.mean((-2, -1)) + 1) / 2)
    return np.mean(wins, axis=0)


def shuffled(x: np.ndarray, y: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """`improvement` in one environment under every (or many random) ways to tell which of the runs are x's."""
    scores, n = np.concatenate([x, y]), len(x)
    if math.comb(len(scores), n) <= ENUMERATE:
        chosen = np.array(list(combinations(range(len(scores)), n)))
    else:
        chosen = rng.permuted(np.tile(np.arange(len(scores)), (ENUMERATE, 1)), axis=1)[:, :n]
    signs = np.sign(scores[:, None] - scores[None])
    mine = np.zeros((len(chosen), len(scores)))
    np.put_along_axis(mine, chosen, 1, axis=1)
    return (np.einsum("ri,ij,rj->r", mine, signs, 1 - mine) / (n * len(y)) + 1) / 2


def p_value(xs: Strata, ys: Strata) -> float:
    """Two-sided permutation test of `improvement`, exact where it can be enumerated: labels are shuffled within
    environments. With one environment it is the Mann-Whitney test."""
    rng = np.random.default_rng(0)
    nulls = [shuffled(x, y, rng) for x, y in zip(xs, ys, strict=True)]
    if math.prod(map(len, nulls)) <= 50 * ENUMERATE:
        null = np.zeros(1)
        for x in nulls:
            null = (null[:, None] + x).ravel()
    else:
        null = sum(rng.choice(x, 50 * ENUMERATE) for x in nulls)
    away = abs(null / len(nulls) - 0.5) >= abs(improvement(xs, ys) - 0.5) - 1e-12
    return float(away.mean())


def smallest_p_value(xs: Strata, ys: Strata) -> float:
    """What the test above gives at best, when every run of x beats every run of y: too few runs cannot get below 5%."""
    return 2 / math.prod(math.comb(len(x) + len(y), len(x)) for x, y in zip(xs, ys, strict=True))


def verdict(xs: Strata, ys: Strata) -> str:
    """In plain words, what the runs say about x against y."""
    least = smallest_p_value(xs, ys)
    if least > 0.05:
        return f"too few seeds to call a difference: p cannot get below {least:.2g}"
    p = p_value(xs, ys)
    if p > 0.05:
        return f"no difference shown (p = {p:.2g})"
    better = "better" if improvement(xs, ys) > 0.5 else "worse"
    return f"{better} (p {'< 0.001' if p < 0.001 else f'= {p:.2g}'})"
