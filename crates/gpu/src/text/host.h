// The host's part of the prelude: the threads of a block are fibers of one thread, switched at barriers. All threads of a
// warp must take part in a warp exchange and all threads of a block in a block barrier, else the run is reported as stuck.

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utility>
#include <vector>

#define SHARED(type, name, count) static thread_local type name[count]
#define SHARED_BYTES(name) u8 *name = host::dynamic_shared
#define UNROLL

struct Index3 {
    u32 x, y, z;
};

static thread_local Index3 threadIdx, blockIdx, blockDim, gridDim;

namespace host {

enum State { READY, AT_BLOCK, AT_WARP, DONE };
constexpr size_t STACK_BYTES = 64 << 10;
constexpr size_t SLOT_BYTES = 256;

struct Fiber {
    void *stack_pointer;
    State state;
    // What the thread shows the others of its warp, twice, so that one exchange need not wait for readers of the last.
    alignas(16) u8 slots[2][SLOT_BYTES];
    int turn;
};

static thread_local u8 *dynamic_shared;
static thread_local std::vector<Fiber> fibers;
static thread_local u8 *stacks;
static thread_local size_t stacks_count;
static thread_local void *scheduler;
static thread_local u32 current;
static thread_local void (*body)(void *);
static thread_local void *body_data;

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
    body(body_data);
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

static void run_block(u32 threads) {
    fibers.resize(threads);
    if (stacks_count < threads) {
        free(stacks);
        stacks = (u8 *)aligned_alloc(4096, threads * STACK_BYTES);
        stacks_count = threads;
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
    }
    for (;;) {
        bool has_run = false, is_done = true;
        for (u32 thread = 0; thread < threads; thread++) {
            if (fibers[thread].state != READY) continue;
            current = thread;
            threadIdx = unflatten(thread);
            precast_switch(&scheduler, fibers[thread].stack_pointer);
            has_run = true;
        }
        u32 waiting = 0, done = 0;
        bool is_freed = false;
        for (u32 first = 0; first < threads; first += WARP) {
            u32 end = first + WARP < threads ? first + WARP : threads;
            u32 at_warp = 0, finished = 0;
            for (u32 thread = first; thread < end; thread++) {
                at_warp += fibers[thread].state == AT_WARP;
                finished += fibers[thread].state == DONE;
                waiting += fibers[thread].state == AT_BLOCK;
            }
            done += finished;
            if (at_warp > 0 && at_warp + finished == end - first) {
                for (u32 thread = first; thread < end; thread++)
                    if (fibers[thread].state == AT_WARP) fibers[thread].state = READY;
                is_freed = true;
            }
            is_done = is_done && finished == end - first;
        }
        if (is_done) return;
        if (waiting > 0 && waiting + done == threads) {
            for (Fiber &fiber : fibers)
                if (fiber.state == AT_BLOCK) fiber.state = READY;
            is_freed = true;
        }
        if (!is_freed && !has_run) stuck();
        if (!is_freed) {
            bool any = false;
            for (Fiber &fiber : fibers) any = any || fiber.state == READY;
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

template <class... A, size_t... I> static void call(void (*kernel)(A...), void **args, std::index_sequence<I...>) {
    kernel(*(A *)args[I]...);
}

template <class... A> static void call(void (*kernel)(A...), void **args) {
    call(kernel, args, std::index_sequence_for<A...>());
}

template <class... A> constexpr unsigned count(void (*)(A...)) { return sizeof...(A); }

template <class F> struct Bound {
    F kernel;
    void **args;
};

template <class F> static void run(F kernel, Index3 grid, Index3 block, u32 shared_bytes, void **args, bool is_flat) {
    gridDim = grid;
    blockDim = block;
    u32 threads = block.x * block.y * block.z;
    std::vector<u8> shared(shared_bytes + 128);
    dynamic_shared = (u8 *)(((u64)shared.data() + 127) / 128 * 128);
    Bound<F> bound = {kernel, args};
    body = [](void *data) { call(((Bound<F> *)data)->kernel, ((Bound<F> *)data)->args); };
    body_data = &bound;
    for (u32 z = 0; z < grid.z; z++)
        for (u32 y = 0; y < grid.y; y++)
            for (u32 x = 0; x < grid.x; x++) {
                blockIdx = {x, y, z};
                memset(dynamic_shared, 0xff, shared_bytes);
                if (!is_flat) {
                    run_block(threads);
                    continue;
                }
                for (u32 thread = 0; thread < threads; thread++) {
                    threadIdx = unflatten(thread);
                    call(kernel, args);
                }
            }
}

} // namespace host

#define HOST_KERNEL(name, is_flat, ...)                                                                               \
    static void name(__VA_ARGS__);                                                                                    \
    extern "C" const unsigned name##_params = host::count(name);                                                      \
    extern "C" void name##_host(u32 gx, u32 gy, u32 gz, u32 bx, u32 by, u32 bz, u32 shared, void **args) {            \
        host::run(name, Index3{gx, gy, gz}, Index3{bx, by, bz}, shared, args, is_flat);                               \
    }                                                                                                                 \
    static void name(__VA_ARGS__)
#define KERNEL(name, threads, ...) HOST_KERNEL(name, false, __VA_ARGS__)
// A kernel without barriers and exchanges: its threads run one after the other.
#define KERNEL_FLAT(name, threads, ...) HOST_KERNEL(name, true, __VA_ARGS__)

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
