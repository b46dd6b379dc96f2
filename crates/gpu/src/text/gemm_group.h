// A product of 16-bit matrices on the matrix instructions that four warps issue together and that read both operands from shared
// memory (sm_90a): BM x BN results a block, 64 of the inner axis at a time in STAGES stages of shared memory; GROUPS_M x
// GROUPS_N groups of four warps share the results.

constexpr int GROUP_ROWS = BM / GROUPS_M, GROUP_COLUMNS = BN / GROUPS_N, ROW_BLOCKS = GROUP_ROWS / 64;
static_assert(BK == 64 && GROUP_ROWS % 64 == 0 && GROUP_COLUMNS % 64 == 0 && STAGES >= 3, "a group has whole blocks");

// The part of a tile that starts at line `line` (a multiple of 64) of the result and `k` (a multiple of 16) of the inner axis.
template <bool IS_BY_ROWS> DEVICE GroupTile part_of(const T *tile, int line, int k) {
    // 64 lines are 64 rows of 128 bytes, or a block of 64 columns with BK rows of 128 bytes.
    return group_tile(tile + line * BK + (IS_BY_ROWS ? k : k * 64), IS_BY_ROWS ? 16 : BK * 128, 1024);
}

// The block's share of the product, left in shared memory as one sum of BM rows. Instructions of step i are under way while
// those of step i-1 are waited for; so what they read is free again two steps later, after a barrier.
template <class A, class B> DEVICE void multiply_tiles(u8 *shared, const A &a, const B &b, int k_first, int k_end) {
    constexpr int AHEAD = STAGES - 2;
    int group = threadIdx.x / 128;
    int row = group % GROUPS_M * GROUP_ROWS, column = group / GROUPS_M * GROUP_COLUMNS;
    f32 c[ROW_BLOCKS][GROUP_COLUMNS / 2];
    UNROLL for (int i = 0; i < ROW_BLOCKS; i++)
        UNROLL for (int e = 0; e < GROUP_COLUMNS / 2; e++) c[i][e] = 0;

    int steps = (k_end - k_first + BK - 1) / BK;
    auto stage_a = [&](int stage) { return (T *)(shared + stage * (A_BYTES + B_BYTES)); };
    auto stage_b = [&](int stage) { return (T *)(shared + stage * (A_BYTES + B_BYTES) + A_BYTES); };
    // Constants come while the last launch still runs.
    UNROLL for (int stage = 0; stage < AHEAD; stage++)
        if (B_IS_CONSTANT && stage < steps) b.copy(stage_b(stage), k_first + stage * BK);
    wait_for_last();
    UNROLL for (int stage = 0; stage < AHEAD; stage++) {
        if (stage < steps) {
            a.copy(stage_a(stage), k_first + stage * BK);
            if (!B_IS_CONSTANT) b.copy(stage_b(stage), k_first + stage * BK);
        }
        copy_commit();
    }
    int stage = 0, free = AHEAD;
    for (int step = 0; step < steps; step++) {
        copy_wait<AHEAD - 1>();
        show_groups();
        sync_block();
        const T *tile_a = stage_a(stage), *tile_b = stage_b(stage);
        begin_groups();
        UNROLL for (int k = 0; k < BK; k += 16)
            UNROLL for (int i = 0; i < ROW_BLOCKS; i++)
                multiply_group(c[i], part_of<A_BY_ROWS>(tile_a, row + i * 64, k), part_of<B_BY_ROWS>(tile_b, column, k));
        commit_groups();
        wait_groups<1>();
        if (step + AHEAD < steps) {
            a.copy(stage_a(free), k_first + (step + AHEAD) * BK);
            b.copy(stage_b(free), k_first + (step + AHEAD) * BK);
        }
        copy_commit();
        stage = stage + 1 == STAGES ? 0 : stage + 1;
        free = free + 1 == STAGES ? 0 : free + 1;
    }
    wait_groups<0>();
    copy_wait<0>();
    sync_block();
    f32 *sums = (f32 *)shared;
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP % 4;
    UNROLL for (int i = 0; i < ROW_BLOCKS; i++)
        UNROLL for (int j = 0; j < GROUP_COLUMNS / 8; j++)
            UNROLL for (int half = 0; half < 2; half++) {
                int place = row + i * 64 + warp * 16 + half * 8 + lane / 4;
                f32 *to = sums + place * SUM_PITCH + column + j * 8 + lane % 4 * 2;
                store_vec<2>(to, Vec<f32, 2>{{c[i][j * 4 + half * 2], c[i][j * 4 + half * 2 + 1]}});
            }
}
