from fedmiss.federation.calls import bootstrap as bootstrap
from fedmiss.federation.calls import cross_validate as cross_validate
from fedmiss.federation.local import LocalFederation as LocalFederation
from fedmiss.federation.results import CountFit as CountFit
