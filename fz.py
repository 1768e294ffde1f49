import os,sys,random,io,re,shutil,time,csv,json
from pathlib import Path
import importlib
import fedmiss.cli.steps, fedmiss.cli.trim, fedmiss.cli.show, pandas, numpy, duckdb if False else fedmiss.cli.steps
