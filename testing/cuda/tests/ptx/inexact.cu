KERNEL(32) inexact(float* b) { b[threadIdx.x] = __expf(b[threadIdx.x]) + rsqrtf(b[threadIdx.x]); atomicAdd(b, 1.0f); }
