"""The numba backend: compiled loops over chunks, for machines without a C++ compiler. CPU, float32."""
