// One step of GAIN around its matrix products: predictions and the sums over a batch.
//
// REAL is float or double. Every kernel that works on rows takes one block per sample and any power
// of two up to MAX_THREADS as its width; the others take one thread per column. Thread t of a block
// touches the classes t, t + blockDim.x, ... of its row only, so that rows kept in global memory
// need no synchronisation. No include: NVRTC has none.

typedef REAL real;

#define MAX_THREADS 512

// A log-sum-exp in parts, with the mean of a second quantity under the same weights; or the place
// of the largest value. `LOWEST` and not minus infinity marks "nothing yet": it merges without NaN.
struct Partial {
    real peak, total, weighted;
    int place;
};

__device__ inline real lowest() {
    return (real)(sizeof(real) == 4 ? -3.4028234663852886e38 : -1.7976931348623157e308);
}

__device__ inline Partial nothing() { return Partial{lowest(), (real)0, (real)0, 0x7fffffff}; }

struct MergeSoftmax {
    __device__ Partial operator()(const Partial& a, const Partial& b) const {
        real peak = a.peak > b.peak ? a.peak : b.peak;
        real left = exp(a.peak - peak), right = exp(b.peak - peak);
        return Partial{peak, a.total * left + b.total * right,
                       a.weighted * left + b.weighted * right, 0};
    }
};

struct MergeSums {
    __device__ Partial operator()(const Partial& a, const Partial& b) const {
        return Partial{a.peak + b.peak, a.total + b.total, a.weighted + b.weighted, 0};
    }
};

// The lowest place among equals, as argmax has it.
struct MergePlaces {
    __device__ Partial operator()(const Partial& a, const Partial& b) const {
        bool second = b.peak > a.peak || (b.peak == a.peak && b.place < a.place);
        return second ? b : a;
    }
};

template <class Merge>
__device__ Partial over_block(Partial value, Merge merge) {
    __shared__ Partial parts[MAX_THREADS];
    // Everyone has read the result before.
    __syncthreads();
    parts[threadIdx.x] = value;
    __syncthreads();
    for (int stride = blockDim.x / 2; stride > 0; stride /= 2) {
        if ((int)threadIdx.x < stride)
            parts[threadIdx.x] = merge(parts[threadIdx.x], parts[threadIdx.x + stride]);
        __syncthreads();
    }
    return parts[0];
}

// Softmax weights exp(score), and the sum of `extra` under them, over the classes of a row.
template <class Score, class Extra>
__device__ Partial softmax_sums(int num_classes, Score score, Extra extra) {
    Partial part = nothing();
    for (int k = threadIdx.x; k < num_classes; k += blockDim.x) {
        real value = score(k);
        if (value > part.peak) part.peak = value;
    }
    for (int k = threadIdx.x; k < num_classes; k += blockDim.x) {
        real weight = exp(score(k) - part.peak);
        part.total += weight;
        part.weighted += weight * extra(k);
    }
    return over_block(part, MergeSoftmax());
}

template <class Score>
__device__ Partial softmax_sums(int num_classes, Score score) {
    return softmax_sums(num_classes, score, [](int) { return (real)0; });
}

template <class Terms>
__device__ Partial plain_sums(int num_classes, Terms terms) {
    Partial part = Partial{(real)0, (real)0, (real)0, 0};
    for (int k = threadIdx.x; k < num_classes; k += blockDim.x) terms(k, part);
    return over_block(part, MergeSums());
}

template <class Value>
__device__ Partial largest(int num_classes, Value value) {
    Partial part = nothing();
    for (int k = threadIdx.x; k < num_classes; k += blockDim.x) {
        real candidate = value(k);
        if (candidate > part.peak || (candidate == part.peak && k < part.place)) {
            part.peak = candidate;
            part.place = k;
        }
    }
    return over_block(part, MergePlaces());
}

__device__ inline real log_prob(real score, const Partial& sums) {
    return score - sums.peak - log(sums.total);
}

__device__ inline real at_least(real value, real bound) { return value < bound ? bound : value; }

// J'(lambda) = G - E_p(lambda)[xi].
__device__ inline real slope_at(real strength, real gain, const real* start, const real* evidence,
                                int num_classes) {
    Partial sums = softmax_sums(
        num_classes, [=](int k) { return start[k] + strength * evidence[k]; },
        [=](int k) { return evidence[k]; });
    return gain - sums.weighted / sums.total;
}

// lambda*, eq:app_optimal_lambda; every thread of the block takes the same branches.
__device__ inline real best_strength(real gain, const real* start, const real* evidence,
                                     int num_classes, int num_iters) {
    if (!(slope_at((real)0, gain, start, evidence, num_classes) > (real)0)) return (real)0;
    real at_one = slope_at((real)1, gain, start, evidence, num_classes);
    if (at_one >= (real)0) return (real)1;
    if (!(at_one < (real)0)) return (real)0;
    real low = (real)0, half = (real)1;
    for (int i = 0; i < num_iters; ++i) {
        half *= (real)0.5;
        if (slope_at(low + half, gain, start, evidence, num_classes) > (real)0) low += half;
    }
    return low + (real)0.5 * half;
}

// Everything of a prediction behind the scores of the proposal and the evaluator. `log_probs` and
// `probs` hold the floored source and the evidence until the result replaces them.
template <class Proposal, class Evaluator>
__device__ void predict_row(Proposal proposal, Evaluator evaluator, const real* source, bool adapt,
                            real log_floor, int num_iters, int num_classes, bool inputs_finite,
                            real* probs, real* log_probs, real* strength, real* gain,
                            unsigned char* finite) {
    Partial proposed = softmax_sums(num_classes, proposal);
    Partial judged = softmax_sums(num_classes, evaluator);
    // Without a floor the bound never bites and both normalisers are left alone.
    bool floors = log_floor > lowest();
    real start_rest = (real)0, proposal_rest = (real)0;
    if (floors) {
        Partial rests = plain_sums(num_classes, [=](int k, Partial& part) {
            part.total += exp(at_least(source[k], log_floor));
            part.weighted += exp(at_least(log_prob(proposal(k), proposed), log_floor));
        });
        start_rest = log(rests.total);
        proposal_rest = log(rests.weighted);
    }
    Partial gained = plain_sums(num_classes, [=](int k, Partial& part) {
        real start = at_least(source[k], log_floor) - start_rest;
        real target = at_least(log_prob(proposal(k), proposed), log_floor) - proposal_rest;
        real xi = adapt ? target - start : (real)0;
        log_probs[k] = start;
        probs[k] = xi;
        part.total += exp(log_prob(evaluator(k), judged)) * xi;
    });
    real amount = best_strength(gained.total, log_probs, probs, num_classes, num_iters);
    Partial path = softmax_sums(num_classes,
                                [=](int k) { return log_probs[k] + amount * probs[k]; });
    Partial bad = plain_sums(num_classes, [=](int k, Partial& part) {
        real adapted = log_prob(log_probs[k] + amount * probs[k], path);
        real result = amount > (real)0 ? adapted : source[k];
        log_probs[k] = result;
        probs[k] = exp(result);
        if (!isfinite(result)) part.total += (real)1;
    });
    if (threadIdx.x == 0) {
        strength[blockIdx.x] = amount;
        gain[blockIdx.x] = gained.total;
        finite[blockIdx.x] = inputs_finite && isfinite(gained.total) && bad.total == (real)0;
    }
}

// log s of the block's row; false where a logit or a feature is not finite.
__device__ inline bool source_row(const real* features, const real* logits, int num_classes,
                                  int feature_dim, real* source) {
    Partial sums = softmax_sums(num_classes, [=](int k) { return logits[k]; });
    Partial bad = plain_sums(feature_dim, [=](int d, Partial& part) {
        if (!isfinite(features[d])) part.total += (real)1;
    });
    Partial odd = plain_sums(num_classes, [=](int k, Partial& part) {
        if (!isfinite(logits[k])) part.total += (real)1;
        source[k] = log_prob(logits[k], sums);
    });
    return bad.total + odd.total == (real)0;
}

// Class-conditional Gaussians: `cross` (B, K) is the product of the scaled features with the
// centres and `norms` (B,) the features' own squared lengths under the covariance.
extern "C" __global__ void predict_gaussian(
    const real* features, const real* logits, const real* cross, const real* norms,
    const real* center_norms, const real* precision, const real* log_prior, const real* temper,
    const bool* adapt, real log_floor, int num_iters, int num_classes, int feature_dim,
    real* probs, real* log_probs, real* source, real* strength, real* gain,
    unsigned char* finite) {
    size_t row = (size_t)blockIdx.x * num_classes;
    const real* products = cross + row;
    real own = norms[blockIdx.x], half_temper = (real)0.5 * temper[0];
    bool sound = source_row(features + (size_t)blockIdx.x * feature_dim, logits + row, num_classes,
                            feature_dim, source + row);
    auto distance = [=](int k) {
        return at_least(own + center_norms[k] - (real)2 * products[k], (real)0);
    };
    auto proposal = [=](int k) { return log_prior[k] - half_temper * distance(k); };
    auto evaluator = [=](int k) {
        real spread = (real)1 + (real)1 / precision[k];
        real volume = (real)feature_dim * log(spread);
        return log_prior[k] - half_temper * (volume + distance(k) / spread);
    };
    predict_row(proposal, evaluator, source + row, adapt[0], log_floor, num_iters, num_classes,
                sound, probs + row, log_probs + row, strength, gain, finite);
}

// The source with a tracked shift of its logits taken out.
extern "C" __global__ void predict_shift(
    const real* features, const real* logits, const real* vector, const real* variance,
    const bool* adapt, real log_floor, int num_iters, int num_classes, int feature_dim,
    real* probs, real* log_probs, real* source, real* strength, real* gain,
    unsigned char* finite) {
    size_t row = (size_t)blockIdx.x * num_classes;
    const real* log_s = source + row;
    bool sound = source_row(features + (size_t)blockIdx.x * feature_dim, logits + row, num_classes,
                            feature_dim, source + row);
    // pi / 4: the probit approximation for a difference of two logits.
    real spread = sqrt((real)1 + (real)0.78539816339744830962 * variance[0]);
    auto proposal = [=](int k) { return log_s[k] - vector[k]; };
    auto evaluator = [=](int k) { return (log_s[k] - vector[k]) / spread; };
    predict_row(proposal, evaluator, log_s, adapt[0], log_floor, num_iters, num_classes, sound,
                probs + row, log_probs + row, strength, gain, finite);
}

// zeta and zeta p* of the block's row; zero in a batch that is not finite.
extern "C" __global__ void gaussian_rows(const real* probs, const real* source,
                                         const bool* finite, int num_classes,
                                         real* responsibilities, real* reliability) {
    size_t row = (size_t)blockIdx.x * num_classes;
    const real* adapted = probs + row;
    int chosen = largest(num_classes, [=](int k) { return adapted[k]; }).place;
    bool keep = finite[0];
    real zeta = keep ? exp(source[row + chosen]) : (real)0;
    for (int k = threadIdx.x; k < num_classes; k += blockDim.x)
        responsibilities[row + k] = keep ? zeta * adapted[k] : (real)0;
    if (threadIdx.x == 0) reliability[blockIdx.x] = zeta;
}

// One thread per class, then one per dimension. Writes the rows about the origin as well, which the
// matrix product for the first moment takes. The origin is `old_origin` where `has_origin`, else
// the batch's mean.
extern "C" __global__ void gaussian_sums(
    const real* features, const real* probs, const real* responsibilities,
    const real* reliability, const bool* finite, const real* old_origin, const bool* has_origin,
    int batch_size, int num_classes, int feature_dim, real* support, real* predicted_mass,
    real* squared_support, real* second_moment, real* sample_count, real* feature_sum,
    real* feature_square_sum, real* origin, real* centered) {
    int column = blockIdx.x * blockDim.x + threadIdx.x;
    bool keep = finite[0];
    if (column == 0) sample_count[0] = keep ? (real)batch_size : (real)0;
    if (column < num_classes) {
        real n = (real)0, mass = (real)0, squares = (real)0;
        for (int b = 0; keep && b < batch_size; ++b) {
            size_t at = (size_t)b * num_classes + column;
            n += responsibilities[at];
            mass += probs[at];
            squares += responsibilities[at] * responsibilities[at];
        }
        support[column] = n;
        predicted_mass[column] = mass;
        squared_support[column] = squares;
        return;
    }
    int d = column - num_classes;
    if (d >= feature_dim) return;
    real middle = (real)0;
    for (int b = 0; keep && b < batch_size; ++b) middle += features[(size_t)b * feature_dim + d];
    middle = has_origin[0] ? old_origin[d] : middle / (real)(batch_size > 0 ? batch_size : 1);
    real second = (real)0, sum = (real)0, squares = (real)0;
    for (int b = 0; b < batch_size; ++b) {
        size_t at = (size_t)b * feature_dim + d;
        real value = keep ? features[at] - middle : (real)0;
        centered[at] = value;
        second += reliability[b] * value * value;
        sum += value;
        squares += value * value;
    }
    second_moment[d] = second;
    feature_sum[d] = sum;
    feature_square_sum[d] = squares;
    origin[d] = middle;
}

// What a row gives to the shift's scalars and the guard's: `row_sums` (7, B) holds the mean of
// log s, |x|^2, the regression's two products, acceptance, agreement and confidence.
extern "C" __global__ void shift_rows(const real* probs, const real* source, const bool* finite,
                                      const real* vector, const real* mean_logits,
                                      const real* row_squares, int num_classes,
                                      real* row_sums) {
    size_t row = (size_t)blockIdx.x * num_classes;
    const real *adapted = probs + row, *log_s = source + row;
    int chosen = largest(num_classes, [=](int k) { return adapted[k]; }).place;
    Partial first = largest(num_classes, [=](int k) { return log_s[k]; });
    real mean = plain_sums(num_classes, [=](int k, Partial& part) { part.total += log_s[k]; })
                    .total / (real)num_classes;
    real squares = plain_sums(num_classes, [=](int k, Partial& part) {
                       real x = log_s[k] - mean - mean_logits[k];
                       part.total += x * x;
                   }).total;
    if (threadIdx.x != 0) return;
    // A row of NaN has no largest place: nothing may be read by it.
    real values[7] = {};
    if (finite[0]) {
        real own = log_s[chosen] - mean - mean_logits[chosen] - vector[chosen];
        real weighted = exp(log_s[chosen]) * row_squares[chosen];
        values[0] = mean;
        values[1] = squares;
        values[2] = weighted * own;
        values[3] = weighted * row_squares[chosen];
        values[4] = (real)1;
        values[5] = (real)(chosen == first.place);
        values[6] = exp(first.peak);
    }
    for (int i = 0; i < 7; ++i) row_sums[(size_t)i * gridDim.x + blockIdx.x] = values[i];
}

// One thread per class, then one per row of `row_sums` but the first: `totals` (6,).
extern "C" __global__ void shift_sums(const real* probs, const real* source, const bool* finite,
                                      const real* mean_logits, const real* row_sums,
                                      int batch_size, int num_classes, real* window_logits,
                                      real* window_mass, real* totals) {
    int column = blockIdx.x * blockDim.x + threadIdx.x;
    real logits = (real)0, mass = (real)0, total = (real)0;
    if (column < num_classes) {
        for (int b = 0; finite[0] && b < batch_size; ++b) {
            size_t at = (size_t)b * num_classes + column;
            logits += source[at] - row_sums[b] - mean_logits[column];
            mass += probs[at];
        }
        window_logits[column] = logits;
        window_mass[column] = mass;
    } else if (column < num_classes + 6) {
        const real* values = row_sums + (size_t)(column - num_classes + 1) * batch_size;
        for (int b = 0; b < batch_size; ++b) total += values[b];
        totals[column - num_classes] = total;
    }
}
