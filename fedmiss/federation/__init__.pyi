from fedmiss.federation.local import LocalFederation as LocalFederation
from fedmiss.federation.local import bootstrap as bootstrap
from fedmiss.federation.local import cross_validate as cross_validate
from fedmiss.federation.results import CountFit as CountFit
