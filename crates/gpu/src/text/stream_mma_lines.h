// Lines of a stream on matrix instructions (`stream_mma.h`): eight neighbours of 16 bits each, as pairs.

constexpr int LINE = 8;
typedef Vec<u32, 4> Line;

DEVICE Line no_line() { return {{0, 0, 0, 0}}; }
DEVICE Line load_line(const T *from) { return load_vec<4>((const u32 *)from); }
