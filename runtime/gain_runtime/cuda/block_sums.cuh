// Sums, largest values and log-sum-exps over the classes of a row, by all threads of a block.
//
// REAL is float or double. A block has any power of two up to MAX_THREADS as its width, from one
// warp on a device; narrower ones are for the host's tests. Thread t touches the classes t,
// t + blockDim.x, ... of its row only, so that rows kept in global memory need no
// synchronisation. Every thread gets the same result, bit for bit. No include: NVRTC has none.

typedef REAL real;

#define MAX_THREADS 512
#define WARP 32

__device__ inline real lowest() {
    return (real)(sizeof(real) == 4 ? -3.4028234663852886e38 : -1.7976931348623157e308);
}

__device__ inline real at_least(real value, real bound) { return value < bound ? bound : value; }
__device__ inline real at_most(real value, real bound) { return value > bound ? bound : value; }

// Numbers that go through a reduction together.
template <int N>
struct Reals {
    real v[N];
};

// A value and where it stands; the lowest number at no place marks "nothing yet".
struct Place {
    real value;
    int index;
};

__device__ inline Place nowhere() { return Place{lowest(), 0x7fffffff}; }

// The larger one, the first among equals, as argmax has it. A NaN is passed over.
__device__ inline Place first_largest(Place a, Place b) {
    bool second = b.value > a.value || (b.value == a.value && b.index < a.index);
    return second ? b : a;
}

struct Sum {
    template <int N>
    __device__ Reals<N> operator()(Reals<N> a, const Reals<N>& b) const {
        for (int i = 0; i < N; ++i) a.v[i] += b.v[i];
        return a;
    }
};

// The first M numbers are peaks, the others sums.
template <int M>
struct PeaksAndSums {
    template <int N>
    __device__ Reals<N> operator()(Reals<N> a, const Reals<N>& b) const {
        for (int i = 0; i < N; ++i)
            a.v[i] = i >= M ? a.v[i] + b.v[i] : b.v[i] > a.v[i] ? b.v[i] : a.v[i];
        return a;
    }
};

// The value of the lane whose number differs in one bit.
template <int N>
__device__ inline Reals<N> lane_swap(Reals<N> value, int mask) {
    for (int i = 0; i < N; ++i) value.v[i] = __shfl_xor_sync(0xffffffffu, value.v[i], mask);
    return value;
}

__device__ inline Place lane_swap(Place place, int mask) {
    return Place{__shfl_xor_sync(0xffffffffu, place.value, mask),
                 __shfl_xor_sync(0xffffffffu, place.index, mask)};
}

__device__ inline int lanes_of_warp() { return blockDim.x < WARP ? (int)blockDim.x : WARP; }

// The values of a warp's lanes merged; every lane of the block must come here.
template <class T, class Merge>
__device__ inline T over_warp(T value, Merge merge) {
    for (int mask = lanes_of_warp() / 2; mask > 0; mask /= 2)
        value = merge(value, lane_swap(value, mask));
    return value;
}

// The values of a block's threads merged.
template <class T, class Merge>
__device__ inline T over_block(T value, Merge merge) {
    __shared__ T parts[MAX_THREADS / WARP];
    value = over_warp(value, merge);
    int lanes = lanes_of_warp(), warps = blockDim.x / lanes;
    if (warps == 1) return value;
    if (threadIdx.x % lanes == 0) parts[threadIdx.x / lanes] = value;
    __syncthreads();
    // Every warp does the rest for itself, its lanes each one warp's part.
    value = parts[threadIdx.x % warps];
    for (int mask = warps / 2; mask > 0; mask /= 2) value = merge(value, lane_swap(value, mask));
    // Everyone has read before anyone writes again.
    __syncthreads();
    return value;
}

__device__ inline real block_sum(real value) { return over_block(Reals<1>{{value}}, Sum()).v[0]; }

// Sums of N terms over the classes of a row; `terms(k, sums)` adds to them.
template <int N, class Terms>
__device__ inline Reals<N> row_sums_of(int num_classes, Terms terms) {
    Reals<N> sums = {};
    for (int k = threadIdx.x; k < num_classes; k += blockDim.x) terms(k, sums.v);
    return over_block(sums, Sum());
}

// The peak of a row's scores, and its sum of exp(score - peak) and of `extra` under that.
struct Softmax {
    real peak, total, weighted;
};

template <class Score, class Extra>
__device__ inline Softmax softmax_sums(int num_classes, Score score, Extra extra) {
    Reals<1> peak = {{lowest()}};
    for (int k = threadIdx.x; k < num_classes; k += blockDim.x) {
        real value = score(k);
        if (value > peak.v[0]) peak.v[0] = value;
    }
    real highest = over_block(peak, PeaksAndSums<1>()).v[0];
    Reals<2> sums = row_sums_of<2>(num_classes, [=](int k, real (&v)[2]) {
        real weight = exp(score(k) - highest);
        v[0] += weight;
        v[1] += weight * extra(k);
    });
    return Softmax{highest, sums.v[0], sums.v[1]};
}

__device__ inline real log_prob(real score, const Softmax& sums) {
    return score - sums.peak - log(sums.total);
}
