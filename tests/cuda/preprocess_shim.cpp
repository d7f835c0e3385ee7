// The preprocessing kernels as host C++: they share nothing, so grid and block are loops.
#include <cstddef>
#include <utility>

#define __device__
#define __global__

struct Dim3 {
    unsigned x = 0;
};

static Dim3 threadIdx, blockIdx, blockDim;

#include "preprocess_kernels.cuh"

// `arguments` holds one pointer per parameter, as the driver's launch call takes them. Threads run
// from the last to the first: none may lean on one before it.
template <class... Parameters, std::size_t... Index>
static void launch(void (*kernel)(Parameters...), unsigned blocks, unsigned threads,
                   void** arguments, std::index_sequence<Index...>) {
    blockDim.x = threads;
    for (blockIdx.x = blocks; blockIdx.x-- > 0;)
        for (threadIdx.x = threads; threadIdx.x-- > 0;)
            kernel(*static_cast<Parameters*>(arguments[Index])...);
}

template <class... Parameters>
static void unpack(void (*kernel)(Parameters...), unsigned blocks, unsigned threads,
                   void** arguments) {
    launch(kernel, blocks, threads, arguments, std::index_sequence_for<Parameters...>());
}

#define HOST_LAUNCH(NAME)                                                              \
    extern "C" void host_##NAME(unsigned blocks, unsigned threads, void** arguments) { \
        unpack(NAME, blocks, threads, arguments);                                      \
    }

HOST_LAUNCH(resample_places)
HOST_LAUNCH(resample_lines)
