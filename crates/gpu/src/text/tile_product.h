// A block's part of a product: which tiles it multiplies, and what becomes of the sums. SPLITS blocks divide the inner axis.
// SPLIT_BY: 0 one block has all of it, 1 the blocks of a cluster add up, 2 sums go to memory for a second launch. SPLITS is 0
// where the launch says how many blocks a cluster has: from 2 to CLUSTER_MAX.
constexpr int CLUSTER_MAX = 8;

// Adds up the sums of WARPS_K warps in at most BLOCKS blocks, in order. As many are asked for before the first is used as registers
// have room for.
template <int BLOCKS> DEVICE void add_sums(f32 (&x)[WIDTH], const f32 *own, int blocks) {
    constexpr int STEP = WIDTH < 4 ? WIDTH : 4, SUMS_AHEAD = 8;
    constexpr int AHEAD = BLOCKS * WARPS_K <= SUMS_AHEAD ? BLOCKS : WARPS_K < SUMS_AHEAD ? SUMS_AHEAD / WARPS_K : 1;
    UNROLL for (int first = 0; first < BLOCKS; first += AHEAD) {
        if (first >= blocks) break;
        Vec<f32, STEP> parts[AHEAD][WARPS_K][WIDTH / STEP];
        UNROLL for (int block = 0; block < AHEAD; block++) {
            if (first + block >= blocks) break;
            const f32 *sums = own;
            if (SPLIT_BY == 1) sums = in_cluster(own, first + block);
            UNROLL for (int k = 0; k < WARPS_K; k++)
                UNROLL for (int i = 0; i < WIDTH / STEP; i++)
                    parts[block][k][i] = load_vec<STEP>(sums + k * BM * SUM_PITCH + i * STEP);
        }
        UNROLL for (int block = 0; block < AHEAD; block++) {
            if (first + block >= blocks) break;
            UNROLL for (int k = 0; k < WARPS_K; k++)
                UNROLL for (int i = 0; i < WIDTH; i++) x[i] += parts[block][k][i / STEP].at[i % STEP];
        }
    }
}

// Adds up the sums of WARPS_K warps and of the blocks of a cluster, in order, and finishes them. What follows a product reads
// from far memory, so a thread asks for the operands of several of its results before it needs the first.
template <class E> DEVICE void finish_tile(const u8 *shared, const E &end, i64 row_first, i64 rows, int column_first, i64 z) {
    const Sizes &sizes = end.sizes;
    constexpr int BLOCKS_MIN = SPLIT_BY != 1 ? 1 : SPLITS ? SPLITS : 2, ITEMS_MAX = BM / BLOCKS_MIN * (BN / WIDTH);
    constexpr int TURNS = (ITEMS_MAX + THREADS - 1) / THREADS, TOGETHER = TURNS < 8 ? TURNS : 8;
    const int blocks = SPLIT_BY == 1 && !SPLITS ? (int)gridDim.z : BLOCKS_MIN;
    const int share = BM / blocks, items = share * (BN / WIDTH);
    int rank = SPLIT_BY == 1 ? (int)blockIdx.z : 0;
    if (SPLIT_BY == 1) sync_cluster();
    else sync_block();
    auto row_of = [&](int item) { return rank * share + (ALONG_ROWS ? item % share : item / (BN / WIDTH)); };
    auto column_of = [&](int item) { return ALONG_ROWS ? item / share * WIDTH : item % (BN / WIDTH) * WIDTH; };
    auto is_in = [&](int item) {
        return item < items && row_first + row_of(item) < rows && column_first + column_of(item) < N;
    };
    for (int first = threadIdx.x; first < items; first += THREADS * TOGETHER) {
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
            const f32 *own = (const f32 *)shared + row * SUM_PITCH + column;
            add_sums<SPLIT_BY == 1 && !SPLITS ? CLUSTER_MAX : BLOCKS_MIN>(x, own, blocks);
            end.finish(x, operands[turn]);
        }
    }
    // A block that others read from must not end.
    if (SPLIT_BY == 1) sync_cluster();
}

template <class A, class E> DEVICE void product_of_tiles(A a, const T *b, const E &end, i64 rows) {
    SHARED_BYTES(shared);
    const Sizes &sizes = end.sizes;
    u32 row_tiles = (u32)((rows + BM - 1) / BM);
    i64 z = blockIdx.x / row_tiles, row = (i64)(blockIdx.x % row_tiles) * BM;
    int split = blockIdx.z, column = blockIdx.y * BN;
    a = a + start_a(z, rows);
    b += start_b(z);
    // Splits are whole steps; the first ones have one more.
    int steps = (K + BK - 1) / BK;
    u32 splits = SPLITS ? SPLITS : gridDim.z;
    int k_first = (int)((u32)(steps * split) / splits) * BK, k_end = (int)((u32)(steps * (split + 1)) / splits) * BK;
    Either<A_BY_ROWS, TileByRows<BM, A_VEC, SourceA>, TileByColumns<BM, A_VEC>> tile_a;
    Either<B_BY_ROWS, TileByRows<BN, B_VEC, SourceB>, TileByColumns<BN, B_VEC>> tile_b;
    tile_a.set(sizes, a, row, rows, rows);
    tile_b.set(sizes, b, column, N, B_PITCH);
    multiply_tiles(shared, tile_a, tile_b, k_first, k_end < K ? k_end : K);
    finish_tile(shared, end, row, rows, column, z);
}
