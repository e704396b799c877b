"""Kernels as instructions on machine types, for languages outside of the C family."""

from ocannl_core.codegen.instructions.builder import InstructionBuilder, MachineType
from ocannl_core.codegen.instructions.kernels import KernelInstructions, instruction_source

__all__ = ["InstructionBuilder", "KernelInstructions", "MachineType", "instruction_source"]
