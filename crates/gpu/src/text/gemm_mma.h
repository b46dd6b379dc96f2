// A product of 16-bit matrices on matrix instructions: BM x BN results a block, BK of the inner axis at a time in STAGES
// stages of shared memory; WARPS_M x WARPS_N warps share the results, WARPS_K the inner axis, and SPLITS blocks divide it.
// SPLIT_BY: 0 one block has all of it, 1 the blocks of a cluster add up, 2 sums go to memory for a second launch.

constexpr int THREADS = WARP * WARPS_M * WARPS_N * WARPS_K;
constexpr int A_BYTES = BM * BK * 2, B_BYTES = BN * BK * 2;
constexpr int ROW_TILES = BM / WARPS_M / 16, COLUMN_TILES = BN / WARPS_N / 8;
constexpr int SUM_PITCH = BN + 8;
static_assert(ROW_TILES >= 1 && COLUMN_TILES % 2 == 0 && BK / 16 % WARPS_K == 0, "a warp has a whole share");

template <bool IS_FIRST, class X, class Y> struct ChosenOf { typedef X Type; };
template <class X, class Y> struct ChosenOf<false, X, Y> { typedef Y Type; };
template <bool IS_FIRST, class X, class Y> using Chosen = typename ChosenOf<IS_FIRST, X, Y>::Type;

// Copies ROWS rows of BK elements to a tile.
template <int ROWS, int VEC, template <int> class S> struct TileByRows {
    static constexpr int PIECES = BK / 8, STEP = THREADS / PIECES, COUNT = (ROWS + STEP - 1) / STEP;
    S<COUNT> source;
    const T *valid;

    DEVICE_MEMBER void set(const T *matrix, i64 first, i64 rows, i64) {
        valid = matrix;
        UNROLL for (int i = 0; i < COUNT; i++) {
            source.set(i, matrix, first + threadIdx.x / PIECES + i * STEP, rows, 0);
        }
    }
    DEVICE_MEMBER void copy(T *tile, int k) const {
        int piece = threadIdx.x % PIECES;
        UNROLL for (int i = 0; i < COUNT; i++) {
            int row = threadIdx.x / PIECES + i * STEP;
            if (ROWS % STEP != 0 && row >= ROWS) continue;
            copy_piece<VEC>(tile + piece_at<PIECES>(row, piece), valid,
                            [&](int j, bool &is_in) { return source.at(i, k + piece * 8 + j, is_in); });
        }
    }
};

// Copies BK rows of COLUMNS elements to a tile, of a matrix whose rows are K.
template <int COLUMNS, int VEC> struct TileByColumns {
    static constexpr int PIECES = COLUMNS / 8, COUNT = (BK * PIECES + THREADS - 1) / THREADS;
    const T *matrix;
    i64 first, columns, pitch;

    DEVICE_MEMBER void set(const T *from, i64 first_, i64 columns_, i64 pitch_) {
        matrix = from, first = first_, columns = columns_, pitch = pitch_;
    }
    DEVICE_MEMBER void copy(T *tile, int k) const {
        UNROLL for (int i = 0; i < COUNT; i++) {
            int index = threadIdx.x + i * THREADS, row = index / PIECES, piece = index % PIECES;
            if (BK * PIECES % THREADS != 0 && row >= BK) continue;
            i64 column = first + piece * 8;
            const T *from = matrix + (k + row) * pitch + column;
            copy_piece<VEC>(tile + piece_at<PIECES>(row, piece), matrix, [&](int j, bool &is_in) {
                is_in = k + row < K && column + j < columns;
                return from + j;
            });
        }
    }
};

DEVICE void load_a(u32 (&x)[4], const T *tile, int row, int k) {
    int lane = threadIdx.x % WARP;
    if (A_BY_ROWS) load_matrices(x, tile + piece_at<BK / 8>(row + lane % 16, k / 8 + lane / 16));
    else load_matrices_transposed(x, tile + piece_at<BM / 8>(k + lane % 8 + lane / 16 * 8, row / 8 + lane / 8 % 2));
}

DEVICE void load_b(u32 (&x)[4], const T *tile, int column, int k) {
    int lane = threadIdx.x % WARP;
    if (B_BY_ROWS) load_matrices(x, tile + piece_at<BK / 8>(column + lane % 8 + lane / 16 * 8, k / 8 + lane / 8 % 2));
    else load_matrices_transposed(x, tile + piece_at<BN / 8>(k + lane % 16, column / 8 + lane / 16));
}

// The block's share of the product, left in shared memory as WARPS_K sums of BM rows.
template <class A, class B> DEVICE void multiply_tiles(u8 *shared, const A &a, const B &b, int k_first, int k_end) {
    int warp = threadIdx.x / WARP;
    int warp_m = warp % WARPS_M, warp_n = warp / WARPS_M % WARPS_N, warp_k = warp / (WARPS_M * WARPS_N);
    int row = warp_m * ROW_TILES * 16, column = warp_n * COLUMN_TILES * 8;
    f32 c[ROW_TILES][COLUMN_TILES][4];
    UNROLL for (int i = 0; i < ROW_TILES; i++)
        UNROLL for (int j = 0; j < COLUMN_TILES; j++)
            UNROLL for (int e = 0; e < 4; e++) c[i][j][e] = 0;

    int steps = (k_end - k_first + BK - 1) / BK;
    auto stage_a = [&](int stage) { return (T *)(shared + stage * (A_BYTES + B_BYTES)); };
    auto stage_b = [&](int stage) { return (T *)(shared + stage * (A_BYTES + B_BYTES) + A_BYTES); };
    // Constants come while the last launch still runs.
    UNROLL for (int stage = 0; stage < STAGES - 1; stage++)
        if (B_IS_CONSTANT && stage < steps) b.copy(stage_b(stage), k_first + stage * BK);
    wait_for_last();
    UNROLL for (int stage = 0; stage < STAGES - 1; stage++) {
        if (stage < steps) {
            a.copy(stage_a(stage), k_first + stage * BK);
            if (!B_IS_CONSTANT) b.copy(stage_b(stage), k_first + stage * BK);
        }
        copy_commit();
    }
    int stage = 0;
    for (int step = 0; step < steps; step++) {
        copy_wait<STAGES - 2>();
        sync_block();
        // The stage that all threads have just left.
        int next = step + STAGES - 1, free = stage == 0 ? STAGES - 1 : stage - 1;
        if (next < steps) {
            a.copy(stage_a(free), k_first + next * BK);
            b.copy(stage_b(free), k_first + next * BK);
        }
        copy_commit();
        const T *tile_a = stage_a(stage), *tile_b = stage_b(stage);
        constexpr int TURNS = BK / 16 / WARPS_K;
        u32 x[2][ROW_TILES][4], y[2][COLUMN_TILES / 2][4];
        UNROLL for (int turn = -1; turn < TURNS; turn++) {
            if (turn + 1 < TURNS) {
                int k = ((turn + 1) * WARPS_K + warp_k) * 16;
                UNROLL for (int i = 0; i < ROW_TILES; i++) load_a(x[(turn + 1) & 1][i], tile_a, row + i * 16, k);
                UNROLL for (int j = 0; j < COLUMN_TILES / 2; j++)
                    load_b(y[(turn + 1) & 1][j], tile_b, column + j * 16, k);
            }
            if (turn < 0) continue;
            UNROLL for (int i = 0; i < ROW_TILES; i++)
                UNROLL for (int j = 0; j < COLUMN_TILES; j++)
                    multiply_add<T>(c[i][j], x[turn & 1][i], y[turn & 1][j / 2][j % 2 * 2], y[turn & 1][j / 2][j % 2 * 2 + 1]);
        }
        stage = stage + 1 == STAGES ? 0 : stage + 1;
    }
    copy_wait<0>();
    sync_block();
    f32 *sums = (f32 *)shared + warp_k * BM * SUM_PITCH;
    int lane = threadIdx.x % WARP;
    UNROLL for (int i = 0; i < ROW_TILES; i++)
        UNROLL for (int j = 0; j < COLUMN_TILES; j++)
            UNROLL for (int half = 0; half < 2; half++) {
                f32 *to = sums + (row + i * 16 + half * 8 + lane / 4) * SUM_PITCH + column + j * 8 + lane % 4 * 2;
                store_vec<2>(to, Vec<f32, 2>{{c[i][j][half * 2], c[i][j][half * 2 + 1]}});
            }
}

// Adds up the sums of WARPS_K warps and of the blocks of a cluster, in order, and finishes them. What follows a product reads
// from far memory, so a thread asks for the operands of several of its results before it needs the first.
template <class E> DEVICE void finish_tile(const u8 *shared, const E &end, i64 row_first, i64 rows, int column_first, i64 z) {
    constexpr int BLOCKS = SPLIT_BY == 1 ? SPLITS : 1;
    constexpr int SHARE = BM / BLOCKS, ITEMS = SHARE * (BN / WIDTH);
    constexpr int TURNS = (ITEMS + THREADS - 1) / THREADS, TOGETHER = TURNS < 8 ? TURNS : 8;
    int rank = SPLIT_BY == 1 ? (int)blockIdx.z : 0;
    if (SPLIT_BY == 1) sync_cluster();
    else sync_block();
    auto row_of = [&](int item) { return rank * SHARE + (ALONG_ROWS ? item % SHARE : item / (BN / WIDTH)); };
    auto column_of = [&](int item) { return ALONG_ROWS ? item / SHARE * WIDTH : item % (BN / WIDTH) * WIDTH; };
    auto is_in = [&](int item) {
        return item < ITEMS && row_first + row_of(item) < rows && column_first + column_of(item) < N;
    };
    for (int first = threadIdx.x; first < ITEMS; first += THREADS * TOGETHER) {
        typename E::template Operands<WIDTH> operands[TOGETHER];
        UNROLL for (int turn = 0; turn < TOGETHER; turn++) {
            int item = first + turn * THREADS;
            if (!is_in(item)) continue;
            operands[turn] = end.template load<WIDTH>(row_first + row_of(item), rows, column_first + column_of(item), z);
        }
        UNROLL for (int turn = 0; turn < TOGETHER; turn++) {
            int item = first + turn * THREADS, row = row_of(item), column = column_of(item);
            if (!is_in(item)) continue;
            f32 x[WIDTH];
            UNROLL for (int i = 0; i < WIDTH; i++) x[i] = 0;
            UNROLL for (int block = 0; block < BLOCKS; block++) {
                const f32 *sums = (const f32 *)shared + row * SUM_PITCH + column;
                if (SPLIT_BY == 1) sums = in_cluster(sums, block);
                UNROLL for (int k = 0; k < WARPS_K; k++) {
                    constexpr int STEP = WIDTH < 4 ? WIDTH : 4;
                    UNROLL for (int i = 0; i < WIDTH; i += STEP) {
                        Vec<f32, STEP> part = load_vec<STEP>(sums + k * BM * SUM_PITCH + i);
                        UNROLL for (int j = 0; j < STEP; j++) x[i + j] += part.at[j];
                    }
                }
            }
            end.finish(x, operands[turn]);
        }
    }
    // A block that others read from must not end.
    if (SPLIT_BY == 1) sync_cluster();
}

template <class E> DEVICE void product_of_tiles(const T *a, const T *b, const E &end, i64 rows) {
    SHARED_BYTES(shared);
    u32 row_tiles = (u32)((rows + BM - 1) / BM);
    i64 z = blockIdx.x / row_tiles, row = (i64)(blockIdx.x % row_tiles) * BM;
    int split = blockIdx.z, column = blockIdx.y * BN;
    a += start_a(z, rows);
    b += start_b(z);
    // Splits are whole steps; the first ones have one more.
    constexpr int STEPS = (K + BK - 1) / BK;
    int k_first = (int)((i64)STEPS * split / SPLITS) * BK, k_end = (int)((i64)STEPS * (split + 1) / SPLITS) * BK;
    Chosen<A_BY_ROWS, TileByRows<BM, A_VEC, SourceA>, TileByColumns<BM, A_VEC>> tile_a;
    Chosen<B_BY_ROWS, TileByRows<BN, B_VEC, SourceB>, TileByColumns<BN, B_VEC>> tile_b;
    tile_a.set(a, row, rows, rows);
    tile_b.set(b, column, N, B_PITCH);
    multiply_tiles(shared, tile_a, tile_b, k_first, k_end < K ? k_end : K);
    finish_tile(shared, end, row, rows, column, z);
}
