"""Slow, obvious re-implementations to judge the fast ones by. Written from the papers, sharing no code with fedmiss."""

import math

import numpy as np


def gaussian_pdf(y, mu, Sigma):
    d = len(mu)
    r = y - mu
    return math.exp(-0.5 * r @ np.linalg.inv(Sigma) @ r) / math.sqrt(
        (2 * math.pi) ** d * np.linalg.det(Sigma)
    )


def gmm_statistic(pi, mu, Sigma, rows):
    """(r_1..r_G, r_1 y, .., r_G y), mean over rows; Sigma common."""
    G, d = mu.shape
    s = np.zeros(G + G * d)
    for y in rows:
        r = np.array([pi[g] * gaussian_pdf(y, mu[g], Sigma) for g in range(G)])
        r /= r.sum()
        s[:G] += r
        for g in range(G):
            s[G + g * d : G + (g + 1) * d] += r[g] * y
    return s / len(rows)


def gmm_em_step(pi, mu, Sigma, rows, *, tied):
    """One EM iteration in the parameter space, textbook formulas."""
    G, _d = mu.shape
    R = np.array([[pi[g] * gaussian_pdf(y, mu[g], Sigma) for g in range(G)] for y in rows])
    R /= R.sum(axis=1, keepdims=True)
    mass = R.sum(axis=0)
    new_mu = np.array([sum(R[j, g] * rows[j] for j in range(len(rows))) / mass[g] for g in range(G)])
    if tied:
        Sigma = sum(
            R[j, g] * np.outer(rows[j] - new_mu[g], rows[j] - new_mu[g])
            for j in range(len(rows))
            for g in range(G)
        ) / len(rows)
    return mass / len(rows), new_mu, Sigma


def spider_em(s_bar, T, rows, S_0, gamma, batches, k_in):
    """SPIDER-EM (Fort, Moulines, Wai 2020) with the minibatches given: batches[k] are row numbers of round k.

    The full pass at the start of an outer loop takes the place of the difference, which is zero there.
    """
    S, theta_before, out = S_0.copy(), None, []
    for k, batch in enumerate(batches):
        theta = T(S)
        if k % k_in == 0:
            G = s_bar(theta, rows)
        else:
            G = G + (s_bar(theta, rows[batch]) - s_bar(theta_before, rows[batch]))
        S = S + gamma * (G - S)
        theta_before = theta
        out.append(S)
    return out


def block_dithering(x, u, s, r, block):
    """Dithering in plain Python, norms rounded up to float32."""
    out = np.zeros_like(x)
    for lo in range(0, len(x), block):
        b = x[lo : lo + block]
        norm = np.linalg.norm(b, r)
        f = np.float32(norm)
        if float(f) < norm:
            f = np.nextafter(f, np.float32(np.inf))
        if f == 0:
            continue
        for i, v in enumerate(b):
            level = math.floor(s * abs(v) / float(f) + u[lo + i])
            out[lo + i] = math.copysign(level * float(f) / s, v)
    return out


def fedem_trajectory(s_bar, T, data, S_0, V_0, gamma, alpha, p, rounds, quantize, active):
    """Algorithm 1 with full local data, line by line; ``quantize(x, k, c)`` and ``active(k)`` are given."""
    n = len(data)
    S, V_c, V = S_0.copy(), [v.copy() for v in V_0], np.mean(V_0, axis=0)
    out = []
    for k in range(rounds):
        theta, total = T(S), np.zeros_like(S)
        for c in active(k):
            D = s_bar(theta, data[c]) - S - V_c[c]
            Q = quantize(D, k, c)
            V_c[c] = V_c[c] + alpha * Q
            total = total + Q
        H = V + total / (n * p)
        S = S + gamma * H
        V = V + alpha / n * total
        out.append((S, V, np.array(V_c)))
    return out
