"""Federated EM: one server step, one worker step, and the parts that plug into them. Knows no birds, no files."""

from __future__ import annotations

from fedmiss.core.em import em, mean_field, pooled_s_bar
from fedmiss.core.fedem import FedEM, naive_fedem, spider_em, theta_bytes, vr_fedem
from fedmiss.core.loop import Result, Stop, load_checkpoint, run, save_checkpoint
from fedmiss.core.oracles import Full as FullBatch
from fedmiss.core.oracles import Minibatch, Spider
from fedmiss.core.participation import Bernoulli, FixedSize, Full, Given
from fedmiss.core.protocols import Compressor, Engine, Model, Oracle, Participation
from fedmiss.core.schedules import Decreasing, Piecewise
from fedmiss.core.state import Downlink, Dropped, Replies, Roster, RoundInfo, ServerState, Uplink, WorkerState
from fedmiss.core.theory import Constants, estimate_constants, gamma_max, gamma_star, gamma_vr

__all__ = [
    "Bernoulli",
    "Compressor",
    "Constants",
    "Decreasing",
    "Downlink",
    "Dropped",
    "Engine",
    "FedEM",
    "FixedSize",
    "Full",
    "FullBatch",
    "Given",
    "Minibatch",
    "Model",
    "Oracle",
    "Participation",
    "Piecewise",
    "Replies",
    "Result",
    "Roster",
    "RoundInfo",
    "ServerState",
    "Spider",
    "Stop",
    "Uplink",
    "WorkerState",
    "em",
    "estimate_constants",
    "gamma_max",
    "gamma_star",
    "gamma_vr",
    "load_checkpoint",
    "mean_field",
    "naive_fedem",
    "pooled_s_bar",
    "run",
    "save_checkpoint",
    "spider_em",
    "theta_bytes",
    "vr_fedem",
]
