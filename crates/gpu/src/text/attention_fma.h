// Attention by multiply-add: 8 threads for each of BQ queries, BKEYS keys at a time in shared memory. A row's largest score
// and the sum of its weights are kept as keys come by.

constexpr int THREADS = 8 * BQ, DEPTH_PITCH = DEPTH + 1, COLUMNS = (WIDTH_V + 7) / 8;
constexpr f32 LOG2_E = 1.4426950408889634f;

DEVICE f32 power_of_e(f32 x) { return exp2f(x * LOG2_E); }
DEVICE f32 finite(f32 largest) { return largest == -INFINITE ? 0.0f : largest; }

template <int ROWS, int WIDTH, int PITCH>
DEVICE void bring_rows(f32 *tile, const T *from, int first, int rows, i64 row_stride, i64 column_stride) {
    for (int index = threadIdx.x; index < ROWS * WIDTH; index += THREADS) {
        // Neighbouring threads read neighbours.
        int row = column_stride == 1 ? index / WIDTH : index % ROWS, column = column_stride == 1 ? index % WIDTH : index / ROWS;
        tile[row * PITCH + column] =
            first + row < rows ? to_f32(from[(first + row) * row_stride + column * column_stride]) : 0.0f;
    }
}

DEVICE void attend(const T *q, const T *k, const T *v, const M *mask, T *y) {
    SHARED_BYTES(shared);
    wait_for_last();
    f32 *tile_q = (f32 *)shared, *tile_k = tile_q + BQ * DEPTH_PITCH, *tile_v = tile_k + BKEYS * DEPTH_PITCH;
    f32 *scores = tile_v + BKEYS * WIDTH_V;
    constexpr int Q_TILES = (QUERIES + BQ - 1) / BQ, PITCH = BKEYS + 1;
    int z = blockIdx.x / Q_TILES, query_first = blockIdx.x % Q_TILES * BQ;
    q += start_q(z);
    k += start_k(z);
    v += start_v(z);
    if (HAS_MASK) mask += start_mask(z);
    y += start_y(z);
    int row = threadIdx.x / 8, part = threadIdx.x % 8, query = query_first + row;
    bring_rows<BQ, DEPTH, DEPTH_PITCH>(tile_q, q, query_first, QUERIES, Q_ROW, Q_COLUMN);
    f32 o[COLUMNS], largest = -INFINITE, total = 0;
    UNROLL for (int i = 0; i < COLUMNS; i++) o[i] = 0;
    for (int first = 0; first < KEYS; first += BKEYS) {
        sync_block();
        bring_rows<BKEYS, DEPTH, DEPTH_PITCH>(tile_k, k, first, KEYS, K_ROW, K_COLUMN);
        bring_rows<BKEYS, WIDTH_V, WIDTH_V>(tile_v, v, first, KEYS, V_ROW, V_COLUMN);
        sync_block();
        f32 s[BKEYS / 8], high = largest;
        UNROLL for (int i = 0; i < BKEYS / 8; i++) s[i] = 0;
        for (int d = 0; d < DEPTH; d++) {
            f32 x = tile_q[row * DEPTH_PITCH + d];
            UNROLL for (int i = 0; i < BKEYS / 8; i++) s[i] += x * tile_k[(part + 8 * i) * DEPTH_PITCH + d];
        }
        UNROLL for (int i = 0; i < BKEYS / 8; i++) {
            int key = first + part + 8 * i;
            bool is_in = key < KEYS;
            s[i] *= FACTOR;
            if (HAS_MASK && is_in && query < QUERIES) s[i] += to_f32(mask[query * MASK_ROW + key * MASK_COLUMN]);
            if (!is_in) s[i] = -INFINITE;
            high = fmaxf(high, s[i]);
        }
        for (int by = 1; by < 8; by *= 2) high = fmaxf(high, shuffle_xor(high, by));
        f32 base = finite(high), shrink = power_of_e(largest - base), sum = 0;
        largest = high;
        UNROLL for (int i = 0; i < BKEYS / 8; i++) {
            s[i] = power_of_e(s[i] - base);
            sum += s[i];
            scores[row * PITCH + part + 8 * i] = s[i];
        }
        for (int by = 1; by < 8; by *= 2) sum += shuffle_xor(sum, by);
        total = total * shrink + sum;
        // The eight threads of a row are of one warp.
        sync_warp();
        UNROLL for (int i = 0; i < COLUMNS; i++) {
            f32 x = 0;
            if (part + 8 * i < WIDTH_V)
                for (int key = 0; key < BKEYS; key++) x += scores[row * PITCH + key] * tile_v[key * WIDTH_V + part + 8 * i];
            o[i] = o[i] * shrink + x;
        }
        sync_warp();
    }
    if (query >= QUERIES) return;
    bool is_cleared = CLEARS_NAN && !(total > 0);
    UNROLL for (int i = 0; i < COLUMNS; i++) {
        int column = part + 8 * i;
        if (column < WIDTH_V) put(y + query * Y_ROW + column * Y_COLUMN, is_cleared ? 0.0f : o[i] / total);
    }
}
