// The data structures of the kernels, and operations on tiles: ROWS rows of a weight, which a warp takes at a time.
//
// Constants from the compiler: H (h, the columns of a weight), C (the largest number of clients), WARPS (of a block),
// SHARED_BYTES (of a block). While a warp works on a tile, the next one is copied into shared memory; warps do not wait
// for each other. Products are those of tensor cores (mma.m16n8k8, TF32). Lane 4g + t of a warp holds these entries:
//   of A (16 rows, 8 summed):  (g, t), (g + 8, t), (g, t + 4), (g + 8, t + 4)
//   of B (8 summed, 8 columns): (t, g), (t + 4, g)
//   of the sum (16 rows, 8 columns): (g, 2t), (g, 2t + 1), (g + 8, 2t), (g + 8, 2t + 1).
// The order of a product's sum is free. Where the summed index lies like the columns of a sum, t stands for 2t and t + 4
// for 2t + 1, so that a lane's part of a sum is its operand. Instructions that only a GPU has are in primitives.cu.

constexpr int ROWS = 16, STAGES = 2;

struct __align__(16) Holder {  // of a part of an output, (outer, inner, columns): its size in two axes
    float* start;
    unsigned outer, columns;
};

struct Output {
    float *weight, *bias;
    const float* mix;
    unsigned inner, columns;
    Holder holders[C];
};

struct Span {  // the rows of one block
    unsigned output, first, end, unused;
};

struct Divisor {  // Division by a number that is not a constant takes twenty instructions, this takes five.
    unsigned by, inverse;
    __device__ Divisor(unsigned by) : by(by), inverse(by > 1 ? (1ull << 32) / by : ~0u) {}
    __device__ void operator()(unsigned x, unsigned& quotient, unsigned& rest) const {
        quotient = __umulhi(x, inverse);  // or one less than it should be
        rest = x - quotient * by;
        if (rest >= by) quotient++, rest -= by;
    }
};

struct Stage {  // A tile in shared memory. The padding of rows avoids bank conflicts.
    float weight[ROWS][H + 8];
    float held[C][ROWS + 4];
    float bias[ROWS];
};

struct Shared {
    float2 mix[H / 8][C / 8][32], mix_turned[H / 8][C / 8][32];  // as B, summed over h and over clients
    Holder holders[C];
    union {
        Stage stages[WARPS][STAGES];
        struct {
            float slope[H][C], square[WARPS];
        } total;
    };
};

static_assert(sizeof(Shared) == SHARED_BYTES);

extern __shared__ __align__(16) unsigned char memory[];

// Rounds to TF32: products ignore the last 13 bits.
__device__ float rounded(float x) { return __uint_as_float(__float_as_uint(x) + 0x1000); }

struct Weights {  // of an output, in registers
    float *weight, *bias;
    Divisor columns, inner;
    __device__ Weights(const Output& output)
        : weight(output.weight), bias(output.bias), columns(output.columns), inner(output.inner) {}
};

struct Place {  // maps a weight row to clients' parts; no client holds a row beyond the end
    unsigned line, column, outer, of_inner;
    __device__ Place(const Weights& of, unsigned row, unsigned end) {
        of.columns(row, line, column);
        of.inner(line, outer, of_inner);
        if (row >= end) outer = ~0u;
    }
    __device__ bool held(const Holder& holder) const { return outer < holder.outer && column < holder.columns; }
    __device__ float* in(const Holder& holder) const { return holder.start + (line * holder.columns + column); }
};

// Copies the mixes and holders of a block's output to shared memory.
__device__ void prepare(Shared& shared, const Output& output, int clients) {
    for (int i = threadIdx.x; i < H / 8 * (C / 8) * 32; i += blockDim.x) {
        int j = i / 32 / (C / 8), n = i / 32 % (C / 8), g = i % 32 / 4, t = i % 4;
        auto mix = [&](int client, int column) {
            return client < clients ? rounded(output.mix[client * H + column]) : 0.f;
        };
        (&shared.mix[0][0][0])[i] = {mix(8 * n + g, 8 * j + t), mix(8 * n + g, 8 * j + t + 4)};
        (&shared.mix_turned[0][0][0])[i] = {mix(8 * n + 2 * t, 8 * j + g), mix(8 * n + 2 * t + 1, 8 * j + g)};
    }
    for (int c = threadIdx.x; c < C; c += blockDim.x) shared.holders[c] = output.holders[c];
    __syncthreads();
}

// Calls work(row, column, inside) for each four numbers of a stage, along rows: neighbours in a warp are neighbours in
// memory. `rows` rows are inside.
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

// Calls work(client, held, address) for this lane's row.
template <class Work>
__device__ void each_client(const Shared& shared, const Weights& of, unsigned first, unsigned end, Work work) {
    unsigned lane = threadIdx.x % 32;
    Place place(of, first + lane % ROWS, end);
#pragma unroll
    for (int i = 0; i < C; i += 32 / ROWS) {
        unsigned client = i + lane / ROWS;
        Holder holder = shared.holders[client];
        work(client, place.held(holder), place.in(holder));
    }
}

// Starts the copies of a tile into its stage; it is complete when its group of copies is.
template <bool WITH_HELD>
__device__ void copy_tile(Stage& stage, const Shared& shared, const Weights& of, unsigned first, unsigned end) {
    const float* weight = of.weight + (unsigned long long)first * H;
    each_four(end - first, [&](unsigned row, unsigned column, bool inside) {
        fetch<16>(&stage.weight[row][column], weight + row * H + column, inside);
    });
    unsigned lane = threadIdx.x % 32, row = lane % ROWS;
    if (lane < ROWS) fetch<4>(&stage.bias[row], of.bias + first + row, first + row < end);
    if (WITH_HELD)
        each_client(shared, of, first, end, [&](unsigned client, bool held, const float* at) {
            fetch<4>(&stage.held[client][row], at, held);
        });
    close_group();
}

// Rows times mixes, plus bias: a lane's clients are 8n + 2t and the next.
__device__ void decoded(float (&sums)[C / 8][4], const Stage& stage, const Shared& shared, unsigned lane) {
    unsigned g = lane / 4, t = lane % 4;
    for (auto& sum : sums) sum[0] = sum[1] = stage.bias[g], sum[2] = sum[3] = stage.bias[g + 8];
#pragma unroll
    for (int j = 0; j < H / 8; j++) {
        const float *upper = &stage.weight[g][8 * j + t], *lower = &stage.weight[g + 8][8 * j + t];
#pragma unroll
        for (int n = 0; n < C / 8; n++) multiply(sums[n], upper[0], lower[0], upper[4], lower[4], shared.mix[j][n][lane]);
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

// Calls work(stage, first row) for each tile of this warp, while the next one is copied.
template <bool WITH_HELD, class Work>
__device__ void each_tile(Shared& shared, const Weights& of, const Span& span, Work work) {
    constexpr unsigned STRIDE = WARPS * ROWS;
    unsigned warp = threadIdx.x / 32, first = span.first + warp * ROWS;
    Stage* stages = shared.stages[warp];
    if (first < span.end) copy_tile<WITH_HELD>(stages[0], shared, of, first, span.end);
    for (int i = 0; first < span.end; i ^= 1, first += STRIDE) {
        if (first + STRIDE < span.end)
            copy_tile<WITH_HELD>(stages[i ^ 1], shared, of, first + STRIDE, span.end);
        else
            close_group();
        wait_for_groups<1>();
        __syncwarp();
        work(stages[i], first);
        __syncwarp();
    }
    wait_for_groups<0>();
}

