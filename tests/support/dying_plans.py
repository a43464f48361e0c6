"""A process that is to plan a shard, and that Core ML ends at layers; for heads it has a plan.

It imports nothing, so that it starts in milliseconds. Run as `python -m dying_plans ARTIFACT SHARD`; DYING
says how it ends: a signal's number, `hang` or `fail`.
"""

import json
import os
import sys
import time
from pathlib import Path

if __name__ == "__main__":
    folder, path = sys.argv[1:]
    how = os.environ["DYING"]
    if "layer" in path:
        if how == "hang":
            time.sleep(600)
        if how == "fail":
            sys.exit("the library is not installed")
        sys.stderr.write("libc++abi: terminating due to uncaught exception: " + os.environ["WORDS"])
        sys.stderr.flush()
        os.kill(os.getpid(), int(how))
    shards = json.loads((Path(folder) / "manifest.json").read_text())["head_shards"]
    operations = [{"kind": "conv", "name": "logits", "shapes": [[1, 300, None, 1]], "device": "ane"}]
    functions = [{"name": "main", "rows": 4, "operations": operations}]
    sha256 = next(shard["sha256"] for shard in shards if shard["path"] == path)
    sys.stdout.write(json.dumps({"shard": path, "sha256": sha256, "functions": functions}))
