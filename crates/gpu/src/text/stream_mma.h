// Products of few rows with one or two constant matrices whose elements along K are neighbours, on matrix instructions. The matrix
// is their left operand, 16 columns of it at a time, and rows are their right one, eight at a time: reading a weight is what
// costs, whatever the number of rows. Warps of a block divide K, and what they have of a result is added up in shared memory.
// A lane has LANE_K neighbours along K of two columns and of one row. Which elements of K an instruction multiplies is all the
// same while both sides have the same ones, so both are used as they lie in memory.

constexpr int THREADS = WARPS * WARP, LINES = LANE_K / LINE, STEP = 4 * LANE_K, SPAN = STEP * AHEAD;
constexpr int ROWS = 8 * ROW_TILES, COLUMNS = 16 * COLUMN_TILES;
// Whether no lane of any warp begins behind the end of K.
constexpr bool IS_WHOLE = K % (SPAN * WARPS) == 0;
// Floats from a row of sums to the next: lanes that store at once store to different banks.
constexpr int SUM_PITCH = COLUMNS + 4;
// Results of a thread.
constexpr int TURNS = (ROWS * COLUMNS + THREADS - 1) / THREADS;

DEVICE void load_factors(Factors &factors, const Matrix (&b)[MATRICES], int first, int column_first, int lane) {
    UNROLL for (int turn = 0; turn < AHEAD; turn++) {
        int k = first + turn * STEP + lane % 4 * LANE_K;
        UNROLL for (int matrix = 0; matrix < MATRICES; matrix++)
            UNROLL for (int tile = 0; tile < COLUMN_TILES; tile++)
                UNROLL for (int half = 0; half < 2; half++) {
                    int column = column_first + tile * 16 + half * 8 + lane / 4;
                    // A column beyond the last one reads that.
                    if (column >= N) column = N - 1;
                    factors.load(b, turn, matrix, tile, half, column, k, IS_WHOLE || k < K);
                }
    }
}

// The lane's row of each tile. Rows beyond the last one read that; their results are not stored.
struct Rows {
    const T *at[ROW_TILES];
    f32 factors[ROW_TILES];

    DEVICE_MEMBER void set(const T *x, int rows, int lane) {
        UNROLL for (int tile = 0; tile < ROW_TILES; tile++) {
            int row = tile * 8 + lane / 4;
            at[tile] = x + (i64)(row < rows ? row : rows - 1) * K;
            factors[tile] = 1;
        }
    }

    // One divided by the root of each row's mean square. All threads of the block take part.
    DEVICE_MEMBER void find_factors(int warp, int lane) {
        SHARED(f32, squares, WARPS * ROWS);
        constexpr int TOGETHER = 4, SHARE = WARPS * 4 * LINE;
        UNROLL for (int tile = 0; tile < ROW_TILES; tile++) {
            f32 sum = 0;
            for (int first = (warp * 4 + lane % 4) * LINE; first < K; first += SHARE * TOGETHER) {
                Line lines[TOGETHER];
                UNROLL for (int turn = 0; turn < TOGETHER; turn++) {
                    int k = first + turn * SHARE;
                    lines[turn] = no_line();
                    if (k < K) lines[turn] = load_line(at[tile] + k);
                }
                UNROLL for (int turn = 0; turn < TOGETHER; turn++)
                    UNROLL for (int i = 0; i < 4; i++) {
                        f32 x = low_of<T>(lines[turn].at[i]), y = high_of<T>(lines[turn].at[i]);
                        sum += x * x + y * y;
                    }
            }
            sum += shuffle_xor(sum, 1);
            sum += shuffle_xor(sum, 2);
            if (lane % 4 == 0) squares[warp * ROWS + tile * 8 + lane / 4] = sum;
        }
        sync_block();
        UNROLL for (int tile = 0; tile < ROW_TILES; tile++) {
            f32 sum = 0;
            UNROLL for (int part = 0; part < WARPS; part++) sum += squares[part * ROWS + tile * 8 + lane / 4];
            factors[tile] = 1.0f / of_sqrt(sum / K + EPSILON);
        }
    }

    // Eight elements of a row as they are multiplied.
    DEVICE_MEMBER Line load(int tile, int k, const Line &scale) const {
        Line line = no_line();
        if (IS_WHOLE || k < K) line = load_line(at[tile] + k);
        if (HAS_NORM)
            UNROLL for (int i = 0; i < 4; i++)
                line.at[i] = pair_of<T>(low_of<T>(line.at[i]) * factors[tile] * low_of<T>(scale.at[i]),
                                        high_of<T>(line.at[i]) * factors[tile] * high_of<T>(scale.at[i]));
        return in_order(line);
    }
};

typedef f32 Sums[MATRICES][COLUMN_TILES][ROW_TILES][4];

// Takes what factors hold to the sums.
DEVICE void add_products(Sums &sums, const Factors &factors, const Rows &rows, const T *scale, int first, int lane) {
    UNROLL for (int turn = 0; turn < AHEAD; turn++)
        UNROLL for (int at = 0; at < LINES; at++) {
            int k = first + turn * STEP + lane % 4 * LANE_K + at * LINE;
            Line scales = no_line(), x[ROW_TILES];
            if (HAS_NORM && (IS_WHOLE || k < K)) scales = load_line(scale + k);
            UNROLL for (int tile = 0; tile < ROW_TILES; tile++) x[tile] = rows.load(tile, k, scales);
            UNROLL for (int matrix = 0; matrix < MATRICES; matrix++)
                UNROLL for (int column = 0; column < COLUMN_TILES; column++) {
                    Line low = factors.line(turn, matrix, column, 0, at), high = factors.line(turn, matrix, column, 1, at);
                    UNROLL for (int part = 0; part < 4; part += 2) {
                        u32 a[4] = {low.at[part], high.at[part], low.at[part + 1], high.at[part + 1]};
                        UNROLL for (int tile = 0; tile < ROW_TILES; tile++)
                            multiply_add<T>(sums[matrix][column][tile], a, x[tile].at[part], x[tile].at[part + 1]);
                    }
                }
        }
}

// One of a thread's results: successive threads have successive columns.
struct Result {
    int row, column;
    bool is_in;

    DEVICE_MEMBER Result(int turn, int column_first, int rows) {
        int item = (int)threadIdx.x + turn * THREADS;
        row = item / COLUMNS, column = item % COLUMNS;
        is_in = item < ROWS * COLUMNS && row < rows && column_first + column < N;
        if (!is_in) row = 0, column = 0;
    }
};

template <class R>
DEVICE void stream(const T *x, const T *scale, const Matrix (&b)[MATRICES], const Epilogue &epilogue, const R &y, int rows) {
    start_next();
    SHARED_BYTES(shared);
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, column_first = (int)blockIdx.x * COLUMNS;
    Factors factors;
    factors.begin(rows);
    load_factors(factors, b, warp * SPAN, column_first, lane);
    wait_for_last();
    Epilogue::Operands<1> operands[TURNS];
    UNROLL for (int turn = 0; turn < TURNS; turn++) {
        Result own(turn, column_first, rows);
        int column = column_first + own.column;
        operands[turn] = epilogue.load<1>(own.row, column, place(own.row, column));
    }
    Rows own_rows;
    own_rows.set(x, rows, lane);
    if (HAS_NORM) own_rows.find_factors(warp, lane);
    Sums sums;
    UNROLL for (int matrix = 0; matrix < MATRICES; matrix++)
        UNROLL for (int column = 0; column < COLUMN_TILES; column++)
            UNROLL for (int tile = 0; tile < ROW_TILES; tile++)
                UNROLL for (int i = 0; i < 4; i++) sums[matrix][column][tile][i] = 0;
    for (int first = warp * SPAN; first < K; first += WARPS * SPAN) {
        if (first >= WARPS * SPAN) load_factors(factors, b, first, column_first, lane);
        add_products(sums, factors, own_rows, scale, first, lane);
    }
    // Of each matrix the sums of the warps, by rows.
    f32 *all = (f32 *)shared;
    auto sum_at = [&](int matrix, int part, int row, int column) {
        return all + ((matrix * WARPS + part) * ROWS + row) * SUM_PITCH + column;
    };
    UNROLL for (int matrix = 0; matrix < MATRICES; matrix++)
        UNROLL for (int column = 0; column < COLUMN_TILES; column++)
            UNROLL for (int tile = 0; tile < ROW_TILES; tile++)
                UNROLL for (int i = 0; i < 4; i++)
                    *sum_at(matrix, warp, tile * 8 + lane % 4 * 2 + i % 2, column * 16 + i / 2 * 8 + lane / 4) =
                        sums[matrix][column][tile][i];
    sync_block();
    UNROLL for (int turn = 0; turn < TURNS; turn++) {
        Result own(turn, column_first, rows);
        if (!own.is_in) continue;
        f32 found[MATRICES];
        UNROLL for (int matrix = 0; matrix < MATRICES; matrix++) {
            found[matrix] = 0;
            UNROLL for (int part = 0; part < WARPS; part++) found[matrix] += *sum_at(matrix, part, own.row, own.column);
        }
        put(y + place(own.row, column_first + own.column), epilogue.join(found, operands[turn]));
    }
}
