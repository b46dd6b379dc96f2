// The host's part of the prelude: the threads of a block are fibers of one thread, switched at barriers. All threads of a
// warp must take part in a warp exchange and all threads of a block in a block barrier, else the run is reported as stuck.

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SHARED(type, name, count) static thread_local type name[count]
#define SHARED_BYTES(name) u8 *name = host::dynamic_shared
#define UNROLL

struct Index3 {
    u32 x, y, z;
};

static thread_local Index3 threadIdx, blockIdx, blockDim, gridDim;

namespace host {

enum State { READY, AT_BLOCK, AT_WARP, AT_CLUSTER, DONE };
constexpr size_t STACK_BYTES = 64 << 10;
constexpr size_t SLOT_BYTES = 256;

// An asynchronous copy to shared memory, or the end of a group of them. A copy that is not `is_in` writes zeros.
struct Copy {
    void *to;
    const void *from;
    u32 bytes;
    bool is_in, is_end;
};

struct Fiber {
    void *stack_pointer;
    State state;
    // What the thread shows the others of its warp, twice, so that one exchange need not wait for readers of the last.
    alignas(16) u8 slots[2][SLOT_BYTES];
    int turn;
    // Copies that have not happened, and room for them.
    Copy *copies;
    u32 copies_count, copies_max;
};

constexpr u32 CLUSTER_MAX = 16;

static thread_local u8 *dynamic_shared;
// Dynamic shared memory of each block that runs, and which of the grid it is.
static thread_local u8 *cluster_shared[CLUSTER_MAX];
static thread_local Index3 cluster_blocks[CLUSTER_MAX];
// Room for so many threads, which grows and is never given back.
static thread_local u32 fibers_max;
static thread_local Fiber *fibers;
static thread_local u8 *stacks;
static thread_local void *scheduler;
static thread_local u32 current;
static thread_local void (*body)(void **);
static thread_local void **body_args;

// Saves this context's registers on its stack, writes its stack pointer, and continues the other.
extern "C" void precast_switch(void **from, void *to);
__asm__(
    ".text\n"
    ".type precast_switch,@function\n"
    "precast_switch:\n"
    "  pushq %rbp\n  pushq %rbx\n  pushq %r12\n  pushq %r13\n  pushq %r14\n  pushq %r15\n"
    "  movq %rsp, (%rdi)\n"
    "  movq %rsi, %rsp\n"
    "  popq %r15\n  popq %r14\n  popq %r13\n  popq %r12\n  popq %rbx\n  popq %rbp\n"
    "  ret\n"
    ".size precast_switch,.-precast_switch\n");

static void leave(State state) {
    Fiber &fiber = fibers[current];
    fiber.state = state;
    precast_switch(&fiber.stack_pointer, scheduler);
}

static void enter_fiber() {
    body(body_args);
    leave(DONE);
    abort();
}

static Index3 unflatten(u32 thread) {
    return {thread % blockDim.x, thread / blockDim.x % blockDim.y, thread / blockDim.x / blockDim.y};
}

static void stuck() {
    fprintf(stderr, "precast kernel: the threads of a block wait at different barriers\n");
    abort();
}

// Runs the blocks of a cluster together, `block_threads` threads a block.
static void run_blocks(u32 block_threads, u32 blocks) {
    u32 threads = block_threads * blocks;
    if (fibers_max < threads) {
        for (u32 thread = 0; thread < fibers_max; thread++) free(fibers[thread].copies);
        free(fibers);
        free(stacks);
        fibers = (Fiber *)calloc(threads, sizeof(Fiber));
        stacks = (u8 *)aligned_alloc(4096, threads * STACK_BYTES);
        fibers_max = threads;
    }
    for (u32 thread = 0; thread < threads; thread++) {
        u64 *top = (u64 *)(stacks + (thread + 1) * STACK_BYTES);
        // Six registers, the entry, and a place for its return address, which keeps the stack aligned as a call would.
        top -= 8;
        memset(top, 0, 8 * sizeof(u64));
        top[6] = (u64)(void *)enter_fiber;
        fibers[thread].stack_pointer = top;
        fibers[thread].state = READY;
        fibers[thread].turn = 0;
        fibers[thread].copies_count = 0;
    }
    for (;;) {
        bool has_run = false, is_done = true;
        for (u32 thread = 0; thread < threads; thread++) {
            if (fibers[thread].state != READY) continue;
            current = thread;
            threadIdx = unflatten(thread % block_threads);
            blockIdx = cluster_blocks[thread / block_threads];
            dynamic_shared = cluster_shared[thread / block_threads];
            precast_switch(&scheduler, fibers[thread].stack_pointer);
            has_run = true;
        }
        bool is_freed = false;
        u32 at_cluster = 0;
        for (u32 block = 0; block < threads; block += block_threads) {
            u32 waiting = 0, done = 0;
            u32 block_end = block + block_threads;
            for (u32 first = block; first < block_end; first += WARP) {
                u32 end = first + WARP < block_end ? first + WARP : block_end;
                u32 at_warp = 0, finished = 0;
                for (u32 thread = first; thread < end; thread++) {
                    at_warp += fibers[thread].state == AT_WARP;
                    finished += fibers[thread].state == DONE;
                    waiting += fibers[thread].state == AT_BLOCK;
                    at_cluster += fibers[thread].state == AT_CLUSTER;
                }
                done += finished;
                if (at_warp > 0 && at_warp + finished == end - first) {
                    for (u32 thread = first; thread < end; thread++)
                        if (fibers[thread].state == AT_WARP) fibers[thread].state = READY;
                    is_freed = true;
                }
                is_done = is_done && finished == end - first;
            }
            if (waiting > 0 && waiting + done == block_threads) {
                for (u32 thread = block; thread < block_end; thread++)
                    if (fibers[thread].state == AT_BLOCK) fibers[thread].state = READY;
                is_freed = true;
            }
        }
        if (is_done) return;
        if (at_cluster == threads) {
            for (u32 thread = 0; thread < threads; thread++) fibers[thread].state = READY;
            is_freed = true;
        }
        if (!is_freed && !has_run) stuck();
        if (!is_freed) {
            bool any = false;
            for (u32 thread = 0; thread < threads; thread++) any = any || fibers[thread].state == READY;
            if (!any) stuck();
        }
    }
}

// Shows the warp a value and gives the value that another lane shows.
template <class T> static const T &lane_slot(u32 lane, int turn) {
    static_assert(sizeof(T) <= SLOT_BYTES, "a slot is too small");
    u32 thread = current / WARP * WARP + lane;
    return *(const T *)fibers[thread].slots[turn];
}

template <class T> static int show(const T &x) {
    Fiber &fiber = fibers[current];
    int turn = fiber.turn;
    fiber.turn ^= 1;
    memcpy(fiber.slots[turn], &x, sizeof(T));
    leave(AT_WARP);
    return turn;
}

// Copies happen as late as they may, so that a missing wait shows.
static void add_copy(const Copy &copy) {
    Fiber &fiber = fibers[current];
    if (fiber.copies_count == fiber.copies_max) {
        fiber.copies_max = fiber.copies_max * 2 + 64;
        fiber.copies = (Copy *)realloc(fiber.copies, fiber.copies_max * sizeof(Copy));
    }
    fiber.copies[fiber.copies_count++] = copy;
}

// Does the copies of all groups but the last `groups_left`.
static void finish_copies(u32 groups_left) {
    Fiber &fiber = fibers[current];
    u32 groups = 0, at = 0;
    for (u32 i = 0; i < fiber.copies_count; i++) groups += fiber.copies[i].is_end;
    for (; groups > groups_left; at++) {
        const Copy &copy = fiber.copies[at];
        if (copy.is_end) groups--;
        else if (copy.is_in) memcpy(copy.to, copy.from, copy.bytes);
        else memset(copy.to, 0, copy.bytes);
    }
    fiber.copies_count -= at;
    memmove(fiber.copies, fiber.copies + at, fiber.copies_count * sizeof(Copy));
}

template <int... I> struct Indices {};
template <int N, int... I> struct IndicesBelow : IndicesBelow<N - 1, N - 1, I...> {};
template <int... I> struct IndicesBelow<0, I...> {
    typedef Indices<I...> Type;
};

template <class... A, int... I> static void call(void (*kernel)(A...), void **args, Indices<I...>) {
    kernel(*(A *)args[I]...);
}

template <class... A> static void call(void (*kernel)(A...), void **args) {
    call(kernel, args, typename IndicesBelow<sizeof...(A)>::Type());
}

template <class... A> constexpr unsigned count(void (*)(A...)) { return sizeof...(A); }

// Not a template: many kernels are compiled in one text.
static void run(void (*kernel)(void **), Index3 grid, Index3 block, u32 shared_bytes, void **args, bool is_flat,
                u32 cluster) {
    gridDim = grid;
    blockDim = block;
    u32 threads = block.x * block.y * block.z;
    if (cluster > CLUSTER_MAX || (cluster > 1 && (grid.z % cluster != 0 || threads % WARP != 0))) stuck();
    u32 pitch = (shared_bytes + 127) / 128 * 128;
    u8 *shared = (u8 *)aligned_alloc(128, pitch * cluster + 128);
    for (u32 rank = 0; rank < cluster; rank++) cluster_shared[rank] = shared + rank * pitch;
    dynamic_shared = shared;
    body = kernel;
    body_args = args;
    for (u32 z = 0; z < grid.z; z += cluster)
        for (u32 y = 0; y < grid.y; y++)
            for (u32 x = 0; x < grid.x; x++) {
                blockIdx = {x, y, z};
                memset(shared, 0xff, pitch * cluster);
                if (!is_flat) {
                    for (u32 rank = 0; rank < cluster; rank++) cluster_blocks[rank] = {x, y, z + rank};
                    run_blocks(threads, cluster);
                    continue;
                }
                for (u32 thread = 0; thread < threads; thread++) {
                    threadIdx = unflatten(thread);
                    kernel(args);
                }
            }
    free(shared);
}

} // namespace host

#define HOST_KERNEL(name, is_flat, cluster, ...)                                                                      \
    static void name(__VA_ARGS__);                                                                                    \
    static void name##_call(void **args) { host::call(name, args); }                                                  \
    extern "C" const unsigned name##_params = host::count(name);                                                      \
    extern "C" void name##_host(u32 gx, u32 gy, u32 gz, u32 bx, u32 by, u32 bz, u32 shared, void **args) {            \
        host::run(name##_call, Index3{gx, gy, gz}, Index3{bx, by, bz}, shared, args, is_flat, cluster);               \
    }                                                                                                                 \
    static void name(__VA_ARGS__)
#define KERNEL(name, threads, ...) HOST_KERNEL(name, false, 1, __VA_ARGS__)
// A kernel without barriers and exchanges: its threads run one after the other.
#define KERNEL_FLAT(name, threads, ...) HOST_KERNEL(name, true, 1, __VA_ARGS__)

template <class T> static T shuffle(T x, int lane) {
    int turn = host::show(x);
    return host::lane_slot<T>(lane % WARP, turn);
}
template <class T> static T shuffle_xor(T x, int mask) { return shuffle(x, (int)(host::current % WARP) ^ mask); }
template <class T> static T shuffle_up(T x, int by) {
    int lane = host::current % WARP;
    return shuffle(x, lane < by ? lane : lane - by);
}
template <class T> static T shuffle_down(T x, int by) {
    int lane = host::current % WARP;
    return shuffle(x, lane + by < WARP ? lane + by : lane);
}
static void sync_block() { host::leave(host::AT_BLOCK); }
static void sync_warp() { host::leave(host::AT_WARP); }
static void atomic_max(i32 *place, i32 x) { *place = *place < x ? x : *place; }
static u32 atomic_add(u32 *place, u32 x) {
    *place += x;
    return *place - x;
}
