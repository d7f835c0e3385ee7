// The kernels as host C++: a block is a set of threads that meet at a barrier, a grid a loop.
#include <barrier>
#include <cmath>
#include <cstddef>
#include <thread>
#include <utility>
#include <vector>

#define __device__
#define __global__
#define __shared__ static

struct Dim3 {
    unsigned x = 0;
};

static thread_local Dim3 threadIdx, blockIdx;
static Dim3 blockDim, gridDim;
static std::barrier<>* meeting;

static void __syncthreads() { meeting->arrive_and_wait(); }

using std::exp;
using std::isfinite;
using std::log;
using std::sqrt;

#include "step_kernels.cuh"

// `arguments` holds one pointer per parameter, as the driver's launch call takes them.
template <class... Parameters, std::size_t... Index>
static void launch(void (*kernel)(Parameters...), unsigned blocks, unsigned threads,
                   void** arguments, std::index_sequence<Index...>) {
    std::barrier<> barrier(threads);
    meeting = &barrier;
    blockDim.x = threads;
    gridDim.x = blocks;
    auto run = [&](unsigned thread) {
        threadIdx.x = thread;
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

HOST_LAUNCH(predict_gaussian)
HOST_LAUNCH(predict_shift)
HOST_LAUNCH(gaussian_rows)
HOST_LAUNCH(gaussian_sums)
HOST_LAUNCH(shift_rows)
HOST_LAUNCH(shift_sums)
