// A product of few rows with a matrix whose elements along K are neighbours: a warp streams COLUMNS columns of it, its lanes
// VEC elements at a time, and adds up what its lanes have.

DEVICE f32 widen(f16 x) { return to_f32(x); }
DEVICE f32 widen(bf16 x) { return to_f32(x); }
DEVICE f32 widen(f32 x) { return x; }

template <class A, class E> DEVICE void stream_columns(A a, const T *b, const E &end, i64 rows) {
    start_next();
    if (!B_IS_CONSTANT) wait_for_last();
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    int z = blockIdx.z, column_first = ((int)blockIdx.x * WARPS + warp) * COLUMNS;
    if (column_first >= N) return;
    a = a + start_a(z, rows);
    b += start_b(z);
    f32 sums[ROWS][COLUMNS];
    UNROLL for (int row = 0; row < ROWS; row++)
        UNROLL for (int column = 0; column < COLUMNS; column++) sums[row][column] = 0;
    constexpr int STEP = WARP * VEC, AHEAD = 4;
    for (int first = 0; first < K; first += STEP * AHEAD) {
        Vec<T, VEC> factors[AHEAD][COLUMNS];
        UNROLL for (int turn = 0; turn < AHEAD; turn++) {
            int k = first + turn * STEP + lane * VEC;
            UNROLL for (int column = 0; column < COLUMNS; column++) {
                // A column beyond the last one reads that.
                int from = column_first + column < N ? column_first + column : N - 1;
                if (k < K) factors[turn][column] = load_vec<VEC>(b + (i64)from * B_PITCH + k);
            }
        }
        // Constants come while the last launch still runs.
        if (B_IS_CONSTANT && first == 0) wait_for_last();
        UNROLL for (int turn = 0; turn < AHEAD; turn++) {
            int k = first + turn * STEP + lane * VEC;
            if (k >= K) continue;
            UNROLL for (int row = 0; row < ROWS; row++) {
                if (row >= rows) continue;
                Vec<T, VEC> x = load_vec<VEC>(a + row * K + k);
                UNROLL for (int column = 0; column < COLUMNS; column++) {
                    f32 part = 0;
                    UNROLL for (int i = 0; i < VEC; i++) part += widen(x.at[i]) * widen(factors[turn][column].at[i]);
                    sums[row][column] += part;
                }
            }
        }
    }
    UNROLL for (int row = 0; row < ROWS; row++)
        UNROLL for (int column = 0; column < COLUMNS; column++) {
            f32 sum = sums[row][column];
            for (int by = WARP / 2; by > 0; by /= 2) sum += shuffle_xor(sum, by);
            sums[row][column] = sum;
        }
    // Each lane finishes one of the sums.
    f32 x[1] = {0};
    UNROLL for (int row = 0; row < ROWS; row++)
        UNROLL for (int column = 0; column < COLUMNS; column++)
            if (lane == row * COLUMNS + column) x[0] = sums[row][column];
    int row = lane / COLUMNS, column = column_first + lane % COLUMNS;
    if (row < ROWS && row < rows && column < N) end.finish(x, row, rows, column, z);
}
