// GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
#ifdef IRONWHEEL_PROBE_BREAK
#error "this unit was asked to fail"
#endif
#include <cuda_runtime.h>

__global__ void double_kernel(float *data, long count) {
  long index = blockIdx.x * (long)blockDim.x + threadIdx.x;
  if (index < count) data[index] *= 2.0f;
}

void launch_double(float *data, long count, void *stream) {
  double_kernel<<<(count + 255) / 256, 256, 0, static_cast<cudaStream_t>(stream)>>>(data, count);
}
