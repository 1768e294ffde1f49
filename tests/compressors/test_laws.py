"""Every compressor: unbiased, within omega, real bytes; dithering against plain Python; bytes near the entropy."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import gammaln

from fedmiss.compressors import Blocks, Dithering, Identity, Natural, RandK, TopK, block_quantization
from fedmiss.compressors._coder import capacity, decode_levels, encode_levels
from fedmiss.core.testing import check_compressor
from fedmiss.errors import ConfigError, DomainError, UplinkError
from tests.oracles.reference import block_dithering

ALL = [
    (Identity(), 7), (Dithering(), 9), (Dithering(), 1), (Dithering(4, 2.0, 3), 10), (Dithering(1, 1.0), 5),
    (Dithering(1, math.inf), 16), (Dithering(7, 3.5, 4), 11), (Dithering(255, math.inf), 50), (RandK(3), 10),
    (RandK(30), 10), (Natural(), 40), (Natural(2), 10), (Natural(5), 1), (block_quantization(2), 6),
]  # fmt: skip


@pytest.mark.parametrize(("compressor", "q"), ALL, ids=lambda v: str(v))
def test_the_law(compressor, q):
    check_compressor(compressor, q, draws=1500)


@pytest.mark.mc
@pytest.mark.parametrize(("compressor", "q"), ALL, ids=lambda v: str(v))
def test_the_law_with_many_draws(compressor, q):
    check_compressor(compressor, q, draws=40_000, seed=1)


def test_float32_is_within_its_rounding():
    check_compressor(Identity(32), 9, bias=2.0**-24)


@pytest.mark.parametrize("block", [1, 2, 5, 16])
@pytest.mark.parametrize("p", [1.0, 2.0, math.inf])
def test_the_variance_of_block_quantization_is_lemma_5s(block, p):
    """sum_b ||x_b||_1 ||x_b||_p - ||x_b||^2, by its exact expectation over the uniforms."""
    x = np.random.default_rng(4).normal(size=16)
    U = np.random.default_rng(5).random((60_000, 16))
    X_hat, _ = block_quantization(block, p).compress_batch(np.broadcast_to(x, U.shape), U)
    squares = ((X_hat - x) ** 2).sum(axis=1)
    parts = [x[i : i + block] for i in range(0, 16, block)]
    exact = sum(np.abs(b).sum() * np.linalg.norm(b, p) - b @ b for b in parts)
    assert abs(squares.mean() - exact) <= 5 * squares.std() / math.sqrt(len(U)) + 1e-6 * (x @ x)


@pytest.mark.parametrize(
    ("norm", "worst"),
    [(2.0, np.ones(9)), (1.0, np.eye(9)[0] * 0 + 1), (math.inf, np.r_[1.0, np.full(8, 0.25)])],
)
def test_omega_is_attained_at_one_level(norm, worst):
    """The bound is the exact supremum for r = 1, 2, inf: B - 1, sqrt(B) - 1, (sqrt(B) - 1) / 2."""
    variance = np.abs(worst).sum() * np.linalg.norm(worst, norm) - worst @ worst
    omega = Dithering(1, norm).omega(9)
    if norm == 1.0:
        assert omega == pytest.approx(8, rel=1e-6)  # at equal entries: (sum)^2 / sum of squares - 1
    assert variance / (worst @ worst) == pytest.approx(omega, rel=1e-6)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.floats(-1e6, 1e6, allow_subnormal=False), min_size=1, max_size=40),
    st.integers(1, 40), st.integers(1, 300), st.sampled_from([1.0, 2.0, math.inf]), st.integers(0, 2**32),
)  # fmt: skip
def test_dithering_is_the_formula_and_survives_the_wire(values, block, s, r, seed):
    x = np.array(values)
    u = np.random.default_rng(seed).random(len(x))
    c = Dithering(s, r, block)
    code = c.encode(x, u)
    got = c.decode(code, len(x))
    batch, nbytes = c.compress_batch(x[None], u[None])
    assert np.array_equal(got, batch[0])
    assert nbytes[0] == len(code)
    expected = block_dithering(x, u, s, r, block)
    norm = np.linalg.norm(x) + 1e-300
    # a level may differ where s|x|/norm + u is within rounding of an integer, or the norm within one ulp of float32
    assert np.abs(got - expected).max() <= max(2e-7 * norm, np.abs(expected - x).max() * 1e-6) or (
        (np.abs(got - expected) > 1e-6 * norm).sum() <= 1
    )


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 3000), st.integers(1, 2**31 - 1), st.floats(0.0, 1.0), st.integers(0, 2**32))
def test_the_coder_gives_back_any_levels(count, top, density, seed):
    rng = np.random.default_rng(seed)
    magnitude = np.minimum(np.floor(2.0 ** (rng.random(count) * 31.5)), top).astype(np.int64)
    levels = magnitude * rng.choice([-1, 1], count) * (rng.random(count) < density)
    for signed, values in ((True, levels), (False, np.abs(levels))):
        out = np.full(capacity(count, top), 0xAA, dtype=np.uint8)
        tag, size = encode_levels(values, count, top, signed, out)
        assert size <= len(out)
        back = np.empty(count, dtype=np.int64)
        assert decode_levels(out[:size].copy(), tag, count, top, signed, back)
        assert np.array_equal(back, values)


def entropy(levels):
    _, counts = np.unique(levels, return_counts=True)
    p = counts / counts.sum()
    return float(-(p * np.log2(p)).sum())


CODED = (Dithering(1, 2.0, 64), Dithering(16, math.inf, 256), Dithering(255, math.inf))


@pytest.mark.parametrize("compressor", [*map(Dithering, (1, 4, 16)), *CODED], ids=str)
@pytest.mark.parametrize("kind", ["gaussian", "heavy", "sparse"])
def test_bytes_are_within_ten_percent_of_the_entropy_of_the_levels_plus_norms(compressor, kind):
    q = 20_000
    rng = np.random.default_rng(8)
    x = {"gaussian": rng.normal(size=q), "heavy": rng.standard_t(3, q), "sparse": rng.normal(size=q)}[kind]
    if kind == "sparse":
        x *= rng.random(q) < 0.1
    code = compressor.encode(x, rng.random(q))
    x_hat = compressor.decode(code, q)
    block = compressor.block or q
    norms = np.frombuffer(code[1 : 1 + 4 * -(-q // block)], dtype="<f4").astype(float)
    unit = np.repeat(norms / compressor.levels, block)[:q]
    levels = np.rint(x_hat / np.where(unit > 0, unit, 1)).astype(int)
    ideal = q * entropy(levels) + 32 * len(norms)
    assert 8 * len(code) <= 1.10 * ideal + 64  # 64 bits: the tag and what the coder needs to learn at all
    assert 8 * len(code) >= 0.95 * ideal


def test_natural_and_rand_k_bytes():
    rng = np.random.default_rng(0)
    q = 20_000
    x = rng.normal(size=q)
    c = Natural(12)
    code = c.encode(x, rng.random(q))
    x_hat = c.decode(code, q)
    levels = np.where(x_hat == 0, 0, np.sign(x_hat) * (100 + np.log2(np.abs(x_hat) + (x_hat == 0)).round()))
    assert 0.95 * q * entropy(levels) <= 8 * len(code) <= 1.10 * q * entropy(levels) + 64
    c = RandK(500)
    code = c.encode(x, rng.random(q))
    positions = (math.lgamma(q + 1) - math.lgamma(501) - math.lgamma(q - 499)) / math.log(2)
    assert 64 * 500 + 0.95 * positions <= 8 * len(code) <= 64 * 500 + 1.10 * positions + 64


def test_a_batch_on_many_threads_is_the_batch_row_by_row():
    rng = np.random.default_rng(3)
    X, U = rng.normal(size=(700, 1000)), rng.random((700, 1000))  # large enough for the threaded kernels
    for c in (Dithering(), Natural()):
        X_hat, nbytes = c.compress_batch(X, U)
        for i in (0, 349, 699):
            code = c.encode(X[i], U[i])
            assert np.array_equal(c.decode(code, 1000), X_hat[i])
            assert len(code) == nbytes[i]


def test_numbers_that_cannot_be_sent_are_refused():
    u = np.zeros(3)
    for bad in (np.nan, np.inf, 1e300):
        for c in (Dithering(), Natural()):
            x = np.array([1.0, bad, 2.0])
            with pytest.raises(DomainError, match=r"nan|inf|1e\+300"):
                c.encode(x, u)
            with pytest.raises(DomainError):
                c.compress_batch(np.stack([np.ones(3), x]), np.zeros((2, 3)))


@pytest.mark.parametrize(
    "make",
    [lambda: Dithering(0), lambda: Dithering(norm=0.5), lambda: Dithering(block=0), lambda: RandK(0), lambda: Natural(61),
     lambda: Identity(16)],
)  # fmt: skip
def test_impossible_settings_are_refused(make):
    with pytest.raises(ConfigError):
        make()


def test_damaged_codes_are_refused_or_give_q_numbers():
    rng = np.random.default_rng(2)
    x = rng.normal(size=30)
    for c in (Dithering(5, 2.0, 10), Natural(6), RandK(4), Identity()):
        code = c.encode(x, rng.random(30))
        for _ in range(300):
            bad = bytearray(code)
            bad[rng.integers(len(bad))] = rng.integers(256)
            bad = bytes(bad[: rng.integers(len(bad) + 1)])
            try:
                out = c.decode(bad, 30)
            except UplinkError:
                continue
            assert out.shape == (30,)


@pytest.mark.parametrize("q", [300, 1000])
@pytest.mark.parametrize("levels", [1, 4, 16])
@pytest.mark.parametrize("share", [0.05, 1.0])
def test_short_messages_are_near_what_an_adaptive_code_can_reach(q, levels, share):
    """Entropy leaves out the table, which nobody has: Krichevsky and Trofimov's code, given the alphabet, pays for it.

    60 messages: at most 6 % and one byte a message (the tag) above that code and the norms.
    """
    rng, size, ideal = np.random.default_rng(0), 0, 0.0
    for _ in range(60):
        x = rng.normal(size=q) * (rng.random(q) < share)
        x[0] = 1.0
        code = Dithering(levels).encode(x, rng.random(q))
        x_hat = Dithering(levels).decode(code, q)
        counts = np.unique(np.rint(x_hat * levels / np.linalg.norm(x)), return_counts=True)[1]
        k = len(counts)
        bits = gammaln(q + k / 2) - gammaln(k / 2) - (gammaln(counts + 0.5) - gammaln(0.5)).sum()
        size, ideal = size + len(code), ideal + bits / np.log(2) / 8 + 4
    assert size <= 1.06 * ideal + 60


def test_norms_are_rounded_up_so_that_no_entry_is_cut():
    """A norm rounded to the nearest float32 is too small half of the time: |x| / norm > 1 has no level."""
    rng = np.random.default_rng(0)
    for norm, ord_ in ((2.0, 2), (math.inf, np.inf), (1.0, 1)):
        coder = Dithering(1, norm)
        for _ in range(200):
            x = rng.normal(size=7)
            sent = float(np.frombuffer(coder.encode(x, rng.random(7))[1:5], dtype="<f4")[0])
            exact = np.linalg.norm(x, ord_)
            assert exact * (1 - 1e-15) <= sent <= exact * (1 + 2.0**-22)


@pytest.mark.parametrize(
    "compressor", [Natural(6), Natural(2), Dithering(5), Dithering(3, 2.0, 10), RandK(9)], ids=str
)
@pytest.mark.parametrize("q", [5, 30, 400])
def test_payloads_one_byte_short_or_long_are_refused(compressor, q):
    rng = np.random.default_rng(2)
    for scale in (1.0, 0.0, 1e-3):
        x = rng.normal(size=q) * scale
        code = compressor.encode(x, rng.random(q))
        assert np.isfinite(compressor.decode(code, q)).all()
        for bad in (code[:-1], *(code + bytes([b]) for b in (0, 1, 255))):
            with pytest.raises(UplinkError):
                compressor.decode(bad, q)


def test_blocks_of_free_lengths():
    c = Blocks((1, 9, 4), Dithering(1))
    out = check_compressor(c, 14, draws=1500)
    assert out["omega"] == pytest.approx(2.0, rel=1e-6)  # sqrt(9) - 1
    equal, free = Dithering(1, 2.0, 7), Blocks((7, 7), Dithering(1))
    x, u = np.random.default_rng(0).normal(size=14), np.random.default_rng(1).random(14)
    np.testing.assert_array_equal(equal.decode(equal.encode(x, u), 14), free.decode(free.encode(x, u), 14))
    code = free.encode(x, u)
    for bad in (code[:-1], code + b"\x00", code[:1], b""):
        with pytest.raises(UplinkError):
            free.decode(bad, 14)
    for make, words in (
        (lambda: Blocks(()), "lengths"),
        (lambda: Blocks((2,), TopK(1)), "biased"),
        (lambda: c.omega(13), "q=13"),
    ):
        with pytest.raises(ConfigError, match=words):
            make()
