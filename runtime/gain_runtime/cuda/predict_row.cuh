// A row's prediction from the scores of its proposal and its evaluator. Every kernel that works on
// rows takes one block per sample.

// J'(lambda) = G - E_p(lambda)[xi].
__device__ inline real slope_at(real strength, real gain, const real* start, const real* evidence,
                                int num_classes) {
    Softmax sums = softmax_sums(
        num_classes, [=](int k) { return start[k] + strength * evidence[k]; },
        [=](int k) { return evidence[k]; });
    return gain - sums.weighted / sums.total;
}

// lambda* inside (0, 1), eq:app_optimal_lambda; the block's threads take the same branches.
__device__ inline real inner_strength(real gain, const real* start, const real* evidence,
                                      int num_classes, int num_iters) {
    real low = (real)0, half = (real)1;
    for (int i = 0; i < num_iters; ++i) {
        half *= (real)0.5;
        if (slope_at(low + half, gain, start, evidence, num_classes) > (real)0) low += half;
    }
    return low + (real)0.5 * half;
}

// What a row's prediction is made to fit into.
struct RowResult {
    real *probs, *log_probs, *strength, *gain;
    bool* finite;
};

// Log-sum-exps of two rows of scores at once.
template <class First, class Second>
__device__ inline void two_softmaxes(int num_classes, First first, Second second, Softmax& one,
                                     Softmax& two) {
    Reals<2> peaks = {{lowest(), lowest()}};
    for (int k = threadIdx.x; k < num_classes; k += blockDim.x) {
        real a = first(k), b = second(k);
        if (a > peaks.v[0]) peaks.v[0] = a;
        if (b > peaks.v[1]) peaks.v[1] = b;
    }
    peaks = over_block(peaks, PeaksAndSums<2>());
    Reals<2> totals = row_sums_of<2>(num_classes, [=](int k, real (&v)[2]) {
        v[0] += exp(first(k) - peaks.v[0]);
        v[1] += exp(second(k) - peaks.v[1]);
    });
    one = Softmax{peaks.v[0], totals.v[0], (real)0};
    two = Softmax{peaks.v[1], totals.v[1], (real)0};
}

// G and lambda*; leaves the floored source in `log_probs`, the evidence in `probs`, and in `path`
// the log-sum-exp of the path's scores.
template <class Proposal, class Evaluator>
__device__ inline real best_strength(Proposal proposal, Evaluator evaluator, const real* source,
                                     real log_floor, int num_iters, int num_classes, real* probs,
                                     real* log_probs, real& gain, Softmax& path) {
    Softmax proposed, judged;
    two_softmaxes(num_classes, proposal, evaluator, proposed, judged);
    // Without a floor the bound never bites and both normalisers are left alone.
    real start_rest = (real)0, target_rest = (real)0;
    if (log_floor > lowest()) {
        Reals<2> rests = row_sums_of<2>(num_classes, [=](int k, real (&v)[2]) {
            v[0] += exp(at_least(source[k], log_floor));
            v[1] += exp(at_least(log_prob(proposal(k), proposed), log_floor));
        });
        start_rest = log(rests.v[0]);
        target_rest = log(rests.v[1]);
    }
    // The gain, and the path's expectation of the evidence at both of its ends.
    Reals<5> sums = row_sums_of<5>(num_classes, [=](int k, real (&v)[5]) {
        real start = at_least(source[k], log_floor) - start_rest;
        real target = at_least(log_prob(proposal(k), proposed), log_floor) - target_rest;
        // Where both are large, the path ends at what is left of the target, not at the target.
        real xi = target - start, first = exp(start), last = exp(start + xi);
        log_probs[k] = start;
        probs[k] = xi;
        v[0] += exp(log_prob(evaluator(k), judged)) * xi;
        v[1] += first;
        v[2] += first * xi;
        v[3] += last;
        v[4] += last * xi;
    });
    gain = sums.v[0];
    if (!(gain - sums.v[2] / sums.v[1] > (real)0)) return (real)0;
    real at_one = gain - sums.v[4] / sums.v[3];
    if (at_one >= (real)0) {
        path = Softmax{(real)0, sums.v[3], (real)0};
        return (real)1;
    }
    if (!(at_one < (real)0)) return (real)0;
    real amount = inner_strength(gain, log_probs, probs, num_classes, num_iters);
    path = softmax_sums(
        num_classes, [=](int k) { return log_probs[k] + amount * probs[k]; },
        [](int) { return (real)0; });
    return amount;
}

template <class Proposal, class Evaluator>
__device__ inline void predict_row(Proposal proposal, Evaluator evaluator, const real* source,
                                   bool adapt, real log_floor, int num_iters, int num_classes,
                                   bool inputs_finite, RowResult into) {
    real *probs = into.probs, *log_probs = into.log_probs;
    real gain = (real)0, amount = (real)0;
    Softmax path = Softmax{(real)0, (real)1, (real)0};
    if (adapt)
        amount = best_strength(proposal, evaluator, source, log_floor, num_iters, num_classes,
                               probs, log_probs, gain, path);
    real bad = (real)0;
    for (int k = threadIdx.x; k < num_classes; k += blockDim.x) {
        real result = source[k];
        if (amount > (real)0) result = log_prob(log_probs[k] + amount * probs[k], path);
        log_probs[k] = result;
        probs[k] = exp(result);
        if (!isfinite(result)) bad += (real)1;
    }
    bad = block_sum(bad);
    if (threadIdx.x != 0) return;
    into.strength[0] = amount;
    into.gain[0] = gain;
    into.finite[0] = inputs_finite && isfinite(gain) && bad == (real)0;
}

// What the source says of a row: its mean log s, and whether every logit and feature is finite.
struct SourceRow {
    real mean;
    bool finite;
};

// Writes log s of the block's row.
__device__ inline SourceRow source_row(const real* features, const real* logits, int num_classes,
                                       int feature_dim, real* source) {
    Reals<2> sums = {{lowest(), (real)0}};
    for (int d = threadIdx.x; d < feature_dim; d += blockDim.x)
        if (!isfinite(features[d])) sums.v[1] += (real)1;
    for (int k = threadIdx.x; k < num_classes; k += blockDim.x) {
        if (!isfinite(logits[k])) sums.v[1] += (real)1;
        if (logits[k] > sums.v[0]) sums.v[0] = logits[k];
    }
    sums = over_block(sums, PeaksAndSums<1>());
    real peak = sums.v[0];
    Reals<2> below = row_sums_of<2>(num_classes, [=](int k, real (&v)[2]) {
        v[0] += exp(logits[k] - peak);
        v[1] += logits[k] - peak;
    });
    real total = log(below.v[0]);
    for (int k = threadIdx.x; k < num_classes; k += blockDim.x)
        source[k] = logits[k] - peak - total;
    return SourceRow{below.v[1] / (real)num_classes - total, sums.v[1] == (real)0};
}

// The block's row of a prediction's arrays.
__device__ inline RowResult row_of(real* probs, real* log_probs, real* strength, real* gain,
                                   bool* finite, int num_classes) {
    size_t row = (size_t)blockIdx.x * num_classes;
    return RowResult{probs + row, log_probs + row, strength + blockIdx.x, gain + blockIdx.x,
                     finite + blockIdx.x};
}

// Whether all of `count` flags are set, one block.
extern "C" __global__ void __launch_bounds__(MAX_THREADS) all_true(const bool* flags, int count,
                                                                   bool* all) {
    real unset = (real)0;
    for (int i = threadIdx.x; i < count; i += blockDim.x)
        if (!flags[i]) unset += (real)1;
    unset = block_sum(unset);
    if (threadIdx.x == 0) all[0] = unset == (real)0;
}
