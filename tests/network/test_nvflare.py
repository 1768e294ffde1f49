"""Real processes over NVFLARE on this computer: kills, strangers, code from outside, and where connections go."""

import json
import shutil
import time
from dataclasses import replace

import pytest

pytest.importorskip("nvflare", reason="run by `make test-nvflare` in an environment with the extra")

from fedmiss.network import nvflare, nvflare_kits
from fedmiss.network.demo import CLUBS, demo_study
from fedmiss.network.kits import open_kit
from fedmiss.network.member import start
from fedmiss.network.processes import end
from fedmiss.network.proposer import make_study
from fedmiss.network.relay import _session
from fedmiss.network.study import read_study
from tests.network.ends import Laws, prepared_study, uninterrupted_run

pytestmark = [
    pytest.mark.nvflare,
    pytest.mark.filterwarnings("ignore"),  # the engine's own
]
PORT = 8142


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    return prepared_study(tmp_path_factory.mktemp("nv"), engine="nvflare", port=PORT)


@pytest.fixture(scope="module")
def uninterrupted(prepared, tmp_path_factory):
    return uninterrupted_run(prepared, tmp_path_factory.mktemp("trace") / "connect")


class TestStudy(Laws):
    pass


@pytest.fixture
def server(prepared, tmp_path):
    """A hub and its sites without a job, and the coordinator's session."""
    folder, panels = prepared
    there = tmp_path / "study"
    shutil.copytree(folder, there)
    processes = [nvflare.start_relay(there / "hub", tmp_path / "hub.log")]
    admin = None
    try:
        for club in CLUBS:
            kit = open_kit(there / "kits" / club)
            start(kit, panels[club])
            processes.append(nvflare.start_member(kit.folder, club, tmp_path / f"{club}.log"))
        for _ in range(60):
            try:
                admin = admin or _session(there / "hub", read_study(there), processes[0])
                if admin is not None and admin.connected() == sorted(CLUBS):
                    break
            except Exception:
                pass
            time.sleep(1)
        assert admin is not None
        assert admin.connected() == sorted(CLUBS)
        yield there, admin, tmp_path
    finally:
        if admin is not None:
            admin.close()
        for process in processes:
            end(process)


def test_a_relay_that_does_not_know_its_own_name_is_told_who_is_connected(tmp_path):
    """Behind a router, or where only the organisations' own networks know the name."""
    study = replace(demo_study(bootstrap=2, port=PORT + 1, engine="nvflare"), host="relay.invalid")
    folder = make_study(study, tmp_path / "study", nvflare_kits.provision)
    process = nvflare.start_relay(folder / "hub", tmp_path / "hub.log")
    try:
        admin = _session(folder / "hub", study, process)
        assert admin is not None
        assert admin.connected() == []
        admin.close()
    finally:
        end(process)


def _ended(admin, job):
    for _ in range(120):
        state = admin.state(job)
        if any(word in state.upper() for word in ("FINISHED", "FAILED", "ABORTED", "ABANDONED", "REJECTED")):
            return state
        time.sleep(0.5)
    raise AssertionError(f"job {job} did not end: {state}")


def test_a_job_with_code_runs_nowhere(server, tmp_path):
    """Code in the job, a class of the library that is not ours, a stranger's kit, another's name: all refused."""
    folder, admin, logs = server
    study = read_study(folder)
    proof = tmp_path / "it-ran"

    job = nvflare_kits.job_folder(study, tmp_path / "with-code")
    for app in ("server", "site"):
        custom = job / app / "custom"
        custom.mkdir()
        (custom / "evil.py").write_text(f"open({str(proof)!r}, 'w').close()\nclass Evil: pass\n")
        path = job / app / "config" / f"config_fed_{'client' if app == 'site' else 'server'}.json"
        config = json.loads(path.read_text())
        config["components"].append({"id": "evil", "path": "evil.Evil", "args": {}})
        path.write_text(json.dumps(config))
    try:
        state = _ended(admin, admin.submit_folder(job))
    except Exception as error:  # refused at once
        state = f"REJECTED {error}"
    assert "COMPLETED" not in state.upper()
    assert not proof.exists()

    job = nvflare_kits.job_folder(study, tmp_path / "other-class")
    path = job / "site" / "config" / "config_fed_client.json"
    config = json.loads(path.read_text())
    config["components"].append(
        {"id": "shell", "path": "subprocess.Popen", "args": {"args": ["touch", str(proof)]}}
    )
    path.write_text(json.dumps(config))
    state = _ended(admin, admin.submit_folder(job))
    assert "COMPLETED" not in state.upper()
    assert not proof.exists()
    said = "".join(p.read_text(errors="replace") for p in logs.glob("*.log"))
    assert "is not in allow_list" in said

    # a kit of another study with the same names: its certificate is of another root
    other = make_study(
        demo_study(bootstrap=10, port=PORT, engine="nvflare"), tmp_path / "other", nvflare_kits.provision
    )
    stranger = nvflare.start_member(other / "kits" / "north", "stranger", tmp_path / "stranger.log")
    # north's certificate under a name that is not north's
    thief = tmp_path / "thief"
    shutil.copytree(folder / "kits" / "north", thief)
    named = nvflare.start_member(thief, "west", tmp_path / "thief.log")
    try:
        for _ in range(10):
            time.sleep(1)
            assert admin.connected() == sorted(CLUBS)
    finally:
        end(stranger)
        end(named)
