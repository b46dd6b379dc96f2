// Matrices of a stream on matrix instructions (`stream_mma.h`) whose elements have the type of the rows.

struct Matrix {
    const T *elements;
};

DEVICE Line in_order(const Line &x) { return x; }

struct Factors {
    Line at[AHEAD][MATRICES][COLUMN_TILES][2];

    DEVICE_MEMBER void begin(int) {}

    DEVICE_MEMBER void load(const Matrix (&b)[MATRICES], int turn, int matrix, int tile, int half, int column, int k, bool is_in) {
        Line &line = at[turn][matrix][tile][half];
        line = no_line();
        if (is_in) line = load_line(b[matrix].elements + (i64)column * K + k);
    }

    DEVICE_MEMBER Line line(int turn, int matrix, int tile, int half, int) const { return at[turn][matrix][tile][half]; }
};
