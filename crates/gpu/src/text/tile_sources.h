// Where the pieces of a product's operands lie: matrices by rows or by columns, and the windows of a convolution. Every
// source gives the address of elements of one row, K of which are multiplied.

// Rows of a matrix whose elements along K are neighbours, PITCH from one to the next, or K where that is 0. ROWS of them belong
// to one thread.
template <class T, int ROWS, int PITCH> struct MatrixRows {
    Sizes sizes;
    const T *start[ROWS];
    bool is_row[ROWS];

    template <class M> DEVICE_MEMBER void set(int i, const M &matrix, i64 row, i64 rows, i64) {
        is_row[i] = row < rows;
        start[i] = row_start(matrix + (is_row[i] ? row : 0) * (PITCH ? PITCH : K));
    }
    DEVICE_MEMBER const T *at(int i, int k, bool &is_in) const {
        is_in = is_row[i] && (K_IS_WHOLE || k < K);
        return start[i] + k;
    }
};

// Columns of a matrix whose neighbours lie next to each other.
template <class T, int ROWS> struct MatrixColumns {
    Sizes sizes;
    const T *start[ROWS];
    bool is_row[ROWS];
    i64 pitch;

    template <class M> DEVICE_MEMBER void set(int i, const M &matrix, i64 row, i64 rows, i64 pitch_) {
        is_row[i] = row < rows;
        start[i] = row_start(matrix) + (is_row[i] ? row : 0);
        pitch = pitch_;
    }
    DEVICE_MEMBER const T *at(int i, int k, bool &is_in) const {
        is_in = is_row[i] && (K_IS_WHOLE || k < K);
        return start[i] + k * pitch;
    }
};
