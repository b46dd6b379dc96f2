// Products of few rows with one or two constant matrices whose elements along K are neighbours: a warp has COLUMNS columns of
// each, its lanes LANE_K elements at a time. Rows may be normed on the way; the sums of a column of all matrices become one result.
// Matrices (`Factors`) are read before the last launch has ended, all of them where they are small.

constexpr int THREADS = WARPS * WARP, STEP = WARP * LANE_K, SPAN = STEP * AHEAD;
// Elements of a row in shared memory, where lanes that read at once read different banks.
constexpr int PITCH = K + K / LANE_K * PAD;

// Where an element of rows lies: in shared memory, or where they were given.
DEVICE i64 place_of_row(int row, int k) { return IS_STAGED ? (i64)row * PITCH + k + k / LANE_K * PAD : (i64)row * K + k; }

DEVICE void copy_rows(const T *x, Line *staged, int rows) {
    for (int at = threadIdx.x * VEC; at < rows * K; at += THREADS * VEC)
        staged[place_of_row(at / K, at % K) / VEC] = load_vec<VEC>(x + at);
    sync_block();
}

// Rows divided by the root of their mean square, times a scale: in shared memory, by all threads.
DEVICE void norm_rows(const T *x, const T *scale, Line *staged, int rows) {
    SHARED(f32, parts, ROWS * WARPS);
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    UNROLL for (int row = 0; row < ROWS; row++) {
        f32 sum = 0;
        for (int k = threadIdx.x * VEC; k < K && row < rows; k += THREADS * VEC) {
            Line line = load_vec<VEC>(x + (i64)row * K + k);
            UNROLL for (int i = 0; i < VEC; i++) sum += to_f32(line.at[i]) * to_f32(line.at[i]);
        }
        for (int by = WARP / 2; by > 0; by /= 2) sum += shuffle_xor(sum, by);
        if (lane == 0) parts[row * WARPS + warp] = sum;
    }
    sync_block();
    UNROLL for (int row = 0; row < ROWS; row++) {
        f32 sum = 0;
        UNROLL for (int part = 0; part < WARPS; part++) sum += parts[row * WARPS + part];
        f32 factor = 1.0f / of_sqrt(sum / K + EPSILON);
        for (int k = threadIdx.x * VEC; k < K && row < rows; k += THREADS * VEC) {
            Line line = load_vec<VEC>(x + (i64)row * K + k), weights = load_vec<VEC>(scale + k);
            UNROLL for (int i = 0; i < VEC; i++) put(&line.at[i], to_f32(line.at[i]) * factor * to_f32(weights.at[i]));
            staged[place_of_row(row, k) / VEC] = line;
        }
    }
    sync_block();
}

DEVICE void load_factors(Factors &factors, const Matrix (&b)[MATRICES], int first, int column_first, int lane) {
    UNROLL for (int turn = 0; turn < AHEAD; turn++) {
        int k = first + turn * STEP + lane * LANE_K;
        UNROLL for (int matrix = 0; matrix < MATRICES; matrix++)
            UNROLL for (int column = 0; column < COLUMNS; column++) {
                // A column beyond the last one reads that.
                int from = column_first + column < N ? column_first + column : N - 1;
                if (k < K) factors.load(b, turn, matrix, column, from, k);
            }
    }
}

template <class R>
DEVICE void stream(const T *x, const T *scale, const Matrix (&b)[MATRICES], const Epilogue &epilogue, const R &y, int rows) {
    start_next();
    SHARED(Line, staged, IS_STAGED ? ROWS * PITCH / VEC : 1);
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    int column_first = ((int)blockIdx.x * WARPS + warp) * COLUMNS;
    Factors factors;
    load_factors(factors, b, 0, column_first, lane);
    wait_for_last();
    // Each lane finishes one of the results.
    int own_row = lane / COLUMNS, own_column = column_first + lane % COLUMNS;
    bool has_own = own_row < ROWS && own_row < rows && own_column < N;
    i64 at = place(has_own ? own_row : 0, has_own ? own_column : 0);
    Epilogue::Operands<1> operands = epilogue.load<1>(has_own ? own_row : 0, has_own ? own_column : 0, at);
    if (IS_STAGED) {
        if (HAS_NORM) norm_rows(x, scale, staged, rows);
        else copy_rows(x, staged, rows);
        x = (const T *)staged;
    }
    f32 sums[MATRICES][ROWS][COLUMNS];
    UNROLL for (int matrix = 0; matrix < MATRICES; matrix++)
        UNROLL for (int row = 0; row < ROWS; row++)
            UNROLL for (int column = 0; column < COLUMNS; column++) sums[matrix][row][column] = 0;
    for (int first = 0; first < K; first += SPAN) {
        if (first > 0) load_factors(factors, b, first, column_first, lane);
        UNROLL for (int turn = 0; turn < AHEAD; turn++) {
            int k = first + turn * STEP + lane * LANE_K;
            if (k >= K) continue;
            UNROLL for (int row = 0; row < ROWS; row++) {
                if (row >= rows) continue;
                Row part;
                part.load(x + place_of_row(row, k));
                UNROLL for (int matrix = 0; matrix < MATRICES; matrix++)
                    UNROLL for (int column = 0; column < COLUMNS; column++)
                        sums[matrix][row][column] += factors.dot(turn, matrix, column, part);
            }
        }
    }
    f32 own[MATRICES];
    UNROLL for (int matrix = 0; matrix < MATRICES; matrix++)
        UNROLL for (int row = 0; row < ROWS; row++)
            UNROLL for (int column = 0; column < COLUMNS; column++) {
                f32 sum = sums[matrix][row][column];
                for (int by = WARP / 2; by > 0; by /= 2) sum += shuffle_xor(sum, by);
                if (lane == row * COLUMNS + column) own[matrix] = sum;
            }
    if (has_own) put(y + at, epilogue.join(own, operands));
}
