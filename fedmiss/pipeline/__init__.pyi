from fedmiss.pipeline.chain import run_recipe as run_recipe
from fedmiss.pipeline.own import own_report as own_report
from fedmiss.pipeline.recipe import read_recipe as read_recipe
from fedmiss.pipeline.results import SpeciesFit as SpeciesFit
