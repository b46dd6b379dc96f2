// A product of 16-bit matrices on matrix instructions: BM x BN results a block, BK of the inner axis at a time in STAGES
// stages of shared memory; WARPS_M x WARPS_N warps share the results, WARPS_K the inner axis.

constexpr int ROW_TILES = BM / WARPS_M / 16, COLUMN_TILES = BN / WARPS_N / 8;
static_assert(ROW_TILES >= 1 && COLUMN_TILES % 2 == 0 && BK / 16 % WARPS_K == 0, "a warp has a whole share");

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
