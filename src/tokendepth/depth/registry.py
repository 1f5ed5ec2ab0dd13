"""The policies that have a name: the one place to add a new one."""

from tokendepth.configs import Family
from tokendepth.depth.dense import DenseConfig
from tokendepth.depth.fixed_exit import FixedExitConfig
from tokendepth.depth.halting import HaltingConfig
from tokendepth.depth.random_keep import RandomKeepConfig
from tokendepth.depth.token_selective import TokenSelectiveConfig

POLICIES = Family(
    what="policy",
    members=(DenseConfig, FixedExitConfig, HaltingConfig, RandomKeepConfig, TokenSelectiveConfig),
)
