// Places of images as rows of a matrix, K elements each: all places one after the other, or, where IS_STRIDED, some of every
// image, line by line.
template <class T, int ROWS> struct PointRows {
    Sizes sizes;
    const T *start[ROWS];
    bool is_row[ROWS];

    template <class M> DEVICE_MEMBER void set(int i, const M &x, i64 row, i64 rows, i64) {
        is_row[i] = row < rows;
        i64 from = is_row[i] ? row : 0;
        if (IS_STRIDED) {
            i64 image = sizes.by_image.divide((u32)from);
            int place = (int)(from - image * PLACES), line = sizes.by_line.divide(place);
            start[i] = row_start(x + (image * IMAGE_PITCH + (i64)line * LINE_PITCH + (place - line * OUT_W) * POINT_PITCH));
        } else {
            start[i] = row_start(x + from * K);
        }
    }
    DEVICE_MEMBER const T *at(int i, int k, bool &is_in) const {
        is_in = is_row[i] && (K_IS_WHOLE || k < K);
        return start[i] + k;
    }
};
