# The public names of fedmiss, each written once: fedmiss/lazy.py reads this file, and docs/make_commands.py its titles.

from fedmiss.version import __version__ as __version__

# Read
from fedmiss.etl.ingest import ingest as ingest
from fedmiss.etl.settings import IngestSettings as IngestSettings
from fedmiss.etl.panel import make_panel as make_panel
from fedmiss.etl.settings import PanelSettings as PanelSettings
from fedmiss.pipeline.panels import open_panel as open_panel
from fedmiss.pipeline.frames import from_dataframe as from_dataframe

# Fit and impute
from fedmiss.pipeline.fitting import fit_panel as fit_panel
from fedmiss.pipeline.settings import FitSettings as FitSettings
from fedmiss.pipeline.imputing import impute_panel as impute_panel
from fedmiss.pipeline.settings import ImputeSettings as ImputeSettings
from fedmiss.pipeline.results import open_fit as open_fit
from fedmiss.pipeline.imputer import SiteMonthImputer as SiteMonthImputer
from fedmiss.models.lowrank.data import Group as Group
from fedmiss.models.lowrank.data import GroupPanel as GroupPanel
from fedmiss.models.lowrank.settings import CountSettings as CountSettings
from fedmiss.federation.calls import fit_counts as fit_counts
from fedmiss.simulate.panels import simulate_panel as simulate_panel

# Report
from fedmiss.report.build import build_report as build_report
from fedmiss.report.settings import ReportSettings as ReportSettings
from fedmiss.report.trim import fit_trim as fit_trim
from fedmiss.report.trim import TrimSettings as TrimSettings

# Errors
from fedmiss.errors import FedmissError as FedmissError
from fedmiss.errors import ConfigError as ConfigError
from fedmiss.errors import InputError as InputError

# Packages
from fedmiss import community as community
from fedmiss import compressors as compressors
from fedmiss import core as core
from fedmiss import engines as engines
from fedmiss import etl as etl
from fedmiss import federation as federation
from fedmiss import files as files
from fedmiss import models as models
from fedmiss import pipeline as pipeline
from fedmiss import report as report
from fedmiss import simulate as simulate
from fedmiss import tables as tables
