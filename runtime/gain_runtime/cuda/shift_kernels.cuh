// One step of GAIN with a tracked shift of the logits: gain_core/shift.py and guard.py.
//
// A batch is predicted, its sums are added to those that wait, and a flush learns from them:
// forget, project, gather, explain and, in a file of its own, estimate, in this order. The scalars
// of the state change in the last one only, so that the others compute from the old ones what is
// new, each for itself. A batch that was learned from at once may be predicted again after that.

// What is left of window j's sums after the waiting frames; the longest is the last.
__device__ inline real decay_of(int window, const real* totals, const real* settings) {
    return exp(settings[WINDOW_RATE + window] * totals[COUNT]);
}

// The same of the classes' shares.
__device__ inline real share_decay_of(const real* totals, const real* settings) {
    return exp(settings[SHARE_RATE] * totals[COUNT]);
}

// The way from the one end of a ramp to the other, none to all of it.
__device__ inline real way_along(real value, real begins, real ends) {
    return at_most(at_least((value - begins) / (ends - begins), (real)0), (real)1);
}

// Asymmetry of window j's frames by sums as in `scalars`.
__device__ inline real leaning(int window, const real* sums, const real* settings) {
    return sums[WINDOW_LEAN + window] / at_least(sums[WINDOW_RANGE + window], settings[TINY]);
}

// The least of window `first` and longer ones.
__device__ inline real least_leaning(int first, const real* sums, const real* settings) {
    real least = leaning(WINDOWS - 1, sums, settings);
    for (int j = WINDOWS - 2; j >= first; --j) least = at_most(leaning(j, sums, settings), least);
    return least;
}

// Asymmetry of frames of one class and of all.
struct Known {
    real single, all;

    // How far from the one to the other.
    __device__ real way(real asymmetry) const { return (asymmetry - single) / (all - single); }
};

// How few classes labels are of whose squared shares add up to `square`: 0 where all are alike, 1
// where there is one.
__device__ inline real concentration(real square, int num_classes) {
    real even = (real)1 / (real)num_classes;
    return (square - even) / ((real)1 - even);
}

// The guess of what single classes have, `most` at most: the less the more classes the source's
// `count` newest labels are of, whose squared shares add up to `labels`.
__device__ inline real guessed_single(real most, real labels, real count, int num_classes,
                                      const real* settings) {
    real few = concentration(labels, num_classes) - (real)1 / at_least(count, settings[TINY]);
    real way = way_along(few, settings[GUESS_BEGINS], settings[GUESS_ENDS]);
    return settings[LEAST_SINGLE] + way * (most - settings[LEAST_SINGLE]);
}

// The head's own `pair` (2,) where it was measured; else a guess, by the newest `labels` of `sums`
// as in `scalars`, until frames of many classes have had an asymmetry, `mixed` at most, that is to
// be believed.
__device__ inline Known known_asymmetry(const real* pair, const real* sums, real mixed,
                                        real labels, int num_classes, const real* settings) {
    Known known = {pair[0], pair[1]};
    if (settings[MEASURED] > (real)0) return known;
    real count = sums[WINDOW_COUNT + NEWEST_WINDOW];
    known.single = guessed_single(known.single, labels, count, num_classes, settings);
    real believed = way_along(mixed, settings[LEARNED_BEGINS], settings[LEARNED_ENDS]);
    known.single += believed * (settings[SINGLE_SHARE] * mixed - known.single);
    known.all += believed * (mixed - known.all);
    return known;
}

// w: how surely what was seen last is a mixture whose labels can be counted. `pair` (2,) is the
// head's asymmetry on frames of one class and of all.
__device__ inline real counted(const real* scalars, const real* pair, int num_classes,
                               const real* settings) {
    if (!(settings[CLASSES_EXPECTED] > (real)0) || !(scalars[WINDOW_COUNT] > (real)0))
        return (real)0;
    Known known = known_asymmetry(pair, scalars, scalars[MIXED_ASYMMETRY], scalars[NEWEST_LABELS],
                                  num_classes, settings);
    real way = known.way(least_leaning(0, scalars, settings));
    return way_along(way, settings[SHARE_BEGINS], settings[SHARE_ENDS]);
}

// Whether the guard drops what was learned; `now` gets its three sums with the waiting frames.
__device__ inline bool guard_trips(const real* scalars, const real* totals, const real* settings,
                                   real (&now)[3]) {
    bool guarded = settings[GUARDED] > (real)0;
    real decay = guarded ? exp(settings[GUARD_RATE] * totals[COUNT]) : (real)1;
    const int added[3] = {COUNT, AGREEMENT, CONFIDENCE};
    for (int i = 0; i < 3; ++i)
        now[i] = scalars[GUARD_COUNT + i] * decay + (guarded ? totals[added[i]] : (real)0);
    real chance = now[0] * settings[GUARD_CHANCE];
    return !(scalars[GUARD_HOLD] > (real)0) && now[0] >= settings[MIN_FRAMES] &&
           now[1] - chance < settings[LEAST_RATIO] * (now[2] - chance);
}

// A batch: features (B, D) and logits (B, K).
struct Batch {
    const real *features, *logits;
    int num_classes, feature_dim;
};

// A shift, rows of (3, K): what is taken out of the centred logits, what multiplies them then, and
// the logarithm of the prior on the classes.
struct Shift {
    const real *vector, *stretch, *log_prior;
};

__device__ inline Shift shift_of(const real* rows, int num_classes) {
    return Shift{rows, rows + num_classes, rows + 2 * (size_t)num_classes};
}

// A shift and what goes with it; whether there is any.
struct Shifted {
    Shift shift;
    real variance;
    bool adapt;
};

// Scores of what a frame is learned as: of its proposal without the prior on the classes, which
// would confirm itself, and of the source where nothing is proposed.
struct Unprejudiced {
    const real *log_s, *vector, *stretch;
    real mean;
    bool adapt;

    __device__ real operator()(int k) const {
        return adapt ? (log_s[k] - mean - vector[k]) * stretch[k] : log_s[k];
    }
};

// Whether a correction is proposed.
__device__ inline bool adapts(const real* scalars) {
    return scalars[MOVED] > (real)0 && !(scalars[GUARD_HOLD] > (real)0);
}

// The block's row: the source with a shift of its centred logits taken out, their deviations
// matched and the prior put in, which the evaluator has twice.
__device__ inline void predict_shifted(Batch batch, Shifted shifted, real log_floor, int num_iters,
                                       real* source, RowResult into) {
    int num_classes = batch.num_classes, feature_dim = batch.feature_dim;
    real* log_s = source + (size_t)blockIdx.x * num_classes;
    SourceRow said = source_row(batch.features + (size_t)blockIdx.x * feature_dim,
                                batch.logits + (size_t)blockIdx.x * num_classes, num_classes,
                                feature_dim, log_s);
    // pi / 4: the probit approximation for a difference of two logits.
    real spread = sqrt((real)1 + (real)0.78539816339744830962 * shifted.variance);
    Unprejudiced without = {log_s, shifted.shift.vector, shifted.shift.stretch, said.mean, true};
    const real* log_prior = shifted.shift.log_prior;
    auto proposal = [=](int k) { return without(k) + log_prior[k]; };
    auto evaluator = [=](int k) { return proposal(k) / spread + log_prior[k]; };
    predict_row(proposal, evaluator, log_s, shifted.adapt, log_floor, num_iters, num_classes,
                said.finite, into);
}

extern "C" __global__ void __launch_bounds__(MAX_THREADS) predict_shift(
    const real* features, const real* logits, const real* shift, const real* scalars,
    real log_floor, int num_iters, int num_classes, int feature_dim, real* probs, real* log_probs,
    real* source, real* strength, real* gain, bool* row_finite) {
    Shifted shifted = {shift_of(shift, num_classes), scalars[VARIANCE], adapts(scalars)};
    predict_shifted(Batch{features, logits, num_classes, feature_dim}, shifted, log_floor,
                    num_iters, source,
                    row_of(probs, log_probs, strength, gain, row_finite, num_classes));
}

// Predicts a batch that has been learned from once more, with the shift on its way to the new one;
// where frames are not independent and the guard is as it was, everything stays as it is.
extern "C" __global__ void __launch_bounds__(MAX_THREADS) revise_shift(
    const real* features, const real* logits, const real* revised, const real* scalars,
    real log_floor, int num_iters, int num_classes, int feature_dim, real* probs, real* log_probs,
    real* source, real* strength, real* gain, bool* row_finite, bool* finite) {
    if (!(scalars[REVISED] > (real)0)) return;
    bool adapt = scalars[REVISED_MOVED] > (real)0 && !(scalars[GUARD_HOLD] > (real)0);
    Shifted shifted = {shift_of(revised, num_classes), scalars[REVISED_VARIANCE], adapt};
    predict_shifted(Batch{features, logits, num_classes, feature_dim}, shifted, log_floor,
                    num_iters, source,
                    row_of(probs, log_probs, strength, gain, row_finite, num_classes));
    // The batch's flag was set by its first prediction; a single row takes it.
    if (threadIdx.x == 0 && !row_finite[blockIdx.x]) finite[0] = false;
}

// The adapted class, the source's, the sums of log s of a row and of the one before it, and how far
// up and down it reaches from the mean of the reference memory.
struct RowHead {
    Place adapted, first;
    real sum, sum_before, top, bottom;
};

__device__ inline RowHead lane_swap(RowHead head, int mask) {
    Reals<4> numbers =
        lane_swap(Reals<4>{{head.sum, head.sum_before, head.top, head.bottom}}, mask);
    return RowHead{lane_swap(head.adapted, mask), lane_swap(head.first, mask), numbers.v[0],
                   numbers.v[1], numbers.v[2], numbers.v[3]};
}

struct MergeHeads {
    __device__ RowHead operator()(const RowHead& a, const RowHead& b) const {
        return RowHead{first_largest(a.adapted, b.adapted), first_largest(a.first, b.first),
                       a.sum + b.sum, a.sum_before + b.sum_before, at_least(a.top, b.top),
                       at_most(a.bottom, b.bottom)};
    }
};

struct FirstLargest {
    __device__ Place operator()(const Place& a, const Place& b) const {
        return first_largest(a, b);
    }
};

// The class that a row's frame is learned as. Every thread of the block comes here.
__device__ inline Place learned_class(Unprejudiced scores, int num_classes) {
    Place best = nowhere();
    for (int k = threadIdx.x; k < num_classes; k += blockDim.x)
        best = first_largest(best, Place{scores(k), k});
    return over_block(best, FirstLargest());
}

// Of the block's row: the squared step to it from the one before, which of the first row is the
// `newest` frame that came before the batch, its x (K,); and, where classes are `expected`, the sum
// of exp(score - peak). Every thread of the block comes here.
__device__ inline Reals<2> step_and_total(Unprejudiced scores, const real* newest,
                                          real middle_before, bool expected, real peak,
                                          int num_classes) {
    bool first = blockIdx.x == 0;
    return row_sums_of<2>(num_classes, [=](int k, real (&v)[2]) {
        real before = first ? newest[k] : scores.log_s[k - num_classes] - middle_before;
        real step = scores.log_s[k] - scores.mean - before;
        v[0] += step * step;
        if (expected) v[1] += exp(scores(k) - peak);
    });
}

// Projections that a block finds of a row's features; BESIDE_DIMS / BESIDE_PART blocks take a row.
#define BESIDE_PART 8
// Where they stand in `row_sums`.
#define FIRST_BESIDE (2 + TOTALS)

// Of a row's features (D,), what some rows of `beside` (64, D) make: 0 where it was rejected. The
// blocks behind the rows' own do this beside them, so that one launch has both.
__device__ inline void project_beside(const real* features, const real* beside, bool accepted,
                                      real most_power, int batch_size, int feature_dim,
                                      real* row_sums) {
    int block = blockIdx.x - batch_size, row = block % batch_size;
    int first = block / batch_size * BESIDE_PART;
    features += (size_t)row * feature_dim;
    beside += (size_t)first * feature_dim;
    Reals<BESIDE_PART> sums =
        row_sums_of<BESIDE_PART>(feature_dim, [=](int d, real (&v)[BESIDE_PART]) {
            for (int i = 0; i < BESIDE_PART; ++i)
                v[i] += features[d] * beside[(size_t)i * feature_dim + d];
        });
    if (threadIdx.x != 0) return;
    row_sums += (size_t)(FIRST_BESIDE + first) * batch_size + row;
    for (int i = 0; i < BESIDE_PART; ++i) {
        // A NaN, which an overflow may leave, is below nothing.
        bool fits = accepted && sums.v[i] * sums.v[i] < most_power;
        row_sums[(size_t)i * batch_size] = fits ? sums.v[i] : (real)0;
    }
}

// What a row gives: `row_sums` (75, B) holds the mean of log s, then the row's `totals`, then the
// log-sum-exp of its unprejudiced scores, which is read where classes are expected, then its
// features beside the head's rows, where there are blocks for them. The `reference` (K,) is the sum
// of logits, over `reference_count` frames, that rows lean about; `newest` (K + 1,) the x of the
// frame before the batch, and whether there was one.
extern "C" __global__ void __launch_bounds__(MAX_THREADS) shift_rows(
    const real* probs, const real* source, const bool* finite, const real* shift,
    const real* scalars, const real* row_squares, const real* reference,
    const real* reference_count, const real* newest, const real* settings, const real* features,
    const real* beside, int batch_size, int num_classes, int feature_dim, real* row_sums) {
    if ((int)blockIdx.x >= batch_size) {
        project_beside(features, beside, finite[0], settings[MOST_POWER], batch_size, feature_dim,
                       row_sums);
        return;
    }
    size_t row = (size_t)blockIdx.x * num_classes;
    const real *adapted = probs + row, *log_s = source + row;
    real count = at_least(reference_count[0], settings[TINY]);
    RowHead head = RowHead{nowhere(), nowhere(), (real)0, (real)0, lowest(), -lowest()};
    for (int k = threadIdx.x; k < num_classes; k += blockDim.x) {
        real y = log_s[k] - reference[k] / count;
        real before = blockIdx.x == 0 ? (real)0 : log_s[k - num_classes];
        head = MergeHeads()(head, RowHead{{adapted[k], k}, {log_s[k], k}, log_s[k], before, y, y});
    }
    head = over_block(head, MergeHeads());
    real middle = head.sum / (real)num_classes;
    real middle_before = head.sum_before / (real)num_classes;
    Shift now = shift_of(shift, num_classes);
    bool expected = settings[CLASSES_EXPECTED] > (real)0;
    Unprejudiced scores = {log_s, now.vector, now.stretch, middle, adapts(scalars)};
    Place learned = expected ? learned_class(scores, num_classes) : head.adapted;
    Reals<2> sums =
        step_and_total(scores, newest, middle_before, expected, learned.value, num_classes);
    if (threadIdx.x != 0) return;
    // A row of NaN has no largest place: nothing may be read by it.
    real values[2 + TOTALS] = {};
    if (finite[0]) {
        int chosen = learned.index;
        real own = log_s[chosen] - middle - now.vector[chosen];
        real weighted = exp(log_s[chosen]) * row_squares[chosen];
        // There is nothing to reach from before the first frame.
        bool known = reference_count[0] > (real)0;
        bool follows = blockIdx.x > 0 || newest[num_classes] > (real)0;
        values[0] = middle;
        values[1 + LEAN] = known ? head.top - middle + (head.bottom - middle) : (real)0;
        values[1 + RANGE] = known ? head.top - head.bottom : (real)0;
        values[1 + STEPS] = follows ? (real)0.5 * sums.v[0] : (real)0;
        values[1 + FOLLOWERS] = follows ? (real)1 : (real)0;
        values[1 + NUMERATOR] = weighted * own;
        values[1 + DENOMINATOR] = weighted * row_squares[chosen];
        values[1 + COUNT] = (real)1;
        values[1 + AGREEMENT] = (real)(head.adapted.index == head.first.index);
        values[1 + CONFIDENCE] = exp(head.first.value);
        values[1 + TOTALS] = expected ? learned.value + log(sums.v[1]) : (real)0;
    }
    for (int i = 0; i < 2 + TOTALS; ++i) row_sums[(size_t)i * batch_size + blockIdx.x] = values[i];
}

// The sum of a row (B,) of `row_sums` and that of its squares.
__device__ inline Reals<2> over_batch(const real* values, int batch_size) {
    Reals<2> sums = {};
    for (int b = 0; b < batch_size; ++b) {
        sums.v[0] += values[b];
        sums.v[1] += values[b] * values[b];
    }
    return sums;
}

// Adds a batch to the frames that wait: columns of `waiting` (4, K), logits above their squares
// above mass above the source's, then `totals` (9,), then the first `beside_dims` columns of
// `waiting_beside` (2, 64), features beside the head's rows above their squares: all of them or, if
// nobody has found any, none. The batch's last frame becomes the `newest` (K + 1,).
extern "C" __global__ void __launch_bounds__(MAX_THREADS) shift_sums(
    const real* probs, const real* source, const bool* finite, const real* shift,
    const real* scalars, const real* settings, const real* row_sums, int batch_size,
    int num_classes, int beside_dims, real* waiting, real* waiting_beside, real* totals,
    real* newest) {
    bool expected = settings[CLASSES_EXPECTED] > (real)0, adapt = adapts(scalars);
    Shift now = shift_of(shift, num_classes);
    const real* rests = row_sums + (size_t)(1 + TOTALS) * batch_size;
    int stride = gridDim.x * blockDim.x, columns = num_classes + TOTALS + beside_dims;
    for (int column = blockIdx.x * blockDim.x + threadIdx.x; column < columns; column += stride) {
        if (column == num_classes) newest[column] = finite[0] ? (real)1 : (real)0;
        if (column >= num_classes + TOTALS) {
            int m = column - num_classes - TOTALS;
            Reals<2> sums =
                over_batch(row_sums + (size_t)(FIRST_BESIDE + m) * batch_size, batch_size);
            waiting_beside[m] += sums.v[0];
            waiting_beside[BESIDE_DIMS + m] += sums.v[1];
            continue;
        }
        if (column >= num_classes) {
            int i = column - num_classes;
            totals[i] += over_batch(row_sums + (size_t)(1 + i) * batch_size, batch_size).v[0];
            continue;
        }
        real logits = (real)0, powers = (real)0, mass = (real)0, said = (real)0, last = (real)0;
        for (int b = 0; finite[0] && b < batch_size; ++b) {
            size_t at = (size_t)b * num_classes + column;
            last = source[at] - row_sums[b];
            logits += last;
            powers += last * last;
            Unprejudiced scores = {source + at - column, now.vector, now.stretch, row_sums[b],
                                   adapt};
            mass += expected ? exp(scores(column) - rests[b]) : probs[at];
            said += exp(source[at]);
        }
        waiting[column] += logits;
        waiting[num_classes + column] += powers;
        waiting[2 * num_classes + column] += mass;
        waiting[3 * num_classes + column] += said;
        newest[column] = last;
    }
}

// The state's sums with the waiting frames in them, by one thread of `shift_forget`; those have the
// power `beside`.
__device__ inline void refresh(const real* scalars, const real* totals, const real* settings,
                               real weight, real beside, bool tripped, const real (&guard)[3],
                               real* fresh) {
    real kept = tripped ? (real)0 : (real)1;
    for (int j = 0; j < WINDOWS; ++j) {
        real decay = decay_of(j, totals, settings);
        int count = WINDOW_COUNT + j, lean = WINDOW_LEAN + j, range = WINDOW_RANGE + j;
        int power = BESIDE_POWER + j;
        fresh[count] = (scalars[count] * decay + totals[COUNT]) * kept;
        fresh[lean] = (scalars[lean] * decay + totals[LEAN]) * kept;
        fresh[range] = (scalars[range] * decay + totals[RANGE]) * kept;
        fresh[power] = (scalars[power] * decay + beside) * kept;
    }
    real share_decay = share_decay_of(totals, settings);
    fresh[SHARE_COUNT] = (scalars[SHARE_COUNT] * share_decay + weight * totals[COUNT]) * kept;
    real longest = decay_of(WINDOWS - 1, totals, settings);
    fresh[STEP_POWER] = (scalars[STEP_POWER] * longest + totals[STEPS]) * kept;
    fresh[STEP_COUNT] = (scalars[STEP_COUNT] * longest + totals[FOLLOWERS]) * kept;
    real decay = exp(settings[SCALE_RATE] * totals[COUNT]);
    real above = (scalars[SCALE_NUMERATOR] * decay + totals[NUMERATOR]) * kept;
    real below = (scalars[SCALE_DENOMINATOR] * decay + totals[DENOMINATOR]) * kept;
    fresh[SCALE_NUMERATOR] = above;
    fresh[SCALE_DENOMINATOR] = below;
    fresh[FRESH_SCALE] = at_least(above / at_least(below, settings[TINY]), (real)0);
    fresh[FRESH_TRIPPED] = tripped ? (real)1 : (real)0;
    for (int i = 0; i < 3; ++i) fresh[FRESH_GUARD + i] = guard[i];
}

// The same of the features beside the head's rows, `window` (5, 64), by one block; the power of the
// waiting ones. Every thread of the block comes here.
__device__ inline real forget_beside(const real (&decay)[WINDOWS], real kept, real* window,
                                     real* waiting) {
    real power = (real)0;
    for (int m = threadIdx.x; m < BESIDE_DIMS; m += blockDim.x) {
        for (int j = 0; j < WINDOWS; ++j) {
            real* sum = window + j * BESIDE_DIMS + m;
            *sum = (*sum * decay[j] + waiting[m]) * kept;
        }
        power += waiting[BESIDE_DIMS + m];
        waiting[m] = waiting[BESIDE_DIMS + m] = (real)0;
    }
    return block_sum(power);
}

// Every window forgets, takes the waiting columns in, and those are emptied; the newest frame is
// the state's last.
extern "C" __global__ void __launch_bounds__(MAX_THREADS) shift_forget(
    const real* scalars, const real* totals, const real* settings, const real* asymmetry,
    int num_classes, const real* newest, real* window_logits, real* window_powers,
    real* window_mass, real* share_mass, real* newest_source, real* window_beside, real* waiting,
    real* waiting_beside, real* last, real* fresh) {
    real guard[3], decay[WINDOWS];
    bool tripped = guard_trips(scalars, totals, settings, guard);
    real kept = tripped ? (real)0 : (real)1;
    for (int j = 0; j < WINDOWS; ++j) decay[j] = decay_of(j, totals, settings);
    // The state's sums are those that every waiting batch was predicted with.
    real weight = counted(scalars, asymmetry, num_classes, settings);
    real share_decay = share_decay_of(totals, settings);
    int first = blockIdx.x * blockDim.x + threadIdx.x, stride = gridDim.x * blockDim.x;
    for (int k = first; k < num_classes; k += stride) {
        real logits = waiting[k], powers = waiting[num_classes + k];
        real mass = waiting[2 * num_classes + k], said = waiting[3 * num_classes + k];
        for (int j = 0; j < WINDOWS; ++j) {
            size_t at = (size_t)j * num_classes + k;
            window_logits[at] = (window_logits[at] * decay[j] + logits) * kept;
            window_powers[at] = (window_powers[at] * decay[j] + powers) * kept;
            window_mass[at] = (window_mass[at] * decay[j] + mass) * kept;
        }
        share_mass[k] = (share_mass[k] * share_decay + weight * mass) * kept;
        newest_source[k] = (newest_source[k] * decay[NEWEST_WINDOW] + said) * kept;
        for (int row = 0; row < 4; ++row) waiting[row * num_classes + k] = (real)0;
        last[k] = newest[k];
    }
    if (blockIdx.x != 0) return;
    real beside = forget_beside(decay, kept, window_beside, waiting_beside);
    if (threadIdx.x != 0) return;
    last[num_classes] = newest[num_classes];
    refresh(scalars, totals, settings, weight, beside, tripped, guard, fresh);
}

// Classes whose shares are held at once.
#define TILE 64

// (q - 1/K) C of every window, in `num_chunks` parts over the classes: `parts` (chunks, 5, D).
extern "C" __global__ void __launch_bounds__(MAX_THREADS) shift_project(
    const real* window_mass, const real* centered, const real* fresh, const real* settings,
    int num_classes, int feature_dim, int num_chunks, real* parts) {
    __shared__ real shares[TILE][WINDOWS];
    int chunk = blockIdx.x % num_chunks, tile = blockIdx.x / num_chunks;
    int first = (int)((long long)chunk * num_classes / num_chunks);
    int last = (int)((long long)(chunk + 1) * num_classes / num_chunks);
    int d = tile * blockDim.x + threadIdx.x;
    real sums[WINDOWS] = {}, even = (real)1 / (real)num_classes;
    for (int begin = first; begin < last; begin += TILE) {
        int length = last - begin < TILE ? last - begin : TILE;
        for (int i = threadIdx.x; i < length * WINDOWS; i += blockDim.x) {
            int j = i / length, k = i % length;
            real count = at_least(fresh[WINDOW_COUNT + j], settings[TINY]);
            shares[k][j] = window_mass[(size_t)j * num_classes + begin + k] / count - even;
        }
        __syncthreads();
        const real* entries = centered + (size_t)begin * feature_dim + d;
        if (d < feature_dim)
#pragma unroll 8
            for (int k = 0; k < length; ++k) {
                real entry = entries[(size_t)k * feature_dim];
                for (int j = 0; j < WINDOWS; ++j) sums[j] += shares[k][j] * entry;
            }
        __syncthreads();
    }
    for (int j = 0; j < WINDOWS && d < feature_dim; ++j)
        parts[((size_t)chunk * WINDOWS + j) * feature_dim + d] = sums[j];
}

// The parts put together: `projected` (5, D), read as one row of `length` numbers.
extern "C" __global__ void __launch_bounds__(MAX_THREADS) shift_gather(
    const real* parts, int num_chunks, int length, real* projected) {
    int stride = gridDim.x * blockDim.x;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < length; i += stride) {
        real sum = (real)0;
#pragma unroll 8
        for (int chunk = 0; chunk < num_chunks; ++chunk) sum += parts[(size_t)chunk * length + i];
        projected[i] = sum;
    }
}

// What the classes seen explain at a = 1: `explained` (5, K) = `projected` C^T, a warp per class.
extern "C" __global__ void __launch_bounds__(MAX_THREADS) shift_explain(
    const real* projected, const real* centered, int num_classes, int feature_dim,
    real* explained) {
    int lanes = lanes_of_warp(), warps = blockDim.x / lanes;
    int lane = threadIdx.x % lanes, warp = threadIdx.x / lanes;
    for (int base = blockIdx.x * warps; base < num_classes; base += gridDim.x * warps) {
        int k = base + warp;
        Reals<WINDOWS> sums = {};
        const real* entries = centered + (size_t)k * feature_dim;
        if (k < num_classes)
#pragma unroll 4
            for (int d = lane; d < feature_dim; d += lanes)
                for (int j = 0; j < WINDOWS; ++j)
                    sums.v[j] += projected[(size_t)j * feature_dim + d] * entries[d];
        sums = over_warp(sums, Sum());
        for (int j = 0; j < WINDOWS && lane == 0 && k < num_classes; ++j)
            explained[(size_t)j * num_classes + k] = sums.v[j];
    }
}
