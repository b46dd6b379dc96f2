// What happens to the sums of a product: the epilogue and the store, or, where blocks divide the inner axis, a place in
// scratch memory and a second launch that adds them in order. The lines before it define `Sizes`: what of the product's sizes is a
// parameter of the kernel, if anything is; then N, K and their like stand for members of a value `sizes`; and `Results`: how
// the kernel is given the result.

template <class T, class X> DEVICE void put(T *place, X x) { *place = (T)x; }

// The end of a product: y = epilogue(x).
struct Finish {
    Results y;
    Epilogue epilogue;
    Sizes sizes;

    // What results from `column` on will need; read early, it is there when they are.
    template <int W> struct Operands {
        i64 at;
        Epilogue::Operands<W> read;
    };

    template <int W> DEVICE_MEMBER Operands<W> load(i64 row, i64 rows, int column, i64 z) const {
        // Product z is one of a batch, or of groups of channels.
        if (Z_IS_GROUP) column += (int)z * N;
        else row += z * rows;
        i64 at = place(sizes, row, column);
        return {at, epilogue.template load<W>(row, column, at)};
    }
    template <int W> DEVICE_MEMBER void finish(Acc (&x)[W], const Operands<W> &operands) const {
        epilogue.apply(x, operands.read);
        Vec<Y, W> out;
        UNROLL for (int i = 0; i < W; i++) put(&out.at[i], x[i]);
        store_vec<W>(y + operands.at, out);
    }
    template <int W> DEVICE_MEMBER void finish(Acc (&x)[W], i64 row, i64 rows, int column, i64 z) const {
        finish(x, load<W>(row, rows, column, z));
    }
};

// Sums of a part of the inner axis: [split, z, row, column], where so many z are `parts`.
struct KeepSums {
    Acc *sums;
    i64 parts;
    Sizes sizes;

    template <int W> struct Operands {
        i64 at;
    };

    template <int W> DEVICE_MEMBER Operands<W> load(i64 row, i64 rows, int column, i64 z) const {
        return {((blockIdx.z * parts + z) * rows + row) * N + column};
    }
    template <int W> DEVICE_MEMBER void finish(const Acc (&x)[W], const Operands<W> &operands) const {
        Vec<Acc, W> out;
        UNROLL for (int i = 0; i < W; i++) out.at[i] = x[i];
        store_vec<W>(sums + operands.at, out);
    }
    template <int W> DEVICE_MEMBER void finish(const Acc (&x)[W], i64 row, i64 rows, int column, i64 z) const {
        finish(x, load<W>(row, rows, column, z));
    }
};

// The second launch: one thread for WIDTH neighbours.
template <class E> DEVICE void add_splits(const Acc *sums, const E &end, i64 rows, i64 parts) {
    start_next();
    wait_for_last();
    const Sizes &sizes = end.sizes;
    i64 item = (i64)blockIdx.x * blockDim.x + threadIdx.x, count = parts * rows * N;
    if (item * WIDTH >= count) return;
    Acc x[WIDTH];
    UNROLL for (int i = 0; i < WIDTH; i++) x[i] = 0;
    UNROLL for (int split = 0; split < SPLITS; split++) {
        Vec<Acc, WIDTH> part = load_vec<WIDTH>(sums + split * count + item * WIDTH);
        UNROLL for (int i = 0; i < WIDTH; i++) x[i] += part.at[i];
    }
    i64 row = item * WIDTH / N;
    end.finish(x, row % rows, rows, (int)(item * WIDTH % N), row / rows);
}
