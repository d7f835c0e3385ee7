// What lies where in the arrays of a step with a tracked shift: shift_step.py has their lengths,
// shift_settings.py fills the settings in this order.

#define WINDOWS 5
// The memory whose labels say whether few classes are seen now, the one whose mean frames are
// compared with for their asymmetry, and the one that the newest one's means are compared with.
#define NEWEST_WINDOW 1
#define REFERENCE_WINDOW 2
#define MOVED_FROM_WINDOW 3
// Projections of the features beside the head's rows.
#define BESIDE_DIMS 64

// Places in `scalars`, the state's numbers. Behind them, two that follow from the state, and go
// wherever it goes: MOVED is whether the shift says anything, NEWEST_LABELS the sum of squares of
// the newest labels' shares. The last three are of a revision: whether there is anything to revise,
// the variance, and MOVED.
enum {
    WINDOW_COUNT = 0,
    WINDOW_LEAN = WINDOWS,
    WINDOW_RANGE = 2 * WINDOWS,
    BESIDE_POWER = 3 * WINDOWS,
    SHARE_COUNT = 4 * WINDOWS,
    STEP_POWER,
    STEP_COUNT,
    SCALE_NUMERATOR,
    SCALE_DENOMINATOR,
    DEPARTURE,
    MIXED_ASYMMETRY,
    VARIANCE,
    TRUST,
    INDEPENDENCE,
    GUARD_COUNT,
    GUARD_AGREEMENT,
    GUARD_CONFIDENCE,
    GUARD_HOLD,
    GUARD_TRIPS,
    MOVED,
    NEWEST_LABELS,
    REVISED,
    REVISED_VARIANCE,
    REVISED_MOVED,
    SCALARS,
};

// Places in `totals`, what the waiting frames add to them: STEPS to STEP_POWER, FOLLOWERS to
// STEP_COUNT.
enum {
    LEAN,
    RANGE,
    STEPS,
    FOLLOWERS,
    NUMERATOR,
    DENOMINATOR,
    COUNT,
    AGREEMENT,
    CONFIDENCE,
    TOTALS,
};

// Places in `settings`: rates are of the natural exponent, per frame; the first are the windows'.
enum {
    WINDOW_RATE = 0,
    SCALE_RATE = WINDOWS,
    GUARD_RATE,
    LABEL_DRAWS,
    SHRINKAGE,
    SLACK,
    TINY,
    LEAST_SPREAD,
    LEAST_POWER,
    MIXTURE_TESTED,
    INDEPENDENCE_TESTED,
    MEASURED,
    SPREAD_BEGINS,
    SPREAD_ENDS,
    SURE_FRAMES,
    LEAST_SINGLE,
    GUESS_BEGINS,
    GUESS_ENDS,
    LEARNED_BEGINS,
    LEARNED_ENDS,
    SINGLE_SHARE,
    SHIFT_BEGINS,
    SHIFT_ENDS,
    SCALE_BEGINS,
    SCALE_ENDS,
    STEP_BEGINS,
    STEP_ENDS,
    FIRST_SHIFT_WINDOW,
    FIRST_SCALE_WINDOW,
    CLASSES_EXPECTED,
    SHARE_RATE,
    SHARE_BEGINS,
    SHARE_ENDS,
    HALF_LIFE,
    FEW_SHARE,
    MOVE_BEGINS,
    MOVE_ENDS,
    BESIDE_BEGINS,
    BESIDE_ENDS,
    LEAST_SCATTER,
    MOST_POWER,
    HOLD,
    SHARE_NOISE,
    SHARE_POWER,
    MOST_SHARE,
    SCALE_MATCHED,
    SCALE_NOISE,
    LEAST_VARIANCE,
    GUARDED,
    MIN_FRAMES,
    LEAST_RATIO,
    GUARD_CHANCE,
    FIRST_HOLD,
    MOST_DOUBLINGS,
    SETTINGS,
};

// Places in `fresh`, the state's sums with the waiting frames in them, less than which the kernels
// behind `shift_forget` need not know; the sums as in `scalars`, where DEPARTURE and
// what is behind it are none.
enum { FRESH_SCALE = SCALE_DENOMINATOR + 1, FRESH_TRIPPED, FRESH_GUARD, FRESH = FRESH_GUARD + 3 };
