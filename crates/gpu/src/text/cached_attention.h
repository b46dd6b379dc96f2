// Attention of new tokens behind cached ones, which lie in a ring for each row or in pages. A block has the G query heads of one key head, or some of them, of one
// new token, and a part of the keys; LANES threads have a key, CHUNKS times VEC elements of it each. A group of lanes keeps the
// largest score, the sum of weights and the weighted values of the keys that it has seen; groups are joined at the end.

typedef Vec<T, VEC> KeyVec;
constexpr int OWN_KEY_BYTES = (D * sizeof(T) + 15) / 16 * 16;
constexpr int HEADS_ALL = HEADS + 2 * KV_HEADS, SHARING = HEADS / KV_HEADS, TILES = SHARING / G;
constexpr int GROUPS = THREADS / LANES, WARPS = THREADS / WARP;
// Floats of what a query has of some keys: its values, their largest score and the sum of their weights.
constexpr int PART = D + 2;

DEVICE f32 finite(f32 largest) { return largest == -INFINITE ? 0.0f : largest; }
DEVICE f32 power_of_e(f32 x) { return exp2f(x * 1.4426950408889634f); }

// Element d of a query or key that is turned by its position.
DEVICE f32 turned(const T *head, int d, const T *cosines, const T *sines, i64 position) {
    if (ROTARY == 0 || d >= 2 * HALF) return to_f32(head[d]);
    int pair = ROTARY == 1 ? d % HALF : d / 2, stride = ROTARY == 1 ? HALF : 1;
    bool is_first = ROTARY == 1 ? d < HALF : d % 2 == 0;
    const T *first = head + (ROTARY == 1 ? pair : 2 * pair);
    f32 x = to_f32(first[0]), y = to_f32(first[stride]);
    f32 cosine = to_f32(cosines[position * HALF + pair]), sine = to_f32(sines[position * HALF + pair]);
    return is_first ? x * cosine - y * sine : y * cosine + x * sine;
}

// Which row of the tables a new token is turned by.
DEVICE i64 position_of(const i64 *positions, int cached, i64 row, int step) {
    i64 position = HAS_POSITIONS ? positions[row * LENGTH + step] : cached + step;
    return position < 0 ? 0 : position >= TABLE_ROWS ? TABLE_ROWS - 1 : position;
}

// Keys and values of new tokens as later steps find them: [row, key head, token, element].
DEVICE void turn_keys(const T *joint, const i32 *lengths, const T *cosines, const T *sines, const i64 *positions,
                      T *new_keys, T *new_values, i64 rows) {
    start_next();
    wait_for_last();
    i64 at = (i64)blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= rows * KV_HEADS * LENGTH * D) return;
    int d = (int)(at % D), step = (int)(at / D % LENGTH), head = (int)(at / D / LENGTH % KV_HEADS);
    i64 row = at / D / LENGTH / KV_HEADS;
    const T *key = joint + ((row * LENGTH + step) * HEADS_ALL + HEADS + head) * D;
    put(new_keys + at, turned(key, d, cosines, sines, position_of(positions, lengths[row], row, step)));
    new_values[at] = key[KV_HEADS * D + d];
}

// What a group of lanes has seen.
struct Seen {
    f32 largest[G], sum[G], values[G][CHUNKS][VEC];

    DEVICE_MEMBER void join(int g, f32 other_largest, f32 other_sum, f32 &own_part, f32 &other_part) {
        f32 high = fmaxf(largest[g], other_largest), base = finite(high);
        own_part = power_of_e(largest[g] - base), other_part = power_of_e(other_largest - base);
        largest[g] = high;
        sum[g] = sum[g] * own_part + other_sum * other_part;
    }
};

// Keys and values behind each other: cached ones, then new ones.
struct Keys {
    const T *cached_keys, *cached_values, *new_keys, *new_values;
    const i32 *pages;
    int cached, slots, query, page_count;

    // Slots hold the last tokens, pages all of them; new tokens follow. A window has its last tokens only.
    DEVICE_MEMBER bool is_seen(int at) const {
        if (WINDOW == 0) return true;
        int token = at;
        if (at >= slots) token = cached + at - slots;
        else if (!IS_PAGED && cached > SLOTS) token = at + (cached - 1 - at) / SLOTS * SLOTS;
        return token + WINDOW > query;
    }
    // How many of the first tokens no query of the block sees: in pages they lie in order, and a window has few of them.
    DEVICE_MEMBER int unseen() const {
        if (!IS_PAGED || WINDOW == 0 || cached > SLOTS) return 0;
        return query >= WINDOW ? query - WINDOW + 1 : 0;
    }
    // Where a cached token begins, among the keys as among the values; below 0 if it is in no page that there is.
    DEVICE_MEMBER i64 place(int at) const {
        if (!IS_PAGED) return (i64)at * D;
        int page = pages[at / PAGE_TOKENS];
        return page < 0 || page >= page_count ? -1 : ((i64)page * KV_HEADS * PAGE_TOKENS + at % PAGE_TOKENS) * D;
    }
};

DEVICE f32 score_of(f32 product) {
    f32 score = product * SCALE;
    return SOFTCAP == 0.0f ? score : SOFTCAP * of_tanh(score / SOFTCAP);
}

// AHEAD keys of a group of lanes, GROUPS apart, and their values.
struct Loaded {
    KeyVec k[AHEAD][CHUNKS], v[AHEAD][CHUNKS];
    bool is_in[AHEAD];

    DEVICE_MEMBER void load(const Keys &keys, int first, int end, int lane) {
        UNROLL for (int turn = 0; turn < AHEAD; turn++) {
            int at = first + turn * GROUPS;
            is_in[turn] = at < end && keys.is_seen(at);
            bool is_cached = at < keys.slots;
            i64 place = (i64)(at - keys.slots) * D;
            if (is_in[turn] && is_cached) place = keys.place(at), is_in[turn] = place >= 0;
            const T *key = (is_cached ? keys.cached_keys : keys.new_keys) + place;
            const T *value = (is_cached ? keys.cached_values : keys.new_values) + place;
            UNROLL for (int chunk = 0; chunk < CHUNKS; chunk++) {
                int d = (chunk * LANES + lane) * VEC;
                if (!is_in[turn] || d >= D) continue;
                k[turn][chunk] = load_vec<VEC>(key + d);
                v[turn][chunk] = load_vec<VEC>(value + d);
            }
        }
    }
};

// Takes keys to what the group has seen.
DEVICE void see_keys(Seen &seen, const f32 (&q)[G][CHUNKS][VEC], const Loaded &keys, int lane) {
    const auto &k = keys.k, &v = keys.v;
    const auto &is_in = keys.is_in;
    UNROLL for (int g = 0; g < G; g++) {
        f32 scores[AHEAD], high = -INFINITE, weights = 0;
        UNROLL for (int turn = 0; turn < AHEAD; turn++) {
            f32 product = 0;
            UNROLL for (int chunk = 0; chunk < CHUNKS; chunk++) {
                if (!is_in[turn] || (chunk * LANES + lane) * VEC >= D) continue;
                UNROLL for (int i = 0; i < VEC; i++) product += q[g][chunk][i] * to_f32(k[turn][chunk].at[i]);
            }
            for (int by = LANES / 2; by > 0; by /= 2) product += shuffle_xor(product, by);
            scores[turn] = is_in[turn] ? score_of(product) : -INFINITE;
            high = fmaxf(high, scores[turn]);
        }
        f32 shrink, grow;
        seen.join(g, high, 0.0f, shrink, grow);
        UNROLL for (int chunk = 0; chunk < CHUNKS; chunk++)
            UNROLL for (int i = 0; i < VEC; i++) seen.values[g][chunk][i] *= shrink;
        UNROLL for (int turn = 0; turn < AHEAD; turn++) {
            f32 weight = power_of_e(scores[turn] - finite(seen.largest[g]));
            weights += weight;
            UNROLL for (int chunk = 0; chunk < CHUNKS; chunk++) {
                if (!is_in[turn] || (chunk * LANES + lane) * VEC >= D) continue;
                UNROLL for (int i = 0; i < VEC; i++) seen.values[g][chunk][i] += weight * to_f32(v[turn][chunk].at[i]);
            }
        }
        seen.sum[g] += weights;
    }
}

// Joins the groups of a warp, in all of their lanes.
DEVICE void join_groups(Seen &seen) {
    for (int by = LANES; by < WARP; by *= 2)
        UNROLL for (int g = 0; g < G; g++) {
            f32 own, other, other_sum = shuffle_xor(seen.sum[g], by), other_largest = shuffle_xor(seen.largest[g], by);
            seen.join(g, other_largest, other_sum, own, other);
            UNROLL for (int chunk = 0; chunk < CHUNKS; chunk++)
                UNROLL for (int i = 0; i < VEC; i++) {
                    f32 &value = seen.values[g][chunk][i];
                    value = value * own + shuffle_xor(value, by) * other;
                }
        }
}

// What parts of the keys of a query have, joined: element d of its values, the largest score and the sum of weights. A sink is
// one more score.
template <int COUNT, class F> DEVICE Vec<f32, 4> join_parts(const F &part, int d, f32 sink) {
    f32 high = sink, value = 0;
    UNROLL for (int at = 0; at < COUNT; at++) high = fmaxf(high, part(at)[D]);
    f32 base = finite(high), sum = power_of_e(sink - base);
    UNROLL for (int at = 0; at < COUNT; at++) {
        f32 weight = power_of_e(part(at)[D] - base);
        value += part(at)[d] * weight, sum += part(at)[D + 1] * weight;
    }
    return {{value, high, sum, 0}};
}

struct PartsAt {
    const f32 *first;
    i64 stride;
    DEVICE_MEMBER const f32 *operator()(int at) const { return first + at * stride; }
};

#if HAS_CLUSTERS
struct PartsInCluster {
    const f32 *own;
    DEVICE_MEMBER const f32 *operator()(int at) const { return in_cluster(own, at); }
};
#endif

// The kernel: block (token, key head and tile, row and part). PARTS blocks divide the keys: those of a cluster join what they
// have; others leave it in `parts`, by query and part.
DEVICE void attend(const T *joint, const T *cached_keys, const T *cached_values, const i32 *lengths, const T *cosines,
                   const T *sines, const i64 *positions, const T *sinks, const i32 *pages, T *y, T *new_keys,
                   T *new_values, f32 *parts, i64 page_count) {
    if (LENGTH == 1) start_next();
    wait_for_last();
    SHARED_BYTES(shared);
    KeyVec *own_key = (KeyVec *)shared;
    f32 *queries = (f32 *)(shared + OWN_KEY_BYTES), *joined = queries + G * D, *whole = joined + WARPS * G * PART;
    int step = blockIdx.x, tile = blockIdx.y % TILES, kv_head = blockIdx.y / TILES, part = blockIdx.z % PARTS;
    i64 row = blockIdx.z / PARTS, token = row * LENGTH + step;
    int cached = lengths[row], first_head = kv_head * SHARING + tile * G;
    i64 position = position_of(positions, cached, row, step);
    joint += token * HEADS_ALL * D;
    Keys keys;
    i64 first = (IS_PAGED ? (i64)kv_head * PAGE_TOKENS : (row * KV_HEADS + kv_head) * SLOTS) * D;
    keys.cached_keys = cached_keys + first, keys.cached_values = cached_values + first;
    keys.pages = pages + row * (SLOTS / PAGE_TOKENS), keys.page_count = (int)page_count;
    keys.new_keys = new_keys + (row * KV_HEADS + kv_head) * LENGTH * D;
    keys.new_values = new_values + (row * KV_HEADS + kv_head) * LENGTH * D;
    keys.cached = cached, keys.slots = cached < SLOTS ? cached : SLOTS, keys.query = cached + step;
    if (LENGTH == 1) keys.new_keys = (const T *)own_key, keys.new_values = joint + (HEADS + KV_HEADS + kv_head) * D;
    for (int at = threadIdx.x; at < G * D; at += THREADS)
        queries[at] = turned(joint + (first_head + at / D) * D, at % D, cosines, sines, position);
    if (LENGTH == 1) {
        // The only new token: every block turns its key, and one of them writes it down.
        const T *key = joint + (HEADS + kv_head) * D;
        for (int d = threadIdx.x; d < D; d += THREADS) {
            T *place = (T *)own_key + d;
            put(place, turned(key, d, cosines, sines, position));
            if (tile == 0 && part == 0) {
                new_keys[(row * KV_HEADS + kv_head) * D + d] = *place;
                new_values[(row * KV_HEADS + kv_head) * D + d] = key[KV_HEADS * D + d];
            }
        }
    }
    sync_block();
    int lane = threadIdx.x % LANES, group = threadIdx.x / LANES;
    f32 q[G][CHUNKS][VEC];
    Seen seen;
    UNROLL for (int g = 0; g < G; g++) {
        seen.largest[g] = -INFINITE, seen.sum[g] = 0;
        UNROLL for (int chunk = 0; chunk < CHUNKS; chunk++)
            UNROLL for (int i = 0; i < VEC; i++) {
                int d = (chunk * LANES + lane) * VEC + i;
                q[g][chunk][i] = d < D ? queries[g * D + d] : 0.0f;
                seen.values[g][chunk][i] = 0;
            }
    }
    int total = keys.slots + step + 1, skipped = keys.unseen();
    int share = (total - skipped + PARTS - 1) / PARTS, begin = skipped + part * share;
    int end = begin + share < total ? begin + share : total;
    for (int first = begin; first < end; first += GROUPS * AHEAD) {
        Loaded loaded;
        loaded.load(keys, first + group, end, lane);
        see_keys(seen, q, loaded, lane);
    }
    join_groups(seen);
    int warp = threadIdx.x / WARP, thread = threadIdx.x % WARP;
    if (thread < LANES)
        UNROLL for (int g = 0; g < G; g++) {
            f32 *place = joined + (warp * G + g) * PART;
            UNROLL for (int chunk = 0; chunk < CHUNKS; chunk++)
                UNROLL for (int i = 0; i < VEC; i++) {
                    int d = (chunk * LANES + lane) * VEC + i;
                    if (d < D) place[d] = seen.values[g][chunk][i];
                }
            if (thread == 0) place[D] = seen.largest[g], place[D + 1] = seen.sum[g];
        }
    sync_block();
    for (int at = threadIdx.x; at < G * D; at += THREADS) {
        int g = at / D, d = at % D;
        i64 query = token * HEADS + first_head + g;
        f32 sink = PARTS == 1 && HAS_SINKS ? to_f32(sinks[first_head + g]) : -INFINITE;
        Vec<f32, 4> found = join_parts<WARPS>(PartsAt{joined + g * PART, G * PART}, d, sink);
        if (PARTS == 1) {
            put(y + query * D + d, found.at[0] / found.at[2]);
            continue;
        }
        f32 *place = BY_CLUSTER ? whole + g * PART : parts + (query * PARTS + part) * PART;
        place[d] = found.at[0];
        if (d == 0) place[D] = found.at[1], place[D + 1] = found.at[2];
    }
#if HAS_CLUSTERS
    if (!BY_CLUSTER) return;
    sync_cluster();
    for (int at = threadIdx.x * PARTS + part; at < G * D; at += THREADS * PARTS) {
        int g = at / D, d = at % D;
        f32 sink = HAS_SINKS ? to_f32(sinks[first_head + g]) : -INFINITE;
        Vec<f32, 4> found = join_parts<PARTS>(PartsInCluster{whole + g * PART}, d, sink);
        put(y + (token * HEADS + first_head + g) * D + d, found.at[0] / found.at[2]);
    }
    sync_cluster();
#endif
}

// The second launch: one block for a query, which joins its parts.
DEVICE void join_query(const f32 *parts, const T *sinks, T *y) {
    start_next();
    wait_for_last();
    i64 query = blockIdx.x;
    f32 sink = HAS_SINKS ? to_f32(sinks[query % HEADS]) : -INFINITE;
    for (int d = threadIdx.x; d < D; d += blockDim.x) {
        Vec<f32, 4> found = join_parts<PARTS>(PartsAt{parts + query * PARTS * PART, PART}, d, sink);
        put(y + query * D + d, found.at[0] / found.at[2]);
    }
}
