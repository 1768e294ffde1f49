"""Cost of an import: CPU seconds, wall seconds and peak memory, first and second time, one species and all.

    python benchmarks/ingest_speed.py [--records 5000000] [--folder DIR] [--keep]

Simulates an EBD and its sampling file of that size (16 species), then runs each job in a process of its own:
ingest and aggregate to site x month cells, cold (no cache) and warm (another run on the same file). For
comparison: polars' own scan for one species, and the whole job for all species written in duckdb where that is
installed. CPU seconds count all threads, children and the start of Python.
"""

from __future__ import annotations

import argparse
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

COMMON, RARE = "Mareca americana", "Aquila chrysaetos"

INGEST = """
import sys
from fedmiss.etl.ingest import IngestSettings, ingest
from fedmiss.etl.cells import aggregate
folder, out, *names = sys.argv[1:]
ingest([f"{folder}/ebd_sim.txt"], out, IngestSettings(species=tuple(names)),
       sampling=[f"{folder}/ebd_sim_sampling.txt"], overwrite=True, cache=f"{folder}/cache")
total = aggregate(out)
print(total.detections.height, int(total.detections["count_sum"].sum()), int(total.totals["n_zero_ok"].sum()))
"""

POLARS = """
import sys
import polars as pl
folder, out, name = sys.argv[1:]
scan = pl.scan_csv(f"{folder}/ebd_sim.txt", separator="\\t", quote_char=None, infer_schema=False, truncate_ragged_lines=True)
keep = ["SAMPLING EVENT IDENTIFIER", "GROUP IDENTIFIER", "SCIENTIFIC NAME", "OBSERVATION COUNT"]
rows = scan.filter(pl.col("SCIENTIFIC NAME") == name).select(keep).collect(engine="streaming")
print(rows.height)
"""

DUCKDB = """
import sys
import duckdb
folder, out = sys.argv[1:]
db = duckdb.connect()
db.execute("SET threads=2")
db.execute("SET enable_progress_bar=false")
def table(path):
    return (f"read_csv('{path}', delim='\\t', quote='', escape='', header=true, all_varchar=true, "
            "null_padding=true, strict_mode=false)")
db.execute(f'''
create table sed as select cast(substr("SAMPLING EVENT IDENTIFIER", 2) as bigint) as num,
  coalesce("GROUP IDENTIFIER", "SAMPLING EVENT IDENTIFIER") as checklist, "LOCALITY ID" as site,
  substr("OBSERVATION DATE", 1, 7) as mon, ("ALL SPECIES REPORTED" = '1') as ok
  from {table(folder + '/ebd_sim_sampling.txt')}''')
db.execute("create table lists as select checklist, min(num) as num, arg_min(site, num) as site, arg_min(mon, num) as mon, "
           "arg_min(ok, num) as ok from sed group by checklist")
db.execute(f'''
create table rec as with r as (select cast(substr("SAMPLING EVENT IDENTIFIER", 2) as bigint) as num,
    coalesce("GROUP IDENTIFIER", "SAMPLING EVENT IDENTIFIER") as checklist, "SCIENTIFIC NAME" as sp, "OBSERVATION COUNT" as n
    from {table(folder + '/ebd_sim.txt')} where "CATEGORY" in ('species', 'issf', 'intergrade', 'form', 'domestic')),
  k as (select *, min(num) over (partition by checklist, sp) as low from r)
  select checklist, sp, sum(try_cast(n as bigint)) as n, bool_or(n = 'X') as x
  from k where num = low group by checklist, sp''')
rows = db.execute('''select sp, site, mon, count(*), sum(case when x then 0 else n end)
  from rec join lists using (checklist) group by sp, site, mon''').fetchnumpy()
zeros = db.execute("select site, mon, count(*) from lists where ok group by site, mon").fetchnumpy()
print(len(rows["sp"]), len(zeros["site"]))
"""


def job(code: str, *args: str) -> tuple[float, float, float, str]:
    """Run code in a fresh process; return CPU seconds, wall seconds, peak MB and what it printed."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start = time.perf_counter()
    wrapper = "import resource, sys\n" + code
    wrapper += "\nprint(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)"
    done = subprocess.run([sys.executable, "-c", wrapper, *args], capture_output=True, text=True, check=False)
    wall = time.perf_counter() - start
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        return 0.0, 0.0, 0.0, "failed: " + done.stderr.strip().splitlines()[-1]
    *said, peak = done.stdout.strip().splitlines()
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return cpu, wall, float(peak), " ".join(said)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=5_000_000)
    parser.add_argument("--folder", type=Path, help="where the simulated files are, or go")
    parser.add_argument("--keep", action="store_true", help="keep the simulated files")
    options = parser.parse_args()
    folder = options.folder or Path(tempfile.mkdtemp(prefix="fedmiss-ingest-"))
    if not (folder / "sim" / "ebd_sim.txt").exists():
        from fedmiss.simulate.ebird import EbirdSettings, simulate_ebird

        simulate_ebird(folder / "sim", EbirdSettings(records=options.records, seed=1))
    sim, out = str(folder / "sim"), str(folder / "records")
    size = sum((folder / "sim" / f).stat().st_size for f in ("ebd_sim.txt", "ebd_sim_sampling.txt"))
    print(f"{options.records:,} records, {size / 1e9:.2f} GB of text")
    print(f"{'job':<52}{'CPU s':>8}{'wall s':>8}{'peak MB':>9}  what came out")

    def show(label: str, code: str, *args: str) -> float:
        cpu, wall, peak, said = job(code, *args)
        print(f"{label:<52}{cpu:>8.2f}{wall:>8.2f}{peak:>9.0f}  {said}", flush=True)
        return cpu

    shutil.rmtree(folder / "sim" / "cache", ignore_errors=True)
    job(INGEST, sim, out, RARE)  # compile the loops once, warm the page cache
    shutil.rmtree(folder / "sim" / "cache", ignore_errors=True)
    cold = show("1 species, whole job, first time", INGEST, sim, out, COMMON)
    warm = show("another species, whole job, second time", INGEST, sim, out, RARE)
    show("the same again", INGEST, sim, out, RARE)
    shutil.rmtree(folder / "sim" / "cache", ignore_errors=True)
    all_cold = show("16 species (every row), whole job, first time", INGEST, sim, out)
    show("16 species, whole job, second time", INGEST, sim, out)
    show("start of Python and imports alone", "import polars, pyarrow.parquet, fedmiss.etl.ingest", sim, out)
    show("polars scan_csv, one species, filter only", POLARS, sim, out, COMMON)
    duck = show("duckdb, 16 species, whole job without checks", DUCKDB, sim, out)
    print(f"first / second time, one species: {cold / max(warm, 1e-9):.1f}")
    if duck:
        print(f"duckdb / this, 16 species, first time: {duck / all_cold:.2f}")
    if not options.keep and options.folder is None:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
