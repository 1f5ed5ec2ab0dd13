"""One colour for a depth, in the terminal, on pages and in figures: light is shallow, dark deep."""

from functools import lru_cache

import matplotlib
from matplotlib.colors import to_hex

_MAP = "YlGnBu"


@lru_cache(maxsize=1024)
def depth_colours(depth: int, num_layers: int) -> tuple[str, str]:
    """Background and text colour, as hexadecimal codes, of a depth between 0 and L."""
    share = depth / max(num_layers, 1)
    red, green, blue, _ = matplotlib.colormaps[_MAP](0.05 + 0.9 * share)
    luminance = 0.2126 * red**2.2 + 0.7152 * green**2.2 + 0.0722 * blue**2.2
    # The side with the higher contrast by WCAG: (1.05 / (Y + .05)) against ((Y + .05) / .05).
    text = "#ffffff" if (luminance + 0.05) ** 2 < 0.0525 else "#111111"
    return to_hex((red, green, blue)), text
