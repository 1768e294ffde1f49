"""Every seed of every test one higher (FEDMISS_SEED_SHIFT): what holds for one seed only is no law.

On ``PYTHONPATH`` it works in the processes that tests start, too. The product knows nothing of it.
"""

import os

SHIFT = int(os.environ.get("FEDMISS_SEED_SHIFT", "0"))

if SHIFT:
    import numpy as np

    _default_rng, _Sequence = np.random.default_rng, np.random.SeedSequence

    class _Shifted(_Sequence):
        def __init__(self, entropy=None, **more):
            super().__init__(entropy + SHIFT if isinstance(entropy, int) else entropy, **more)

    def _shifted(seed=None):
        return _default_rng(seed + SHIFT if isinstance(seed, int) else seed)

    np.random.SeedSequence, np.random.default_rng = _Shifted, _shifted
