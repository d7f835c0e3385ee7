// The kernels as host C++: a block is a set of threads that meet at a barrier, a grid a loop.
#include <barrier>
#include <cmath>
#include <cstddef>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#define __device__
#define __global__
#define __shared__ static
#define __launch_bounds__(threads)

struct Dim3 {
    unsigned x = 0;
};

static thread_local Dim3 threadIdx, blockIdx;
static Dim3 blockDim, gridDim;
static std::optional<std::barrier<>> meeting;

static void __syncthreads() { meeting->arrive_and_wait(); }

static thread_local int turn;

// The value of the lane whose number differs by `mask`; every thread of the block comes here.
template <class Value>
static Value __shfl_xor_sync(unsigned, Value value, int mask) {
    // Two sets in turns: nobody can be two calls ahead of another, so one barrier is enough.
    static Value lanes[2][1024];
    turn = 1 - turn;
    lanes[turn][threadIdx.x] = value;
    __syncthreads();
    return lanes[turn][threadIdx.x ^ mask];
}

using std::exp;
using std::exp2;
using std::isfinite;
using std::log;
using std::sqrt;

#include "step_kernels.cuh"

// `arguments` holds one pointer per parameter, as the driver's launch call takes them.
template <class... Parameters, std::size_t... Index>
static void launch(void (*kernel)(Parameters...), unsigned blocks, unsigned threads,
                   void** arguments, std::index_sequence<Index...>) {
    meeting.emplace(threads);
    blockDim.x = threads;
    gridDim.x = blocks;
    auto run = [&](unsigned thread) {
        threadIdx.x = thread;
        turn = 0;
        for (unsigned block = 0; block < blocks; ++block) {
            blockIdx.x = block;
            kernel(*static_cast<std::remove_cvref_t<Parameters>*>(arguments[Index])...);
            __syncthreads();
        }
    };
    std::vector<std::thread> others;
    for (unsigned thread = 1; thread < threads; ++thread) others.emplace_back(run, thread);
    run(0);
    for (std::thread& other : others) other.join();
}

#define HOST_LAUNCH(NAME)                                                                     \
    extern "C" void host_##NAME(unsigned blocks, unsigned threads, void** arguments) {        \
        auto unpack = []<class... P>(void (*kernel)(P...), unsigned b, unsigned t, void** a) { \
            launch(kernel, b, t, a, std::index_sequence_for<P...>());                         \
        };                                                                                    \
        unpack(NAME, blocks, threads, arguments);                                             \
    }

HOST_LAUNCH(all_true)
HOST_LAUNCH(predict_gaussian)
HOST_LAUNCH(predict_shift)
HOST_LAUNCH(revise_shift)
HOST_LAUNCH(gaussian_rows)
HOST_LAUNCH(gaussian_sums)
HOST_LAUNCH(shift_rows)
HOST_LAUNCH(shift_sums)
HOST_LAUNCH(shift_forget)
HOST_LAUNCH(shift_project)
HOST_LAUNCH(shift_gather)
HOST_LAUNCH(shift_explain)
HOST_LAUNCH(shift_estimate)
HOST_LAUNCH(shift_labels)

extern "C" void host_lengths(int* lengths) {
    const int known[] = {SCALARS, FRESH, TOTALS, SETTINGS};
    for (int i = 0; i < 4; ++i) lengths[i] = known[i];
}
