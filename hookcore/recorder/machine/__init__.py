"""The training machine: its processors, memory, disks, network, and GPUs, sampled by a separate thread."""

from hookcore.recorder.machine.gpus import Device, Gpus, open_nvml
from hookcore.recorder.machine.host import Host, open_host
from hookcore.recorder.machine.sampler import EVERY_S, Sampler
from hookcore.recorder.machine.samples import Sample

__all__ = ["EVERY_S", "Device", "Gpus", "Host", "Sample", "Sampler", "open_host", "open_nvml"]
