// Windows of a convolution as rows of a matrix: row [n, d, h, w] is the window of that output element, k runs over
// [kd, kh, kw, c] (CHANNELS_FIRST: [c, kd, kh, kw]) of a group's channels. The lines before it divide by sizes: `image_of` a
// row by the places of an image, `line_of` a place by the width of the output, `tap_of` a k by the channels of a group.
template <class T, int ROWS> struct WindowRows {
    Sizes sizes;
    const T *image[ROWS];
    int d[ROWS], h[ROWS], w[ROWS];

    template <class M> DEVICE_MEMBER void set(int i, const M &x, i64 row, i64 rows, i64) {
        bool is_row = row < rows;
        i64 n = is_row ? image_of(sizes, row) : 0;
        int place = is_row ? (int)(row - n * (OUT_D * OUT_H * OUT_W)) : 0, line = line_of(sizes, place);
        image[i] = row_start(x + n * X_N);
        w[i] = (place - line * OUT_W) * STRIDE_W - PAD_W;
        h[i] = (OUT_D == 1 ? line : line % OUT_H) * STRIDE_H - PAD_H;
        // A row beyond the last one has no element inside the image.
        d[i] = is_row ? (OUT_D == 1 ? 0 : line / OUT_H) * STRIDE_D - PAD_D : -(1 << 28);
    }
    DEVICE_MEMBER const T *at(int i, int k, bool &is_in) const {
        constexpr int TAPS = KERNEL_D * KERNEL_H * KERNEL_W;
        int tap = CHANNELS_FIRST ? k % TAPS : TAPS == 1 ? 0 : tap_of(sizes, k);
        int c = CHANNELS_FIRST ? k / TAPS : k - tap * GROUP_CHANNELS;
        int x = w[i] + tap % KERNEL_W * DILATION_W;
        int y = h[i] + tap / KERNEL_W % KERNEL_H * DILATION_H;
        int z = d[i] + tap / (KERNEL_W * KERNEL_H) * DILATION_D;
        is_in = (K_IS_WHOLE || k < K) && (u32)x < (u32)IN_W && (u32)y < (u32)IN_H && (u32)z < (u32)IN_D;
        return image[i] + (is_in ? z * X_D + y * X_H + x * X_W + c * X_C : 0);
    }
};
