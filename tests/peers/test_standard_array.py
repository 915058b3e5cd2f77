"""Some of scikit-learn, einops and array-api-extra on standard arrays; docs/reference/arithmetic.md has the whole."""

from __future__ import annotations

import pytest
from helpers.environment import python

import xdevice

PROGRAM = """
import sys
import array_api_extra as xpx
import numpy as np
from einops.array_api import rearrange
from sklearn import config_context
from sklearn.decomposition import PCA
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import Ridge
from sklearn.mixture import GaussianMixture
from sklearn.preprocessing import StandardScaler
import xdevice

place = sys.argv[1]
data = np.random.default_rng(0).normal(size=(60, 5))
labels = (data[:, 0] > 0).astype("int64")


def array(values):
    return xdevice.math.standard_array(xdevice.tensor(values, device=place, dtype=values.dtype))


def computed(x, y):
    yield StandardScaler().fit_transform(x)
    yield PCA(3, svd_solver="full").fit_transform(x)
    yield Ridge(solver="svd").fit(x, x[:, 1]).predict(x)
    yield LinearDiscriminantAnalysis().fit(x, y).predict_proba(x)
    yield GaussianMixture(2, random_state=0, init_params="random").fit(x).predict_proba(x)


with config_context(array_api_dispatch=True):
    x, y = array(data), array(labels)
    for made, wanted in zip(computed(x, y), computed(data, labels), strict=True):
        np.testing.assert_allclose(xdevice.to_numpy(made.tensor), wanted, rtol=1e-6, atol=1e-8)
        assert str(made.device) == place
for made, shape in ((rearrange(x, "a b -> b a"), (5, 60)), (xpx.pad(x, 1), (62, 7)), (xpx.at(x, 0).set(1.0), (60, 5))):
    assert made.shape == shape
    assert str(made.device) == place
"""


@pytest.mark.parametrize(
    "name", [name for name in xdevice.backends() if name in ("tensorflow", "paddle", "mxnet")]
)
def test_libraries_compute_with_them_where_they_are(name, tmp_path):
    file = tmp_path / "program.py"
    file.write_text(PROGRAM)
    for place in ("cpu:0", "gpu:1"):
        done = python(
            str(file),
            place,
            XDEVICE_BACKEND=name,
            SCIPY_ARRAY_API="1",
            XDEVICE_VIRTUAL_GPUS="2",
        )
        assert done.returncode == 0, done.stderr[-2000:]
