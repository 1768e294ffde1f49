"""``fedmiss federation``: studies between organisations."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from fedmiss.cli.options import Language, Out, Overwrite, Unit, refuse_typed

_KIT = Annotated[Path, Argument(help="Your organisation's kit: the folder that the proposer sent.")]
_DATA = Annotated[Path, Argument(help="Your panel, made by `fedmiss panel`; for all species your records.")]
OF_PAGES = ("report", "joint", "date", "unit", "language")
_STUDY = Annotated[Path, Argument(help="Folder of the study, made by `fedmiss federation new`.")]


def new(
    study: Path = Argument(help="study.toml: organisations, species, rules."),
    out: Out = Path("study"),
    overwrite: Overwrite = False,
) -> None:
    """Proposer: make a study's folder with one kit for every organisation."""
    from fedmiss.network.engine import provision
    from fedmiss.network.proposer import make_study
    from fedmiss.network.study import read_study_toml

    read = read_study_toml(study)
    folder = make_study(read, out, provision, overwrite=overwrite)
    typer.echo(
        f"Wrote {folder}: study {read.name}, revision {read.revision}, of {', '.join(read.organisations)}."
    )
    typer.echo(f"Send each organisation its kit, by a way that only it can read: {folder / 'kits'}/NAME")
    typer.echo("Each says `fedmiss federation enrol KIT` and sends back the file that it names.")


def enrol(kit: _KIT) -> None:
    """Draw your key, once; the private part never leaves your computer."""
    from fedmiss.atomic import read_json
    from fedmiss.network.kits import enrol as draw
    from fedmiss.network.kits import open_kit

    path = draw(open_kit(kit))
    typer.echo(f"Send {path} to the proposer. It is public; read its fingerprint to the others by telephone:")
    typer.echo(f"  {read_json(path)['fingerprint']}")


def roster(
    study: _STUDY,
    keys: list[Path] = Argument(help="The files NAME.public.json of all organisations."),
) -> None:
    """Proposer: put all public keys into the kits; then send roster.json to every organisation."""
    from fedmiss.federation.masks import fingerprint
    from fedmiss.network.proposer import collect_roster

    for name, key in collect_roster(study, keys).items():
        typer.echo(f"  {name:12s} {fingerprint(key)}")
    typer.echo(f"Wrote {study / 'roster.json'}: put it into every kit that is already with its organisation.")


def join(
    context: typer.Context,
    kit: _KIT,
    data: _DATA,
    folder: Path | None = Option(
        None, help="The folder that all organisations share.", show_default="that of the last time"
    ),
    dry_run: bool = Option(
        False, "--dry-run", help="Show the job and what your data would bring; send nothing."
    ),
    approve: str = Option(
        "", help="Approve the job with this hash (its first twelve digits or more) without a question."
    ),
    look: bool = Option(
        False,
        "--look",
        help="Hold every message until you release it (`fedmiss federation outbox --release`).",
    ),
    preview: bool = Option(
        False,
        "--preview",
        help="Agree only, and list what the minimum numbers leave out; `join` then continues.",
    ),
    own_sites: int | None = Option(
        None,
        help="Leave out your months with fewer of your own sites, in case all others work together.",
        show_default="that of the last time, at first 0",
        min=0,
    ),
    site_table: Path | None = Option(
        None,
        help="CSV of your sites' covariates, for a study about all species of a site.",
        show_default="that of the last time, at first none",
    ),
    report: Path | None = Option(
        None, help="Folder of your own report at the end.", show_default="KIT/report"
    ),
    joint: Path | None = Option(
        None, help="Folder of the joint report at the end.", show_default="KIT/joint"
    ),
    date: str | None = Option(None, help="Date printed on the joint report.", show_default="today"),
    unit: Unit = "birds",
    language: Language = None,
) -> None:
    """Take part in a study with your data until it is done; then make the joint report and your own."""
    if dry_run:
        names: tuple[str, ...] = ("approve", "look", "preview", *OF_PAGES)
        refuse_typed(context, names, "--dry-run sends nothing")
    if preview:
        refuse_typed(context, OF_PAGES, "--preview makes no report")
    from fedmiss.atomic import read_json
    from fedmiss.network.approval import approve as approved
    from fedmiss.network.approval import page, terminal_ask
    from fedmiss.network.community import OWN
    from fedmiss.network.folder import check_folder
    from fedmiss.network.join import join as take_part
    from fedmiss.network.kits import open_kit
    from fedmiss.network.member import dry_run as brings
    from fedmiss.network.method import check_installed
    from fedmiss.network.preflight import check_key, check_version
    from fedmiss.network.report import joint_report, no_own_report, own_report
    from fedmiss.network.result import preview_lines
    from fedmiss.report.language import read_catalog
    from fedmiss.report.settings import ReportSettings

    # refused before the job, not at its end
    pages = ReportSettings(date=date, unit=unit, language=language)
    if language:
        read_catalog(language)
    mine = open_kit(kit)
    # before the page: else a job is shown and approved that cannot be joined
    check_version(mine)
    if not dry_run:
        check_key(mine)
    if mine.study.method and not dry_run:
        check_installed(str(mine.study.method["run"]))
    if mine.study.method:
        names = ("look", "preview", "own_sites", *OF_PAGES)
        refuse_typed(context, names, f"the study runs {mine.study.method['run']}, not the count model")
    if mine.study.community:
        names = ("preview", *OF_PAGES)
        refuse_typed(context, names, "the study is about all species of a site")
    else:
        refuse_typed(
            context, ("site_table",), "the study is about one species, whose panel has the covariates"
        )
    if mine.study.engine != "folder":
        refuse_typed(context, ("folder",), f"the study's frames are carried by {mine.study.engine}")
    brought = brings(mine, data, own_sites)
    if own_sites is not None and not dry_run:
        mine.keep_own_sites(own_sites)
    if site_table is not None and not dry_run:
        mine.keep_site_table(site_table)
    if dry_run:
        typer.echo(page(mine, own_sites=own_sites))
        typer.echo("\n".join(brought))
        if folder is not None:
            typer.echo(f"{check_folder(folder, mine.folder, data)} can carry the study.")
        typer.echo(f"Nothing was sent. To approve: --approve {mine.job.hex()[:12]}")
        return
    typer.echo("\n".join(brought))
    approved(mine, ask=terminal_ask(), given=approve)
    result = take_part(mine, data, say=typer.echo, look=look, preview=preview, folder=folder, report=report)
    if preview:
        typer.echo("\n".join(preview_lines(read_json(result))))
        typer.echo(f"Wrote {result}. Say the same without --preview to go on.")
        return
    typer.echo(f"{mine.name}: done. Joint result: {result}")
    if mine.study.community:
        typer.echo(f"{mine.name}: your sites by all species: {mine.folder / OWN / 'index.html'}")
    if mine.study.method or mine.study.community:
        return
    page_of_all = joint_report(result, joint or mine.folder / "joint", pages, overwrite=True)
    typer.echo(f"{mine.name}: joint report: {page_of_all}")
    out = report or mine.folder / "report"
    own = own_report(mine, data, out, ReportSettings(unit=unit, language=language), overwrite=True)
    typer.echo(f"{mine.name}: your own report: {own or no_own_report(out)}")


def run(study: _STUDY) -> None:
    """Run the relay of a study until all organisations have their results, or go on with it (engine nvflare)."""
    from fedmiss.network.relay import run as run_relay

    run_relay(study, say=typer.echo)
    typer.echo("done: every organisation has the joint result.")


def status(
    folder: Path = Argument(help="Your organisation's kit, or the study's folder at its relay."),
) -> None:
    """Show how a study stands, and who is missing."""
    from fedmiss.errors import ConfigError, FedmissError, InputError
    from fedmiss.federation.journal import Journal
    from fedmiss.network.hold import on_hold
    from fedmiss.network.kits import open_kit
    from fedmiss.network.status import status as status_of
    from fedmiss.network.study import read_study

    kit = (folder / "kit.json").exists()
    if not kit and not (folder / "study.json").exists():
        raise InputError(
            f"{folder} is neither a kit nor a study's folder. Name your organisation's kit: it knows how the study stands; "
            "a folder that all share does not."
        )
    if not kit and read_study(folder).engine == "folder":
        raise ConfigError(
            f"{folder} has no relay: how the study stands is known at each organisation, by `fedmiss federation status KIT`."
        )
    now = status_of(folder / ("private" if kit else "hub"))
    if kit and "result" in now:  # the kit may have been moved since
        now["result"] = str(folder.resolve() / Path(now["result"]).name)
    ended = ""
    with suppress(FedmissError):  # a kit that has left, or lacks its roster, says how it stood
        mine = open_kit(folder) if kit else None
        if mine and now.get("job", "") not in ("", mine.job.hex()):
            typer.echo("The kit's present job is not begun. The last one:")
        elif mine and now["state"] in ("running", "waiting", "stopped") and mine.result.exists():
            # whoever says `join` again goes through a job that is done, and may stop amid it
            now |= {"state": "done", "result": str(mine.result)}
        elif mine and now["state"] in ("running", "waiting") and Journal.idle(mine.journal):
            # whoever was killed, or lost power, could not write that it ended
            ended = ", when its process ended; `fedmiss federation join` goes on"
    typer.echo(f"state      {now['state']}{ended}")
    for name in ("job", "stage", "exchanges", "time", "error", "result"):
        if now.get(name, "") != "":  # an interruption has no error's words
            typer.echo(f"{name:10s} {now[name]}")
    if now["missing"]:
        typer.echo(f"missing    {', '.join(now['missing'])}")
    with suppress(FedmissError):
        if kit and (waits := on_hold(open_kit(folder))):
            typer.echo(waits)


def outbox(
    context: typer.Context,
    kit: _KIT,
    data: _DATA,
    first: int = Option(0, help="First exchange to show."),
    last: int | None = Option(
        None, help="How many of the last exchanges to show.", show_default="all", min=1
    ),
    release: bool = Option(False, "--release", help="Show the message on hold (join --look), and send it."),
) -> None:
    """Show every question and answer, before masks, in words and numbers; or the message on hold."""
    if release:
        refuse_typed(context, ("first", "last"), "--release shows the message on hold only")
    from fedmiss.network.hold import release as let_go
    from fedmiss.network.kits import open_kit

    mine = open_kit(kit)
    if release:
        typer.echo(let_go(mine))
        return
    from fedmiss.network.outbox import outbox as read

    for line in read(mine, data, first=first, last=last):
        typer.echo(line)


def ledger(kit: _KIT) -> None:
    """Show what went, when, and how many bytes."""
    from fedmiss.errors import several
    from fedmiss.network.kits import open_kit
    from fedmiss.network.outbox import ledger_of

    total, lines = ledger_of(open_kit(kit))
    typer.echo("exchange  time                 bytes out   bytes in")
    for number, when, up, down in lines:
        clock = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(when))
        typer.echo(f"{number:8d}  {clock}  {up:10,d} {down:10,d}")
    # as `status` and the page count them: exchange 0 asks nothing
    over = sum(1 for number, _, _, down in lines if number and down)
    typer.echo(
        f"{several(over, 'exchange')} after that of the keys (0): {total.total.bytes_up:,} bytes out, "
        f"{total.total.bytes_down:,} bytes in, in all"
    )


def revise(
    study: _STUDY,
    without: list[str] | None = Option(None, help="Organisation to leave out; repeat for more."),
    added: list[str] | None = Option(None, "--with", help="Organisation to admit; repeat for more."),
    source: Path | None = Option(
        None,
        "--from",
        help="A kit that took part in the present revision: go on from the model and months of its job.",
    ),
    months: tuple[str, str] | None = Option(
        None,
        help="First and last month, as 2004-01 2025-12, of a study that names months.",
        show_default="those of now",
    ),
) -> None:
    """Proposer: make the next revision of a study: other data, one organisation less or more; all must approve it.

    Species, rules and model stay: a study about others is a new one.
    """
    from fedmiss.network.proposer import new_revision
    from fedmiss.network.study import read_study

    before = read_study(study)
    new = new_revision(study, without or [], added or [], source, months)
    if before.absence and not new.absence:
        typer.echo(
            "Now all wait for who is away: other cohorts than before could tell what one organisation has."
        )
    elif before.chair != new.chair:
        typer.echo(f"{new.organisations[0]} says who is there now, in place of {before.chair}.")
    if new.masks and not before.masks:
        typer.echo("Sums are masked now: with two organisations they could not be.")
        if "model" not in new.model and not (new.method or new.community):
            typer.echo(
                "Counts have the negative binomial distribution under masks, since [model] names none."
            )
    if new.before and not any("months" in model for model in new.before["models"]):
        typer.echo(
            "It goes on from the models of that job: its months were not fitted, or would tell who joins what who left had."
        )
    typer.echo(f"study {new.name} is now revision {new.revision}, of {', '.join(new.organisations)}.")
    for name in added or []:
        typer.echo(
            f"Send {study / 'kits' / name} to {name}. When its public key is back: fedmiss federation roster {study} KEY"
        )
    typer.echo(
        f"{'Then send' if added else 'Send'} study.json and roster.json of this folder to each of them; they put both into "
        "their kits, and join again."
    )
    if new.engine != "folder":
        typer.echo("Where the relay runs elsewhere, its folder gets both too, and its folder hub again.")
    typer.echo("What the difference of two revisions tells is said to every custodian before the approval.")


def demo(
    context: typer.Context,
    out: Path = Option(Path("federation-demo"), "--out", "-o", help="Folder of all results."),
    bootstrap: int = Option(200, help="Bootstrap replicates for the intervals."),
    port: int = Option(8102, help="Port of the relay on this computer (engine nvflare)."),
    masks: bool = Option(True, help="Whether sums are masked."),
    engine: str = Option(
        "folder", help="What carries the frames: folder, or nvflare (a relay, with mutual TLS)."
    ),
) -> None:
    """Run a whole study on this computer: three clubs as separate processes, by a shared folder or a relay."""
    if engine == "folder":
        refuse_typed(context, ("port",), "a folder carries the frames; a port is of --engine nvflare")
    from fedmiss.network.demo import run_demo

    run_demo(out, bootstrap=bootstrap, port=port, masks=masks, engine=engine, say=typer.echo)


COMMANDS = (new, enrol, roster, join, run, status, outbox, ledger, revise, demo)
