// Attention on matrix instructions: 16 queries a warp, WARPS_Q warps of them; WARPS_KEYS warps divide each block of keys and
// join at the end. Scores stay in registers: a row's largest one and the sum of its weights are kept as keys come by.

constexpr int THREADS = WARP * WARPS_Q * WARPS_KEYS;
constexpr int BQ = 16 * WARPS_Q, BKEYS = WARP_KEYS * WARPS_KEYS;
constexpr int DEPTH_PAD = (DEPTH + 15) / 16 * 16, WIDTH_PAD = (WIDTH_V + 15) / 16 * 16;
constexpr f32 LOG2_E = 1.4426950408889634f;

// 16-byte pieces of a row in shared memory, so many that they can be exchanged.
template <int ELEMENTS> struct Pieces {
    static constexpr int COUNT = ELEMENTS <= 16 ? 2 : ELEMENTS <= 32 ? 4 : (ELEMENTS + 63) / 64 * 8;
};
constexpr int PIECES_D = Pieces<DEPTH_PAD>::COUNT, PIECES_W = Pieces<WIDTH_PAD>::COUNT;
constexpr int Q_LEN = BQ * PIECES_D * 8, K_LEN = BKEYS * PIECES_D * 8, V_LEN = BKEYS * PIECES_W * 8;
constexpr int SUM_PITCH = WIDTH_PAD + 8;

// Copies rows of a matrix to a tile, with zeros beyond its rows and columns.
template <int ROWS, int PIECES, int PAD, int COLUMNS, int VEC>
DEVICE void copy_rows(T *tile, const T *from, int first, int rows, i64 row_stride, i64 column_stride) {
    constexpr int USED = PAD / 8;
    for (int index = threadIdx.x; index < ROWS * USED; index += THREADS) {
        int row = index / USED, piece = index % USED;
        bool is_row = first + row < rows;
        const T *start = from + (is_row ? (first + row) * row_stride : 0) + piece * 8 * column_stride;
        copy_piece<VEC>(tile + piece_at<PIECES>(row, piece), from, [&](int i, bool &is_in) {
            is_in = is_row && piece * 8 + i < COLUMNS;
            return start + i * column_stride;
        });
    }
}

DEVICE f32 power_of_e(f32 x) { return exp2f(x * LOG2_E); }

// Weights of scores where nothing was seen yet have no largest score.
DEVICE f32 finite(f32 largest) { return largest == -INFINITE ? 0.0f : largest; }

DEVICE void attend(const T *q, const T *k, const T *v, const M *mask, T *y) {
    SHARED_BYTES(shared);
    wait_for_last();
    T *tile_q = (T *)shared;
    constexpr int Q_TILES = (QUERIES + BQ - 1) / BQ, STEPS = (KEYS + BKEYS - 1) / BKEYS;
    int z = blockIdx.x / Q_TILES, query_first = blockIdx.x % Q_TILES * BQ;
    q += start_q(z);
    k += start_k(z);
    v += start_v(z);
    if (HAS_MASK) mask += start_mask(z);
    y += start_y(z);
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    int warp_q = warp % WARPS_Q, warp_key = warp / WARPS_Q;
    auto tile_k = [&](int stage) { return tile_q + Q_LEN + stage * (K_LEN + V_LEN); };
    auto tile_v = [&](int stage) { return tile_q + Q_LEN + stage * (K_LEN + V_LEN) + K_LEN; };
    auto copy_keys = [&](int step) {
        copy_rows<BKEYS, PIECES_D, DEPTH_PAD, DEPTH, K_VEC>(tile_k(step % STAGES), k, step * BKEYS, KEYS, K_ROW, K_COLUMN);
        copy_rows<BKEYS, PIECES_W, WIDTH_PAD, WIDTH_V, V_VEC>(tile_v(step % STAGES), v, step * BKEYS, KEYS, V_ROW, V_COLUMN);
    };
    copy_rows<BQ, PIECES_D, DEPTH_PAD, DEPTH, Q_VEC>(tile_q, q, query_first, QUERIES, Q_ROW, Q_COLUMN);
    copy_keys(0);
    copy_commit();

    f32 o[WIDTH_PAD / 8][4], largest[2] = {-INFINITE, -INFINITE}, total[2] = {0, 0};
    UNROLL for (int j = 0; j < WIDTH_PAD / 8; j++)
        UNROLL for (int e = 0; e < 4; e++) o[j][e] = 0;
    for (int step = 0; step < STEPS; step++) {
        copy_wait<0>();
        sync_block();
        if (STAGES > 1 && step + 1 < STEPS) copy_keys(step + 1);
        copy_commit();
        const T *keys = tile_k(step % STAGES), *values = tile_v(step % STAGES);
        int key_row = warp_key * WARP_KEYS;
        f32 s[WARP_KEYS / 8][4];
        UNROLL for (int j = 0; j < WARP_KEYS / 8; j++)
            UNROLL for (int e = 0; e < 4; e++) s[j][e] = 0;
        UNROLL for (int d = 0; d < DEPTH_PAD; d += 16) {
            u32 x[4];
            load_matrices(x, tile_q + piece_at<PIECES_D>(warp_q * 16 + lane % 16, d / 8 + lane / 16));
            UNROLL for (int j = 0; j < WARP_KEYS / 16; j++) {
                u32 w[4];
                load_matrices(w, keys + piece_at<PIECES_D>(key_row + j * 16 + lane % 8 + lane / 16 * 8, d / 8 + lane / 8 % 2));
                multiply_add<T>(s[2 * j], x, w[0], w[1]);
                multiply_add<T>(s[2 * j + 1], x, w[2], w[3]);
            }
        }
        // Element e of a fragment: row lane / 4, 8 further for the last two; column lane % 4 * 2, one further for odd ones.
        f32 high[2] = {largest[0], largest[1]};
        UNROLL for (int j = 0; j < WARP_KEYS / 8; j++)
            UNROLL for (int e = 0; e < 4; e++) {
                int key = step * BKEYS + key_row + j * 8 + lane % 4 * 2 + e % 2;
                int query = query_first + warp_q * 16 + lane / 4 + e / 2 * 8;
                f32 x = s[j][e] * FACTOR;
                bool is_in = key < KEYS;
                if (HAS_MASK && is_in && query < QUERIES) x += to_f32(mask[query * MASK_ROW + key * MASK_COLUMN]);
                s[j][e] = is_in ? x : -INFINITE;
                high[e / 2] = fmaxf(high[e / 2], s[j][e]);
            }
        f32 base[2];
        UNROLL for (int half = 0; half < 2; half++) {
            high[half] = fmaxf(high[half], shuffle_xor(high[half], 1));
            high[half] = fmaxf(high[half], shuffle_xor(high[half], 2));
            base[half] = finite(high[half]);
            f32 shrink = power_of_e(largest[half] - base[half]);
            largest[half] = high[half];
            total[half] *= shrink;
            UNROLL for (int j = 0; j < WIDTH_PAD / 8; j++) {
                o[j][2 * half] *= shrink;
                o[j][2 * half + 1] *= shrink;
            }
        }
        UNROLL for (int j = 0; j < WARP_KEYS / 8; j++)
            UNROLL for (int e = 0; e < 4; e++) {
                s[j][e] = power_of_e(s[j][e] - base[e / 2]);
                total[e / 2] += s[j][e];
            }
        UNROLL for (int i = 0; i < WARP_KEYS / 16; i++) {
            u32 x[4] = {pair_of<T>(s[2 * i][0], s[2 * i][1]), pair_of<T>(s[2 * i][2], s[2 * i][3]),
                        pair_of<T>(s[2 * i + 1][0], s[2 * i + 1][1]), pair_of<T>(s[2 * i + 1][2], s[2 * i + 1][3])};
            UNROLL for (int j = 0; j < WIDTH_PAD / 16; j++) {
                u32 w[4];
                load_matrices_transposed(w, values + piece_at<PIECES_W>(key_row + i * 16 + lane % 16, j * 2 + lane / 16));
                multiply_add<T>(o[2 * j], x, w[0], w[1]);
                multiply_add<T>(o[2 * j + 1], x, w[2], w[3]);
            }
        }
        if (STAGES == 1 && step + 1 < STEPS) {
            sync_block();
            copy_keys(step + 1);
            copy_commit();
        }
    }
    copy_wait<0>();
    sync_block();

    // What the warps that divided the keys have, in order of keys: sums, largest scores, totals.
    f32 *sums = (f32 *)shared, *larges = sums + WARPS_KEYS * BQ * SUM_PITCH, *totals = larges + WARPS_KEYS * BQ;
    UNROLL for (int half = 0; half < 2; half++) {
        total[half] += shuffle_xor(total[half], 1);
        total[half] += shuffle_xor(total[half], 2);
        int row = warp_key * BQ + warp_q * 16 + half * 8 + lane / 4;
        if (lane % 4 == 0) {
            larges[row] = largest[half];
            totals[row] = total[half];
        }
        UNROLL for (int j = 0; j < WIDTH_PAD / 8; j++)
            store_vec<2>(sums + row * SUM_PITCH + j * 8 + lane % 4 * 2, Vec<f32, 2>{{o[j][2 * half], o[j][2 * half + 1]}});
    }
    sync_block();
    constexpr int PARTS = WIDTH_V / Y_VEC;
    for (int item = threadIdx.x; item < BQ * PARTS; item += THREADS) {
        int row = item / PARTS, column = item % PARTS * Y_VEC;
        if (query_first + row >= QUERIES) continue;
        f32 high = -INFINITE, sum = 0, x[Y_VEC];
        UNROLL for (int i = 0; i < Y_VEC; i++) x[i] = 0;
        UNROLL for (int part = 0; part < WARPS_KEYS; part++) high = fmaxf(high, larges[part * BQ + row]);
        UNROLL for (int part = 0; part < WARPS_KEYS; part++) {
            f32 share = power_of_e(larges[part * BQ + row] - finite(high));
            sum += totals[part * BQ + row] * share;
            UNROLL for (int i = 0; i < Y_VEC; i++) x[i] += sums[(part * BQ + row) * SUM_PITCH + column + i] * share;
        }
        f32 factor = CLEARS_NAN && !(sum > 0) ? 0 : 1 / sum;
        Vec<T, Y_VEC> out;
        UNROLL for (int i = 0; i < Y_VEC; i++) put(&out.at[i], CLEARS_NAN && !(sum > 0) ? 0.0f : x[i] * factor);
        store_vec<Y_VEC>(y + (query_first + row) * Y_ROW + column * Y_COLUMN, out);
    }
}
