// Instructions that only a GPU has.

// An asynchronous copy; writes zeros and reads nothing if `inside` is false.
template <int BYTES>
__device__ void fetch(float* to, const float* from, bool inside) {
    unsigned at = __cvta_generic_to_shared(to);
    if (BYTES == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(at), "l"(from), "r"(inside ? 16 : 0));
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(at), "l"(from), "r"(inside ? 4 : 0));
}
__device__ void close_group() { asm volatile("cp.async.commit_group;"); }
template <int LEFT>
__device__ void wait_for_groups() {
    asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
}

// Writes to global memory; the compiler does not know that the tables point there.
__device__ void put(float* to, float x) { asm volatile("st.global.f32 [%0], %1;" ::"l"(to), "f"(x) : "memory"); }
__device__ void put(float* to, float4 x) {
    asm volatile("st.global.v4.f32 [%0], {%1,%2,%3,%4};" ::"l"(to), "f"(x.x), "f"(x.y), "f"(x.z), "f"(x.w) : "memory");
}

// sum += A · B, where A and B are read as TF32.
__device__ void multiply(float (&sum)[4], float a0, float a1, float a2, float a3, float2 b) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(__float_as_uint(a0)), "r"(__float_as_uint(a1)), "r"(__float_as_uint(a2)), "r"(__float_as_uint(a3)),
          "r"(__float_as_uint(b.x)), "r"(__float_as_uint(b.y)));
}
