// Resizing, cropping and normalising frames of any size, with Pillow's integer arithmetic.
//
// A frame is resampled along one axis, rounded to 8 bits, then along the other. `lines` are what
// the first pass goes through one by one, `places` the positions in a line. Lines are the frame's
// rows, or its columns where it is shrunk along them first: then it is taken transposed.
//
// The weights of N output pixels are integers one after another: N starts, N counts, then N first
// weights, N second weights and so on, so that neighbouring threads read neighbouring memory.
// FRACTION_BITS is defined by whoever compiles this.

// Written by cuda_preprocess.py, member by member.
struct Frame {
    const unsigned char* pixels;  // the first line and place that are needed
    long long line_stride, place_stride, channel_stride;  // in bytes
    long long num_lines;
    unsigned char* narrowed;  // (num_lines, 3, places that are kept)
    const int* place_weights;
    const int* line_weights;
    long long transposed;
};

__device__ inline int rounded_level(int sum) {
    const int level = sum >> FRACTION_BITS;
    return level < 0 ? 0 : level > 255 ? 255 : level;
}

// The sum's start: a half, so that cutting the fraction off rounds.
__device__ inline int one_half() { return 1 << (FRACTION_BITS - 1); }

// First pass, a block per line or more than one: the places that are kept, as separate planes.
extern "C" __global__ void resample_places(const Frame* frames, int height, int width,
                                           int blocks_per_frame) {
    const Frame frame = frames[blockIdx.x / blocks_per_frame];
    const int kept = frame.transposed ? height : width;
    const int* starts = frame.place_weights;
    const int* counts = starts + kept;
    for (long long line = blockIdx.x % blocks_per_frame; line < frame.num_lines;
         line += blocks_per_frame) {
        const unsigned char* pixels = frame.pixels + line * frame.line_stride;
        unsigned char* narrowed = frame.narrowed + line * 3 * kept;
        for (int place = threadIdx.x; place < kept; place += blockDim.x) {
            const unsigned char* pixel = pixels + starts[place] * frame.place_stride;
            const int* weight = counts + kept + place;
            int first = one_half(), second = one_half(), third = one_half();
            for (int left = counts[place]; left > 0; --left) {
                first += *weight * pixel[0];
                second += *weight * pixel[frame.channel_stride];
                third += *weight * pixel[2 * frame.channel_stride];
                pixel += frame.place_stride;
                weight += kept;
            }
            narrowed[place] = rounded_level(first);
            narrowed[kept + place] = rounded_level(second);
            narrowed[2 * kept + place] = rounded_level(third);
        }
    }
}

// Second pass, a block per line that is kept and plane, then the plane's value of each level.
extern "C" __global__ void resample_lines(const Frame* frames, const float* levels, int height,
                                          int width, int blocks_per_plane, float* pixel_values) {
    const int plane = blockIdx.x / blocks_per_plane;
    const int channel = plane % 3;
    const Frame frame = frames[plane / 3];
    const int kept = frame.transposed ? height : width;
    const int lines = frame.transposed ? width : height;
    const int line = blockIdx.x % blocks_per_plane;
    if (line >= lines) return;
    const int start = frame.line_weights[line];
    const int count = frame.line_weights[lines + line];
    const int* weights = frame.line_weights + 2LL * lines + line;
    const unsigned char* source = frame.narrowed + (start * 3LL + channel) * kept;
    const float* values = levels + 256 * channel;
    float* target = pixel_values + (long long)plane * height * width;
    for (int place = threadIdx.x; place < kept; place += blockDim.x) {
        const unsigned char* level = source + place;
        const int* weight = weights;
        int sum = one_half();
        for (int left = count; left > 0; --left) {
            sum += *weight * *level;
            level += 3LL * kept;
            weight += lines;
        }
        const long long index =
            frame.transposed ? (long long)place * width + line : (long long)line * width + place;
        target[index] = values[rounded_level(sum)];
    }
}
