"""Cost of an import: CPU seconds, wall seconds and peak memory, first and second time.

    python benchmarks/ingest_speed.py [--records 5000000] [--folder DIR] [--keep] [--case many|all] [--species 288]
                                      [--only-cold]

Two cases of that many records, both simulated. ``many``: 288 species (or another ``--species``), 16 of them asked
for, spread evenly over their ranking by commonness, as in a download of a region. ``all``: 16 species and all of
them asked for, so that every row counts. Each job runs in a process of its own: ingest and aggregate to site x month
cells, cold (no cache) and again (another species, other filters). For comparison: polars' own scan for one species,
and in duckdb, where that is installed, the whole job for the 16 species and the first part of it, text to columns.
CPU seconds count all threads and the start of Python, which is given apart too.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

INGEST = """
import sys
from fedmiss.etl.ingest import IngestSettings, ingest
from fedmiss.etl.cells import aggregate
from fedmiss.etl.filters import Filters, preset
folder, out, filters, *names = sys.argv[1:]
chosen = preset("best-practices-v2", last_date=filters) if filters else Filters()
ingest([f"{folder}/ebd_sim.txt"], out, IngestSettings(species=tuple(names), filters=chosen),
       sampling=[f"{folder}/ebd_sim_sampling.txt"], overwrite=True, cache=f"{out}.cache")
total = aggregate(out)
print(total.detections.height, int(total.detections["count_sum"].sum()), int(total.totals["n_zero_ok"].sum()))
"""

POLARS = """
import sys
import polars as pl
folder, out, filters, name = sys.argv[1:]
scan = pl.scan_csv(f"{folder}/ebd_sim.txt", separator="\\t", quote_char=None, infer_schema=False, truncate_ragged_lines=True)
keep = ["SAMPLING EVENT IDENTIFIER", "GROUP IDENTIFIER", "SCIENTIFIC NAME", "OBSERVATION COUNT"]
rows = scan.filter(pl.col("SCIENTIFIC NAME") == name).select(keep).collect(engine="streaming")
print(rows.height)
"""

DUCKDB = """
import sys
import duckdb
folder, out, filters, *names = sys.argv[1:]
asked = "and \\"SCIENTIFIC NAME\\" in (" + ", ".join(f"'{n}'" for n in names) + ")" if names else ""
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
    from {table(folder + '/ebd_sim.txt')}
    where "CATEGORY" in ('species', 'issf', 'intergrade', 'form', 'domestic') {asked}),
  k as (select *, min(num) over (partition by checklist, sp) as low from r)
  select checklist, sp, sum(try_cast(n as bigint)) as n, bool_or(n = 'X') as x
  from k where num = low group by checklist, sp''')
rows = db.execute('''select sp, site, mon, count(*), sum(case when x then 0 else n end)
  from rec join lists using (checklist) group by sp, site, mon''').fetchnumpy()
zeros = db.execute("select sum(n) as n from (select count(*) as n from lists where ok group by site, mon)").fetchnumpy()
print(len(rows["sp"]), int(sum(rows[list(rows)[4]])), int(zeros["n"][0]))
"""
PROJECT = """
import shutil, sys
from pathlib import Path
from fedmiss.etl.ebird import project_ebird
from fedmiss.etl.sources import expand
folder, out, *_ = sys.argv[1:]
to = Path(out + "-projection")
shutil.rmtree(to, ignore_errors=True)
to.mkdir()
print(project_ebird(expand(f"{folder}/ebd_sim.txt")[0], to, with_events=False)["rows"])
shutil.rmtree(to)
"""

# What a projection costs duckdb at least: texts instead of codes, rows in no order, no hash of the file, no list of repeats
DUCKDB_PROJECT = """
import os
import sys
import duckdb
folder, out, what, *_ = sys.argv[1:]
db = duckdb.connect()
db.execute("SET threads=1")
db.execute("SET memory_limit='600MB'")
db.execute("SET enable_progress_bar=false")
path = folder + "/ebd_sim.txt"
columns = "{" + ", ".join(f"'{c}': 'VARCHAR'" for c in open(path).readline().rstrip().split("\\t")) + "}"
table = (f"read_csv('{path}', delim='\\t', quote='', escape='', header=true, auto_detect=false, new_line='\\\\n', "
         f"columns={columns}, store_rejects=true, rejects_limit=0)")
rows = f'''select try_cast(substr("SAMPLING EVENT IDENTIFIER", 2) as bigint) as event,
  coalesce(try_cast(substr("GROUP IDENTIFIER", 2) as bigint), -1) as grp, trim("CATEGORY") as category,
  trim("COMMON NAME") as common, trim("SCIENTIFIC NAME") as species, trim("EXOTIC CODE") as exotic,
  trim("APPROVED") as approved, trim("REVIEWED") as reviewed, trim("BREEDING CODE") as breeding,
  case when upper("OBSERVATION COUNT") = 'X' then -1 else coalesce(try_cast("OBSERVATION COUNT" as bigint), -3) end as n,
  hash("GLOBAL UNIQUE IDENTIFIER") as guid, "LAST EDITED DATE" as edited,
  coalesce("COUNTY CODE", "STATE CODE", "COUNTRY CODE") as reach, try_cast("OBSERVATION DATE" as date) as date
  from {table}'''
if what == "lines":
    print(db.execute(f"select count(*) from {table}").fetchone()[0])
else:
    print(db.execute(f"copy ({rows}) to '{out}-duckdb.parquet' (format parquet, compression lz4)").fetchone()[0])
    os.remove(f"{out}-duckdb.parquet")
"""
PYC = str(Path(tempfile.gettempdir()) / "fedmiss-bench-bytecode")
SIMULATED = 24  # species of *many*; the others are copies, the k-th with a share that falls as a power of k


def job(code: str, *args: str) -> tuple[float, float, float, str]:
    """Run code in a fresh process; return CPU seconds, wall seconds, peak MB and what it printed."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start = time.perf_counter()
    wrapper = "import resource, sys\n" + code
    wrapper += "\nprint(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)"
    # compiled modules are kept, as Python does where nobody forbids it
    env = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"} | {
        "PYTHONPYCACHEPREFIX": PYC
    }
    done = subprocess.run(
        [sys.executable, "-c", wrapper, *args], capture_output=True, text=True, check=False, env=env
    )
    wall = time.perf_counter() - start
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        return 0.0, 0.0, 0.0, "failed: " + done.stderr.strip().splitlines()[-1]
    *said, peak = done.stdout.strip().splitlines()
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return cpu, wall, float(peak), " ".join(said)


def simulate(folder: Path, case: str, records: int, copies: int = 12) -> None:
    """Write the files of a case, and the 16 species to ask for ('' stands for all) in ``names.txt``."""
    from fedmiss.simulate.ebird import EbirdSettings, simulate_ebird

    if case == "all":
        simulate_ebird(folder, EbirdSettings(records=records, seed=1), overwrite=True)
        (folder / "names.txt").write_text("")
        return
    base = folder / "base"
    simulate_ebird(
        base, EbirdSettings(records=int(records * 0.405), species=SIMULATED, seed=2), overwrite=True
    )
    seen = multiply_species(base / "ebd_sim.txt", folder / "ebd_sim.txt", records, copies)
    (base / "ebd_sim_sampling.txt").rename(folder / "ebd_sim_sampling.txt")
    shutil.rmtree(base)
    ranked = [name for name, _ in seen.most_common()]
    (folder / "names.txt").write_text("\n".join(ranked[:: len(ranked) // 16][:16]))


def multiply_species(source: Path, out: Path, records: int, copies: int) -> Counter[str]:
    """Add rarer species to an EBD: a record is repeated under other names, each with a probability of its own."""
    draw = random.Random(1).random
    share = [0.62 * k**-1.25 for k in range(1, copies)]
    seen: Counter[str] = Counter()
    n = 0
    with (
        open(source, encoding="utf-8", newline="") as lines,
        open(out, "w", encoding="utf-8", newline="") as to,
    ):
        to.write(next(lines))
        for line in lines:
            guid, edited, order, category, concept, common, name, rest = line.split("\t", 7)
            rows = [line]
            if category in ("species", "issf", "intergrade", "form", "domestic"):
                seen[name] += 1
                for k in range(1, copies):
                    if draw() < share[k - 1]:
                        mark = chr(96 + k)  # a letter: names hold no digits
                        seen[name + mark] += 1
                        number = guid.replace("OBS", f"OBS{k:02d}0")
                        more = (
                            number,
                            edited,
                            order,
                            category,
                            concept,
                            f"{common} {mark}",
                            name + mark,
                            rest,
                        )
                        rows.append("\t".join(more))
            to.writelines(rows[: records - n])
            n += len(rows)
            if n >= records:
                break
    return seen


def measure(folder: Path, case: str, records: int, species: int, *, only_cold: bool) -> None:
    """Print the table of one case."""
    sim = folder / (case if case == "all" else f"{case}{species}")
    if not (sim / "names.txt").exists():
        # apart, since a child's peak of memory counts from that of its parent on
        maker = multiprocessing.get_context("spawn").Process(
            target=simulate, args=(sim, case, records, species // SIMULATED)
        )
        maker.start()
        maker.join()
    names = (sim / "names.txt").read_text().split("\n") if case == "many" else []
    common, rare = (names[0], names[-1]) if names else ("Mareca americana", "Aquila chrysaetos")
    out = str(folder / "records")
    size = sum((sim / f).stat().st_size for f in ("ebd_sim.txt", "ebd_sim_sampling.txt"))
    print(
        f"\ncase {case} ({16 if case == 'all' else species} species): {records:,} records, {size / 1e9:.2f} GB of text"
    )
    print(f"{'job':<52}{'CPU s':>8}{'wall s':>8}{'peak MB':>9}  cells, birds, lists that give zeros")

    def show(label: str, code: str, *args: str) -> float:
        cpu, wall, peak, said = job(code, str(sim), out, *args)
        print(f"{label:<52}{cpu:>8.2f}{wall:>8.2f}{peak:>9.0f}  {said}", flush=True)
        return cpu

    def fresh() -> None:
        shutil.rmtree(f"{out}.cache", ignore_errors=True)

    job("import polars, pyarrow.parquet, fedmiss.etl.ingest")  # keep the compiled modules
    start = show("start of Python and imports alone", "import polars, pyarrow.parquet, fedmiss.etl.ingest")
    fresh()
    if only_cold:
        show("1 species, whole job, first time", INGEST, "", common)
        fresh()
        show("16 species, whole job, first time", INGEST, "", *names)
        return
    job(INGEST, str(sim), out, "", rare)  # compile the loops once, warm the page cache
    fresh()
    cold = show("1 species, whole job, first time", INGEST, "", common)
    warm = show("another species, same filters", INGEST, "", rare)
    other = show("another species, other filters", INGEST, "2019-06-30", rare)
    fresh()
    cold16 = show("16 species, whole job, first time", INGEST, "", *names)
    show("16 species, same filters, again", INGEST, "", *names)
    show("16 species, other filters", INGEST, "2019-06-30", *names)
    show("polars scan_csv, one species, filter only", POLARS, "", common)
    duck = show("duckdb, 16 species, whole job without checks", DUCKDB, "", *names)
    show("projection of the records alone", PROJECT)
    show("duckdb, lines counted, faults kept", DUCKDB_PROJECT, "lines")
    show("duckdb, columns of that projection to parquet", DUCKDB_PROJECT, "columns")
    for what, second in (("same", warm), ("other", other)):
        ratio, bare = cold / second, (cold - start) / (second - start)
        print(f"first / second time, {what} filters: {ratio:.1f} (without the start of Python: {bare:.1f})")
    print(f"duckdb / this, 16 species, first time: {duck / cold16:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=5_000_000)
    parser.add_argument("--folder", type=Path, help="where the simulated files are, or go")
    parser.add_argument("--keep", action="store_true", help="keep the simulated files")
    parser.add_argument("--case", choices=("many", "all"), help="one of the two cases only")
    parser.add_argument(
        "--species",
        type=int,
        default=288,
        choices=range(SIMULATED, 601, SIMULATED),
        metavar="N",
        help="of the case many",
    )
    parser.add_argument(
        "--only-cold", action="store_true", help="first imports alone, for the peak of memory"
    )
    options = parser.parse_args()
    folder = options.folder or Path(tempfile.mkdtemp(prefix="fedmiss-ingest-"))
    for case in [options.case] if options.case else ["many", "all"]:
        measure(folder, case, options.records, options.species, only_cold=options.only_cold)
    if not options.keep and options.folder is None:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
