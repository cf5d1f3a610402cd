"""Energy of a run and its CO2 emissions: measured by codecarbon if it is installed, else by the GPU's counter if it can
be read; the rest is estimated from the time, and labeled as an estimate."""

from __future__ import annotations

import contextlib
import importlib
import logging
import time
import warnings
from typing import Any

import torch

CARBON = 0.48  # kg of CO2 for a kWh: the global average in 2023 (Ember, Global Electricity Review 2024)
POUND = 0.45359237  # kg

# Emissions for comparison (Strubell et al. 2019, table 1), in pounds of CO2. The search consists of many trainings.
YARDSTICKS = {
    "a flight New York–San Francisco and back": 1_984,
    "a human year": 11_023,
    "an American year": 36_156,
    "a car's lifetime": 126_000,
    "an architecture search for a Transformer of 213M": 626_155,
}

CORE = 10.0  # assumed watts of a busy CPU core and its part of the memory
GPUS = {
    "B200": 1000,
    "H200": 700,
    "H100": 700,
    "A100": 400,
    "L40S": 350,
    "V100": 300,
    "4090": 450,
    "3090": 350,
    "T4": 70,
}
GPU = 300.0  # watts of an unknown GPU
GUESSES = ("constant", "cpu_load")  # codecarbon's modes for a processor without counters


class EnergyMeter:
    """Counts from its creation. `how` describes the source of the number."""

    def __init__(self, device: torch.device) -> None:
        self.started = time.perf_counter()
        self.tracker = _tracker()
        self.counter = NvmlEnergyCounter.of(device) if self.tracker is None else None
        self.watts, assumed = assumed_watts(device if self.counter is None else torch.device("cpu"))
        if self.tracker is not None:
            self.how = named(self.tracker)
        elif self.counter is not None:
            self.how = f"measured by the GPU's counter for all programs on it; estimated for {assumed}"
        else:
            self.how = f"an estimate: {assumed}"

    def read(self) -> float:
        """kWh so far."""
        if self.tracker is not None:
            self.tracker.flush()
            return float(self.tracker._total_energy.kWh)
        card = 0.0 if self.counter is None else self.counter.read()
        return card + self.watts * (time.perf_counter() - self.started) / 3.6e6

    def stop(self) -> None:
        if self.tracker is not None:
            self.tracker.stop()
        if self.counter is not None:
            self.counter.stop()


class NvmlEnergyCounter:
    """Energy of a GPU since the creation of the counter, read with NVIDIA's management library if `pynvml` is
    installed. It includes other programs on the GPU; an estimate would charge the power limit, busy or not."""

    def __init__(self, nvml: Any, card: Any) -> None:
        self.nvml, self.card = nvml, card
        self.first = self.last = nvml.nvmlDeviceGetTotalEnergyConsumption(card)  # in thousandths of a joule

    @classmethod
    def of(cls, device: torch.device) -> NvmlEnergyCounter | None:
        """None: there is no such library, no driver, or no counter (before Volta, or on a slice of a card)."""
        if device.type != "cuda":
            return None
        with contextlib.suppress(Exception), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the package under its old name says so
            nvml = importlib.import_module("pynvml")
            nvml.nvmlInit()
            return cls(nvml, nvml.nvmlDeviceGetHandleByUUID(_uuid(device)))
        return None

    def read(self) -> float:
        """kWh so far; a counter that cannot be read any more stands still."""
        with contextlib.suppress(Exception):
            self.last = self.nvml.nvmlDeviceGetTotalEnergyConsumption(self.card)
        return float(max(self.last - self.first, 0)) / 3.6e9

    def stop(self) -> None:
        with contextlib.suppress(Exception):
            self.nvml.nvmlShutdown()


def _uuid(device: torch.device) -> str:
    """As the management library knows the card: its numbers are not PyTorch's where only some are visible."""
    return f"GPU-{torch.cuda.get_device_properties(device).uuid}"


def _tracker() -> Any:
    """codecarbon's offline tracker, if it is installed."""
    try:
        codecarbon = importlib.import_module("codecarbon")
    except ImportError:
        return None
    logging.getLogger("codecarbon").disabled = True
    with contextlib.suppress(Exception):  # what it can measure differs from machine to machine
        tracker = codecarbon.OfflineEmissionsTracker(
            country_iso_code="USA", save_to_file=False, log_level="critical", allow_multiple_runs=True
        )
        tracker.start()
        return tracker
    return None


def named(tracker: Any) -> str:
    """How codecarbon measures: with hardware counters, or from the processor's load."""
    guessed = any(getattr(part, "_mode", None) in GUESSES for part in getattr(tracker, "_hardware", ()))
    return "codecarbon's estimate from the processor's load" if guessed else "measured by codecarbon"


def assumed_watts(device: torch.device) -> tuple[float, str]:
    """Assumed watts, and their description."""
    cores = torch.get_num_threads()
    words = f"{cores} CPU core{'s' if cores > 1 else ''} at {CORE:.0f} W"
    if device.type != "cuda":
        return cores * CORE, words
    name = torch.cuda.get_device_name(device)
    watts = next((float(value) for part, value in GPUS.items() if part in name), GPU)
    return cores * CORE + watts, f"{name} at {watts:.0f} W, {words}"


def describe(kwh: float, how: str) -> list[str]:
    """0.0040 kWh, about 0.0019 kg of CO2 (…), with comparisons."""
    kg = kwh * CARBON
    shares = [f"{_share(kg / (n * POUND))} of the CO2 of {name} ({n:,} lb)" for name, n in YARDSTICKS.items()]
    return [
        f"{kwh:.3g} kWh ({how}), about {kg:.3g} kg of CO2 at the global average of {CARBON} kg/kWh",
        *shares,
    ]


def _share(share: float) -> str:
    """0.18 -> 18%;  1.1e-06 -> 1/909,000"""
    if share >= 0.01:
        return f"{share:,.0%}"
    return f"1/{float(f'{1 / share:.3g}'):,.0f}" if share > 0 else "0"
