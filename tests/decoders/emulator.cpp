// kernels.cu on a CPU: a block's lanes are fibers that take turns, and switch where lanes of a GPU wait for each other.
//
// Copies into shared memory are done as late as they may be, when their group is waited for, so that reading too early
// is seen. All of shared memory is NaN when a block begins.

#include <ucontext.h>

#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <vector>

#define __device__
#define __global__
#define __shared__
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))

struct float2 {
    float x, y;
};
struct __align__(16) float4 {
    float x, y, z, w;
};
struct Index {
    unsigned x;
};

struct Lane {
    ucontext_t context;
    std::vector<char> stack = std::vector<char>(1 << 16);
    bool done = false;
    struct Copy {
        float* to;
        const float* from;
        int count;
        bool inside;
    };
    std::vector<Copy> open;
    std::vector<std::vector<Copy>> closed;
};

static Index threadIdx, blockIdx, blockDim;
static std::vector<std::unique_ptr<Lane>> lanes;
static ucontext_t scheduler;
static std::function<void()> kernel;
static unsigned arrived[WARPS + 1], generation[WARPS + 1];
static float exchange[WARPS][32][6];

static void give_way() {
    Lane& self = *lanes[threadIdx.x];
    swapcontext(&self.context, &scheduler);
}
static void wait_for(unsigned group, unsigned size) {
    unsigned mine = generation[group];
    if (++arrived[group] == size) {
        arrived[group] = 0;
        generation[group]++;
    }
    while (generation[group] == mine) give_way();
}
static void __syncwarp() { wait_for(threadIdx.x / 32, 32); }
static void __syncthreads() { wait_for(WARPS, 32 * WARPS); }
static float __shfl_xor_sync(unsigned, float x, int mask) {
    float(&shared)[32][6] = exchange[threadIdx.x / 32];
    shared[threadIdx.x % 32][0] = x;
    __syncwarp();
    float other = shared[(threadIdx.x % 32) ^ mask][0];
    __syncwarp();
    return other;
}
static unsigned __umulhi(unsigned a, unsigned b) { return (uint64_t(a) * b) >> 32; }
static unsigned __float_as_uint(float x) {
    unsigned bits;
    memcpy(&bits, &x, 4);
    return bits;
}
static float __uint_as_float(unsigned bits) {
    float x;
    memcpy(&x, &bits, 4);
    return x;
}

template <int BYTES>
void fetch(float* to, const float* from, bool inside) {
    lanes[threadIdx.x]->open.push_back({to, from, BYTES / 4, inside});
}
static void close_group() {
    Lane& self = *lanes[threadIdx.x];
    self.closed.push_back(std::move(self.open));
    self.open.clear();
}
template <int LEFT>
void wait_for_groups() {
    auto& closed = lanes[threadIdx.x]->closed;
    while (closed.size() > LEFT) {
        for (auto& c : closed.front())
            for (int i = 0; i < c.count; i++) c.to[i] = c.inside ? c.from[i] : 0;
        closed.erase(closed.begin());
    }
}
static void put(float* to, float x) { *to = x; }
static void put(float* to, float4 x) { memcpy(to, &x, 16); }

static void multiply(float (&sum)[4], float a0, float a1, float a2, float a3, float2 b) {
    float(&shared)[32][6] = exchange[threadIdx.x / 32];
    const float own[6] = {a0, a1, a2, a3, b.x, b.y};
    unsigned lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    for (int i = 0; i < 6; i++) shared[lane][i] = __uint_as_float(__float_as_uint(own[i]) & 0xffffe000);  // TF32
    __syncwarp();
    auto a = [&](int row, int k) { return shared[4 * (row % 8) + k % 4][row / 8 + 2 * (k / 4)]; };
    auto b_ = [&](int k, int column) { return shared[4 * column + k % 4][4 + k / 4]; };
    for (int q = 0; q < 4; q++)
        for (int k = 0; k < 8; k++) sum[q] += a(g + 8 * (q / 2), k) * b_(k, 2 * t + q % 2);
    __syncwarp();
}

#include TILES
#include KERNELS

__align__(16) unsigned char memory[SHARED_BYTES];

static void begin() {
    kernel();
    lanes[threadIdx.x]->done = true;
    give_way();
}

static void launch(unsigned blocks, std::function<void()> work) {
    kernel = work;
    blockDim.x = 32 * WARPS;
    for (blockIdx.x = 0; blockIdx.x < blocks; blockIdx.x++) {
        memset(memory, 0xff, sizeof memory);
        lanes.clear();
        for (unsigned i = 0; i < blockDim.x; i++) {
            Lane& lane = *lanes.emplace_back(std::make_unique<Lane>());
            getcontext(&lane.context);
            lane.context.uc_stack.ss_sp = lane.stack.data();
            lane.context.uc_stack.ss_size = lane.stack.size();
            makecontext(&lane.context, begin, 0);
        }
        for (bool going = true; going;) {
            going = false;
            for (unsigned i = 0; i < blockDim.x; i++)
                if (!lanes[i]->done) {
                    threadIdx.x = i;
                    swapcontext(&scheduler, &lanes[i]->context);
                    going = true;
                }
        }
    }
}

extern "C" void run_decode(unsigned blocks, const Output* outputs, const Span* spans, int clients) {
    launch(blocks, [=] { decode(outputs, spans, clients); });
}
extern "C" void run_learn(
    unsigned blocks, const Output* outputs, const Span* spans, int clients, float* slopes, float* squares, double pace) {
    launch(blocks, [=] { learn(outputs, spans, clients, slopes, squares, pace); });
}
extern "C" void run_total(unsigned blocks, const float* parts, const int* starts, float* slopes) {
    launch(blocks, [=] { total(parts, starts, slopes); });
}
