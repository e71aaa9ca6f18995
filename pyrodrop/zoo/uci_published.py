"""The published UCI results of MC dropout.

https://github.com/yaringal/DropoutUncertaintyExps: means and standard errors over the published splits, RMSE of the mean of
10,000 passes. `gal2016` is table 1 of Gal & Ghahramani (2016) with more digits, `gal2018` the re-run with a grid search. The
standard errors divide by n - 1; those printed with the table of 2016 divide by n.
"""

from __future__ import annotations

from typing import NamedTuple


class Published(NamedTuple):
    """Mean and standard error over splits; the error is None for a single split."""

    rmse: tuple[float, float | None]
    log_density: tuple[float, float | None]


PUBLISHED: dict[str, dict[str, Published]] = {
    "gal2016": {
        "boston": Published((2.97351, 0.194859), (-2.46004, 0.0568416)),
        "concrete": Published((5.2299, 0.121099), (-3.03891, 0.0208758)),
        "energy": Published((1.66341, 0.0443804), (-1.98527, 0.020281)),
        "kin8nm": Published((0.0964723, 0.000683555), (0.950895, 0.00589336)),
        "naval": Published((0.00546727, 7.41195e-05), (3.80458, 0.011363)),
        "power": Published((4.02211, 0.0421529), (-2.79524, 0.0106531)),
        "protein": Published((4.35551, 0.0217656), (-2.8912, 0.00482675)),
        "wine": Published((0.620159, 0.00897017), (-0.933418, 0.0145945)),
        "yacht": Published((1.10925, 0.0872114), (-1.55406, 0.0276105)),
        "year": Published((8.84914, None), (-3.58817, None)),
    },
    "gal2018": {
        "boston": Published((2.90362, 0.181434), (-2.40194, 0.0427856)),
        "concrete": Published((4.82646, 0.164705), (-2.93666, 0.0254726)),
        "energy": Published((0.538867, 0.0138755), (-1.21152, 0.00545762)),
        "kin8nm": Published((0.0788986, 0.00061041), (1.13643, 0.0067974)),
        "naval": Published((0.000742612, 4.75827e-05), (4.44954, 0.00221628)),
        "power": Published((4.01423, 0.037726), (-2.80779, 0.0088503)),
        "protein": Published((4.27423, 0.0233291), (-2.8713, 0.00166759)),
        "wine": Published((0.621809, 0.00818128), (-0.92809, 0.0130692)),
        "yacht": Published((0.666275, 0.0498645), (-1.25015, 0.0156945)),
    },
}
