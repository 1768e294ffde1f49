"""Masks: they cancel in the sum, hide everything else, and are never used twice."""

from dataclasses import dataclass, fields
from typing import ClassVar

import numpy as np
import pytest

from fedmiss.errors import ConfigError, DomainError, InputError, UplinkError
from fedmiss.federation import messages as msg
from fedmiss.federation.circle import frame_label
from fedmiss.federation.masks import (
    ALL,
    Masks,
    combined,
    fingerprint,
    fixed,
    identity,
    masked_fields,
    public_key,
)

from .network import clubs_of, run
from .owners import owned

JOB = b"j" * 32


@pytest.fixture(scope="module")
def parties(tmp_path_factory):
    folder = tmp_path_factory.mktemp("keys")
    keys = {name: identity(folder / name) for name in ("a", "b", "c", "d")}
    roster = {name: public_key(k) for name, k in keys.items()}
    return keys, roster


def masks(parties, names="abcd", job=JOB):
    keys, roster = parties
    few = {n: roster[n] for n in names}
    return {n: Masks(n, keys[n], few, job) for n in names}


def test_masks_add_up_to_nothing_and_each_looks_random(parties):
    streams = {n: m.stream(7, 4000) for n, m in masks(parties).items()}
    assert not sum(streams.values(), np.zeros(4000, np.uint64)).any()
    for s in streams.values():
        bits = np.unpackbits(s.view(np.uint8)).mean()
        assert abs(bits - 0.5) < 5 * 0.5 / np.sqrt(64 * 4000)
        assert np.unique(s).size == 4000
    three = sum((streams[n] for n in "abc"), np.zeros(4000, np.uint64))
    assert np.unique(three).size == 4000  # all but one say nothing either


def test_a_mask_depends_on_job_exchange_and_roster(parties):
    base = masks(parties)["a"].stream(3, 50)
    others = [
        masks(parties)["a"].stream(4, 50), masks(parties, job=b"k" * 32)["a"].stream(3, 50),
        masks(parties, "abc")["a"].stream(3, 50), masks(parties)["b"].stream(3, 50),
    ]  # fmt: skip
    for other in others:
        assert not (base == other).any()
    np.testing.assert_array_equal(base, masks(parties)["a"].stream(3, 50))
    # each pair's mask, not only their sum: a roster's masks are no part of a smaller one's
    assert len({masks(parties, names)["a"]._key("b", b"mask") for names in ("abcd", "abc", "abd")}) == 3


def test_a_signature_and_a_cipher_are_for_one_frame(parties):
    """Else a frame of another job or exchange would count, and two frames under one cipher would give their difference."""
    party, key = masks(parties)["a"], bytes(16)
    labels = [frame_label(job, name, e) for job in (JOB, b"k" * 32) for name in "ab" for e in (0, 1)]
    assert len({party.lock(key, label, bytes(40)) for label in labels}) == len(labels) == 8
    signed = party.sign(labels[0], b"sums")
    assert party.verified("a", labels[0], signed) == b"sums"
    for label in labels[1:]:
        with pytest.raises(UplinkError, match="not for this exchange of this job"):
            party.verified("a", label, signed)


def answers(rng):
    return [
        msg.OpenSums(rng.normal(0, 1e4, (3, 3)), rng.normal(0, 1e4, (3, 2)), float(rng.normal())),
        msg.FitSums(rng.normal(0, 1e6, (2, 3)), rng.normal(0, 1e3, (2, 5)), rng.normal(0, 1e4, (2, 7, 4))),
        msg.Done(int(rng.integers(1000)), 3, rng.normal(0, 10, 2), 2.5),
        msg.Refusal("no", "why"),
    ]


def test_sums_of_masked_answers_are_those_of_the_answers(parties):
    rng = np.random.default_rng(0)
    given = {n: answers(rng) for n in "abcd"}
    hidden = {n: m.hide(given[n], 9) for n, m in masks(parties).items()}
    for i, first in enumerate(given["a"]):
        got = combined({n: h[i] for n, h in hidden.items()})
        rules = masked_fields(type(first))
        if not rules:
            assert list(got) == list("abcd")
            continue
        assert list(got) == [ALL]
        for name, bits in rules.items():
            want = sum(np.asarray(getattr(given[n][i], name), float) for n in "abcd")
            np.testing.assert_allclose(getattr(got[ALL], name), want, atol=4 * 2.0**-bits, rtol=1e-13)
        assert type(got[ALL].sites if hasattr(first, "sites") else 0.0) is float


def test_numbers_of_a_lattice_are_masked_in_32_bits(parties):
    rng = np.random.default_rng(4)
    empty = (np.zeros((1, 0)),) * 7
    given = {n: rng.integers(-(2**29), 2**29, (1, 500, 5)).astype(np.int32) for n in "abcd"}
    hidden = {n: m.hide([msg.Months(given[n], *empty)], 9)[0] for n, m in masks(parties).items()}
    for answer in hidden.values():
        assert answer.months.dtype == np.uint32
        assert abs(np.unpackbits(answer.months.view(np.uint8)).mean() - 0.5) < 5 * 0.5 / np.sqrt(32 * 2500)
    np.testing.assert_array_equal(combined(hidden)[ALL].months, sum(given.values()))


def test_large_or_missing_numbers_are_refused_before_they_could_wrap(parties):
    m = masks(parties)["a"]
    limit = 2.0 ** (63 - 24) / 4
    m.hide([msg.OpenSums(np.full((1, 3), 0.99 * limit), np.zeros((1, 2)), 1.0)], 0)
    for bad in (limit, -limit, np.nan, np.inf):
        with pytest.raises(DomainError, match=r"OpenSums\.sums holds"):
            m.hide([msg.OpenSums(np.array([[1.0, bad, 1.0]]), np.zeros((1, 2)), 1.0)], 0)
    n, bits = 5, 34
    most = np.nextafter(2.0 ** (63 - bits) / n, 0)
    total = np.zeros(1, np.uint64)
    for _ in range(n):
        total = total + fixed(np.array([most]), bits, n, "x")
    assert total.view(np.int64)[0] > 0  # the largest allowed numbers do not wrap around


def test_unmasked_or_misshapen_answers_are_refused_by_name(parties):
    rng = np.random.default_rng(1)
    hidden = {n: m.hide(answers(rng)[:1], 0)[0] for n, m in masks(parties).items()}
    with pytest.raises(UplinkError, match=r"group 'c' sent OpenSums\.sums without masks"):
        combined(hidden | {"c": answers(rng)[0]})
    odd = masks(parties)["b"].hide([msg.OpenSums(np.zeros((1, 3)), np.zeros((1, 2)), 0.0)], 0)[0]
    with pytest.raises(
        UplinkError, match=r"group 'b' sent OpenSums\.sums of shape \(1, 3\), others \(3, 3\)"
    ):
        combined(hidden | {"b": odd})


def test_masks_need_three_groups_with_keys_of_their_own(parties):
    keys, roster = parties
    with pytest.raises(ConfigError, match="masks need 3 groups, the roster has 2"):
        masks(parties, "ab")
    with pytest.raises(ConfigError, match="is not this group's"):
        Masks("a", keys["b"], roster, JOB)
    with pytest.raises(ConfigError, match="the same key"):
        Masks("a", keys["a"], {"a": roster["a"], "b": roster["b"], "c": roster["b"]}, JOB)


def test_keys_are_their_owners_alone(parties, tmp_path):
    path = tmp_path / "private" / "identity.key"
    key = identity(path)
    assert path.stat().st_mode & 0o077 == 0
    assert public_key(identity(path)) == public_key(key)
    shown = fingerprint(public_key(key))
    assert len(shown) == 19
    assert shown != fingerprint(parties[1]["a"])
    path.chmod(0o644)
    with pytest.raises(ConfigError, match="can be read by others"):
        identity(path)


def test_a_key_cut_short_is_a_sentence(tmp_path):
    """As a full disk or a synchronised drive leaves it: it was a traceback of the package cryptography."""
    path = tmp_path / "identity.key"
    identity(path)
    whole = path.read_bytes()
    for length in (0, 31):
        path.write_bytes(whole[:length])
        with pytest.raises(InputError, match=r"is damaged: .* Put this file back"):
            identity(path)


def test_every_answer_has_a_rule_and_one_without_fails():
    for kind in msg.ANSWERS:
        masked_fields(kind)

    @dataclass(frozen=True, slots=True, eq=False)
    class Fresh(msg.Answer):
        about: ClassVar[str] = "what somebody adds next year"
        sums: np.ndarray = msg._f("sums of something", "(n,)")  # noqa: RUF009

    with pytest.raises(ConfigError, match=r"Fresh\.sums has no rule for masks"):
        masked_fields(Fresh)


@pytest.mark.slow
def test_what_a_site_sends_under_masks_tells_nothing(tmp_path, monkeypatch):
    """Frames of one site in the same job with other counts: the masked numbers have no more in common than chance."""
    panel = owned(3, n=1200, J=60, L=24, size=2.0, seed=5)
    clubs, seen = clubs_of(panel, tmp_path), {}
    hide = Masks.hide

    def kept(self, answers, exchange, transcript):
        out = hide(self, answers, exchange, transcript)
        for a in out:
            for f in masked_fields(type(a)):
                seen.setdefault((exchange, self.name), []).append(getattr(a, f).ravel())
        return out

    monkeypatch.setattr(Masks, "hide", kept)
    assert all(hasattr(joint, "totals") for joint in run(clubs).values())
    words = np.concatenate([np.concatenate(v) for v in seen.values()])
    assert words.size > 20_000
    assert np.unique(words).size == words.size  # no number is sent twice, hence no stream used twice
    ones = np.unpackbits(words.view(np.uint8)).mean()
    assert abs(ones - 0.5) < 5 * 0.5 / np.sqrt(64 * words.size)
    # an answer is of sums, or of none: a clear field beside them could tell what they hide
    for kind in msg.ANSWERS:
        assert len(masked_fields(kind)) in (0, len(fields(kind))), kind
    clear = {f"{k.__name__}.{f.name}" for k in msg.ANSWERS for f in fields(k) if f.metadata["bits"] is None}
    assert clear == {
        "Description.version", "Description.species", "Description.months", "Description.season", "Description.terms",
        "Description.covariates", "Description.regions", "Description.calendar", "Description.minimum",
        "Refusal.code", "Refusal.text", "Description.contributors", "Description.site_covariates",
        "Description.magnitudes", "Description.frame",
    }  # fmt: skip


def test_the_common_key_is_read_by_groups_only(parties):
    everyone = masks(parties)
    first = everyone["a"]
    key = first.common_key()
    assert len(key) == 16
    assert key == masks(parties)["a"].common_key()  # again after a restart
    assert key != masks(parties, job=b"k" * 32)["a"].common_key()
    for name in "bcd":
        sealed = first.seal(name, key)
        assert key not in sealed
        assert everyone[name].unseal("a", sealed) == key
        other = "c" if name == "b" else "b"
        with pytest.raises(UplinkError, match="was not sealed by 'a'"):
            everyone[other].unseal("a", sealed)
        with pytest.raises(UplinkError, match="changed on the way"):
            everyone[name].unseal("a", sealed[:-1] + bytes([sealed[-1] ^ 1]))
