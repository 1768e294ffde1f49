from fedmiss.simulate.ebird import EbirdSettings as EbirdSettings
from fedmiss.simulate.ebird import simulate_ebird as simulate_ebird
from fedmiss.simulate.panel_folder import write_panel as write_panel
