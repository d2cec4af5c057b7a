// The passes of `fused` over the weights of all decoders, one launch each.

extern "C" __global__ void __launch_bounds__(32 * WARPS) decode(const Output* outputs, const Span* spans, int clients) {
    Shared& shared = *(Shared*)memory;
    Span span = spans[blockIdx.x];
    const Output& output = outputs[span.output];
    const Weights of(output);
    unsigned lane = threadIdx.x % 32;
    prepare(shared, output, clients);
    each_tile<false>(shared, of, span, [&](Stage& stage, unsigned first) {
        float sums[C / 8][4];
        decoded(sums, stage, shared, lane);
        each_sum([&](int n, int q, unsigned client, unsigned row) { stage.held[client][row] = sums[n][q]; });
        __syncwarp();
        each_client(shared, of, first, span.end, [&](unsigned client, bool held, float* at) {
            if (held) put(at, stage.held[client][lane % ROWS]);
        });
    });
}

// The shared memory of a processor suffices for three blocks, so the compiler may use a third of its registers.
extern "C" __global__ void __launch_bounds__(32 * WARPS, 3)
    learn(const Output* outputs, const Span* spans, int clients, float* slopes, float* squares, double pace_) {
    Shared& shared = *(Shared*)memory;
    Span span = spans[blockIdx.x];
    const Output& output = outputs[span.output];
    const Weights of(output);
    const float pace = pace_;
    unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    float slope[H / 16][C / 8][4] = {}, square = 0;
    prepare(shared, output, clients);
    each_tile<true>(shared, of, span, [&](Stage& stage, unsigned first) {
        float sums[C / 8][4], errors[C / 8][4];
        decoded(sums, stage, shared, lane);
        each_sum([&](int n, int q, unsigned client, unsigned row) { stage.held[client][row] -= sums[n][q]; });
        __syncwarp();
        float of_bias = 0;
        each_client(shared, of, first, span.end, [&](unsigned client, bool held, float* at) {
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
        // The slope, transposed: columns of the weight by clients, summed over rows.
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
                multiply(step, errors[n][0], errors[n][2], errors[n][1], errors[n][3], shared.mix_turned[j][n][lane]);
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
        shared.total.square[warp] = square;
#pragma unroll
        for (int i = 0; i < H / 16; i++)
#pragma unroll
            for (int n = 0; n < C / 8; n++)
#pragma unroll
                for (int q = 0; q < 4; q++) {
                    float& total = shared.total.slope[16 * i + g + 8 * (q / 2)][8 * n + 2 * t + q % 2];
                    total = (turn ? total : 0.f) + slope[i][n][q];
                }
    }
    __syncthreads();
    slopes += (unsigned long long)blockIdx.x * C * H;
    for (unsigned i = threadIdx.x; i < C * H; i += blockDim.x) slopes[i] = shared.total.slope[i % H][i / H];
    if (threadIdx.x == 0) {
        square = 0;
        for (float of_warp : shared.total.square) square += of_warp;
        squares[blockIdx.x] = square;
    }
}

// The sum over the blocks of each output: one number per thread.
extern "C" __global__ void total(const float* parts, const int* starts, float* slopes) {
    constexpr unsigned SIZE = C * H, PIECES = (SIZE + 32 * WARPS - 1) / (32 * WARPS);
    unsigned output = blockIdx.x / PIECES, i = blockIdx.x % PIECES * 32 * WARPS + threadIdx.x;
    if (i >= SIZE) return;
    float sum = 0;
#pragma unroll 8
    for (int part = starts[output]; part < starts[output + 1]; part++) sum += parts[(unsigned long long)part * SIZE + i];
    slopes[output * SIZE + i] = sum;
}
