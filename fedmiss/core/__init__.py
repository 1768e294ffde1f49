"""Federated EM: one server step, one worker step, and the parts that plug into them. Knows no birds, no files."""

from __future__ import annotations

from fedmiss.core.em import em, mean_field, pooled_s_bar
from fedmiss.core.fedem import FedEM
from fedmiss.core.finite_sum import Fiem, SemVr, Streaming
from fedmiss.core.likelihood import log_likelihood, watch_likelihood
from fedmiss.core.local_steps import LocalSteps
from fedmiss.core.loop import Result, Stop, revise, run
from fedmiss.core.methods import fed_lsa, first_run, local_em, naive_fedem, scafflsa, spider_em, vr_fedem
from fedmiss.core.oracles import Full as FullBatch
from fedmiss.core.oracles import Late, Minibatch, Spider
from fedmiss.core.participation import Bernoulli, FixedSize, Full, Given, Remembered
from fedmiss.core.protocols import Compressor, Engine, Model, Oracle, Participation, WorkerContext
from fedmiss.core.schedules import Decreasing, Piecewise, SaemSteps, Times
from fedmiss.core.state import Downlink, Dropped, Replies, Roster, RoundInfo, ServerState
from fedmiss.core.theory import Constants, estimate_constants, gamma_max, gamma_star, gamma_vr

__all__ = [
    "Bernoulli", "Compressor", "Constants", "Decreasing", "Downlink", "Dropped", "Engine", "FedEM", "Fiem",
    "FixedSize", "Full", "FullBatch", "Given", "Late", "LocalSteps", "Minibatch", "Model", "Oracle",
    "Participation", "Piecewise", "Remembered", "Replies", "Result", "Roster", "RoundInfo", "SaemSteps",
    "SemVr", "ServerState", "Spider", "Stop", "Streaming", "Times", "WorkerContext", "em",
    "estimate_constants", "fed_lsa", "first_run", "gamma_max", "gamma_star", "gamma_vr", "local_em",
    "log_likelihood", "mean_field", "naive_fedem", "pooled_s_bar", "revise", "run", "scafflsa", "spider_em",
    "vr_fedem", "watch_likelihood",
]  # fmt: skip
