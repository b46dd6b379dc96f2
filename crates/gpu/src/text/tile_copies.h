// How the threads of a block copy tiles of 16-bit elements to shared memory, and where the pieces of a tile lie there.
// The lines before it say whether groups of warps read them (BY_GROUPS).

constexpr int A_BYTES = BM * BK * 2, B_BYTES = BN * BK * 2;
// Floats from one row of sums to the next.
constexpr int SUM_PITCH = BN + 8;

template <bool IS_FIRST, class X, class Y> struct EitherOf { typedef X Type; };
template <class X, class Y> struct EitherOf<false, X, Y> { typedef Y Type; };
template <bool IS_FIRST, class X, class Y> using Either = typename EitherOf<IS_FIRST, X, Y>::Type;

// Copies ROWS rows of BK elements to a tile.
template <int ROWS, int VEC, template <int> class S> struct TileByRows {
    static constexpr int PIECES = BK / 8, STEP = THREADS / PIECES, COUNT = (ROWS + STEP - 1) / STEP;
    S<COUNT> source;
    const T *valid;

    template <class M> DEVICE_MEMBER void set(const Sizes &sizes, const M &matrix, i64 first, i64 rows, i64) {
        valid = row_start(matrix);
        source.sizes = sizes;
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

// Place of piece `piece` of row `row` of BK rows of COLUMNS elements. Groups of warps want columns in blocks of 64.
template <int COLUMNS> DEVICE int column_piece_at(int row, int piece) {
    return BY_GROUPS ? piece / 8 * BK * 64 + piece_at<8>(row, piece % 8) : piece_at<COLUMNS / 8>(row, piece);
}

// Copies BK rows of COLUMNS elements to a tile, of a matrix whose rows are K.
template <int COLUMNS, int VEC> struct TileByColumns {
    static constexpr int PIECES = COLUMNS / 8, COUNT = (BK * PIECES + THREADS - 1) / THREADS;
    Sizes sizes;
    const T *matrix;
    i64 first, columns, pitch;

    template <class M> DEVICE_MEMBER void set(const Sizes &sizes_, const M &from, i64 first_, i64 columns_, i64 pitch_) {
        sizes = sizes_, matrix = row_start(from), first = first_, columns = columns_, pitch = pitch_;
    }
    DEVICE_MEMBER void copy(T *tile, int k) const {
        UNROLL for (int i = 0; i < COUNT; i++) {
            int index = threadIdx.x + i * THREADS, row = index / PIECES, piece = index % PIECES;
            if (BK * PIECES % THREADS != 0 && row >= BK) continue;
            i64 column = first + piece * 8;
            const T *from = matrix + (k + row) * pitch + column;
            copy_piece<VEC>(tile + column_piece_at<COLUMNS>(row, piece), matrix, [&](int j, bool &is_in) {
                is_in = (K_IS_WHOLE || k + row < K) && column + j < columns;
                return from + j;
            });
        }
    }
};
