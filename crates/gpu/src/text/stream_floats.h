// Matrices of a stream (`stream.h`) whose elements have the type of the rows.

struct Matrix {
    const T *elements;
};

struct Factors {
    Row at[AHEAD][MATRICES][COLUMNS];

    DEVICE_MEMBER void load(const Matrix (&b)[MATRICES], int turn, int matrix, int column, int from, int k) {
        at[turn][matrix][column].load(b[matrix].elements + (i64)from * K + k);
    }

    DEVICE_MEMBER f32 dot(int turn, int matrix, int column, const Row &x) const {
        const Row &factors = at[turn][matrix][column];
        f32 sum = 0;
        UNROLL for (int i = 0; i < LANE_K; i++) sum += to_f32(x.element(i)) * to_f32(factors.element(i));
        return sum;
    }
};
