"""The suite that users run on their own patterns, kernels, caches and mechanisms."""

from eyeline.testing.cache import check_cache as check_cache
from eyeline.testing.kernel import check_kernel as check_kernel
from eyeline.testing.mechanism import Claims as Claims
from eyeline.testing.mechanism import check_mechanism as check_mechanism
from eyeline.testing.pattern import check_pattern as check_pattern
from eyeline.testing.score_mod import check_score_mod as check_score_mod
