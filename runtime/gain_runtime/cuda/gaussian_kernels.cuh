// One step of GAIN with class-conditional Gaussians around its matrix products.

// Class-conditional Gaussians: `cross` (B, K) is the product of the scaled features with the
// centres and `norms` (B,) the features' own squared lengths under the covariance.
extern "C" __global__ void __launch_bounds__(MAX_THREADS) predict_gaussian(
    const real* features, const real* logits, const real* cross, const real* norms,
    const real* center_norms, const real* precision, const real* log_prior, const real* temper,
    const bool* adapt, real log_floor, int num_iters, int num_classes, int feature_dim,
    real* probs, real* log_probs, real* source, real* strength, real* gain, bool* finite) {
    size_t row = (size_t)blockIdx.x * num_classes;
    const real* products = cross + row;
    real own = norms[blockIdx.x], half_temper = (real)0.5 * temper[0];
    bool sound = source_row(features + (size_t)blockIdx.x * feature_dim, logits + row, num_classes,
                            feature_dim, source + row)
                     .finite;
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
                sound, row_of(probs, log_probs, strength, gain, finite, num_classes));
}

// zeta and zeta p* of the block's row; zero in a batch that is not finite.
extern "C" __global__ void __launch_bounds__(MAX_THREADS) gaussian_rows(
    const real* probs, const real* source, const bool* finite, int num_classes,
    real* responsibilities, real* reliability) {
    size_t row = (size_t)blockIdx.x * num_classes;
    const real* adapted = probs + row;
    Place place = nowhere();
    for (int k = threadIdx.x; k < num_classes; k += blockDim.x)
        place = first_largest(place, Place{adapted[k], k});
    int chosen = over_block(place, first_largest).index;
    bool keep = finite[0];
    real zeta = keep ? exp(source[row + chosen]) : (real)0;
    for (int k = threadIdx.x; k < num_classes; k += blockDim.x)
        responsibilities[row + k] = keep ? zeta * adapted[k] : (real)0;
    if (threadIdx.x == 0) reliability[blockIdx.x] = zeta;
}

// One thread per class, then one per dimension. Writes the rows about the origin as well, which the
// matrix product for the first moment takes. The origin is `old_origin` where `has_origin`, else
// the batch's mean.
extern "C" __global__ void __launch_bounds__(MAX_THREADS) gaussian_sums(
    const real* features, const real* probs, const real* responsibilities,
    const real* reliability, const bool* finite, const real* old_origin, const bool* has_origin,
    int batch_size, int num_classes, int feature_dim, real* support, real* predicted_mass,
    real* squared_support, real* second_moment, real* sample_count, real* feature_sum,
    real* feature_square_sum, real* origin, real* centered) {
    bool keep = finite[0];
    int columns = num_classes + feature_dim, stride = gridDim.x * blockDim.x;
    for (int column = blockIdx.x * blockDim.x + threadIdx.x; column < columns; column += stride) {
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
            continue;
        }
        int d = column - num_classes;
        real middle = (real)0;
        for (int b = 0; keep && b < batch_size; ++b)
            middle += features[(size_t)b * feature_dim + d];
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
}
