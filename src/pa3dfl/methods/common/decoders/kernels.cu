// The passes of `fused` over the weights of all decoders, in one launch each.
//
// Given by the compiler: H (h, the columns of a weight), C (room for so many clients), WARPS (of a block), ROOM (bytes
// that a block shares). A warp takes ROWS rows of a weight at a time, has the next ones brought into shared memory
// meanwhile, and waits for nobody else. Products are those of tensor cores (mma.m16n8k8, TF32), whose operands and
// results lie in registers thus: lane 4g + t of a warp has
//   of A (16 rows, 8 summed):  (g, t), (g + 8, t), (g, t + 4), (g + 8, t + 4)
//   of B (8 summed, 8 columns): (t, g), (t + 4, g)
//   of the sum (16 rows, 8 columns): (g, 2t), (g, 2t + 1), (g + 8, 2t), (g + 8, 2t + 1).
// The order in which a product sums is free: where what is summed over lies as columns of a sum do, t stands for 2t
// and t + 4 for 2t + 1, so that a lane's operand is what it has of a sum. What only a GPU can do is in primitives.cu.

constexpr int ROWS = 16, STAGES = 2;

struct __align__(16) Holder {  // of a part of an output, (outer, inner, columns): how much of two axes
    float* start;
    unsigned outer, columns;
};

struct Output {
    float *weight, *bias;
    const float* mix;
    unsigned inner, columns;
    Holder holders[C];
};

struct Span {  // of rows: what a block works on
    unsigned output, first, end, unused;
};

struct Divisor {  // Division by what the compiler does not know takes twenty instructions, this takes five.
    unsigned by, inverse;
    __device__ Divisor(unsigned by) : by(by), inverse(by > 1 ? (1ull << 32) / by : ~0u) {}
    __device__ void operator()(unsigned x, unsigned& quotient, unsigned& rest) const {
        quotient = __umulhi(x, inverse);  // or one less than it should be
        rest = x - quotient * by;
        if (rest >= by) quotient++, rest -= by;
    }
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

// To TF32, whose last 13 bits products ignore.
__device__ float rounded(float x) { return __uint_as_float(__float_as_uint(x) + 0x1000); }

struct Weights {  // of an output, at hand
    float *weight, *bias;
    Divisor columns, inner;
    __device__ Weights(const Output& output)
        : weight(output.weight), bias(output.bias), columns(output.columns), inner(output.inner) {}
};

struct Place {  // of a row of the weight in clients' parts; nobody holds a row beyond the end
    unsigned line, column, outer, of_inner;
    __device__ Place(const Weights& of, unsigned row, unsigned end) {
        of.columns(row, line, column);
        of.inner(line, outer, of_inner);
        if (row >= end) outer = ~0u;
    }
    __device__ bool held(const Holder& holder) const { return outer < holder.outer && column < holder.columns; }
    __device__ float* in(const Holder& holder) const { return holder.start + (line * holder.columns + column); }
};

// What a block needs of its output.
__device__ void prepare(Room& room, const Output& output, int clients) {
    for (int i = threadIdx.x; i < H / 8 * (C / 8) * 32; i += blockDim.x) {
        int j = i / 32 / (C / 8), n = i / 32 % (C / 8), g = i % 32 / 4, t = i % 4;
        auto mix = [&](int client, int column) {
            return client < clients ? rounded(output.mix[client * H + column]) : 0.f;
        };
        (&room.mix[0][0][0])[i] = {mix(8 * n + g, 8 * j + t), mix(8 * n + g, 8 * j + t + 4)};
        (&room.mix_turned[0][0][0])[i] = {mix(8 * n + 2 * t, 8 * j + g), mix(8 * n + 2 * t + 1, 8 * j + g)};
    }
    for (int c = threadIdx.x; c < C; c += blockDim.x) room.holders[c] = output.holders[c];
    __syncthreads();
}

// What goes between the card's memory and a stage goes along rows: neighbours in a warp are neighbours in memory.
// Calls work(row, column, inside), where four numbers begin, for all of a stage, of which so many rows are inside.
template <class Work>
__device__ void each_four(unsigned rows, Work work) {
    unsigned lane = threadIdx.x % 32, row = 4 * lane / H, column = 4 * lane % H;
    if (rows >= ROWS) {
#pragma unroll
        for (int i = 0; i < ROWS; i += 4 * 32 / H) work(row + i, column, true);
    } else {
        for (; row < ROWS; row += 4 * 32 / H) work(row, column, row < rows);
    }
}

// Calls work(client, whether it holds this lane's row, where).
template <class Work>
__device__ void each_client(const Room& room, const Weights& of, unsigned first, unsigned end, Work work) {
    unsigned lane = threadIdx.x % 32;
    Place place(of, first + lane % ROWS, end);
#pragma unroll
    for (int i = 0; i < C; i += 32 / ROWS) {
        unsigned client = i + lane / ROWS;
        Holder holder = room.holders[client];
        work(client, place.held(holder), place.in(holder));
    }
}

// What a tile needs, into its stage: it is there when the group of copies is.
template <bool WITH_HELD>
__device__ void bring(Stage& stage, const Room& room, const Weights& of, unsigned first, unsigned end) {
    const float* weight = of.weight + (unsigned long long)first * H;
    each_four(end - first, [&](unsigned row, unsigned column, bool inside) {
        fetch<16>(&stage.weight[row][column], weight + row * H + column, inside);
    });
    unsigned lane = threadIdx.x % 32, row = lane % ROWS;
    if (lane < ROWS) fetch<4>(&stage.bias[row], of.bias + first + row, first + row < end);
    if (WITH_HELD)
        each_client(room, of, first, end, [&](unsigned client, bool held, const float* at) {
            fetch<4>(&stage.held[client][row], at, held);
        });
    close_group();
}

// Rows times mixes, plus bias: a lane's clients are 8n + 2t and the next.
__device__ void decoded(float (&sums)[C / 8][4], const Stage& stage, const Room& room, unsigned lane) {
    unsigned g = lane / 4, t = lane % 4;
    for (auto& sum : sums) sum[0] = sum[1] = stage.bias[g], sum[2] = sum[3] = stage.bias[g + 8];
#pragma unroll
    for (int j = 0; j < H / 8; j++) {
        const float *upper = &stage.weight[g][8 * j + t], *lower = &stage.weight[g + 8][8 * j + t];
#pragma unroll
        for (int n = 0; n < C / 8; n++) multiply(sums[n], upper[0], lower[0], upper[4], lower[4], room.mix[j][n][lane]);
    }
}

// Calls work(n, q, client, row) for each of a lane's sums, [n][q].
template <class Work>
__device__ void each_sum(Work work) {
    unsigned g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int n = 0; n < C / 8; n++)
#pragma unroll
        for (int q = 0; q < 4; q++) work(n, q, 8 * n + 2 * t + q % 2, g + 8 * (q / 2));
}

// Calls work(stage, first row) for each tile of this warp, the next one on its way.
template <bool WITH_HELD, class Work>
__device__ void each_tile(Room& room, const Weights& of, const Span& span, Work work) {
    constexpr unsigned STRIDE = WARPS * ROWS;
    unsigned warp = threadIdx.x / 32, first = span.first + warp * ROWS;
    Stage* stages = room.stages[warp];
    if (first < span.end) bring<WITH_HELD>(stages[0], room, of, first, span.end);
    for (int i = 0; first < span.end; i ^= 1, first += STRIDE) {
        if (first + STRIDE < span.end)
            bring<WITH_HELD>(stages[i ^ 1], room, of, first + STRIDE, span.end);
        else
            close_group();
        wait_for_groups<1>();
        __syncwarp();
        work(stages[i], first);
        __syncwarp();
    }
    wait_for_groups<0>();
}

extern "C" __global__ void __launch_bounds__(32 * WARPS) decode(const Output* outputs, const Span* spans, int clients) {
    Room& room = *(Room*)memory;
    Span span = spans[blockIdx.x];
    const Output& output = outputs[span.output];
    const Weights of(output);
    unsigned lane = threadIdx.x % 32;
    prepare(room, output, clients);
    each_tile<false>(room, of, span, [&](Stage& stage, unsigned first) {
        float sums[C / 8][4];
        decoded(sums, stage, room, lane);
        each_sum([&](int n, int q, unsigned client, unsigned row) { stage.held[client][row] = sums[n][q]; });
        __syncwarp();
        each_client(room, of, first, span.end, [&](unsigned client, bool held, float* at) {
            if (held) put(at, stage.held[client][lane % ROWS]);
        });
    });
}

// No more than three blocks share a processor, for its memory: the compiler may give them as many registers.
extern "C" __global__ void __launch_bounds__(32 * WARPS, 3)
    learn(const Output* outputs, const Span* spans, int clients, float* slopes, float* squares, double pace_) {
    Room& room = *(Room*)memory;
    Span span = spans[blockIdx.x];
    const Output& output = outputs[span.output];
    const Weights of(output);
    const float pace = pace_;
    unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    float slope[H / 16][C / 8][4] = {}, square = 0;
    prepare(room, output, clients);
    each_tile<true>(room, of, span, [&](Stage& stage, unsigned first) {
        float sums[C / 8][4], errors[C / 8][4];
        decoded(sums, stage, room, lane);
        each_sum([&](int n, int q, unsigned client, unsigned row) { stage.held[client][row] -= sums[n][q]; });
        __syncwarp();
        float of_bias = 0;
        each_client(room, of, first, span.end, [&](unsigned client, bool held, float* at) {
            float& error = stage.held[client][lane % ROWS];
            if (held)
                put(at, error), of_bias += error;
            else
                error = 0;
        });
        of_bias += __shfl_xor_sync(~0u, of_bias, 16);
        if (lane < ROWS) {
            square += of_bias * of_bias;
            if (first + lane < span.end) put(of.bias + first + lane, stage.bias[lane] + pace * of_bias);
        }
        __syncwarp();
        // The slope, turned: columns of the weight by clients, summed over rows.
#pragma unroll
        for (int k = 0; k < ROWS; k += 8) {
            float2 of_clients[C / 8];
#pragma unroll
            for (int n = 0; n < C / 8; n++) {
                const float* held = &stage.held[8 * n + g][k + t];
                of_clients[n] = {rounded(held[0]), rounded(held[4])};
            }
#pragma unroll
            for (int i = 0; i < H / 16; i++) {
                const float *upper = &stage.weight[k + t][16 * i + g], *lower = &stage.weight[k + t + 4][16 * i + g];
#pragma unroll
                for (int n = 0; n < C / 8; n++)
                    multiply(slope[i][n], upper[0], upper[8], lower[0], lower[8], of_clients[n]);
            }
        }
        __syncwarp();
        // The step: errors by mixes, summed over clients.
        each_sum([&](int n, int q, unsigned client, unsigned row) { errors[n][q] = rounded(stage.held[client][row]); });
#pragma unroll
        for (int j = 0; j < H / 8; j++) {
            float step[4] = {};
#pragma unroll
            for (int n = 0; n < C / 8; n++)
                multiply(step, errors[n][0], errors[n][2], errors[n][1], errors[n][3], room.mix_turned[j][n][lane]);
#pragma unroll
            for (int half = 0; half < 2; half++) {
                float x = step[2 * half], y = step[2 * half + 1];
                float2& entries = *(float2*)&stage.weight[g + 8 * half][8 * j + 2 * t];
                square += x * x + y * y;
                entries = {entries.x + pace * x, entries.y + pace * y};
            }
        }
        __syncwarp();
        float* weight = of.weight + (unsigned long long)first * H;
        each_four(span.end - first, [&](unsigned row, unsigned column, bool inside) {
            if (inside) put(weight + row * H + column, *(const float4*)&stage.weight[row][column]);
        });
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
    slopes += (unsigned long long)blockIdx.x * C * H;
    for (unsigned i = threadIdx.x; i < C * H; i += blockDim.x) slopes[i] = room.total.slope[i % H][i / H];
    if (threadIdx.x == 0) {
        square = 0;
        for (float of_warp : room.total.square) square += of_warp;
        squares[blockIdx.x] = square;
    }
}

// Of each output, the sum over its blocks: one number a thread.
extern "C" __global__ void total(const float* parts, const int* starts, float* slopes) {
    constexpr unsigned SIZE = C * H, PIECES = (SIZE + 32 * WARPS - 1) / (32 * WARPS);
    unsigned output = blockIdx.x / PIECES, i = blockIdx.x % PIECES * 32 * WARPS + threadIdx.x;
    if (i >= SIZE) return;
    float sum = 0;
#pragma unroll 8
    for (int part = starts[output]; part < starts[output + 1]; part++) sum += parts[(unsigned long long)part * SIZE + i];
    slopes[output * SIZE + i] = sum;
}
