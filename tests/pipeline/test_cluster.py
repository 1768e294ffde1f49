"""Species over a Dask cluster: the same tables, a lost worker, and what is refused."""

import os
import signal
import threading
import time
from dataclasses import replace

import pandas as pd
import pytest

from fedmiss.errors import ConfigError, EngineError
from fedmiss.pipeline import parallel
from fedmiss.pipeline.chain import run_recipe
from fedmiss.pipeline.recipe import read_recipe
from fedmiss.pipeline.settings import FitSettings
from tests.pipeline.test_many import GOOD, write

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(scope="module")
def workers():
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(2, threads_per_worker=1, processes=True, dashboard_address=None) as c:
        yield c


def recipe(folder, out):
    fit = FitSettings(bootstrap=20, folds=2, max_rank=1)
    return replace(read_recipe(write(folder, GOOD), folder / out), fit=fit)


def tables(results):
    return {
        r.species: pd.read_parquet(r.page.parent / "tables" / "yearly.parquet")
        for r in results
        if r.page is not None
    }


@pytest.mark.nightly
def test_the_cluster_gives_the_same_tables_and_survives_a_killed_worker(workers, tmp_path):
    here = tables(run_recipe(recipe(tmp_path, "here"), jobs=1))
    assert set(here) == set(GOOD)

    killed = []

    def kill():
        """End a worker as soon as every worker has a species."""
        while sum(1 for _ in (tmp_path / "there").glob("*/.panel.key")) < 2:
            time.sleep(0.02)
        victim = next(iter(workers.workers.values()))
        killed.append(victim.pid)
        os.kill(victim.pid, signal.SIGKILL)

    threading.Thread(target=kill, daemon=True).start()
    there = tables(run_recipe(recipe(tmp_path, "there"), scheduler=workers.scheduler_address))
    assert killed
    assert set(there) == set(here)
    for name, table in here.items():
        pd.testing.assert_frame_equal(table, there[name])
    assert (tmp_path / "there" / "indicator.csv").exists()


def test_workers_of_another_version_or_without_the_disk_are_refused_by_name(workers, tmp_path, monkeypatch):
    monkeypatch.setattr(parallel, "__version__", "9.9.9")
    with pytest.raises(ConfigError, match=r"another version of fedmiss than 9\.9\.9: tcp://"):
        list(parallel.over_cluster(workers.scheduler_address, str, ["a"], tmp_path))
    monkeypatch.undo()
    monkeypatch.setattr(parallel, "_look", lambda token: (parallel.__version__, False))
    with pytest.raises(ConfigError, match="these workers do not see"):
        list(parallel.over_cluster(workers.scheduler_address, str, ["a"], tmp_path))


def test_a_failing_species_stops_no_other_and_no_scheduler_is_told(workers, tmp_path):
    found = {
        n: (r, e)
        for n, r, e in parallel.over_cluster(workers.scheduler_address, int, ["1", "x", "3"], tmp_path)
    }
    assert (found["1"][0], found["3"][0]) == (1, 3)
    assert "ValueError" in found["x"][1]
    with pytest.raises(EngineError, match="no Dask scheduler answers"):
        list(parallel.over_cluster("tcp://127.0.0.1:1", str, ["a"], tmp_path))
