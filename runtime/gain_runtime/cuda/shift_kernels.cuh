// One step of GAIN with a tracked shift of the mean logits: gain_core/shift.py and guard.py.
//
// A batch is predicted, its sums are added to those that wait, and a flush learns from them: forget,
// project, gather, explain, estimate, in this order. The scalars of the state change in the last
// one only, so that the others compute from the old ones what is new, each for itself.

#define WINDOWS 5

// Places in `scalars`, the state's numbers.
enum {
    WINDOW_COUNT = 0,
    WINDOW_SQUARES = WINDOWS,
    SCALE_NUMERATOR = 2 * WINDOWS,
    SCALE_DENOMINATOR,
    VARIANCE,
    TRUST,
    GUARD_COUNT,
    GUARD_AGREEMENT,
    GUARD_CONFIDENCE,
    GUARD_HOLD,
    GUARD_TRIPS,
};

// Places in `totals`, what the waiting frames add to them.
enum { SQUARES, NUMERATOR, DENOMINATOR, COUNT, AGREEMENT, CONFIDENCE, TOTALS };

// Places in `settings`: rates are of the natural exponent, per frame.
enum {
    SHORTEST_RATE,
    SCALE_RATE,
    GUARD_RATE,
    LABEL_DRAWS,
    SHRINKAGE,
    TINY,
    LEAST_SPREAD,
    LEAST_POWER,
    GUARDED,
    MIN_FRAMES,
    LEAST_RATIO,
    FIRST_HOLD,
    MOST_DOUBLINGS,
};

// Places in `fresh`, the state's sums with the waiting frames in them, less than which the kernels
// behind `shift_forget` need not know; the first 12 as in `scalars`.
enum { FRESH_SCALE = 2 * WINDOWS + 2, FRESH_TRIPPED, FRESH_GUARD, FRESH = FRESH_GUARD + 3 };

// What is left of window j's sums after the waiting frames; the longest is the last.
__device__ inline real decay_of(int window, const real* totals, const real* settings) {
    return exp(settings[SHORTEST_RATE] * totals[COUNT] / (real)(1 << window));
}

// Whether the guard drops what was learned; `now` gets its three sums with the waiting frames.
__device__ inline bool guard_trips(const real* scalars, const real* totals, const real* settings,
                                   real (&now)[3]) {
    bool guarded = settings[GUARDED] > (real)0;
    real decay = guarded ? exp(settings[GUARD_RATE] * totals[COUNT]) : (real)1;
    const int added[3] = {COUNT, AGREEMENT, CONFIDENCE};
    for (int i = 0; i < 3; ++i)
        now[i] = scalars[GUARD_COUNT + i] * decay + (guarded ? totals[added[i]] : (real)0);
    return !(scalars[GUARD_HOLD] > (real)0) && now[0] >= settings[MIN_FRAMES] &&
           now[1] < settings[LEAST_RATIO] * now[2];
}

// The source with a tracked shift of its logits taken out.
extern "C" __global__ void __launch_bounds__(MAX_THREADS) predict_shift(
    const real* features, const real* logits, const real* vector, const real* scalars,
    real log_floor, int num_iters, int num_classes, int feature_dim, real* probs, real* log_probs,
    real* source, real* strength, real* gain, bool* finite) {
    size_t row = (size_t)blockIdx.x * num_classes;
    const real* log_s = source + row;
    bool sound = source_row(features + (size_t)blockIdx.x * feature_dim, logits + row, num_classes,
                            feature_dim, source + row);
    bool adapt = scalars[TRUST] > (real)0 && !(scalars[GUARD_HOLD] > (real)0);
    // pi / 4: the probit approximation for a difference of two logits.
    real spread = sqrt((real)1 + (real)0.78539816339744830962 * scalars[VARIANCE]);
    auto proposal = [=](int k) { return log_s[k] - vector[k]; };
    auto evaluator = [=](int k) { return (log_s[k] - vector[k]) / spread; };
    predict_row(proposal, evaluator, log_s, adapt, log_floor, num_iters, num_classes, sound,
                row_of(probs, log_probs, strength, gain, finite, num_classes));
}

// The adapted class, the source's, and the sum of log s of a row.
struct RowHead {
    Place adapted, first;
    real sum;
};

__device__ inline RowHead lane_swap(RowHead head, int mask) {
    return RowHead{lane_swap(head.adapted, mask), lane_swap(head.first, mask),
                   __shfl_xor_sync(0xffffffffu, head.sum, mask)};
}

struct MergeHeads {
    __device__ RowHead operator()(const RowHead& a, const RowHead& b) const {
        return RowHead{first_largest(a.adapted, b.adapted), first_largest(a.first, b.first),
                       a.sum + b.sum};
    }
};

// What a row gives: `row_sums` (7, B) holds the mean of log s, |x|^2, the regression's two
// products, acceptance, agreement and confidence.
extern "C" __global__ void __launch_bounds__(MAX_THREADS) shift_rows(
    const real* probs, const real* source, const bool* finite, const real* vector,
    const real* mean_logits, const real* row_squares, int num_classes, real* row_sums) {
    size_t row = (size_t)blockIdx.x * num_classes;
    const real *adapted = probs + row, *log_s = source + row;
    RowHead head = RowHead{nowhere(), nowhere(), (real)0};
    for (int k = threadIdx.x; k < num_classes; k += blockDim.x)
        head = MergeHeads()(head, RowHead{{adapted[k], k}, {log_s[k], k}, log_s[k]});
    head = over_block(head, MergeHeads());
    int chosen = head.adapted.index;
    real middle = head.sum / (real)num_classes, squares = (real)0;
    for (int k = threadIdx.x; k < num_classes; k += blockDim.x) {
        real x = log_s[k] - middle - mean_logits[k];
        squares += x * x;
    }
    squares = block_sum(squares);
    if (threadIdx.x != 0) return;
    // A row of NaN has no largest place: nothing may be read by it.
    real values[7] = {};
    if (finite[0]) {
        real own = log_s[chosen] - middle - mean_logits[chosen] - vector[chosen];
        real weighted = exp(log_s[chosen]) * row_squares[chosen];
        values[0] = middle;
        values[1] = squares;
        values[2] = weighted * own;
        values[3] = weighted * row_squares[chosen];
        values[4] = (real)1;
        values[5] = (real)(chosen == head.first.index);
        values[6] = exp(head.first.value);
    }
    for (int i = 0; i < 7; ++i) row_sums[(size_t)i * gridDim.x + blockIdx.x] = values[i];
}

// Adds a batch to the frames that wait: columns of `waiting` (2, K), logits above mass, then
// `totals` (6,).
extern "C" __global__ void __launch_bounds__(MAX_THREADS) shift_sums(
    const real* probs, const real* source, const bool* finite, const real* mean_logits,
    const real* row_sums, int batch_size, int num_classes, real* waiting, real* totals) {
    int stride = gridDim.x * blockDim.x;
    for (int column = blockIdx.x * blockDim.x + threadIdx.x; column < num_classes + TOTALS;
         column += stride) {
        if (column >= num_classes) {
            const real* values = row_sums + (size_t)(column - num_classes + 1) * batch_size;
            real total = (real)0;
            for (int b = 0; b < batch_size; ++b) total += values[b];
            totals[column - num_classes] += total;
            continue;
        }
        real logits = (real)0, mass = (real)0;
        for (int b = 0; finite[0] && b < batch_size; ++b) {
            size_t at = (size_t)b * num_classes + column;
            logits += source[at] - row_sums[b] - mean_logits[column];
            mass += probs[at];
        }
        waiting[column] += logits;
        waiting[num_classes + column] += mass;
    }
}

// The state's sums with the waiting frames in them, by one thread of `shift_forget`.
__device__ inline void refresh(const real* scalars, const real* totals, const real* settings,
                               bool tripped, const real (&guard)[3], real* fresh) {
    real kept = tripped ? (real)0 : (real)1;
    for (int j = 0; j < WINDOWS; ++j) {
        real decay = decay_of(j, totals, settings);
        int count = WINDOW_COUNT + j, squares = WINDOW_SQUARES + j;
        fresh[count] = (scalars[count] * decay + totals[COUNT]) * kept;
        fresh[squares] = (scalars[squares] * decay + totals[SQUARES]) * kept;
    }
    real decay = exp(settings[SCALE_RATE] * totals[COUNT]);
    real above = (scalars[SCALE_NUMERATOR] * decay + totals[NUMERATOR]) * kept;
    real below = (scalars[SCALE_DENOMINATOR] * decay + totals[DENOMINATOR]) * kept;
    fresh[SCALE_NUMERATOR] = above;
    fresh[SCALE_DENOMINATOR] = below;
    fresh[FRESH_SCALE] = at_least(above / at_least(below, settings[TINY]), (real)0);
    fresh[FRESH_TRIPPED] = tripped ? (real)1 : (real)0;
    for (int i = 0; i < 3; ++i) fresh[FRESH_GUARD + i] = guard[i];
}

// Every window forgets, takes the waiting columns in, and those are emptied.
extern "C" __global__ void __launch_bounds__(MAX_THREADS) shift_forget(
    const real* scalars, const real* totals, const real* settings, int num_classes,
    real* window_logits, real* window_mass, real* waiting, real* fresh) {
    real guard[3], decay[WINDOWS];
    bool tripped = guard_trips(scalars, totals, settings, guard);
    real kept = tripped ? (real)0 : (real)1;
    for (int j = 0; j < WINDOWS; ++j) decay[j] = decay_of(j, totals, settings);
    int first = blockIdx.x * blockDim.x + threadIdx.x, stride = gridDim.x * blockDim.x;
    for (int k = first; k < num_classes; k += stride) {
        real logits = waiting[k], mass = waiting[num_classes + k];
        for (int j = 0; j < WINDOWS; ++j) {
            size_t at = (size_t)j * num_classes + k;
            window_logits[at] = (window_logits[at] * decay[j] + logits) * kept;
            window_mass[at] = (window_mass[at] * decay[j] + mass) * kept;
        }
        waiting[k] = waiting[num_classes + k] = (real)0;
    }
    if (first == 0) refresh(scalars, totals, settings, tripped, guard, fresh);
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

// What one window's frames say of themselves.
struct Window {
    real inverse_count, inverse_draws, spread, weight, along;
    bool seen;
};

// Scatter, number of draws and how far labels explain each window's mean.
__device__ inline void judge_windows(const real* window_logits, const real* window_mass,
                                     const real* fresh, const real* settings, int num_classes,
                                     Window (&windows)[WINDOWS]) {
    for (int j = 0; j < WINDOWS; ++j)
        windows[j].inverse_count = (real)1 / at_least(fresh[WINDOW_COUNT + j], settings[TINY]);
    Reals<2 * WINDOWS> sums = {};
    for (int k = threadIdx.x; k < num_classes; k += blockDim.x)
        for (int j = 0; j < WINDOWS; ++j) {
            size_t at = (size_t)j * num_classes + k;
            real share = window_mass[at] * windows[j].inverse_count;
            real mean = window_logits[at] * windows[j].inverse_count;
            sums.v[j] += share * share;
            sums.v[WINDOWS + j] += mean * mean;
        }
    sums = over_block(sums, Sum());
    for (int j = 0; j < WINDOWS; ++j) {
        Window& window = windows[j];
        real length = sums.v[WINDOWS + j];
        real squares = fresh[WINDOW_SQUARES + j] * window.inverse_count;
        window.seen = fresh[WINDOW_COUNT + j] > (real)0;
        window.inverse_draws =
            at_least(sums.v[j] - (real)1 / (real)num_classes, window.inverse_count);
        window.spread = at_least(squares - length, (real)0);
        real held = at_least(settings[LEAST_POWER] * window.spread, settings[TINY]);
        window.weight = at_most(settings[LABEL_DRAWS] * window.inverse_draws, (real)1) *
                        at_most(length / held, (real)1) * fresh[FRESH_SCALE];
    }
}

// Takes what the labels explain out of the means, into `moved` (5, K), which holds the explained
// part before; and finds how much of the head's thresholds is left in them.
__device__ inline void take_labels_out(const real* window_logits, const real* thresholds,
                                       const real* settings, int num_classes,
                                       Window (&windows)[WINDOWS], real* moved) {
    Reals<WINDOWS + 1> sums = {};
    for (int k = threadIdx.x; k < num_classes; k += blockDim.x) {
        real threshold = thresholds[k];
        for (int j = 0; j < WINDOWS; ++j) {
            size_t at = (size_t)j * num_classes + k;
            real mean = window_logits[at] * windows[j].inverse_count;
            real rest = mean - windows[j].weight * moved[at];
            moved[at] = rest;
            sums.v[j] += rest * threshold;
        }
        sums.v[WINDOWS] += threshold * threshold;
    }
    sums = over_block(sums, Sum());
    real power = at_least(sums.v[WINDOWS], settings[TINY]);
    for (int j = 0; j < WINDOWS; ++j)
        windows[j].along = at_most(at_least(sums.v[j] / power, (real)0), (real)1);
}

// Class k of every window's mean less the next longer one's; of the longest, the mean.
__device__ inline void differences(const real* moved, real threshold, int k, int num_classes,
                                   const Window (&windows)[WINDOWS], real (&steps)[WINDOWS]) {
    real longer = (real)0;
    for (int j = WINDOWS - 1; j >= 0; --j) {
        real mean = moved[(size_t)j * num_classes + k] - windows[j].along * threshold;
        steps[j] = mean - longer;
        longer = mean;
    }
}

#define PAIRS (WINDOWS * (WINDOWS + 1) / 2)

// From the longest window to the shortest: the shift goes towards each as far as the step exceeds
// its noise. A step is a sum of the windows' differences, step_j = d_j + (1 - kept) step_j+1, so
// that their products, found in one pass, give the square of every step.
__device__ inline void shrink(const real* moved, const real* thresholds, const real* settings,
                              int num_classes, const Window (&windows)[WINDOWS], real* vector,
                              real& variance, real& trust) {
    Reals<PAIRS> products = {};
    for (int k = threadIdx.x; k < num_classes; k += blockDim.x) {
        real steps[WINDOWS];
        differences(moved, thresholds[k], k, num_classes, windows, steps);
        for (int i = 0, pair = 0; i < WINDOWS; ++i)
            for (int j = i; j < WINDOWS; ++j, ++pair) products.v[pair] += steps[i] * steps[j];
    }
    products = over_block(products, Sum());
    // Parts of each difference in the step at hand, and in the shift.
    real step[WINDOWS] = {}, whole[WINDOWS] = {}, kept = (real)0;
    variance = trust = (real)0;
    for (int j = WINDOWS - 1; j >= 0; --j) {
        for (int i = j + 1; i < WINDOWS; ++i) step[i] *= (real)1 - kept;
        step[j] = (real)1;
        real power = (real)0;
        for (int a = 0, pair = 0; a < WINDOWS; ++a)
            for (int b = a; b < WINDOWS; ++b, ++pair)
                power += (a == b ? (real)1 : (real)2) * step[a] * step[b] * products.v[pair];
        power = at_least(power, (real)0);
        const Window& window = windows[j];
        real tiny = settings[TINY];
        real alike = (real)1 - window.spread / at_least(settings[LEAST_SPREAD] * power, tiny);
        real noise = (window.spread + power) * at_least(alike, window.inverse_draws);
        real ratio = (real)1 - settings[SHRINKAGE] * noise / at_least(power, tiny);
        kept = window.seen ? at_least(ratio, (real)0) : (real)0;
        real own = noise / (real)num_classes;
        variance = j == WINDOWS - 1 ? own : variance + kept * (own - variance);
        trust += kept * ((real)1 - trust);
        for (int i = j; i < WINDOWS; ++i) whole[i] += kept * step[i];
    }
    if (!windows[0].seen) variance = (real)0;
    for (int k = threadIdx.x; k < num_classes; k += blockDim.x) {
        real steps[WINDOWS], value = (real)0;
        differences(moved, thresholds[k], k, num_classes, windows, steps);
        for (int j = WINDOWS - 1; j >= 0; --j) value += whole[j] * steps[j];
        vector[k] = value;
    }
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

// One block: the shrunken shift, and every number of the state. `moved` (5, K) holds what the
// classes explain; `totals` is emptied.
extern "C" __global__ void __launch_bounds__(MAX_THREADS) shift_estimate(
    const real* window_logits, const real* window_mass, const real* thresholds,
    const real* settings, const real* fresh, int num_classes, real* scalars, real* totals,
    real* moved, real* vector) {
    Window windows[WINDOWS];
    real variance, trust;
    judge_windows(window_logits, window_mass, fresh, settings, num_classes, windows);
    take_labels_out(window_logits, thresholds, settings, num_classes, windows, moved);
    shrink(moved, thresholds, settings, num_classes, windows, vector, variance, trust);
    if (threadIdx.x != 0) return;
    watch(fresh, totals, settings, scalars);
    for (int i = 0; i < FRESH_SCALE; ++i) scalars[i] = fresh[i];
    scalars[VARIANCE] = variance;
    scalars[TRUST] = trust;
    for (int i = 0; i < TOTALS; ++i) totals[i] = (real)0;
}
