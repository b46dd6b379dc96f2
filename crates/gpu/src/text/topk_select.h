// The KEPT largest or smallest of LENGTH elements of a line, sorted, by THREADS threads. Every element has a key of its own: its
// order in the upper half, and below it the place, the lowest one the largest. So the KEPT-th largest key is found digit by
// digit, all keys from it on are gathered, and these alone are sorted.

struct Selection {
    u64 keys[SORTED];
    u32 counts[256], sums[16];
    u32 digit, above, gathered;
};

DEVICE u32 turned(u32 order) { return IS_LARGEST ? order : ~order; }

// A number that grows as the element does. NaN is the largest, and zeros are equal.
DEVICE u32 order_of(f32 x) {
    if (x != x) return turned(0xffffffffu);
    u32 bits = bits_of(x == 0 ? 0.0f : x);
    return turned(bits >> 31 ? ~bits : bits | 0x80000000u);
}
DEVICE u32 order_of(i32 x) { return turned((u32)x ^ 0x80000000u); }
DEVICE u32 order_of(i16 x) { return order_of((i32)x); }
DEVICE u32 order_of(i8 x) { return order_of((i32)x); }
DEVICE u32 order_of(u32 x) { return turned(x); }
DEVICE u32 order_of(u16 x) { return turned(x); }
DEVICE u32 order_of(u8 x) { return turned(x); }

DEVICE u64 key_of(u32 order, i32 place) { return (u64)order << 32 | (u32)~place; }
DEVICE u32 place_of(u64 key) { return ~(u32)key; }

// The digit of the `wanted`-th largest of the keys that were counted, and how many keys have a larger one.
DEVICE void find_digit(Selection &shared, u32 wanted) {
    u32 digit = threadIdx.x;
    if (digit < 16) {
        u32 sum = 0;
        for (u32 at = 0; at < 16; at++) sum += shared.counts[digit * 16 + at];
        shared.sums[digit] = sum;
    }
    sync_block();
    if (digit < 256) {
        u32 above = 0;
        for (u32 group = digit / 16 + 1; group < 16; group++) above += shared.sums[group];
        for (u32 at = digit + 1; at < (digit / 16 + 1) * 16; at++) above += shared.counts[at];
        if (above < wanted && above + shared.counts[digit] >= wanted) shared.digit = digit, shared.above = above;
    }
    sync_block();
}

// `order(element)` is the order of an element of the line. Leaves the kept keys in `shared.keys`, the first one first.
template <class F> DEVICE void select_line(Selection &shared, const F &order) {
    u64 found = 0, known = 0;
    u32 wanted = KEPT;
    for (int shift = 56; shift >= 0; shift -= 8) {
        for (u32 at = threadIdx.x; at < 256; at += THREADS) shared.counts[at] = 0;
        sync_block();
        for (i32 element = threadIdx.x; element < LENGTH; element += THREADS) {
            u64 key = key_of(order(element), element);
            if ((key & known) == found) atomic_add(&shared.counts[key >> shift & 255], 1u);
        }
        sync_block();
        find_digit(shared, wanted);
        found |= (u64)shared.digit << shift;
        known |= (u64)255 << shift;
        wanted -= shared.above;
    }
    if (threadIdx.x == 0) shared.gathered = 0;
    for (u32 at = KEPT + threadIdx.x; at < SORTED; at += THREADS) shared.keys[at] = 0;
    sync_block();
    for (i32 element = threadIdx.x; element < LENGTH; element += THREADS) {
        u64 key = key_of(order(element), element);
        if (key >= found) shared.keys[atomic_add(&shared.gathered, 1u)] = key;
    }
    sync_block();
    for (u32 run = 2; run <= SORTED; run <<= 1)
        for (u32 step = run >> 1; step > 0; step >>= 1) {
            for (u32 at = threadIdx.x; at < SORTED; at += THREADS) {
                u32 other = at ^ step;
                if (other <= at) continue;
                u64 a = shared.keys[at], b = shared.keys[other];
                if ((a < b) == ((at & run) == 0)) shared.keys[at] = b, shared.keys[other] = a;
            }
            sync_block();
        }
}
