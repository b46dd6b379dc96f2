// The place of the best element of long rows: blocks have parts of a row, and a second launch has what they found. A place
// beyond the row stands for no element.

constexpr u32 NONE = LENGTH;

DEVICE bool is_better(V a, u32 a_place, V b, u32 b_place) {
    if (a_place >= NONE) return false;
    // NaN is the largest and equals itself.
    bool wins = IS_LARGEST ? a > b || (a != a && b == b) : a < b || (a == a && b != b);
    if (b_place >= NONE || wins) return true;
    return (a == b || (a != a && b != b)) && (IS_LAST ? a_place > b_place : a_place < b_place);
}

DEVICE void take_better(V &best, u32 &place, V other, u32 other_place) {
    if (is_better(other, other_place, best, place)) best = other, place = other_place;
}

// The best of a block, in its first thread.
DEVICE void join_block(V &best, u32 &place) {
    SHARED(V, bests, THREADS);
    SHARED(u32, places, THREADS);
    bests[threadIdx.x] = best, places[threadIdx.x] = place;
    sync_block();
    for (u32 step = THREADS / 2; step > 0; step >>= 1) {
        if (threadIdx.x < step) {
            u32 other = threadIdx.x + step;
            take_better(best, place, bests[other], places[other]);
            bests[threadIdx.x] = best, places[threadIdx.x] = place;
        }
        sync_block();
    }
}

DEVICE void find_in_part(const T *x, V *bests, u32 *places) {
    start_next();
    wait_for_last();
    constexpr int AHEAD = 4;
    u32 begin = blockIdx.x * SHARE, end = begin + SHARE < LENGTH ? begin + SHARE : LENGTH;
    x += (i64)blockIdx.y * LENGTH;
    V best = 0;
    u32 place = NONE;
    for (u32 first = begin + threadIdx.x; first < end; first += THREADS * AHEAD) {
        V found[AHEAD];
        UNROLL for (int turn = 0; turn < AHEAD; turn++) {
            u32 at = first + turn * THREADS;
            found[turn] = at < end ? value_of(x[at]) : (V)0;
        }
        UNROLL for (int turn = 0; turn < AHEAD; turn++) {
            u32 at = first + turn * THREADS;
            take_better(best, place, found[turn], at < end ? at : NONE);
        }
    }
    join_block(best, place);
    u32 part = blockIdx.y * gridDim.x + blockIdx.x;
    if (threadIdx.x == 0) bests[part] = best, places[part] = place;
}

DEVICE void find_among_parts(const V *bests, const u32 *places, i64 *y) {
    start_next();
    wait_for_last();
    V best = 0;
    u32 place = NONE;
    for (u32 part = threadIdx.x; part < PARTS; part += THREADS)
        take_better(best, place, bests[blockIdx.x * PARTS + part], places[blockIdx.x * PARTS + part]);
    join_block(best, place);
    if (threadIdx.x == 0) y[blockIdx.x] = (i64)place;
}
