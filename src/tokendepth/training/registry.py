"""The objectives that have a name: the one place to add a new one."""

from tokendepth.configs import Family
from tokendepth.training.budget import Budgeted
from tokendepth.training.distil import Distilled
from tokendepth.training.exits import ExitLosses
from tokendepth.training.loops import RandomLoops
from tokendepth.training.objective import CrossEntropy

OBJECTIVES = Family(
    what="objective", members=(CrossEntropy, Budgeted, Distilled, ExitLosses, RandomLoops)
)
