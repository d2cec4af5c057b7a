// The passes of `fused` over the weights of all decoders, in one launch each.
//
// Given by the compiler: H (h, the columns of a weight), M (the clients), ROOM (bytes that a block shares). A warp takes ROWS rows of a weight at a
// time, has the next ones brought into shared memory meanwhile, and waits for nobody else. Products are those of tensor
// cores (mma.m16n8k8, TF32), whose operands and results lie in registers thus: lane 4g + t of a warp has
//   of A (16 rows, 8 summed):  (g, t), (g + 8, t), (g, t + 4), (g + 8, t + 4)
//   of B (8 summed, 8 columns): (t, g), (t + 4, g)
//   of the sum (16 rows, 8 columns): (g, 2t), (g, 2t + 1), (g + 8, 2t), (g + 8, 2t + 1).
// The order in which a product sums is free: where what is summed over lies as columns of a sum do, t stands for 2t, and
// t + 4 for 2t + 1, so that one product's result is the next one's operand as it is.

constexpr int C = (M + 7) / 8 * 8;  // clients, padded
constexpr int ROWS = 16, WARPS = 4, STAGES = 2;
#define NOT_HELD __int_as_float(0x7f800000)  // infinity

struct Holder {  // of one client's part of an output, (outer, inner, columns): how much of two axes it holds
    float* start;
    int outer, columns;
};

struct Output {
    float *weight, *bias;
    const float* mix;
    long long rows;  // that anybody holds
    int inner, columns;
    Holder holders[M];
};

struct Span {  // of rows: what a block works on
    int output, first, end, unused;
};

struct Stage {  // Distances between rows are such that lanes meet in no bank of the memory.
    float weight[ROWS][H + 8];
    float held[C][ROWS + 4];
    float bias[ROWS];
};

struct Room {
    float2 mix[H / 8][C / 8][32], mix_turned[H / 8][C / 8][32];  // as B, summed over h and over clients
    Holder holders[C];
    union {
        Stage stages[WARPS][STAGES];
        struct {
            float slope[H][C], square[WARPS];
        } total;
    };
};

static_assert(sizeof(Room) == ROOM);

extern __shared__ __align__(16) unsigned char memory[];

__device__ unsigned shared_address(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }

// Copies that do not wait; zeros where `inside` is false.
__device__ void bring_16(float* to, const float* from, bool inside) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from), "r"(inside ? 16 : 0));
}
__device__ void bring_4(float* to, const float* from, bool inside) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared_address(to)), "l"(from), "r"(inside ? 4 : 0));
}
__device__ void close_group() { asm volatile("cp.async.commit_group;"); }
template <int LEFT>
__device__ void wait_for_groups() {
    asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
}

__device__ float rounded(float x) {  // to TF32
    unsigned bits;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(x));
    return __uint_as_float(bits);
}

__device__ void multiply(float (&sum)[4], float a0, float a1, float a2, float a3, float2 b) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(__float_as_uint(a0)), "r"(__float_as_uint(a1)), "r"(__float_as_uint(a2)), "r"(__float_as_uint(a3)),
          "r"(__float_as_uint(b.x)), "r"(__float_as_uint(b.y)));
}

struct Place {  // of a row of the weight in clients' parts
    int line, column, outer;
    __device__ Place(const Output& output, int row)
        : line(row / output.columns), column(row % output.columns), outer(line / output.inner) {}
    __device__ bool held(const Holder& holder) const { return outer < holder.outer && column < holder.columns; }
    __device__ float* in(const Holder& holder) const { return holder.start + (line * holder.columns + column); }
};

// What a block needs of its output.
__device__ void prepare(Room& room, const Output& output) {
    for (int i = threadIdx.x; i < H / 8 * (C / 8) * 32; i += blockDim.x) {
        int j = i / 32 / (C / 8), n = i / 32 % (C / 8), g = i % 32 / 4, t = i % 4;
        auto mix = [&](int client, int column) { return client < M ? rounded(output.mix[client * H + column]) : 0.f; };
        (&room.mix[0][0][0])[i] = {mix(8 * n + g, 8 * j + 2 * t), mix(8 * n + g, 8 * j + 2 * t + 1)};
        (&room.mix_turned[0][0][0])[i] = {mix(8 * n + 2 * t, 8 * j + g), mix(8 * n + 2 * t + 1, 8 * j + g)};
    }
    for (int c = threadIdx.x; c < C; c += blockDim.x) room.holders[c] = c < M ? output.holders[c] : Holder{nullptr, 0, 0};
    __syncthreads();
}

template <bool WITH_HELD>
__device__ void bring(Stage& stage, const Room& room, const Output& output, int first, int end) {
    int lane = threadIdx.x % 32;
    for (int i = lane; i < ROWS * H / 4; i += 32) {
        int row = i / (H / 4), column = i % (H / 4) * 4;
        bool inside = first + row < end;
        bring_16(&stage.weight[row][column], output.weight + (inside ? (long long)(first + row) * H + column : 0), inside);
    }
    int row = lane % ROWS;
    bool inside = first + row < end;
    if (lane < ROWS) bring_4(&stage.bias[row], output.bias + (inside ? first + row : 0), inside);
    if (WITH_HELD) {
        Place place(output, first + row);
        for (int c = lane / ROWS; c < C; c += 32 / ROWS) {
            Holder holder = room.holders[c];
            if (inside && place.held(holder))
                bring_4(&stage.held[c][row], place.in(holder), true);
            else
                stage.held[c][row] = NOT_HELD;
        }
    }
    close_group();
}

// Rows times mixes, plus bias: a lane's clients are 8n + 2t and the next.
__device__ void decoded(float (&sums)[C / 8][4], const Stage& stage, const Room& room, int lane) {
    int g = lane / 4, t = lane % 4;
    for (auto& sum : sums) sum[0] = sum[1] = stage.bias[g], sum[2] = sum[3] = stage.bias[g + 8];
#pragma unroll
    for (int j = 0; j < H / 8; j++) {
        float2 low = *(const float2*)&stage.weight[g][8 * j + 2 * t], high = *(const float2*)&stage.weight[g + 8][8 * j + 2 * t];
#pragma unroll
        for (int n = 0; n < C / 8; n++) multiply(sums[n], low.x, high.x, low.y, high.y, room.mix[j][n][lane]);
    }
}

// Calls work(stage, first row) for each tile of this warp, the next one on its way.
template <bool WITH_HELD, class Work>
__device__ void each_tile(Room& room, const Output& output, const Span& span, Work work) {
    constexpr int STRIDE = WARPS * ROWS;
    int warp = threadIdx.x / 32, first = span.first + warp * ROWS;
    Stage* stages = room.stages[warp];
    if (first < span.end) bring<WITH_HELD>(stages[0], room, output, first, span.end);
    for (int i = 0; first < span.end; i ^= 1, first += STRIDE) {
        if (first + STRIDE < span.end)
            bring<WITH_HELD>(stages[i ^ 1], room, output, first + STRIDE, span.end);
        else
            close_group();
        wait_for_groups<1>();
        __syncwarp();
        work(stages[i], first);
        __syncwarp();
    }
    wait_for_groups<0>();
}

extern "C" __global__ void __launch_bounds__(32 * WARPS) decode(const Output* outputs, const Span* spans) {
    Room& room = *(Room*)memory;
    Span span = spans[blockIdx.x];
    const Output& output = outputs[span.output];
    int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    prepare(room, output);
    each_tile<false>(room, output, span, [&](Stage& stage, int first) {
        float sums[C / 8][4];
        decoded(sums, stage, room, lane);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int row = first + g + 8 * half;
            if (row >= span.end) break;
            Place place(output, row);
#pragma unroll
            for (int n = 0; n < C / 8; n++)
                for (int k = 0; k < 2; k++) {
                    Holder holder = room.holders[8 * n + 2 * t + k];
                    if (place.held(holder)) *place.in(holder) = sums[n][2 * half + k];
                }
        }
    });
}

extern "C" __global__ void __launch_bounds__(32 * WARPS, 3)
    learn(const Output* outputs, const Span* spans, float* slopes, float* squares, double pace_) {
    Room& room = *(Room*)memory;
    Span span = spans[blockIdx.x];
    const Output& output = outputs[span.output];
    const float pace = pace_;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    float slope[H / 16][C / 8][4] = {}, square = 0;
    prepare(room, output);
    each_tile<true>(room, output, span, [&](Stage& stage, int first) {
        float errors[C / 8][4];
        decoded(errors, stage, room, lane);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int row = g + 8 * half;
            Place place(output, first + row);
            float sum = 0;
#pragma unroll
            for (int n = 0; n < C / 8; n++)
#pragma unroll
                for (int k = 0; k < 2; k++) {
                    int client = 8 * n + 2 * t + k;
                    float trained = stage.held[client][row], &error = errors[n][2 * half + k];
                    bool held = trained != NOT_HELD;
                    error = held ? trained - error : 0.f;
                    if (held) *place.in(room.holders[client]) = error;
                    sum += error;
                    stage.held[client][row] = error = rounded(error);
                }
            sum += __shfl_xor_sync(~0u, sum, 1);
            sum += __shfl_xor_sync(~0u, sum, 2);
            if (t == 0) {
                square += sum * sum;
                if (first + row < span.end) output.bias[first + row] = stage.bias[row] + pace * sum;
            }
        }
        __syncwarp();
        // The slope, turned: columns of the weight by clients, summed over rows.
#pragma unroll
        for (int k = 0; k < ROWS; k += 8) {
            float2 of_clients[C / 8];
#pragma unroll
            for (int n = 0; n < C / 8; n++) of_clients[n] = {stage.held[8 * n + g][k + t], stage.held[8 * n + g][k + t + 4]};
#pragma unroll
            for (int i = 0; i < H / 16; i++) {
                const float *upper = &stage.weight[k + t][16 * i + g], *lower = &stage.weight[k + t + 4][16 * i + g];
#pragma unroll
                for (int n = 0; n < C / 8; n++) multiply(slope[i][n], upper[0], upper[8], lower[0], lower[8], of_clients[n]);
            }
        }
        // The step: errors by mixes, summed over clients.
#pragma unroll
        for (int j = 0; j < H / 8; j++) {
            float step[4] = {};
#pragma unroll
            for (int n = 0; n < C / 8; n++)
                multiply(step, errors[n][0], errors[n][2], errors[n][1], errors[n][3], room.mix_turned[j][n][lane]);
#pragma unroll
            for (int half = 0; half < 2; half++) {
                int row = g + 8 * half, column = 8 * j + 2 * t;
                float x = step[2 * half], y = step[2 * half + 1];
                square += x * x + y * y;
                float2 old = *(const float2*)&stage.weight[row][column];
                if (first + row < span.end)
                    *(float2*)&output.weight[(long long)(first + row) * H + column] = {old.x + pace * x, old.y + pace * y};
            }
        }
    });
    // The sums of a block's warps, in their order.
    for (int d = 16; d; d /= 2) square += __shfl_xor_sync(~0u, square, d);
    for (int turn = 0; turn < WARPS; turn++) {
        __syncthreads();
        if (turn != warp) continue;
        room.total.square[warp] = square;
#pragma unroll
        for (int i = 0; i < H / 16; i++)
#pragma unroll
            for (int n = 0; n < C / 8; n++)
#pragma unroll
                for (int q = 0; q < 4; q++) {
                    float& total = room.total.slope[16 * i + g + 8 * (q / 2)][8 * n + 2 * t + q % 2];
                    total = (turn ? total : 0.f) + slope[i][n][q];
                }
    }
    __syncthreads();
    for (int i = threadIdx.x; i < M * H; i += blockDim.x) slopes[(long long)blockIdx.x * M * H + i] = room.total.slope[i % H][i / H];
    if (threadIdx.x == 0) {
        square = 0;
        for (int w = 0; w < WARPS; w++) square += room.total.square[w];
        squares[blockIdx.x] = square;
    }
}
