// Rows of a stream (`stream.h`): a lane takes LANE_K successive elements of one at a time.

typedef Vec<T, VEC> Line;

struct Row {
    Line at[LANE_K / VEC];

    DEVICE_MEMBER T element(int i) const { return at[i / VEC].at[i % VEC]; }
    DEVICE_MEMBER void load(const T *from) { UNROLL for (int i = 0; i < LANE_K / VEC; i++) at[i] = load_vec<VEC>(from + i * VEC); }
};
