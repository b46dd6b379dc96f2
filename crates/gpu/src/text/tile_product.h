// A block's part of a product: which tiles it multiplies, and what becomes of the sums. SPLITS blocks divide the inner axis.
// SPLIT_BY: 0 one block has all of it, 1 the blocks of a cluster add up, 2 sums go to memory for a second launch.

// Adds up the sums of WARPS_K warps and of the blocks of a cluster, in order, and finishes them. What follows a product reads
// from far memory, so a thread asks for the operands of several of its results before it needs the first.
template <class E> DEVICE void finish_tile(const u8 *shared, const E &end, i64 row_first, i64 rows, int column_first, i64 z) {
    const Sizes &sizes = end.sizes;
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
    int k_first = (int)((i64)steps * split / SPLITS) * BK, k_end = (int)((i64)steps * (split + 1) / SPLITS) * BK;
    Either<A_BY_ROWS, TileByRows<BM, A_VEC, SourceA>, TileByColumns<BM, A_VEC>> tile_a;
    Either<B_BY_ROWS, TileByRows<BN, B_VEC, SourceB>, TileByColumns<BN, B_VEC>> tile_b;
    tile_a.set(sizes, a, row, rows, rows);
    tile_b.set(sizes, b, column, N, B_PITCH);
    multiply_tiles(shared, tile_a, tile_b, k_first, k_end < K ? k_end : K);
    finish_tile(shared, end, row, rows, column, z);
}
