"""The Triton backend: tiles, reductions and launches around the rules; CUDA tensors, or any in Triton's interpreter.

Importing it needs Triton but no device.
"""
