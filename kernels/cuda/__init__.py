"""The cuda backend: the kernels of ``csrc/cuda``, compiled by NVRTC and launched through CuPy on torch's tensors.

With ``FASTFED_CUDA_HOST=1`` the very same kernels are compiled by g++ and run on CPU tensors, for tests without a GPU.
"""
