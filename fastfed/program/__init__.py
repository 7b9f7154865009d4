"""torch.fx: an nn.Module becomes a static program for FastFed's engine (native, device), or a sentence why not."""

from .head import check_head
from .ir import Instruction, Program, Unsupported, Value, describe, shapes_of
from .trace import trace

__all__ = ["Instruction", "Program", "Unsupported", "Value", "check_head", "describe", "shapes_of", "trace"]
