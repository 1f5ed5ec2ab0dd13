"""Distances between predictions, and in which dtype to compute.

Every sum over the vocabulary runs in float32 (float64 for float64 models), whatever the dtype of
the model: in half precision a sum over 50,000 small terms loses the digits a threshold needs.
"""

import hashlib
import math
import time

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float64": torch.float64,
}


def wide(values: Tensor) -> Tensor:
    """The tensor in the dtype in which statistics are computed: float32, or float64 as it came."""
    return values if values.dtype == torch.float64 else values.float()


def normalise(
    logits: Float[Tensor, "token vocab"],
) -> tuple[Float[Tensor, "token vocab"], Float[Tensor, "token vocab"]]:
    """Probabilities and their logarithms.

    Spelled out, because `torch.log_softmax` in float32 was seen to lose small terms over 49,152
    entries: its probabilities summed to 1 only within 2e-5, which a KL of 200 nats multiplies.

    Exponents below -87 are rounded up to it. Below lie the denormal numbers, on which processors
    are up to a hundred times slower; a whole vocabulary of them shifts a sum by less than 1e-30.
    """
    shifted = logits - logits.amax(dim=-1, keepdim=True)
    p = shifted.clamp_min(-87.0).exp_()
    total = p.sum(dim=-1, keepdim=True)
    return p.div_(total), shifted.sub_(total.log())


def kl_divergence(
    p: Float[Tensor, "token vocab"],
    log_p: Float[Tensor, "token vocab"],
    log_q: Float[Tensor, "token vocab"],
) -> Float[Tensor, " token"]:
    """KL(p || q) in nats. Rounding below zero is returned as zero."""
    return torch.linalg.vecdot(p, log_p - log_q).clamp_min(0.0)


def small_kl(
    p: Float[Tensor, "token vocab"],
    log_p: Float[Tensor, "token vocab"],
    q: Float[Tensor, "token vocab"],
    log_q: Float[Tensor, "token vocab"],
) -> Float[Tensor, " token"]:
    """KL(p || q) in nats, also where both are nearly the same.

    With d = log p - log q, the sum of p (d + exp(-d) - 1): the terms added sum to zero, and each is
    now about p d^2 / 2. In the plain sum first-order terms of both signs leave rounding of 1e-7.
    """
    d = log_p - log_q
    near = d.abs() < 1.0
    return torch.where(near, p * (d + torch.expm1(-d.where(near, 0.0))), p * d + q - p).sum(-1)


def entropy(
    p: Float[Tensor, "token vocab"], log_p: Float[Tensor, "token vocab"]
) -> Float[Tensor, " token"]:
    """Shannon entropy in nats; between 0 and log(vocab)."""
    return -torch.linalg.vecdot(p, log_p)


def all_finite(values: Tensor) -> bool:
    """True when no value is NaN or infinite. The sum tells, twenty times faster than a mask.

    A sum of finite values can overflow: then, and only then, each value is looked at.
    """
    return bool(torch.isfinite(values.sum())) or bool(torch.isfinite(values).all())


def first_maximum(values: Float[Tensor, "row dim"]) -> Int[Tensor, " row"]:
    """Where the largest value of each row stands, the first of several; values must be finite."""
    if values.device.type == "cpu":  # where torch's own takes twenty times as long
        return torch.from_numpy(values.detach().numpy().argmax(axis=-1))
    return values.argmax(dim=-1)


def rows_finite(states: Float[Tensor, "*batch dim"]) -> Bool[Tensor, "*batch"]:
    """True for each row without NaN and infinity."""
    return torch.isfinite(states).all(dim=-1)


def resolve_device(device: str | torch.device | None) -> torch.device:
    """The device to compute on; the CPU unless named.

    Raises:
        ValueError: an unknown name, or a device that is not there.
    """
    try:
        resolved = torch.device("cpu" if device is None else device)
    except RuntimeError:
        raise ValueError(f"device: got {device!r}; allowed are cpu, cuda, cuda:N and mps") from None
    present = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.mps.is_available()}
    if not present.get(resolved.type, False):
        there = ", ".join(name for name, is_there in present.items() if is_there)
        raise ValueError(
            f"device: got {str(device)!r}, which this machine or this build of torch does not "
            f"have; there is: {there}. Leave the option out to run on the CPU."
        )
    if resolved.type == "cuda" and (resolved.index or 0) >= torch.cuda.device_count():
        raise ValueError(
            f"device: got {str(device)!r}; there are {torch.cuda.device_count()} GPUs, "
            f"counted from cuda:0"
        )
    return resolved


def resolve_dtype(dtype: str | torch.dtype | None, device: torch.device) -> torch.dtype:
    """The dtype to load in: float32 unless named; "auto" measures which is faster on `device`.

    Raises:
        ValueError: an unknown name.
    """
    if dtype is None:
        return torch.float32
    if isinstance(dtype, torch.dtype):
        if dtype not in DTYPES.values():
            raise ValueError(f"dtype: got {dtype}; allowed are {', '.join(DTYPES)} and auto")
        return dtype
    if dtype == "auto":
        return faster_dtype(device)
    if dtype not in DTYPES:
        raise ValueError(f"dtype: got {dtype!r}; allowed are {', '.join(DTYPES)} and auto")
    return DTYPES[dtype]


def faster_dtype(device: torch.device, size: int = 512, repeats: int = 3) -> torch.dtype:
    """float32 or bfloat16, whichever multiplies two matrices faster on this device.

    Processors without bfloat16 instructions are hundreds of times slower in it, so this is
    measured, not assumed. The best of `repeats` counts, after one warm-up.
    """
    return min(
        (torch.float32, torch.bfloat16), key=lambda dtype: _seconds(dtype, device, size, repeats)
    )


def _seconds(dtype: torch.dtype, device: torch.device, size: int, repeats: int) -> float:
    matrix = torch.ones(size, size, dtype=dtype, device=device)
    times = []
    for _ in range(repeats + 1):
        started = time.perf_counter()
        (matrix @ matrix).sum().item()
        times.append(time.perf_counter() - started)
    return min(times[1:])


def derived_seed(seed: int, purpose: str) -> int:
    """A seed of its own for each purpose, so that no two streams of a run are the same draws."""
    return int.from_bytes(hashlib.sha256(f"{seed} {purpose}".encode()).digest()[:8]) >> 1


def keyed_uniform(seed: int, *keys: Tensor) -> Float[Tensor, "*batch"]:
    """Uniform numbers in [0, 1) that are a function of the seed and the keys alone.

    For draws at evaluation: the same (row key, span, position) gets the same number in any batch,
    chunk or order, which no stream of a generator can give. The mixing function is splitmix64
    (Steele, Lea and Flood, 2014), once per key.

    Args:
        seed: any integer.
        keys: integer tensors that broadcast against one another.
    """
    mixed = _splitmix(torch.tensor(seed))
    for key in keys:
        mixed = _splitmix(mixed.to(key.device) ^ key)
    return ((mixed >> 11) & (2**53 - 1)).double() / 2**53


def keyed_normal(
    seed: int, size: int, *keys: Tensor, within: float | None = None
) -> Float[Tensor, "*batch size"]:
    """Standard normal numbers, `size` of them for each key; as `keyed_uniform`, by inversion.

    With `within`, of the normal distribution cut off at so many standard deviations.
    """
    columns = torch.arange(size, device=keys[0].device)
    uniform = keyed_uniform(seed, *(key[..., None] for key in keys), columns)
    if within is not None:
        below = 0.5 * math.erfc(within / math.sqrt(2))
        uniform = below + (1 - 2 * below) * uniform
    return torch.special.ndtri(uniform.clamp(2.0**-53, 1 - 2.0**-53))


def _splitmix(value: Tensor) -> Tensor:
    """One step of splitmix64, in integers that wrap at 64 bits."""
    value = value + -7046029254386353131  # 0x9E3779B97F4A7C15 as a signed number
    value = (value ^ _shifted(value, 30)) * -4658895280553007687  # 0xBF58476D1CE4E5B9
    value = (value ^ _shifted(value, 27)) * -7723592293110705685  # 0x94D049BB133111EB
    return value ^ _shifted(value, 31)


def _shifted(value: Tensor, bits: int) -> Tensor:
    """A logical right shift, which fills with zeros also for negative numbers."""
    return (value >> bits) & (2 ** (64 - bits) - 1)
