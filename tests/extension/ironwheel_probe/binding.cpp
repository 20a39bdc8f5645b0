// GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
#ifndef IRONWHEEL_PROBE_SMALL
#include <torch/library.h>
#include <ATen/core/Tensor.h>
#include <c10/cuda/CUDAStream.h>
#endif
#include <Python.h>

void launch_double(float *data, long count, void *stream);
void launch_triple(float *data, long count, void *stream);

#ifdef IRONWHEEL_PROBE_SMALL
// Referred to, so that the CUDA units are linked in.
void (*ironwheel_probe_launchers[])(float *, long, void *) = {launch_double, launch_triple};
#else
static at::Tensor scale(const at::Tensor &input, bool triple) {
  TORCH_CHECK(input.is_cuda() && input.is_contiguous() && input.scalar_type() == at::kFloat, "a contiguous float32 CUDA tensor is needed");
  at::Tensor output = input.clone();
  void *stream = c10::cuda::getCurrentCUDAStream().stream();
  (triple ? launch_triple : launch_double)(output.mutable_data_ptr<float>(), output.numel(), stream);
  return output;
}

TORCH_LIBRARY(ironwheel_probe, m) { m.def("scale(Tensor input, bool triple) -> Tensor", &scale); }
#endif

static PyModuleDef module = {PyModuleDef_HEAD_INIT, "ironwheel_probe_cuda", nullptr, -1, nullptr};
PyMODINIT_FUNC PyInit_ironwheel_probe_cuda(void) { return PyModule_Create(&module); }
