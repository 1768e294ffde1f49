from fedmiss.pipeline.chain import run_recipe as run_recipe
from fedmiss.pipeline.own import own_report as own_report
from fedmiss.pipeline.recipe import read_recipe as read_recipe
from fedmiss.pipeline.results import SpeciesFit as SpeciesFit
from fedmiss.pipeline.trims import Trims as Trims
from fedmiss.pipeline.trims import run_trims as run_trims
