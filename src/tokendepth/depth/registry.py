"""The policies that have a name: the one place to add a new one."""

from tokendepth.configs import Family
from tokendepth.depth.constant_gate import ConstantGateConfig
from tokendepth.depth.dense import DenseConfig
from tokendepth.depth.early_exit import EarlyExitConfig
from tokendepth.depth.fixed_exit import FixedExitConfig
from tokendepth.depth.fixed_subset import FixedSubsetConfig
from tokendepth.depth.halting import HaltingConfig
from tokendepth.depth.mixture_of_depths import MixtureOfDepthsConfig
from tokendepth.depth.random_keep import RandomKeepConfig
from tokendepth.depth.token_selective import TokenSelectiveConfig

POLICIES = Family(
    what="policy",
    members=(
        ConstantGateConfig,
        DenseConfig,
        EarlyExitConfig,
        FixedExitConfig,
        FixedSubsetConfig,
        HaltingConfig,
        MixtureOfDepthsConfig,
        RandomKeepConfig,
        TokenSelectiveConfig,
    ),
)
