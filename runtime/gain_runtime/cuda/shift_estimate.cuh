// The last kernel of a step with a tracked shift: what the sums say, by one block. Three
// reductions over the classes, and a fourth where deviations are matched.

// The longest memories, from which the ratios of the deviations are taken.
#define SCALE_WINDOWS 3
#define SHORTEST_SCALE (WINDOWS - SCALE_WINDOWS)

// Products of N differences with each other.
#define PAIRS(N) ((N) * ((N) + 1) / 2)

// Columns (5, K) of the state, the classes' shares and the newest labels (K,), and the features
// beside the head's rows (5, 64).
struct Memories {
    const real *logits, *powers, *mass, *share, *source, *beside;
};

// The prior on the classes: what share of them a count is, what is kept of how they differ, and
// the power that they get.
struct Expected {
    real inverse_count, kept, power;

    __device__ bool any() const { return kept * power > (real)0; }

    __device__ real log_prior(real mass, real most, int num_classes) const {
        if (!any()) return (real)0;
        real excess = mass * inverse_count - (real)1 / (real)num_classes;
        real share = (real)1 + (real)num_classes * kept * excess;
        return power * log(at_most(at_least(share, (real)1 / most), most));
    }
};

// The head's own patterns (K,), and its asymmetry (2,) on frames of one class and of all.
struct Patterns {
    const real *thresholds, *log_lengths, *asymmetry;
};

// What one window's frames say of themselves, and how far it may move the shift and the
// deviations. The last three are of the logarithms of the classes' deviations: the least variance,
// the mean, and how much of the rows' lengths is in them.
struct Window {
    real inverse_count, inverse_draws, scale_draws, spread, weight, along;
    real shift_reach, scale_reach, many;
    real least, log_mean, log_along;
};

// How far a frame says nothing of the next one, by the variance of all of them.
__device__ inline real independence_of(const real* fresh, real spread, const real* settings) {
    if (!(settings[INDEPENDENCE_TESTED] > (real)0)) return (real)0;
    real tiny = settings[TINY];
    real ratio = fresh[STEP_POWER] / (at_least(fresh[STEP_COUNT], tiny) * at_least(spread, tiny));
    return way_along(ratio, settings[STEP_BEGINS], settings[STEP_ENDS]);
}

// Whether each window shows one class, by the asymmetry of its frames and of longer ones': `many`
// is for the means, the answer for the deviations is how far from one class they are.
__device__ inline Reals<WINDOWS> tell_mixtures(const real* fresh, Known known,
                                               const real* settings,
                                               Window (&windows)[WINDOWS]) {
    Reals<WINDOWS> sure = {};
    real least = (real)0;
    for (int j = WINDOWS - 1; j >= 0; --j) {
        real here = leaning(j, fresh, settings);
        least = j == WINDOWS - 1 ? here : at_most(here, least);
        real way = known.way(least);
        windows[j].many = way_along(way, settings[SHIFT_BEGINS], settings[SHIFT_ENDS]);
        sure.v[j] = way_along(way, settings[SCALE_BEGINS], settings[SCALE_ENDS]);
    }
    return sure;
}

// The largest asymmetry that frames of many classes have had, after the waiting frames; of the
// reference window's the squared shares add up to `square`.
__device__ inline real mixed_asymmetry(const real* scalars, const real* fresh,
                                       const real* settings, real square, int num_classes) {
    // A guard that has tripped drops it with the sums.
    if (fresh[FRESH_TRIPPED] > (real)0) return (real)0;
    real before = scalars[MIXED_ASYMMETRY];
    if (!(settings[MIXTURE_TESTED] > (real)0)) return before;
    real few = way_along(concentration(square, num_classes), settings[SPREAD_BEGINS],
                         settings[SPREAD_ENDS]);
    real count = fresh[WINDOW_COUNT + REFERENCE_WINDOW];
    real many = ((real)1 - few) * at_most(count / settings[SURE_FRAMES], (real)1);
    real found = many * least_leaning(REFERENCE_WINDOW, fresh, settings);
    // Of what is no number, nothing is learned.
    return found > before ? found : before;
}

// How far the newest window has moved from a longer one: squared steps of the mean logits and of
// the mean features beside the head's rows, and the latter's squared length before; then the sum
// of squares of the newest labels.
struct Moves {
    real logits, beside, length, labels;
};

// Of the newest frames, a squared `step` in units of the scatter, less what chance leaves.
__device__ inline real squared_move(real step, real scatter, real inverse_count, real tiny) {
    return step / at_least(scatter, tiny) - inverse_count;
}

// How far a mixture is known: the frames counted over those of the longest window.
__device__ inline real mixture_counted(const real* fresh, const real* settings) {
    return at_most(fresh[SHARE_COUNT] / settings[HALF_LIFE], (real)1);
}

// How surely a mixture has given way to one class after the waiting frames: gain_core/departure.py.
__device__ inline real departed(const real* scalars, const real* totals, const real* fresh,
                                const real* settings, Moves moves, int num_classes,
                                const Window (&windows)[WINDOWS]) {
    // A guard that has tripped drops it with the sums.
    if (fresh[FRESH_TRIPPED] > (real)0) return (real)0;
    real before = scalars[DEPARTURE], tiny = settings[TINY];
    if (!(settings[INDEPENDENCE_TESTED] > (real)0)) return before;
    const Window &newest = windows[NEWEST_WINDOW], &longer = windows[MOVED_FROM_WINDOW];
    real chance = newest.inverse_count, even = (real)1 / (real)num_classes;
    real scatter = fresh[BESIDE_POWER + MOVED_FROM_WINDOW] * longer.inverse_count - moves.length;
    scatter = at_least(scatter, (real)0);
    real move = squared_move(moves.logits, longer.spread, chance, tiny);
    real beside = squared_move(moves.beside, scatter, chance, tiny);
    real changed = (real)0;
    if (scatter > settings[LEAST_SCATTER] * moves.length)
        changed = way_along(move, settings[MOVE_BEGINS], settings[MOVE_ENDS]) *
                  way_along(move / at_least(beside, tiny), settings[BESIDE_BEGINS],
                            settings[BESIDE_ENDS]);
    real mixed = chance + settings[FEW_SHARE] * even;
    real few = way_along(settings[HOLD] * (moves.labels - even), mixed, mixed + mixed);
    real release = at_least(few, decay_of(NEWEST_WINDOW, totals, settings));
    real kept = before * ((real)1 - changed * ((real)1 - few)) * release;
    return at_least(changed * few * mixture_counted(fresh, settings), kept);
}

// The number of draws behind each window, which comes with what its labels say of that: one where
// its frames are of one class. Among independent ones the newest labels have a say: few classes
// there are few in longer windows too, and many after a mixture that was counted are many although
// they scatter evenly. All windows are of one class as far as a mixture has `departed`.
__device__ inline void count_draws(const real* fresh, Known known, const real* settings,
                                   real independence, real departed, int num_classes,
                                   Window (&windows)[WINDOWS]) {
    for (int j = 0; j < WINDOWS; ++j) windows[j].scale_draws = windows[j].inverse_draws;
    if (!(settings[MIXTURE_TESTED] > (real)0)) return;
    Reals<WINDOWS> sure = tell_mixtures(fresh, known, settings, windows);
    real mixed = windows[NEWEST_WINDOW].inverse_count + settings[FEW_SHARE] / (real)num_classes;
    real few = way_along(windows[NEWEST_WINDOW].inverse_draws, mixed, mixed + mixed);
    real shown = (real)1 - independence * ((real)1 - few) * mixture_counted(fresh, settings);
    real newest =
        independence * at_least(few * ((real)1 - windows[NEWEST_WINDOW].many), departed);
    for (int j = 0; j < WINDOWS; ++j) {
        Window& window = windows[j];
        real single = at_least(shown * ((real)1 - window.many), newest);
        window.many = (real)1 - single;
        window.inverse_draws = at_least(window.inverse_draws, single);
        window.scale_draws = at_least(window.inverse_draws, shown * ((real)1 - sure.v[j]));
    }
}

// How far a window moves an estimate: of those shorter than `first`, as far as frames are
// independent.
__device__ inline real reach_of(int window, const real* fresh, real first, real independence) {
    if (!(fresh[WINDOW_COUNT + window] > (real)0)) return (real)0;
    return (real)window < first ? independence : (real)1;
}

// What the classes' shares, which differ from equal ones by `square`, say of the frames to come:
// how `expected`, which knows its count, goes on.
__device__ inline void expect_shares(const real* fresh, const real* settings, int num_classes,
                                     real square, real independence, real many,
                                     Expected& expected) {
    expected.kept = expected.power = (real)0;
    if (!(settings[CLASSES_EXPECTED] > (real)0) || !(fresh[SHARE_COUNT] > (real)0)) return;
    real noise = expected.inverse_count + settings[SHARE_NOISE] / (real)num_classes;
    expected.kept = at_least((real)1 - noise / at_least(square, settings[TINY]), (real)0);
    expected.power = settings[SHARE_POWER] * independence * many;
}

// What the sums say of all windows: how far a frame says nothing of the next one, how surely a
// mixture has given way to one class, the largest asymmetry of frames of many, and the sum of
// squares of the newest labels.
struct Judged {
    real independence, departure, mixed_asymmetry, labels;
};

// Adds a class's squared share of the newest labels, which are of so many frames, to their sum.
__device__ inline void add_label(real source, real inverse_count, real& sum) {
    real label = source * inverse_count;
    sum += label * label;
}

// Scatter, number of draws and how far labels explain each window's mean.
__device__ inline Judged judge_windows(Memories memories, const real* pair, const real* scalars,
                                       const real* totals, const real* fresh,
                                       const real* settings, int num_classes,
                                       Window (&windows)[WINDOWS], Expected& expected) {
    for (int j = 0; j < WINDOWS; ++j)
        windows[j].inverse_count = (real)1 / at_least(fresh[WINDOW_COUNT + j], settings[TINY]);
    expected.inverse_count = (real)1 / at_least(fresh[SHARE_COUNT], settings[TINY]);
    real newest_count = windows[NEWEST_WINDOW].inverse_count;
    real longer_count = windows[MOVED_FROM_WINDOW].inverse_count;
    enum { EXCESS = 3 * WINDOWS, LOGITS_STEP, BESIDE_STEP, BESIDE_LENGTH, LABELS, SUMS };
    Reals<SUMS> sums = {};
    for (int k = threadIdx.x; k < num_classes; k += blockDim.x) {
        real excess = memories.share[k] * expected.inverse_count - (real)1 / (real)num_classes;
        sums.v[EXCESS] += excess * excess;
        add_label(memories.source[k], newest_count, sums.v[LABELS]);
        const real* logits = memories.logits + k;
        real step = logits[(size_t)NEWEST_WINDOW * num_classes] * newest_count -
                    logits[(size_t)MOVED_FROM_WINDOW * num_classes] * longer_count;
        sums.v[LOGITS_STEP] += step * step;
        for (int j = 0; j < WINDOWS; ++j) {
            size_t at = (size_t)j * num_classes + k;
            real share = memories.mass[at] * windows[j].inverse_count;
            real mean = memories.logits[at] * windows[j].inverse_count;
            sums.v[j] += share * share;
            sums.v[WINDOWS + j] += mean * mean;
            sums.v[2 * WINDOWS + j] += memories.powers[at] * windows[j].inverse_count;
        }
    }
    for (int m = threadIdx.x; m < BESIDE_DIMS; m += blockDim.x) {
        real before = memories.beside[MOVED_FROM_WINDOW * BESIDE_DIMS + m] * longer_count;
        real step = memories.beside[NEWEST_WINDOW * BESIDE_DIMS + m] * newest_count - before;
        sums.v[BESIDE_STEP] += step * step;
        sums.v[BESIDE_LENGTH] += before * before;
    }
    sums = over_block(sums, Sum());
    real views = (real)1;
    for (int j = 0; j < WINDOWS; ++j) {
        Window& window = windows[j];
        real length = sums.v[WINDOWS + j], spread = sums.v[2 * WINDOWS + j] - length;
        window.inverse_draws =
            at_least(sums.v[j] - (real)1 / (real)num_classes, window.inverse_count);
        window.spread = at_least(spread, (real)0);
        window.least =
            at_least(settings[LEAST_VARIANCE] * spread / (real)num_classes, settings[TINY]);
        real held = at_least(settings[LEAST_POWER] * window.spread, settings[TINY]);
        // Labels explain as much as the classes seen are few, whatever the frames look like.
        window.weight = at_most(settings[LABEL_DRAWS] * window.inverse_draws, (real)1) *
                        at_most(length / held, (real)1) * fresh[FRESH_SCALE];
        real held_still = settings[LEAST_SPREAD] * length;
        views = at_least(held_still / at_least(window.spread, settings[TINY]), views);
    }
    real independence = independence_of(fresh, windows[WINDOWS - 1].spread, settings);
    Moves moves = {sums.v[LOGITS_STEP], sums.v[BESIDE_STEP], sums.v[BESIDE_LENGTH],
                   sums.v[LABELS]};
    real departure = departed(scalars, totals, fresh, settings, moves, num_classes, windows);
    real mixed =
        mixed_asymmetry(scalars, fresh, settings, sums.v[REFERENCE_WINDOW], num_classes);
    Known known = known_asymmetry(pair, fresh, mixed, moves.labels, num_classes, settings);
    count_draws(fresh, known, settings, independence, departure, num_classes, windows);
    expect_shares(fresh, settings, num_classes, sums.v[EXCESS], independence,
                  windows[WINDOWS - 1].many, expected);
    for (int j = 0; j < WINDOWS; ++j) {
        Window& window = windows[j];
        // Views of one thing, in any memory: their deviations are rounding's or a sensor's.
        window.scale_draws = at_least(window.scale_draws * views, views - (real)1);
        window.shift_reach = reach_of(j, fresh, settings[FIRST_SHIFT_WINDOW], independence);
        window.scale_reach = reach_of(j, fresh, settings[FIRST_SCALE_WINDOW], independence);
    }
    return Judged{independence, departure, mixed, moves.labels};
}

// Takes what the labels explain out of the means, into `moved` (5, K), which holds the explained
// part before, and writes the logarithms of the longer memories' deviations, `logs` (3, K); then
// finds how much of the head's own patterns is in both.
__device__ inline void take_patterns(Memories memories, Patterns patterns, const real* settings,
                                     int num_classes, Window (&windows)[WINDOWS], real* moved,
                                     real* logs) {
    bool matched = settings[SCALE_MATCHED] > (real)0;
    enum { THRESHOLDS = WINDOWS, LENGTHS, LOG_SUMS, ALONG = LOG_SUMS + SCALE_WINDOWS };
    Reals<ALONG + SCALE_WINDOWS> sums = {};
    for (int k = threadIdx.x; k < num_classes; k += blockDim.x) {
        real threshold = patterns.thresholds[k], log_length = patterns.log_lengths[k];
        for (int j = 0; j < WINDOWS; ++j) {
            size_t at = (size_t)j * num_classes + k;
            real mean = memories.logits[at] * windows[j].inverse_count;
            real rest = mean - windows[j].weight * moved[at];
            moved[at] = rest;
            sums.v[j] += rest * threshold;
            int i = j - SHORTEST_SCALE;
            if (!matched || i < 0) continue;
            real power = memories.powers[at] * windows[j].inverse_count - mean * mean;
            real value = (real)0.5 * log(at_least(power, windows[j].least));
            logs[(size_t)i * num_classes + k] = value;
            sums.v[LOG_SUMS + i] += value;
            sums.v[ALONG + i] += value * log_length;
        }
        sums.v[THRESHOLDS] += threshold * threshold;
        sums.v[LENGTHS] += log_length * log_length;
    }
    sums = over_block(sums, Sum());
    real threshold_power = at_least(sums.v[THRESHOLDS], settings[TINY]);
    real length_power = at_least(sums.v[LENGTHS], settings[TINY]);
    for (int j = 0; j < WINDOWS; ++j) {
        windows[j].along = at_most(at_least(sums.v[j] / threshold_power, (real)0), (real)1);
        int i = j - SHORTEST_SCALE;
        if (i < 0) continue;
        // The lengths' logarithms add up to zero, so that the mean drops out of the product.
        real along = sums.v[ALONG + i] / length_power;
        windows[j].log_mean = sums.v[LOG_SUMS + i] / (real)num_classes;
        windows[j].log_along = at_most(at_least(along, (real)0), (real)1);
    }
}

// Class k of every window's mean less the next longer one's; of the longest, the mean.
__device__ inline void mean_steps(const real* moved, real threshold, int k, int num_classes,
                                  const Window (&windows)[WINDOWS], real (&steps)[WINDOWS]) {
    real longer = (real)0;
    for (int j = WINDOWS - 1; j >= 0; --j) {
        real mean = moved[(size_t)j * num_classes + k] - windows[j].along * threshold;
        steps[j] = mean - longer;
        longer = mean;
    }
}

// The same of the logarithms of the deviations.
__device__ inline void log_steps(const real* logs, real log_length, int k, int num_classes,
                                 const Window (&windows)[WINDOWS], real (&steps)[SCALE_WINDOWS]) {
    real longer = (real)0;
    for (int i = SCALE_WINDOWS - 1; i >= 0; --i) {
        const Window& window = windows[SHORTEST_SCALE + i];
        real centered = logs[(size_t)i * num_classes + k] - window.log_mean;
        real value = centered - window.log_along * log_length;
        steps[i] = value - longer;
        longer = value;
    }
}

template <int N>
__device__ inline void add_products(const real (&steps)[N], real* products) {
    for (int i = 0; i < N; ++i)
        for (int j = i; j < N; ++j) *products++ += steps[i] * steps[j];
}

// From the longest of N windows to the shortest: the estimate goes a part of the way towards each.
// A step is a sum of the windows' differences, step_j = d_j + (1 - kept) step_j+1, so that their
// products, found in one pass, give the square of every step.
template <int N>
struct Walk {
    // Parts of each difference in the step at hand, and in the estimate.
    real step[N], whole[N], kept;

    // The square of the step to window j.
    __device__ real towards(int j, const real* products) {
        for (int i = j + 1; i < N; ++i) step[i] *= (real)1 - kept;
        step[j] = (real)1;
        real power = (real)0;
        for (int a = 0; a < N; ++a)
            for (int b = a; b < N; ++b)
                power += (a == b ? (real)1 : (real)2) * step[a] * step[b] * *products++;
        return at_least(power, (real)0);
    }

    __device__ void go(int j, real part) {
        kept = part;
        for (int i = j; i < N; ++i) whole[i] += part * step[i];
    }

    __device__ real sum(const real (&steps)[N]) const {
        real value = (real)0;
        for (int i = N - 1; i >= 0; --i) value += whole[i] * steps[i];
        return value;
    }
};

// The shift goes towards each window's mean as far as the step exceeds its noise.
__device__ inline Walk<WINDOWS> shrink(const real* products, const Window (&windows)[WINDOWS],
                                       const real* settings, int num_classes, real independence,
                                       real& variance, real& trust) {
    Walk<WINDOWS> walk = {};
    real margin = settings[SHRINKAGE] * ((real)1 - settings[SLACK] * independence);
    variance = trust = (real)0;
    for (int j = WINDOWS - 1; j >= 0; --j) {
        const Window& window = windows[j];
        real power = walk.towards(j, products), tiny = settings[TINY];
        real alike = (real)1 - window.spread / at_least(settings[LEAST_SPREAD] * power, tiny);
        real noise = (window.spread + power) * at_least(alike, window.inverse_draws);
        real ratio = (real)1 - margin * noise / at_least(power, tiny);
        real kept = window.shift_reach * at_least(ratio, (real)0);
        real own = noise / (real)num_classes;
        variance = j == WINDOWS - 1 ? own : variance + kept * (own - variance);
        trust += kept * ((real)1 - trust);
        walk.go(j, kept);
    }
    if (!(windows[WINDOWS - 1].shift_reach > (real)0)) variance = (real)0;
    return walk;
}

// The same of the logarithms of the deviations; `found` is whether anything was kept.
__device__ inline Walk<SCALE_WINDOWS> shrink_logs(const real* products,
                                                  const Window (&windows)[WINDOWS],
                                                  const real* settings, int num_classes,
                                                  bool& found) {
    Walk<SCALE_WINDOWS> walk = {};
    found = false;
    for (int i = SCALE_WINDOWS - 1; i >= 0 && settings[SCALE_MATCHED] > (real)0; --i) {
        const Window& window = windows[SHORTEST_SCALE + i];
        real power = at_least(walk.towards(i, products), settings[TINY]);
        real noise = settings[SCALE_NOISE] * (real)num_classes * window.scale_draws;
        real ratio = (real)1 - settings[SHRINKAGE] * noise / power;
        real kept = window.scale_reach * at_least(ratio, (real)0);
        if (kept > (real)0) found = true;
        walk.go(i, kept);
    }
    return walk;
}

// Factors that take the found logarithms away and leave the logits' mean square what it is.
template <class Found>
__device__ inline void match_scale(const real* longest, real log_mean, int num_classes, Found found,
                                   real* stretch) {
    Reals<2> sums = row_sums_of<2>(num_classes, [=](int k, real (&v)[2]) {
        real power = exp((real)2 * (longest[k] - log_mean)), factor = exp(-found(k));
        stretch[k] = factor;
        v[0] += power;
        v[1] += power * factor * factor;
    });
    real level = sqrt(sums.v[0] / sums.v[1]);
    for (int k = threadIdx.x; k < num_classes; k += blockDim.x) stretch[k] *= level;
}

// The guard after the waiting frames.
__device__ inline void watch(const real* fresh, const real* totals, const real* settings,
                             real* scalars) {
    bool tripped = fresh[FRESH_TRIPPED] > (real)0, watching = !(scalars[GUARD_HOLD] > (real)0);
    real trips = scalars[GUARD_TRIPS];
    real added = settings[GUARDED] > (real)0 ? totals[COUNT] : (real)0;
    real hold = at_least(scalars[GUARD_HOLD] - added, (real)0);
    if (tripped) hold = settings[FIRST_HOLD] * exp2(at_most(trips, settings[MOST_DOUBLINGS]));
    for (int i = 0; i < 3; ++i)
        scalars[GUARD_COUNT + i] = watching && !tripped ? fresh[FRESH_GUARD + i] : (real)0;
    scalars[GUARD_HOLD] = hold;
    scalars[GUARD_TRIPS] = trips + (tripped ? (real)1 : (real)0);
}

// The shift on its way from the old one to the new one, both (3, K): `revised` holds the old one
// before. A thread has its own classes in both, see `block_sums.cuh`.
__device__ inline void go_between(const real* shift, real independence, int num_classes,
                                  real* revised) {
    for (int k = threadIdx.x; k < num_classes; k += blockDim.x)
        for (int row = 0; row < 3; ++row) {
            size_t at = (size_t)row * num_classes + k;
            revised[at] += independence * (shift[at] - revised[at]);
        }
}

// What follows from the waiting frames beside the sums and the guard.
struct Found {
    Judged judged;
    real variance, trust;
    bool moved;
};

// Every number of the state, by one thread, and what a revision needs.
__device__ inline void settle(const real* fresh, const real* settings, Found found, real* scalars,
                              real* totals) {
    real independence = found.judged.independence;
    bool held = scalars[GUARD_HOLD] > (real)0, moved = scalars[MOVED] > (real)0;
    real variance = scalars[VARIANCE];
    watch(fresh, totals, settings, scalars);
    for (int i = 0; i < FRESH_SCALE; ++i) scalars[i] = fresh[i];
    scalars[DEPARTURE] = found.judged.departure;
    scalars[MIXED_ASYMMETRY] = found.judged.mixed_asymmetry;
    scalars[VARIANCE] = found.variance;
    scalars[TRUST] = found.trust;
    scalars[INDEPENDENCE] = independence;
    scalars[MOVED] = found.moved ? (real)1 : (real)0;
    scalars[NEWEST_LABELS] = found.judged.labels;
    // A guard that has tripped or let go answers otherwise, independent frames or not.
    bool turned = held != (scalars[GUARD_HOLD] > (real)0);
    scalars[REVISED] = turned || independence > (real)0 ? (real)1 : (real)0;
    scalars[REVISED_VARIANCE] = variance + independence * (found.variance - variance);
    scalars[REVISED_MOVED] = moved || found.moved ? (real)1 : (real)0;
    for (int i = 0; i < TOTALS; ++i) totals[i] = (real)0;
}

// One block: the shrunken shift, the matched deviations, and every number of the state. `moved`
// (5, K) holds what the classes explain; `logs` (3, K) is working memory; `totals` is emptied.
// `shift` (3, K) is what predictions read, and `revised` (3, K) gets what a revision predicts with.
extern "C" __global__ void __launch_bounds__(MAX_THREADS) shift_estimate(
    const real* window_logits, const real* window_powers, const real* window_mass,
    const real* share_mass, const real* newest_source, const real* window_beside,
    const real* thresholds, const real* log_lengths, const real* asymmetry, const real* settings,
    const real* fresh, int num_classes, real* scalars, real* totals, real* moved, real* logs,
    real* shift, real* revised) {
    Memories memories = {window_logits, window_powers, window_mass,
                         share_mass,    newest_source, window_beside};
    Patterns patterns = {thresholds, log_lengths, asymmetry};
    Window windows[WINDOWS] = {};
    Expected expected;
    Judged judged = judge_windows(memories, asymmetry, scalars, totals, fresh, settings,
                                  num_classes, windows, expected);
    real independence = judged.independence;
    take_patterns(memories, patterns, settings, num_classes, windows, moved, logs);
    Reals<PAIRS(WINDOWS) + PAIRS(SCALE_WINDOWS)> products = {};
    bool matched = settings[SCALE_MATCHED] > (real)0;
    for (int k = threadIdx.x; k < num_classes; k += blockDim.x) {
        real means[WINDOWS], deviations[SCALE_WINDOWS];
        mean_steps(moved, thresholds[k], k, num_classes, windows, means);
        add_products(means, products.v);
        if (!matched) continue;
        log_steps(logs, log_lengths[k], k, num_classes, windows, deviations);
        add_products(deviations, products.v + PAIRS(WINDOWS));
    }
    products = over_block(products, Sum());
    real variance, trust;
    bool found;
    auto walk =
        shrink(products.v, windows, settings, num_classes, independence, variance, trust);
    auto scale =
        shrink_logs(products.v + PAIRS(WINDOWS), windows, settings, num_classes, found);
    for (int k = threadIdx.x; k < num_classes; k += blockDim.x) {
        real means[WINDOWS];
        mean_steps(moved, thresholds[k], k, num_classes, windows, means);
        real* now = shift + k;
        for (int row = 0; row < 3; ++row)
            revised[(size_t)row * num_classes + k] = now[(size_t)row * num_classes];
        now[0] = walk.sum(means);
        now[num_classes] = (real)1;
        now[2 * (size_t)num_classes] =
            expected.log_prior(share_mass[k], settings[MOST_SHARE], num_classes);
    }
    // Every thread has found the same, so that all of them come to the reduction or none.
    if (found)
        match_scale(
            logs + (size_t)(SCALE_WINDOWS - 1) * num_classes, windows[WINDOWS - 1].log_mean,
            num_classes,
            [=](int k) {
                real deviations[SCALE_WINDOWS];
                log_steps(logs, log_lengths[k], k, num_classes, windows, deviations);
                return scale.sum(deviations);
            },
            shift + num_classes);
    go_between(shift, independence, num_classes, revised);
    if (threadIdx.x != 0) return;
    bool anything = trust > (real)0 || found || expected.any();
    settle(fresh, settings, Found{judged, variance, trust, anything}, scalars, totals);
}

// One block: of a state that was loaded, what the estimate left of its newest labels (K,). Found in
// the same order and by as many threads, so that a stream goes on to the last bit as it would have.
extern "C" __global__ void __launch_bounds__(MAX_THREADS) shift_labels(
    const real* newest_source, const real* settings, int num_classes, real* scalars) {
    real inverse_count =
        (real)1 / at_least(scalars[WINDOW_COUNT + NEWEST_WINDOW], settings[TINY]);
    Reals<1> sum = row_sums_of<1>(num_classes, [=](int k, real (&v)[1]) {
        add_label(newest_source[k], inverse_count, v[0]);
    });
    if (threadIdx.x == 0) scalars[NEWEST_LABELS] = sum.v[0];
}
