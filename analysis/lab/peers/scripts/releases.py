"""Print the versions of the named packages as JSON, without packages that are not installed."""

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
