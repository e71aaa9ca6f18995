"""Print the versions of those of the named packages that this interpreter has, as JSON."""

import json
import sys
from importlib import metadata

versions = {}
for name in sys.argv[1:]:
    try:
        versions[name] = metadata.version(name)
    except metadata.PackageNotFoundError:
        continue  # it is not in what is printed
print(json.dumps(versions))
